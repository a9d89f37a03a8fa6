"""The pages that docs/generate.py writes are what the program says today."""

import importlib.util
from types import ModuleType

import pytest

from tests.command_line import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = ("reference/cli.md", "reference/settings.md", "reference/models.md", "operate/messages.md")
SLOW = {"reference/models.md"}


def test_every_generated_page_is_looked_at(generate: ModuleType) -> None:
    assert set(generate.PAGES) == set(PAGES)


@pytest.mark.parametrize(
    "page", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in PAGES]
)
def test_a_generated_page_is_not_stale(generate: ModuleType, page: str) -> None:
    written = (ROOT / "docs" / page).read_text("utf-8")
    assert written == generate.PAGES[page](), "python docs/generate.py writes it again"

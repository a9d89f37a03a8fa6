"""Whatever is written, from the vocabulary to the exported model, has the permissions that the umask leaves: no more,
and no fewer."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import TINY, Maskmill, write_text

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def umask() -> Iterator[int]:
    """Nothing for others, nothing to write for the group."""
    mask = 0o027
    before = os.umask(mask)
    yield mask
    os.umask(before)


def test_files_and_folders_respect_the_umask(
    here: None, umask: int, maskmill: Maskmill, tmp_path: Path
) -> None:
    write_text(tmp_path / "text.txt")
    settings = [
        f"data.sources={tmp_path}/text.txt",
        f"data.vocab={tmp_path}/vocabulary",
        f"data.out={tmp_path}/shards",
        f"run.dir={tmp_path}/run",
        *TINY,
        "run.ranks=1",
        "train.steps=2",
    ]
    for verb in ("vocab", "prepare", "train"):
        maskmill(verb, "demo", *settings)
    maskmill("export", f"{tmp_path}/run")
    written = list(tmp_path.rglob("*"))
    assert {"vocab.txt", "index.json", "checkpoint.json", "report.html", "model.safetensors", "logs"} <= {
        path.name for path in written
    }
    wrong = [
        f"{path}: {mode_of(path):o}, expected {expected_mode(path, umask):o}"
        for path in written
        if mode_of(path) != expected_mode(path, umask)
    ]
    assert wrong == []


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def expected_mode(path: Path, umask: int) -> int:
    return (0o777 if path.is_dir() else 0o666) & ~umask

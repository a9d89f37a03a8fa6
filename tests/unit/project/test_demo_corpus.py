"""The demo corpus: small, many documents, clean, as its README says; and names that stand in it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from data_pipeline.masking.phrases import read_lexicon
from launch.recipe import load_config

CORPUS = Path(__file__).parents[3] / "launch" / "recipes" / "corpus"
TEXT = CORPUS / "factbook.jsonl.zst"


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    packed = io.BytesIO(TEXT.read_bytes())
    stream = zstandard.ZstdDecompressor(max_window_size=2**23).stream_reader(packed)  # no long window
    return [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]


def test_small_and_of_many_documents(documents: list[dict[str, Any]]) -> None:
    assert TEXT.stat().st_size <= 2_000_000
    assert len(documents) >= 1500
    assert len({d["id"] for d in documents}) == len(documents)
    assert all(d.keys() == {"id", "title", "text"} for d in documents)


def test_clean_paragraphs(documents: list[dict[str, Any]]) -> None:
    for d in documents:
        paragraphs = d["text"].split("\n\n")
        assert all(p and p == p.strip() and "\n" not in p and "  " not in p for p in paragraphs), d["id"]
        assert not {c for c in d["text"] if ord(c) < 32} - {"\n"}, d["id"]
        assert not set(d["text"]) & set("{}\\\ufeff\ufffd"), d["id"]
        assert paragraphs[0].endswith(f" of {d['title']}."), "the heading names section and place"


def test_every_demo_reads_it_and_no_other_text() -> None:
    for recipe in ("demo", "mlm_tiny", "ernie_tiny", "causal_tiny"):
        assert [Path(source) for source in load_config(recipe, []).data.sources] == [TEXT]
    assert Path(load_config("ernie_tiny", []).data.lexicon) == CORPUS / "demo_names.txt"
    assert {path.name for path in CORPUS.iterdir()} == {TEXT.name, "demo_names.txt", "README.md"}


def test_the_names_are_in_the_text(documents: list[dict[str, Any]]) -> None:
    text, names = " ".join(d["text"] for d in documents), read_lexicon(str(CORPUS / "demo_names.txt"))
    assert len(set(names)) == len(names)
    assert [name for name in names if text.count(name) < 4 or " " not in name] == []


def test_the_readme_states_the_corpus_as_it_is(documents: list[dict[str, Any]]) -> None:
    readme = (CORPUS / "README.md").read_text()
    paragraphs = [p for d in documents for p in d["text"].split("\n\n")]
    names = read_lexicon(str(CORPUS / "demo_names.txt"))
    facts = [
        f"| documents | {len(documents):,}, each a section of a country",
        f"| places | {len({d['title'] for d in documents})} |",
        f"| paragraphs | {len(paragraphs):,}, {len(set(paragraphs)):,} of them different |",
        f"| words | {sum(len(d['text'].split()) for d in documents):,} |",
        f"`ernie_tiny`: {len(names)} names",
    ]
    assert [fact for fact in facts if fact not in readme] == []

"""The demo corpus: small, many documents, old enough, clean, and as its README says."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

CORPUS = Path(__file__).parents[2] / "launch" / "recipes" / "corpus"


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    packed = io.BytesIO((CORPUS / "demo.jsonl.zst").read_bytes())
    stream = zstandard.ZstdDecompressor(max_window_size=2**23).stream_reader(packed)  # no long window
    return [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]


def test_small_and_of_many_documents(documents: list[dict[str, Any]]) -> None:
    assert (CORPUS / "demo.jsonl.zst").stat().st_size <= 6_000_000
    assert len(documents) >= 1500
    assert len({d["id"] for d in documents}) == len(documents)
    assert all(d.keys() == {"id", "title", "author", "year", "text"} for d in documents)


def test_published_before_1900(documents: list[dict[str, Any]]) -> None:
    assert all(isinstance(d["year"], int) and 1700 <= d["year"] < 1900 for d in documents)


def test_clean_paragraphs_of_prose(documents: list[dict[str, Any]]) -> None:
    for d in documents:
        paragraphs = d["text"].split("\n\n")
        assert all(p and p == p.strip() and "\n" not in p for p in paragraphs), d["id"]
        assert 6000 <= len(d["text"]) <= 12_000
        assert d["text"].isprintable() or set(filter(lambda c: not c.isprintable(), d["text"])) == {"\n"}
        assert not set(d["text"]) & set("[]{}<>|_*#@\\/=^~`\u2014\u2018\u2019\u201c\u201d\ufeff"), d["id"]
        assert "gutenberg" not in d["text"].lower()


def test_the_readme_tells_the_truth(documents: list[dict[str, Any]]) -> None:
    readme = (CORPUS / "README.md").read_text()
    facts = [
        f"| excerpts | {len(documents):,}, each a document |",
        f"| books | {len({d['title'] for d in documents})}, at most 12",
        f"| authors | {len({d['author'] for d in documents})}, at most 48",
        f"| words | {sum(len(d['text'].split()) for d in documents):,} |",
    ]
    assert [fact for fact in facts if fact not in readme] == []

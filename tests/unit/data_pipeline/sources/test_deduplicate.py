"""Exact repetitions: which of them go, that the first stays, and that neither parts, runs nor ranges matter."""

import hashlib
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.prepare import prepare
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.sources import deduplicate, formats
from data_pipeline.sources.cleaning import BLANK_LINES, Counts
from data_pipeline.sources.deduplicate import (
    Repeats,
    find_repeats,
    fingerprint,
    paragraphs,
    ranges,
    without_repeats,
)
from data_pipeline.sources.read import discover, read
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import write_text
from tests.factories.preparations import silent

pytestmark = pytest.mark.usefixtures("worker_here")


def kept(settings: DataSettings, work: Path, count: int = 1) -> tuple[list[tuple[str, str]], Counts]:
    """(id, text) of what is left, and the counts, with hashes compared in `count` ranges."""
    units = discover(settings)
    parts = [str(work / f"part{n}") for n in range(len(units))]
    entries = sum(fingerprint(u, settings, p)["entries"] for u, p in zip(units, parts, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "RANGE_ENTRIES", max(1, -(-entries // count)))
        spans = ranges(entries)
    found = [str(work / f"range{n}") for n in range(len(spans))]
    for span, folder in zip(spans, found, strict=True):
        find_repeats(parts, *span, folder)
    counts = Counts()
    left = []
    for number, unit in enumerate(units):
        repeats = Repeats(number, parts[number], tuple(found))
        for document in without_repeats(read(unit, settings, counts), repeats, counts):
            left.append((document.id, document.text))
    return left, counts


def settings_for(folder: Path, what: str, **options: object) -> DataSettings:
    return DataSettings(sources=[str(folder)], duplicates=what, **options)  # type: ignore[arg-type]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.jsonl").write_text(
        '{"text": "One.\\n\\nTwo."}\n{"text": "Three.\\n \\n One.\\n\\n\\nFour."}\n{"text": "Two.\\n\\nOne."}\n'
    )
    (folder / "b.jsonl").write_text('{"text": "\\nOne.\\n\\nTwo. \\n"}\n{"text": "Five. \\n\\nFour. \\n"}\n')
    return folder


def test_repeated_documents_are_dropped(text: Path, tmp_path: Path) -> None:
    left, counts = kept(settings_for(text, "documents"), tmp_path)
    assert [name for name, _ in left] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3", "b.jsonl:2"]
    assert (counts.documents, counts.repeated_documents, counts.repeated_paragraphs) == (4, 1, 0)
    assert counts.repeated_bytes == len("\nOne.\n\nTwo. \n")
    assert counts.bytes == sum(len(t) for _, t in left)


def test_repeated_paragraphs_are_dropped(text: Path, tmp_path: Path) -> None:
    left, counts = kept(settings_for(text, "paragraphs"), tmp_path)
    assert left == [
        ("a.jsonl:1", "One.\n\nTwo."),
        ("a.jsonl:2", "Three.\n \n Four."),
        ("b.jsonl:2", "Five. \n\n"),
    ]
    assert (counts.documents, counts.repeated_documents) == (3, 2)
    assert counts.repeated_paragraphs == 1 + 2 + 2 + 1
    assert counts.bytes == sum(len(t) for _, t in left)


def test_both_count_a_repeated_document_once(text: Path, tmp_path: Path) -> None:
    both, counts = kept(settings_for(text, "both"), tmp_path / "both")
    paragraphs_only, _ = kept(settings_for(text, "paragraphs"), tmp_path / "paragraphs")
    assert both == paragraphs_only
    assert (counts.repeated_documents, counts.repeated_paragraphs) == (2, 1 + 2 + 1)


def test_an_unknown_value_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.duplicates: unknown 'all' \(expected keep or documents"):
        kept(settings_for(text, "all"), tmp_path)


def test_a_paragraph_does_not_repeat_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "One.\\n\\nTwo."}\n{"text": "One."}\n{"text": "One."}\n')
    left, _ = kept(settings_for(tmp_path / "a.jsonl", "documents"), tmp_path)
    assert [name for name, _ in left] == ["a.jsonl:1", "a.jsonl:2"]


def expected(documents: list[tuple[str, str]], what: str) -> list[tuple[str, str]]:
    """What is left by the rules, found in memory."""
    seen: set[tuple[str, str]] = set()
    left = []
    for name, text in documents:
        pieces = dict(enumerate(paragraphs(text)))
        if what != "paragraphs":
            if ("document", text.strip()) in seen:
                continue
            seen.add(("document", text.strip()))
        if what != "documents":
            for number, piece in list(pieces.items()):
                if piece.strip() and ("paragraph", piece.strip()) in seen:
                    del pieces[number]
                seen.add(("paragraph", piece.strip()))
        if rest := "".join(pieces.values()).strip() and "".join(pieces.values()):
            left.append((name, rest))
    return left


@pytest.mark.parametrize("what", ["documents", "paragraphs", "both"])
@pytest.mark.parametrize("seed", range(3))
def test_parts_runs_and_ranges_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, seed: int
) -> None:
    rng = random.Random(seed)
    words = ["* * *", "one", "two", "three", "four five", "x" * 50]
    for name in "abc":
        texts = ["\n\n".join(rng.choices(words, k=rng.randint(1, 4))) for _ in range(40)]
        lines = [f'{{"text": "{t}"}}\n'.replace("\n\n", "\\n\\n") for t in texts]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    settings = settings_for(tmp_path / "*.jsonl", what)
    whole = [(d.id, d.text) for u in discover(settings) for d in read(u, settings, Counts())]
    left, counts = kept(settings, tmp_path / "one")
    assert left == expected(whole, what)
    assert 0 < len(left) < len(whole)
    assert counts.documents + counts.repeated_documents == len(whole)
    assert counts.bytes + counts.repeated_bytes == sum(len(t) for _, t in whole)
    monkeypatch.setattr(formats, "PART_BYTES", 700)
    monkeypatch.setattr(deduplicate, "RUN_ENTRIES", 7)
    assert len(discover(settings)) > 6
    again, same = kept(settings, tmp_path / "many", count=5)
    assert again == left
    assert same == counts


@pytest.mark.parametrize("entries", [0, 1, deduplicate.RANGE_ENTRIES, 10**7, 10**10])
def test_ranges_cover_every_hash_once(entries: int) -> None:
    spans = ranges(entries)
    assert spans[0][0] == 0
    assert spans[-1][1] == 2**64 - 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))
    assert entries / len(spans) <= deduplicate.RANGE_ENTRIES


def test_both_ends_of_a_range_are_in_it(tmp_path: Path) -> None:
    rows = [(high, 7, number, 0) for number, high in enumerate((4, 5, 6, 9, 10))]
    parts = [tmp_path / "a", tmp_path / "b"]
    for part in parts:
        part.mkdir()
        np.save(part / "000000.first.npy", np.array(rows, deduplicate._ENTRY))
    assert find_repeats([str(part) for part in parts], 5, 9, str(tmp_path / "out")) == {"repeats": 3}
    repeats = np.load(tmp_path / "out" / "repeats.npy")
    assert repeats["part"].tolist() == [1, 1, 1]
    assert repeats["document"].tolist() == [1, 2, 3]


@given(st.lists(st.sampled_from(["a", "\n", "\n\n", " ", " \n", "b c", "\n \n"]), max_size=30))
@budget(deadline=None)
def test_paragraphs_are_all_of_the_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert "".join(paragraphs(text)) == text
    assert [p.strip() for p in paragraphs(text)] == [p.strip() for p in BLANK_LINES.split(text.rstrip())]


def test_prepared_with_any_workers(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write_text(tmp_path / "text" / "a.txt", documents=40, seed=1)
    write_text(tmp_path / "text" / "b.txt", documents=30, seed=1)  # the first thirty of the same
    settings = DataSettings(
        sources=[str(tmp_path / "text")],
        vocab=str(tmp_path / "vocabulary"),
        sequences="segment_pair",
        duplicates="both",
        shard_tokens=1500,
    )
    learn_vocabulary(settings, VocabularySettings(size=300), silent)
    hashes = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        index, _ = prepare(replace(settings, out=str(out), workers=workers), silent)
        assert index.statistics["reading"]["repeated_documents"] >= 30
        assert index.statistics["reading"]["documents"] == 40
        files = [path for path in sorted(out.iterdir()) if path.name != "prepare.log.json"]
        hashes.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert hashes[0] == hashes[1]


def test_no_repeats_leave_the_documents_alone() -> None:
    documents = [Document("a", "one"), Document("b", "one")]
    assert list(without_repeats(documents, None, Counts())) == documents

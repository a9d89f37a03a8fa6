"""A corpus on disk is the corpus in memory; merging parts is sorting all of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.records import Corpus
from data_pipeline.stages import corpus as corpora
from data_pipeline.stages import corpus as merging
from data_pipeline.stages.corpus import document_tokens, locate, merge, open_corpus, outline, save_sorted


def documents(corpus: Corpus) -> dict[int, list[list[int]]]:
    """key -> sentences of ids, in the corpus's order."""
    result = {}
    for d in range(len(corpus)):
        sentences = range(corpus.document_starts[d], corpus.document_starts[d + 1])
        result[int(corpus.keys[d])] = [
            corpus.tokens[corpus.sentence_starts[s] : corpus.sentence_starts[s + 1]].tolist()
            for s in sentences
        ]
    return result


def build(texts: dict[int, list[list[int]]]) -> Corpus:
    sentences = [sentence for document in texts.values() for sentence in document]
    return Corpus(
        tokens=np.array([t for s in sentences for t in s], np.uint16),
        sentence_starts=np.cumsum([0] + [len(s) for s in sentences]),
        document_starts=np.cumsum([0] + [len(d) for d in texts.values()]),
        keys=np.array(list(texts), np.uint64),
        sources=np.array(list(texts), np.uint64).astype(np.uint16) % 7,
    )


def some_texts(count: int, seed: int) -> dict[int, list[list[int]]]:
    rng = np.random.default_rng(seed)
    return {
        int(rng.integers(2**63)): [
            rng.integers(1, 60_000, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 5))
        ]
        for _ in range(count)
    }


def sorted_corpus(corpus: Corpus, folder: Path) -> Corpus:
    folder.mkdir()
    save_sorted(corpus, folder)
    return open_corpus(folder)


def test_a_saved_corpus_opens_equal(tmp_path: Path) -> None:
    texts = some_texts(20, 0)
    save_sorted(build(texts), tmp_path)
    assert documents(open_corpus(tmp_path)) == texts
    in_order = [sum(map(len, texts[key])) for key in sorted(texts)]
    assert document_tokens(open_corpus(tmp_path)).tolist() == in_order


def test_an_empty_part_is_saved_too(tmp_path: Path) -> None:
    save_sorted(build({}), tmp_path)
    assert len(open_corpus(tmp_path)) == 0


@pytest.mark.parametrize("block", [3, 40, 1 << 20])
def test_sorting_moves_whole_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(corpora, "BLOCK_TOKENS", block)
    texts = some_texts(50, 1)
    corpus = build(texts)
    corpus.tokens.tofile(tmp_path / "spool")
    (tmp_path / "sorted").mkdir()
    mapped = replace(corpus, tokens=np.memmap(tmp_path / "spool", np.uint16, "r"))
    for tokens in (corpus, mapped):
        save_sorted(tokens, tmp_path / "sorted")
        found = documents(open_corpus(tmp_path / "sorted"))
        assert found == texts
        assert list(found) == sorted(texts)


@pytest.mark.parametrize(
    ("chunk", "gap", "threads"), [(1 << 25, 1 << 14, 1), (40, 0, 1), (200, 30, 1), (40, 0, 3)]
)
def test_merging_chosen_documents_is_sorting_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, gap: int, threads: int
) -> None:
    monkeypatch.setattr(merging, "CHUNK_TOKENS", chunk)
    monkeypatch.setattr(merging, "MAX_GAP_TOKENS", gap)
    folders = [tmp_path / str(number) for number in range(3)]
    parts = [
        sorted_corpus(build(some_texts(n, n)), folder) for n, folder in zip((7, 0, 30), folders, strict=True)
    ]
    chosen = [np.arange(len(p))[::2] for p in parts]
    found = [
        locate(number, part, some) for number, (part, some) in enumerate(zip(parts, chosen, strict=True))
    ]
    (tmp_path / "merged").mkdir()
    merge(folders, found, tmp_path / "merged", threads)
    expected = {
        int(p.keys[d]): documents(p)[int(p.keys[d])] for p, c in zip(parts, chosen, strict=True) for d in c
    }
    merged = open_corpus(tmp_path / "merged")
    assert documents(merged) == expected
    assert list(documents(merged)) == sorted(expected)
    assert merged.sources.tolist() == [key % 2**16 % 7 for key in sorted(expected)]
    assert document_tokens(outline(tmp_path / "merged")).tolist() == document_tokens(merged).tolist()

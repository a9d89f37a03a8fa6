"""Donors read from files are the donors of the map, and take no memory."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.records import Corpus
from data_pipeline.sequences import base
from data_pipeline.sequences.registry import SEQUENCES, builder_of
from data_pipeline.settings import DataSettings
from data_pipeline.stages.corpus import open_corpus, save_sorted
from data_pipeline.vocabulary.files import load_vocabulary
from tests.command_line import ROOT, VOCABULARY
from tests.factories.pairs import all_segments


def corpus_of(documents: int, sentences: int, longest: int, dtype: str = "uint16") -> Corpus:
    """Random tokens; sentences of 1 to `longest`."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, longest + 1, documents * sentences)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Corpus(
        tokens=rng.integers(1000, 30000, starts[-1]).astype(dtype),
        sentence_starts=starts,
        document_starts=np.arange(documents + 1) * sentences,
        keys=np.sort(rng.integers(1, 2**63, documents).astype(np.uint64)),
        sources=np.zeros(documents, np.uint16),
    )


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("sequences", sorted(SEQUENCES))
def test_what_is_read_is_what_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequences: str, dtype: str
) -> None:
    corpus = corpus_of(
        documents=30, sentences=200, longest=3, dtype=dtype
    )  # segments of more sentences than AHEAD
    save_sorted(corpus, tmp_path)
    settings = DataSettings(sources=["x"], sequences=sequences, sequence_length=400)
    recipe = builder_of(settings, load_vocabulary(str(VOCABULARY)))
    expected = all_segments(recipe, corpus, 0, 30, 1, 2)
    monkeypatch.setattr(base, "MAPPED_BYTES", 0)
    monkeypatch.setattr(base, "BUFFER_TOKENS", 1 << 14)
    mapped = open_corpus(tmp_path)
    assert base.is_large(mapped)
    assert not base.is_large(corpus)
    found = all_segments(recipe, mapped, 0, 30, 1, 2)
    for field in dataclasses.fields(expected):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name


@pytest.mark.slow
def test_a_large_partition_takes_little_memory(tmp_path: Path) -> None:
    """In a process of its own, so that nothing else counts: as much as the whole corpus would be too much."""
    save_sorted(corpus_of(documents=400, sentences=4000, longest=120), tmp_path)
    assert (tmp_path / "tokens.npy").stat().st_size > 180 << 20
    code = (
        "import sys, re; from pathlib import Path\n"
        "from data_pipeline.sequences import base as donors\n"
        "from data_pipeline.stages.corpus import open_corpus\n"
        "from data_pipeline.sequences.registry import builder_of\n"
        "from data_pipeline.vocabulary.files import load_vocabulary\n"
        "from data_pipeline.settings import DataSettings\n"
        "donors.MAPPED_BYTES = 0\n"
        "recipe = builder_of(DataSettings(sources=['x'], sequences='segment_pair'),"
        " load_vocabulary(sys.argv[2]))\n"
        "status = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) >> 10\n"
        "corpus = open_corpus(Path(sys.argv[1]))\n"
        "for _ in recipe.pieces(corpus, 0, 1, 1, 1): pass\n"
        "before = status()\n"
        "pairs = sum(len(piece) for piece in recipe.pieces(corpus, 0, 12, 1, 1))\n"
        "print(pairs, status() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(VOCABULARY)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    pairs, grown = map(int, result.stdout.split())
    assert pairs > 20_000
    assert grown < 80, f"{grown} MB more for {pairs} pairs"

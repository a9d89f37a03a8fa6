"""Which documents a vocabulary is learnt from: spread, smoothed, bounded, the same wherever they lie."""

import gzip
import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.sources import read
from data_pipeline.sources.listing import smoothed
from data_pipeline.vocabulary import train as learning
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary, sample
from tests.command_line import write_text
from tests.factories.vocabularies import TEXT


def write(path: Path, documents: int, size: int = 100) -> str:
    """A .jsonl of documents of `size` bytes each."""
    with path.open("w") as file:
        for i in range(documents):
            text = f"{path.stem} {i} ".ljust(size, "x")
            file.write(json.dumps({"text": text}) + "\n")
    return str(path)


def drawn(settings: DataSettings, size: int) -> list[str]:
    return [document.id for document in sample(settings, size)]


def test_all_text_is_taken_once_where_it_fits(tmp_path: Path) -> None:
    settings = DataSettings(sources=[write(tmp_path / "a.jsonl", 50), write(tmp_path / "b.jsonl", 3)])
    assert drawn(settings, 10**6) == [f"a.jsonl:{i + 1}" for i in range(50)] + [
        f"b.jsonl:{i + 1}" for i in range(3)
    ]


def test_a_smaller_sample_is_spread_over_the_source(tmp_path: Path) -> None:
    settings = DataSettings(sources=[write(tmp_path / "a.jsonl", 1000)])
    found = drawn(settings, 20_000)
    assert len(found) == len(set(found)) == 200
    numbers = [int(name.split(":")[1]) for name in found]
    assert numbers == sorted(numbers)
    assert all(20 < sum(a < n <= a + 200 for n in numbers) < 60 for a in range(0, 1000, 200))
    (tmp_path / "moved").mkdir()
    moved = DataSettings(sources=[write(tmp_path / "moved" / "a.jsonl", 1000)])
    assert drawn(moved, 20_000) == found
    assert drawn(DataSettings(sources=settings.sources, seed=1), 20_000) != found
    assert set(drawn(settings, 10_000)) < set(found)


@pytest.mark.parametrize("smoothing", [1.0, 0.7, 0.0])
def test_languages_get_their_smoothed_shares(tmp_path: Path, smoothing: float) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", n) for name, n in (("en", 600), ("en2", 200), ("fi", 80))]
    settings = DataSettings(sources=paths, languages=["en", "en", "fi"], smoothing=smoothing)
    for size, fits in ((30_000, False), (10**6, True)):
        found = Counter(name.split(".")[0] for name in drawn(settings, size))
        share = smoothed([800, 80], smoothing)
        total = found.total()
        assert found["fi"] / total == pytest.approx(share[1], abs=3 / total)
        assert found["en2"] * 3 == pytest.approx(found["en"], abs=6)
        if fits:  # every text at least once, the rest as often as their shares ask for
            assert found["en"] == 600
            assert found["fi"] == pytest.approx(800 * share[1] / share[0], abs=1)
        else:
            assert total == pytest.approx(300, abs=3)


def test_weights_count_as_passes(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", 100) for name in "ab"]
    settings = DataSettings(sources=paths, weights=[1.0, 2.5])
    found = Counter(drawn(settings, 10**6))
    assert sum(n for name, n in found.items() if name.startswith("a")) == 100
    assert sorted(n for name, n in found.items() if name.startswith("b")) == [2] * 50 + [3] * 50


def test_bytes_count_not_characters(tmp_path: Path) -> None:
    (tmp_path / "zh.jsonl").write_text("".join(json.dumps({"text": "字" * 100}) + "\n" for _ in range(50)))
    assert len(drawn(DataSettings(sources=[str(tmp_path / "zh.jsonl")]), 6000)) == 20


def test_of_huge_sources_only_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "READ_FACTOR", 4)
    monkeypatch.setattr(read, "PART_BYTES", 1000)
    plain = DataSettings(sources=[write(tmp_path / "a.jsonl", 1000), write(tmp_path / "b.jsonl", 1000)])
    asked: list[int] = []
    found = [d.id for d in sample(plain, 5000, asked.append)]
    assert 150 < len(asked) < 260  # 20,000 of 220,000 bytes, each document counted once
    assert 45 <= len(found) <= 55
    assert Counter(name[0] for name in found)["a"] in range(23, 28)


def test_shares_are_those_of_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "READ_FACTOR", 4)
    monkeypatch.setattr(read, "PART_BYTES", 5000)
    paths = [write(tmp_path / "a.jsonl", 1000), write(tmp_path / "b.jsonl", 40)]  # a fifth is read, and all
    found = Counter(name[0] for name in drawn(DataSettings(sources=paths), 5000))
    assert found["b"] == pytest.approx(found.total() * 40 / 1040, abs=1)


def test_of_compressed_files_only_some_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "READ_FACTOR", 1)
    monkeypatch.setattr(read, "STRIPE_BYTES", 500)
    raw = Path(write(tmp_path / "a.jsonl", 1000)).read_bytes()
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(raw))
    size = -(-packed.stat().st_size // 4)
    asked: list[int] = []
    found = [d.id for d in sample(DataSettings(sources=[str(packed)]), size, asked.append)]
    assert len(asked) == 250
    numbers = [int(name.split(":")[1]) for name in found]
    assert len({n % 4 for n in numbers}) == 1
    assert len(found) == pytest.approx(size / 100, abs=1)


def test_a_document_beyond_the_sample_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 1_000_000)
    (found,) = sample(DataSettings(sources=[str(tmp_path / "a.txt")], documents="file"), 100_000)
    assert 100_000 <= len(found.text) < 5_000_000


def learnt(data: DataSettings, warned: list[str] | None = None, **settings: Any) -> tuple[Vocabulary, bool]:
    return learn_vocabulary(
        data,
        VocabularySettings(**settings),
        lambda name, total: nullcontext(lambda n: None),
        (warned if warned is not None else []).append,
    )


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_vocabulary_is_learnt_and_written(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    data = DataSettings(sources=[str(tmp_path / "a.txt")], vocab=str(tmp_path / "v"))
    found, fresh = learnt(data, size=400, kind=kind)
    assert fresh
    assert load_vocabulary(data.vocab).sha256 == found.sha256
    again, fresh = learnt(data, size=400, kind=kind)
    assert (again.sha256, fresh) == (found.sha256, False), "the same command finds it done"


def test_another_vocabulary_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    data = DataSettings(sources=[str(tmp_path / "a.txt")], vocab=str(tmp_path / "v"))
    learnt(data, size=400)
    before = {path: path.read_bytes() for path in (tmp_path / "v").iterdir()}
    with pytest.raises(UserError, match=r"vocabulary\.size=300 \(there: 400\).*choose another data\.vocab"):
        learnt(data, size=300)
    (tmp_path / "a.txt").write_text(TEXT + " And more.")
    with pytest.raises(UserError, match="its sources had other names"):
        learnt(data, size=400)
    assert {path: path.read_bytes() for path in (tmp_path / "v").iterdir()} == before
    (tmp_path / "v/vocabulary.log.json").write_text("[")
    with pytest.raises(UserError, match="not trained into it"):
        learnt(data, size=400)
    given = replace(data, vocab=str(tmp_path / "given"))
    (tmp_path / "given").mkdir()
    (tmp_path / "given/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(UserError, match="not trained into it"):
        learnt(given, size=400)
    with pytest.raises(UserError, match="is no folder"):
        learnt(replace(data, vocab=str(tmp_path / "a.txt")), size=400)


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [("wordpiece", 30, 400), ("bpe", 264, 600), ("unigram", 20, 400)],
)
def test_a_size_that_leaves_single_characters_is_warned_of(
    kind: str, small: int, large: int, tmp_path: Path
) -> None:
    write_text(tmp_path / "a.txt", 100)
    data = DataSettings(sources=[str(tmp_path / "a.txt")], vocab=str(tmp_path / "v"))
    warned: list[str] = []
    learnt(data, warned, size=large, kind=kind)
    assert not warned
    learnt(replace(data, vocab=str(tmp_path / "w")), warned, size=small, kind=kind)
    assert len(warned) == 1
    assert f"vocabulary.size={small} leaves little but single characters" in warned[0]


def test_characters_that_are_words_are_not_held_against_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "zh.txt").write_text("这是一本书。我们读它。\n" * 50)
    data = DataSettings(sources=[str(tmp_path / "zh.txt")], vocab=str(tmp_path / "v"), languages=["zh"])
    warned: list[str] = []
    learnt(data, warned, size=400)
    assert not warned

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
from data_pipeline.sources import formats
from data_pipeline.sources.listing import smoothed
from data_pipeline.vocabulary import train as learning
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary, sample
from pretrain.run.learning import PAIRS, PLATEAU, RISEN, Finding, Losses, findings, with_majority
from pretrain.run.metrics import leading, leads_alone, metric, perplexity, score_of, secondary, sum_of
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
    monkeypatch.setattr(formats, "PART_BYTES", 1000)
    plain = DataSettings(sources=[write(tmp_path / "a.jsonl", 1000), write(tmp_path / "b.jsonl", 1000)])
    asked: list[int] = []
    found = [d.id for d in sample(plain, 5000, asked.append)]
    assert 150 < len(asked) < 260  # 20,000 of 220,000 bytes, each document counted once
    assert 45 <= len(found) <= 55
    assert Counter(name[0] for name in found)["a"] in range(23, 28)


def test_shares_are_those_of_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "READ_FACTOR", 4)
    monkeypatch.setattr(formats, "PART_BYTES", 5000)
    paths = [write(tmp_path / "a.jsonl", 1000), write(tmp_path / "b.jsonl", 40)]  # a fifth is read, and all
    found = Counter(name[0] for name in drawn(DataSettings(sources=paths), 5000))
    assert found["b"] == pytest.approx(found.total() * 40 / 1040, abs=1)


def test_of_compressed_files_only_some_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "READ_FACTOR", 1)
    monkeypatch.setattr(formats, "STRIPE_BYTES", 500)
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


# What is said of a run's learning: never more than its figures show, and nothing where all is well.


DEMO = {
    "held_out_mask_loss": 3.0, "held_out_mask_unigram_loss": 5.88, "held_out_mask_accuracy": 0.47,
    "held_out_mask_majority": 0.051, "held_out_mask_top_share": 0.06, "held_out_mask_top_token": ",",
    "held_out_mlm_loss": 2.8, "held_out_kept_loss": 0.81, "held_out_kept_accuracy": 0.9,
    "held_out_random_loss": 7.18, "held_out_random_accuracy": 0.03, "held_out_loss": 3.1,
    "held_out_nsp_loss": 0.3, "held_out_nsp_accuracy": 0.92, "held_out_nsp_majority": 0.576,
}  # fmt: skip
"""Figures of a run that has learnt something."""
COPIER = {
    **DEMO, "held_out_mask_loss": 6.485, "held_out_mask_unigram_loss": 6.43, "held_out_mask_top_share": 0.97,
    "held_out_mlm_loss": 5.97,
}  # fmt: skip
"""Figures of a run that has learnt to copy what it sees."""


def kinds(figures: dict[str, Any], ends: tuple[float, float] | None = None) -> list[str]:
    return [finding.kind for finding in findings(figures, ends)]


def test_a_run_that_learns_is_left_alone() -> None:
    assert findings(DEMO, (9.7, 3.1)) == []
    assert findings({}) == []
    assert findings({"held_out_mlm_loss": 5.0, "unigram_entropy": 6.0}) == [], "an older run"


def test_a_copier_has_learnt_no_context_whatever_its_loss_over_all_tokens() -> None:
    (found,) = findings(COPIER)
    assert found.kind == PLATEAU
    for words in ("No context has been learnt yet", "6.485", "6.430", '","', "97%"):
        assert words in found.what, words
    for setting in ("data.sequence_length", "more steps", "optim.lr"):
        assert setting in str(found), setting


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"held_out_mask_loss": 5.88}, [PLATEAU]),
        ({"held_out_mask_loss": 5.87}, []),
        ({"held_out_mask_loss": None, "held_out_mask_top_share": 0.51}, [PLATEAU]),
        ({"held_out_mask_top_share": 0.5}, []),
        ({"held_out_mask_top_share": 0.6, "held_out_mask_top_token": None}, [PLATEAU]),
        ({"held_out_nsp_accuracy": 0.58}, [PAIRS]),  # within a point, where the number of pairs is not known
        ({"held_out_nsp_accuracy": 0.59}, []),
        (
            {"held_out_nsp_accuracy": 0.60, "held_out_pairs": 1000},
            [PAIRS],
        ),  # two standard errors are 3.1 points
        ({"held_out_nsp_accuracy": 0.61, "held_out_pairs": 1000}, []),
        ({"held_out_nsp_accuracy": 0.579, "held_out_pairs": 10**6}, []),
        ({"held_out_nsp_majority": None, "held_out_nsp_accuracy": 0.1}, []),
        ({"held_out_mask_loss": float("nan"), "held_out_mask_top_share": "x"}, []),
    ],
)
def test_each_finding_has_its_border(change: dict[str, Any], found: list[str]) -> None:
    assert kinds({**DEMO, **change}) == found


def test_a_loss_that_rose_is_told() -> None:
    assert kinds(DEMO, (9.7, 12.3)) == [RISEN]
    assert kinds(DEMO, (9.7, 9.75)) == [], "noise"
    (found,) = findings({}, (9.7, 12.3))
    assert "12.300, and 9.700 at the beginning" in found.what
    assert "optim.lr" in found.hint


def losses(*lines: dict[str, Any]) -> tuple[float, float] | None:
    seen = Losses()
    for line in lines:
        seen.add(line)
    return seen.ends


def test_the_ends_of_a_run() -> None:
    train = [
        {"kind": "train", "step": i, "loss": loss}
        for i, loss in enumerate((9.0, 30.0, 8.0, 7.0, 6.0, 6.5, 50.0))
    ]
    assert losses() is None
    assert losses(train[0]) is None, "one line has no other end"
    assert losses(*train) == (9.0, 7.0), "the median of the newest lines: one wild batch is no end"
    at_start = {"kind": "eval", "step": 0, "held_out_loss": 9.5}
    assert losses(at_start, *train) == (9.0, 7.0)
    assert losses(at_start, *train, {"kind": "eval", "step": 7, "held_out_loss": 12.0}) == (9.5, 12.0)
    assert losses({"kind": "trust", "step": 1}, {"step": 1, "loss": None}, {"step": 2, "loss": "x"}) is None


def test_figures_stand_beside_their_baselines() -> None:
    assert [str(score) for score in leading(DEMO)] == [
        "loss 3.000 (unigram 5.880)", "accuracy 47.0% (most frequent token 5.1%)", "perplexity 20.1 (unigram 358)",
        "NSP accuracy 92.0% (commoner label 57.6%)",
    ]  # fmt: skip
    trained = {"mask_loss": 3.0, "mask_accuracy": 0.4, "kept_loss": 0.8, "mlm_loss": 3.2, "loss": 3.2}
    assert [str(score) for score in leading(trained, prefix="")] == [
        "loss 3.000",
        "accuracy 40.0%",
        "perplexity 20.1",
    ]
    assert leading({}) == []
    assert [str(score) for score in leading({"held_out_disc_accuracy": 0.9}, headline="disc_accuracy")] == [
        "disc accuracy 90.0%"
    ]


def test_a_baseline_is_compared_in_a_sentence() -> None:
    keys = ("mask_loss", "mask_perplexity", "mask_accuracy", "nsp_accuracy", "kept_loss")
    assert {key: score.sentence for key in keys if (score := score_of(key, DEMO))} == {
        "mask_loss": "2.88 nats below what word frequencies alone give (5.880).",
        "mask_perplexity": "Word frequencies alone give 358.",
        "mask_accuracy": "Always the most frequent token would get 5.1%.",
        "nsp_accuracy": "Always the commoner label would get 57.6%.",
        "kept_loss": "",
    }


def test_an_area_under_the_curve_leads_beside_that_of_a_guess() -> None:
    found = {"rtd_auc": 0.71, "rtd_loss": 0.4, "rtd_accuracy": 0.86, "rtd_majority": 0.85, "mask_loss": 5.0}
    held_out = {f"held_out_{name}": value for name, value in found.items()}
    assert [str(score) for score in leading(held_out, headline="rtd_auc")] == [
        "RTD AUC 0.710 (a guess 0.500)",
        "RTD loss 0.400",
        "RTD accuracy 86.0% (commonest answer 85.0%)",
    ]
    assert str(leading(found, prefix="", headline="rtd_auc")[0]) == "RTD AUC 0.710"
    assert [leads_alone(name) for name in ("rtd_auc", "rtd_accuracy", "mask_loss", "own")] == [
        True,
        False,
        False,
        True,
    ]
    guess = metric("held_out_rtd_auc").baseline
    assert guess is not None
    assert (guess.sentence.format(0.5), metric("rtd_loss").baseline) == ("A guess has 0.5.", None)


def test_what_copies_is_apart_and_what_adds_up_is_named() -> None:
    assert secondary(DEMO) == [
        ("positions that keep their word", "loss 0.810, accuracy 90.0%"),
        ("positions that show a random word", "loss 7.180, accuracy 3.0%"),
        ("all predicted positions, visible words included", "loss 2.800"),
        ("loss that is minimised, MLM + NSP", "3.100"),
    ]
    assert sum_of({"held_out_mlm_loss": 1, "held_out_mask_loss": 1, "loss": 1}) == "MLM"
    assert sum_of({"mlm_loss": 1, "sop_loss": 1, "nsp_loss_is_next": 1}) == "MLM + SOP"
    assert sum_of({"loss": 1}) == "total"
    assert [perplexity(x) for x in (1.0, 6.0, 20.0, 1e9)] == ["2.7", "403", "4.9e+08", "5.2e+21"]


def test_the_majority_of_an_older_run_is_counted() -> None:
    counts = {"pair_labels": {"is_next": 424, "not_next": 576}}
    assert with_majority({}, counts) == {"held_out_nsp_majority": 0.576}
    assert with_majority({"held_out_nsp_majority": 0.6}, counts) == {"held_out_nsp_majority": 0.6}
    for odd in (None, 7, {}, {"pair_labels": {"is_next": "many"}}, {"pair_labels": 3}):
        assert with_majority({}, odd) == {}


def test_a_finding_reads_as_two_sentences() -> None:
    assert str(Finding(PLATEAU, "What.", "Remedy.")) == "What. Remedy."

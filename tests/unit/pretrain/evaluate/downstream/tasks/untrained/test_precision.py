"""On a GPU, what is fine-tuned is computed in bf16 and what is scored as it is in fp32, unless asked otherwise; results
say which. The GPU is pretended: its decisions are taken, and computed on the CPU."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.evaluate.evaluate import Evaluation
from pretrain.evaluate.probe import ProbeTask
from pretrain.tasks import encoders
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.likelihood import score_sentences
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.shards import random_examples, write_folder
from tests.factories.tasks import FILES, write, write_pairs
from tests.factories.vocabularies import trained


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The precisions of forward passes so far."""
    found: set[str] = set()
    autocast = torch.autocast

    def spied(device_type: str, dtype: torch.dtype | None = None, *, enabled: bool = True) -> Any:
        found.add("bf16" if enabled else "fp32")
        return autocast(device_type, dtype, enabled=enabled)

    monkeypatch.setattr(encoders, "_is_gpu", lambda where: True)
    monkeypatch.setattr(torch, "autocast", spied)
    return found


def files(task: str, folder: Path) -> Path:
    if task == "blimp":
        return write_pairs(folder, 4)
    if task in FILES:
        return write(folder, FILES[task])
    vocabulary = trained("wordpiece")
    aside = random_examples(20, 3, size=vocabulary.size, labels=(0, 1))
    aside.tokens[
        aside.offsets[:-1].repeat(aside.masked_offsets[1:] - aside.masked_offsets[:-1])
        + aside.masked_positions
    ] = vocabulary.mask
    write_folder(folder, [aside], [aside], vocabulary=vocabulary, sequences="segment_pair")
    return folder


@pytest.mark.parametrize(
    ("task", "asked", "expected"),
    [
        ("blimp", "auto", "fp32"),
        ("blimp", "bf16", "bf16"),
        ("held_out", "auto", "fp32"),
        ("held_out", "bf16", "bf16"),
        ("rte", "auto", "bf16"),
        ("rte", "fp32", "fp32"),
        ("attention", "bf16", "fp32"),  # these two have no other one
        ("pairs", "bf16", "fp32"),
    ],
)
def test_a_result_states_the_precision_that_was_used(
    task: str, asked: str, expected: str, used: set[str], tmp_path: Path
) -> None:
    changes = {"precision": asked, **({"epochs": 1.0, "max_length": 32} if task == "rte" else {})}
    where = files(task, tmp_path / "task")
    encoder = Encoder(encoder_folder("bert"))
    one = Evaluation(
        task, encoder, where, tmp_path / "out", settings_for(task, changes), [1], has_floor=False
    )
    [conditions] = one.run(lambda name, total: nullcontext(lambda n: None))["conditions"]
    assert conditions["precision"] == expected
    assert used == (set() if task in ("attention", "pairs") else {expected})


def test_the_probe_reads_pairs_in_the_same_precision_as_an_evaluation(used: set[str], tmp_path: Path) -> None:
    ProbeTask.read("blimp", write_pairs(tmp_path / "blimp", 20)).score(Encoder(encoder_folder("bert")))
    assert used == {"fp32"}


def test_likelihoods_are_those_of_fp32(used: set[str]) -> None:
    def found(precision: str) -> list[float]:
        settings = EvaluationSettings(precision=precision)
        sentences = ["the quick fox jumped over it", "dogs slept"]
        scores = score_sentences(Encoder(encoder_folder("bert")), sentences, settings, 1, lambda n: None)
        return scores.log_likelihoods.tolist()

    assert found("auto") == found("fp32") != found("bf16")

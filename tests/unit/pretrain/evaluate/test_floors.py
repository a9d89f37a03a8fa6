"""An encoder that is not pretrained scores as one, on files of the tasks' official shapes: on texts that say nothing of
their labels it is at chance, as the published ones nearly are; on texts that do, the same training finds it.

BERT-base without pretraining: CoLA 0.0, RTE 47.3, MRPC 77.9 (Geiping and Goldstein 2022, Table 4). The same on the real
files: tests/data/test_published_files.py."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from pretrain.evaluate.evaluate import Evaluation
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

pytestmark = pytest.mark.slow

WORDS = ["the", "quick", "fox", "slept", "over", "some", "dogs", "that", "jumped"]
ROWS = {
    "cola": ("gj04\t{label}\t\t{first} {second}", ("0", "1"), 0.7),
    "rte": ("{number}\t{first}\t{second}\t{label}", ("not_entailment", "entailment"), 0.5),
    "mrpc": ("{label}\t{number}\t{number}\t{first}\t{second}", ("0", "1"), 0.68),
}
"""A row of each file, its labels, and the share of the second one, as in the published dev files."""
TRAIN, DEV = 300, 500


def rows(task: str, count: int, draw: np.random.Generator, tells: bool) -> Iterator[str]:
    shape, labels, share = ROWS[task]
    for number in range(count):
        label = int(draw.random() < share)
        first, second = (" ".join(draw.choice(WORDS[:8], 5)) for _ in range(2))
        if tells and label:
            first = f"jumped {first}"
        yield shape.format(number=number, label=labels[label], first=first, second=second)


def folder_of(task: str, tmp_path: Path, tells: bool) -> Path:
    draw, files = np.random.default_rng(1), FILES[task]
    head = [] if task == "cola" else files["train.tsv"][:1]
    counts = {"train.tsv": TRAIN, "dev.tsv": DEV}
    return write(
        tmp_path / "task", {name: [*head, *rows(task, n, draw, tells)] for name, n in counts.items()}
    )


def score(task: str, folder: Path) -> dict[str, float]:
    settings = settings_for(task, {"lr": 3e-3, "batch": 16, "epochs": 5.0, "max_length": 32, "threads": 1})
    encoder = Encoder(encoder_folder("bert"))
    one = Evaluation(task, encoder, folder, folder.parent / "out", settings, [1], True)
    note = one.run(lambda name, total: nullcontext(lambda n: None))
    return {metric: values["median"] for metric, values in note["not_pretrained"]["dev"].items()}


@pytest.mark.parametrize(
    ("task", "metric", "low", "high"),
    # three standard errors of 500 examples around chance; for F1 that of a predictor of mostly the commoner label
    [("cola", "matthews", -13.5, 13.5), ("rte", "accuracy", 43, 57), ("mrpc", "f1", 70, 84)],
)
def test_what_the_texts_do_not_say_is_not_scored(
    task: str, metric: str, low: float, high: float, tmp_path: Path
) -> None:
    assert low <= score(task, folder_of(task, tmp_path, tells=False))[metric] <= high


@pytest.mark.parametrize(("task", "metric"), [("cola", "matthews"), ("rte", "accuracy"), ("mrpc", "f1")])
def test_what_they_say_is(task: str, metric: str, tmp_path: Path) -> None:
    assert score(task, folder_of(task, tmp_path, tells=True))[metric] > 95

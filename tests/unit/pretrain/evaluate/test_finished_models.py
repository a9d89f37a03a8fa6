"""Models that were fine-tuned before: scored as their own pipeline answers, whatever the order of their classes."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation
from pretrain.evaluate.fine_tune import FineTuner
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.inputs import collate
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

TEXTS = [
    ("the fox jumped", "it slept"),
    ("dogs", "some others jumped over it"),
    ("a man", "no man"),
    ("the", "a"),
]
ORDER = ["entailment", "neutral", "contradiction"]


@pytest.fixture
def task_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a classifier with these names of its classes."""

    def write_model(names: list[str] | None, count: int = 3, problem_type: str | None = None) -> Path:
        torch.manual_seed(1)
        fields: dict[str, Any] = {"num_labels": count, "initializer_range": 1.0}
        if names:
            fields = {"id2label": dict(enumerate(names)), "initializer_range": 1.0}
        source = encoder_folder("bert")
        fields["problem_type"] = problem_type
        model = transformers.BertForSequenceClassification.from_pretrained(source, **fields)
        model.classifier.weight.data.normal_()
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        tokenizer.save_pretrained(tmp_path / "model")
        with torch.no_grad():  # centred, so that the answers differ
            batch = tokenizer([a for a, _ in TEXTS], [b for _, b in TEXTS], padding=True, return_tensors="pt")
            model.classifier.bias.data -= model.eval()(**batch).logits.mean(0)
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return write_model


def answers(folder: Path, data: TaskData) -> tuple[list[str], TaskData]:
    """The classes that we find in TEXTS."""
    task, settings = FINE_TUNED["ax"], settings_for("ax", {"threads": 1})
    encoder = Encoder(folder)
    model, found = task.finished_model(encoder, data, EvaluationSettings())
    builder = encoder.builder(64)
    item = data.scored[0].items[0]
    features = task.features([item._replace(first=a, second=b) for a, b in TEXTS], builder, found)
    tuner = FineTuner(task, model, builder, settings, 1, torch.device("cpu"))
    rows = np.stack(tuner.answers(features, lambda n: None))
    return [found.labels[i] for i in rows.argmax(-1)], found


@pytest.mark.parametrize("names", [ORDER, [name.upper() for name in ORDER]])
def test_classes_are_those_of_the_models_own_pipeline(
    names: list[str], task_model: Callable[..., Path], tmp_path: Path
) -> None:
    data = FINE_TUNED["ax"].read(write(tmp_path / "AX", FILES["ax"]), settings_for("ax", {}))
    folder = task_model(names)
    found, data = answers(folder, data)
    assert data.labels == tuple(ORDER)
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    expected = [one["label"] for one in classify([{"text": a, "text_pair": b} for a, b in TEXTS])]
    assert found == [name.lower() for name in expected]
    assert len(set(found)) > 1


def test_f1_is_of_duplicates_whatever_their_id(task_model: Callable[..., Path], tmp_path: Path) -> None:
    """A finished model may have the label 1 as its class 0."""
    task = FINE_TUNED["mrpc"]
    data = task.read(write(tmp_path / "MRPC", FILES["mrpc"]), settings_for("mrpc", {}))
    item = data.scored[0].items[0]
    items = [item._replace(label=label) for label in "1100"]
    turned = task.finished_model(
        Encoder(task_model(["1", "0"])), data, settings_for("mrpc", {"epochs": 0.0})
    )[1]
    assert turned.labels == ("1", "0")
    for one in (data, turned):
        said = [np.eye(2)[one.labels.index(label)] for label in "1000"]
        assert task.score(ModelAnswers(items, [], said, one)) == pytest.approx(
            {"f1": 200 / 3, "accuracy": 75}
        )
        split = replace(data.scored[0], items=items)
        assert task.baseline(split, one) == pytest.approx({"f1": 200 / 3, "accuracy": 50})


def test_classes_without_names_are_in_the_usual_order_which_the_result_says(
    task_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = write(tmp_path / "MNLI", FILES["mnli"])
    settings = settings_for("mnli", {"epochs": 0.0, "max_length": 32})
    one = Evaluation("mnli", Encoder(task_model(None)), folder, tmp_path / "out", settings, [1], False)
    progress: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
    note = one.run(progress)
    assert list(note["details"]["labels"]) == ORDER
    said = "outputs without names are read as entailment, neutral, contradiction"
    assert any(remark.startswith(said) for remark in note["notes"])
    stated = replace(settings, class_order=["contradiction", "entailment", "neutral"])
    again = replace(one, settings=stated)
    assert again.replaced()
    assert list(again.run(progress)["details"]["labels"]) == stated.class_order


def test_a_score_of_an_older_order_is_not_taken_for_one_of_now(
    task_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "MNLI", FILES["mnli"])
    settings = settings_for("mnli", {"epochs": 0.0, "max_length": 32})
    one = Evaluation("mnli", Encoder(task_model(None)), folder, tmp_path / "out", settings, [1], False)
    progress: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
    one.run(progress)
    path = tmp_path / "out" / "mnli" / "seed-1.json"
    note = json.loads(path.read_text())
    assert not one.replaced()
    del note["identity"]["nameless_outputs"]
    path.write_text(json.dumps(note))
    assert "nameless_outputs" in one.replaced()


@pytest.mark.parametrize(
    ("left", "task"),
    [
        ("single_label_classification", "stsb"),
        ("single_label_classification", "swag"),
        ("multi_label_classification", "rte"),
        ("regression", "mnli"),
    ],
)
def test_the_loss_is_that_of_the_task_whatever_loss_the_config_states(
    left: str, task: str, task_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A training on MNLI leaves problem_type in config.json, and published classifiers state it."""
    kind, settings = FINE_TUNED[task], EvaluationSettings(max_length=32, dropout=0.0)
    data = kind.read(write(tmp_path / "task", FILES[task]), settings)
    encoder = Encoder(task_model(ORDER, problem_type=left))
    model = kind.model(encoder, data, 1, settings)
    features = kind.features(data.train.items[:1], encoder.builder(32), data)
    batch = collate(features, encoder.builder(32), torch.device("cpu"), choices=task == "swag")
    output = model(**batch)
    target = batch["labels"]
    is_number = task == "stsb"
    expected = (
        F.mse_loss(output.logits[:, 0], target) if is_number else F.cross_entropy(output.logits, target)
    )
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_model_of_other_classes_or_without_a_head_is_refused(
    task_model: Callable[..., Path], tmp_path: Path
) -> None:
    data = FINE_TUNED["ax"].read(write(tmp_path / "AX", FILES["ax"]), settings_for("ax", {}))
    with pytest.raises(UserError, match="classifies as yes, no, maybe"):
        answers(task_model(["yes", "no", "maybe"]), data)
    with pytest.raises(UserError, match="has 2 outputs without names"):
        answers(task_model(None, 2), data)
    with pytest.raises(UserError, match=r"lacks weights of BertForSequenceClassification: .*classifier"):
        answers(encoder_folder("bert"), data)


def test_the_diagnostic_set_counts_three_classes(tmp_path: Path) -> None:
    """Matthews' correlation of K classes, by the formula of Gorodkin 2004."""
    task = FINE_TUNED["ax"]
    data = task.read(write(tmp_path / "AX", FILES["ax"]), settings_for("ax", {}))
    item = data.scored[0].items[0]
    gold = ["entailment", "neutral", "contradiction", "entailment", "neutral", "entailment"]
    guess = ["entailment", "neutral", "entailment", "contradiction", "neutral", "entailment"]
    items = [item._replace(label=label) for label in gold]
    rows = [np.eye(3)[data.labels.index(label)] for label in guess]
    right, total = sum(a == b for a, b in zip(gold, guess, strict=True)), len(gold)
    p, t = (np.array([labels.count(name) for name in data.labels]) for labels in (guess, gold))
    expected = (right * total - p @ t) / np.sqrt((total**2 - p @ p) * (total**2 - t @ t))
    assert task.score(ModelAnswers(items, [], rows, replace(data)))["matthews"] == pytest.approx(
        100 * expected
    )


@pytest.mark.parametrize("tune_share", [0.0, 0.5])
def test_scores_by_epoch_change_nothing(tmp_path: Path, tune_share: float) -> None:
    """The last is the score, unless an epoch is chosen, here an earlier one. Dropout and order are those of a training
    without them, to the bit."""
    both = [f"{n}\tA.\tB.\t{label}" for n in range(8) for label in ("entailment", "not_entailment")]
    files = {name: [lines[0], *both] for name, lines in FILES["rte"].items()}
    files["dev.tsv"] = FILES["rte"]["dev.tsv"]  # one label: all right or all wrong
    folder = write(tmp_path / "task", files)
    settings = settings_for(
        "rte", {"epochs": 5, "lr": 0.02, "max_length": 32, "dropout": 0.1, "tune_share": tune_share}
    )
    plain = Evaluation(
        "rte", Encoder(encoder_folder("bert")), folder, tmp_path / "a", settings, [1, 2], False
    )
    watched = replace(plain, out=tmp_path / "b", settings=replace(settings, by_epoch=True))
    progress: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
    one, other = plain.run(progress), watched.run(progress)
    losses = [
        [
            json.loads((out / "rte" / f"seed-{n}.json").read_text())["result"]["details"]["last_losses"]
            for n in (1, 2)
        ]
        for out in (plain.out, watched.out)
    ]
    assert losses[0] == losses[1]
    assert one["scores"] == other["scores"]
    curve = other["details"]["by_epoch"]["dev"]["accuracy"]
    assert len(curve) == 5
    assert (curve[-1] == one["scores"]["dev"]["accuracy"]["mean"]) == (not tune_share)
    assert "by_epoch" not in one["details"]


TAGGED = ["a b X B-A", "c d e O", "", "x y X I-A", "", "z z z O", "c d e B-A"]
ENDINGS = [
    "ran",
    "slept",
    "is lazy",
    "was",
    "fox",
    "jumped over it",
    "some others",
    "did not",
    "the quick dogs",
]
CHOICES = [",".join(ENDINGS[(2 * n + 5 * i) % 9] for i in range(4)) for n in range(16)]
SWAG = [
    FILES["swag"]["train.csv"][0],
    *(f"{n},v,1,A,The fox {ENDINGS[n % 9]}.,It,gold,{four},{n % 4}" for n, four in enumerate(CHOICES)),
]


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("ud", FILES["ud"]),
        ("tagging", {"train.txt": TAGGED, "dev.txt": TAGGED}),
        ("swag", {"train.csv": SWAG, "val.csv": SWAG}),
        ("squad1", FILES["squad1"]),
    ],
)
def test_a_saved_model_predicts_the_same(task: str, files: dict[str, list[str]], tmp_path: Path) -> None:
    folder = write(tmp_path / "task", files)
    settings = settings_for(task, {"epochs": 2, "max_length": 64})
    one = Evaluation(
        task,
        Encoder(encoder_folder("bert")),
        folder,
        tmp_path / "out",
        settings,
        [1],
        has_floor=False,
        save=True,
        predictions=True,
    )
    progress: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
    note = one.run(progress)
    encoder = Encoder(tmp_path / "out" / task / "seed-1")
    again = replace(
        one, encoder=encoder, out=tmp_path / "again", settings=replace(settings, epochs=0), save=False
    )
    assert again.run(progress)["scores"]["dev"] == note["scores"]["dev"]
    said = [
        {path.name: path.read_text() for path in (out / task / "predictions/seed-1/dev").iterdir()}
        for out in (one.out, again.out)
    ]
    assert said[0] == said[1] != {}
    without = (
        r"head.safetensors: the head cannot be read.*--save" if task == "ud" else "lacks weights of Bert"
    )
    with pytest.raises(UserError, match=without):
        replace(again, encoder=one.encoder, out=tmp_path / "third").run(progress)

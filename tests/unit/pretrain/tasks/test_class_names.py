"""Outputs of models that others fine-tuned: read by the names that published models use, in a usual order where they
have none, or as a setting says; what no name settles is refused or said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.tasks.base import ModelAnswers
from pretrain.tasks.class_names import NAMES, ORDERS, read_outputs
from pretrain.tasks.classification import GLUE
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import settings_for
from tests.factories.tasks import FILES, write

MODEL = Path("model")
CLASSES = {task.name: task.labels for task in GLUE if task.labels}
NER = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CONLL = ("B-LOC", "B-MISC", "B-ORG", "B-PER", "I-LOC", "I-MISC", "I-ORG", "I-PER", "O")


def read(task: str, names: list[str], stated: list[str] | None = None) -> Any:
    return read_outputs(names, CLASSES[task], task, stated or [], MODEL)


@pytest.mark.parametrize(
    ("task", "names", "expected"),
    [
        ("sst2", ["NEGATIVE", "POSITIVE"], ["0", "1"]),  # distilbert-base-uncased-finetuned-sst-2-english
        ("sst2", ["Positive", "negative"], ["1", "0"]),
        ("sst2", ["neg", "pos"], ["0", "1"]),
        ("mrpc", ["not_equivalent", "equivalent"], ["0", "1"]),
        ("mrpc", ["not equivalent", "EQUIVALENT"], ["0", "1"]),
        ("qqp", ["not_duplicate", "duplicate"], ["0", "1"]),
        ("cola", ["unacceptable", "acceptable"], ["0", "1"]),
        ("wnli", ["not_entailment", "entailment"], ["0", "1"]),
        ("mnli", ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], ["contradiction", "neutral", "entailment"]),
        ("snli", ["contradiction", "entailment", "neutral"], ["contradiction", "entailment", "neutral"]),
        ("ax", ["Entailment", "Neutral", "contradictory"], ["entailment", "neutral", "contradiction"]),
        ("qnli", ["entailment", "not-entailment"], ["entailment", "not_entailment"]),
        ("rte", ["NOT_ENTAILMENT", "ENTAILMENT"], ["not_entailment", "entailment"]),
        ("cola", ["1", "0"], ["1", "0"]),  # their own names, not numbers of outputs
    ],
)
def test_names_of_published_models_are_read(task: str, names: list[str], expected: list[str]) -> None:
    found = read(task, names)
    assert list(found.labels) == expected
    assert not found.notes
    assert not found.is_assumed


@pytest.mark.parametrize("task", CLASSES)
def test_every_task_of_glue_has_the_names_and_the_order_of_the_data_set(task: str) -> None:
    """Whose classes are 0 and 1 in the files have names elsewhere, each its own."""
    names = NAMES.get(task, {})
    assert set(names) <= set(CLASSES[task])
    if CLASSES[task] == ("0", "1"):
        assert set(names) == {"0", "1"}
    known = [name for label in CLASSES[task] for name in (label, *names.get(label, ()))]
    assert len(set(known)) == len(known)
    order = read(task, [f"LABEL_{i}" for i in range(len(CLASSES[task]))]).labels
    assert order == ORDERS.get(task, CLASSES[task])
    assert set(order) == set(CLASSES[task])


@pytest.mark.parametrize("name", ["LABEL_{}", "label_{}", "{}"])
def test_an_order_that_is_assumed_is_said(name: str) -> None:
    found = read("mnli", [name.format(i) for i in range(3)])
    assert found.labels == ("entailment", "neutral", "contradiction")
    assert found.is_assumed
    assert found.notes == (
        "outputs without names are read as entailment, neutral, contradiction;"
        " class_order=[...] states another order",
    )


def test_a_stated_order_goes_before_all() -> None:
    order = ["contradiction", "Entailment", "neutral"]
    found = read("mnli", ["LABEL_0", "LABEL_1", "LABEL_2"], order)
    assert found.labels == ("contradiction", "entailment", "neutral")
    assert not found.is_assumed
    wrong = read("mnli", ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], order)
    assert wrong.labels == found.labels
    assert "config.json names them ENTAILMENT, NEUTRAL, CONTRADICTION" in wrong.notes[0]
    same = read("sst2", ["NEGATIVE", "POSITIVE"], ["negative", "positive"])
    assert same.labels == ("0", "1")
    assert "names them" not in same.notes[0]


@pytest.mark.parametrize(
    ("names", "stated", "message"),
    [
        (["yes", "no", "maybe"], [], "classifies as yes, no, maybe: none is contradiction, entailment"),
        (["entailment", "neutral"], [], "none is contradiction"),
        (["entailment", "ENTAILMENT", "neutral", "contradiction"], [], "entailment and ENTAILMENT are one"),
        (["LABEL_0", "LABEL_1"], [], r"has 2 outputs without names \(LABEL_0"),
        ([f"LABEL_{i}" for i in range(4)], [], "class_order="),
        (["a", "b", "c"], ["entailment", "neutral"], "class_order: names 2 classes.*3 outputs"),
        (["a", "b", "c"], ["entailment", "neutral", "other"], "class_order: .*none is contradiction"),
    ],
)
def test_what_names_do_not_settle_is_refused(names: list[str], stated: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read("mnli", names, stated)


def test_classes_that_the_files_have_not_are_kept_and_said() -> None:
    found = read("rte", ["not_entailment", "entailment", "unknown"])
    assert found.labels == ("not_entailment", "entailment", "unknown")
    assert found.notes == (
        "the files have no class unknown, which the model has: where it says so, it is wrong",
    )
    stated = read("rte", [f"LABEL_{i}" for i in range(3)], ["entailment", "not_entailment", "other"])
    assert stated.labels == ("entailment", "not_entailment", "other")


@pytest.mark.parametrize(
    ("names", "expected", "extra"),
    [
        (["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], ""),
        (
            ["O", "B-MISC", "B-PERSON", "I-person", "B-LOC"],
            ["O", "B-MISC", "B-PER", "I-PER", "B-LOC"],
            "B-MISC",
        ),
        (["O", "PER", "LOC", "MISC"], ["O", "I-PER", "I-LOC", "MISC"], "MISC"),  # no B- and I-
        (
            ["O", "S-PER", "B-PER", "I-PER", "E-PER", "S-LOC"],
            ["O", "B-PER", "B-PER", "I-PER", "I-PER", "B-LOC"],
            "",
        ),
        (["o", "U-LOCATION", "L_PER"], ["O", "B-LOC", "I-PER"], ""),
    ],
)
def test_tags_of_other_schemes_and_further_types(names: list[str], expected: list[str], extra: str) -> None:
    found = read_outputs(names, NER, "tagging", [], MODEL, are_tags=True)
    assert list(found.labels) == expected
    assert (extra in "".join(found.notes)) if extra else not found.notes


def test_a_tagger_without_a_type_of_the_files_is_refused() -> None:
    with pytest.raises(UserError, match=r"none is PER"):
        read_outputs(["O", "B-LOC", "B-ORG"], NER, "tagging", [], MODEL, are_tags=True)
    with pytest.raises(UserError, match=r"none is O"):
        read_outputs(["B-LOC", "B-PER"], NER, "tagging", [], MODEL, are_tags=True)


def test_taggers_without_names_have_the_order_of_the_data_set() -> None:
    names = [f"LABEL_{i}" for i in range(9)]
    found = read_outputs(names, CONLL, "conll2003", [], MODEL, are_tags=True)
    assert found.labels[:4] == ("O", "B-PER", "I-PER", "B-ORG")
    assert found.notes[0].startswith("outputs without names are read as O, B-PER, I-PER")


def test_entities_of_other_types_count_as_wrong(tmp_path: Path) -> None:
    """The words are a person's, and the model's MISC beside them is one entity too many."""
    task: Any = FINE_TUNED["tagging"]
    lines = {"train.txt": ["Al B-PER", "x O"], "dev.txt": ["Al B-PER", "x O"]}
    data = task.read(write(tmp_path / "task", lines), settings_for("tagging", {}))
    names = ["O", "B-MISC", "I-MISC", "B-PER", "I-PER"]
    data = task.with_outputs(data, names, settings_for("tagging", {}), MODEL)
    item = data.scored[0].items[0]
    feature: Any = type("Feature", (), {"inputs": [type("Input", (), {"first_tokens": {0: 0, 1: 1}})]})
    answers = [np.eye(5)[[3, 1]]]
    assert task.predicted(ModelAnswers([item], [feature], answers, data)) == [["B-PER", "B-MISC"]]
    assert task.score(ModelAnswers([item], [feature], answers, data)) == pytest.approx(
        {"precision": 50, "recall": 100, "f1": 200 / 3}
    )


def test_a_better_order_is_remarked_and_not_taken(tmp_path: Path) -> None:
    task: Any = FINE_TUNED["mnli"]
    settings = settings_for("mnli", {"epochs": 0.0})
    data = task.read(write(tmp_path / "task", FILES["mnli"]), settings)
    item = data.scored[0].items[0]
    items = [item._replace(label=label) for label in ("contradiction", "entailment", "neutral", "neutral")]
    answers = [np.eye(3)[i] for i in (0, 1, 2, 2)]  # in the order contradiction, entailment, neutral
    assumed = task.with_outputs(data, ["LABEL_0", "LABEL_1", "LABEL_2"], settings, MODEL)
    assert task.score(ModelAnswers(items, [], answers, assumed)) == {"accuracy": 0}
    assert task.note(ModelAnswers(items, [], answers, assumed)) == (
        "read as contradiction, entailment, neutral, they have accuracy 100.0:"
        " class_order=[contradiction,entailment,neutral]"
    )
    stated = replace(settings, class_order=["contradiction", "entailment", "neutral"])
    found = task.with_outputs(data, ["LABEL_0", "LABEL_1", "LABEL_2"], stated, MODEL)
    assert task.score(ModelAnswers(items, [], answers, found)) == {"accuracy": 100}
    assert task.note(ModelAnswers(items, [], answers, found)) == ""
    right = [np.eye(3)[i] for i in (2, 0, 1, 1)]
    assert task.note(ModelAnswers(items, [], right, assumed)) == ""


@pytest.mark.parametrize("task", ["stsb", "swag", "squad1"])
def test_an_order_is_only_for_classes(task: str) -> None:
    from pretrain.tasks.registry import check_setting

    with pytest.raises(UserError, match="class_order"):
        check_setting([task], "class_order")
    with pytest.raises(UserError, match="class_order: is for models that were fine-tuned before"):
        settings_for("mnli", {"class_order": ["a"]})

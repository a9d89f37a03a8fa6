"""Evaluation on the published files of tasks: nothing is lost on the way, known answers have their known scores, and an
encoder that was not pretrained scores what one scores.

Needs a folder with them, MASKMILL_DATA; a file that is missing fails its test. Numbers of examples and majorities: the
GLUE paper and its files, UNER's and WNUT-17's own statistics, Warstadt et al. 2020."""

import os
from collections import Counter
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.evaluate.evaluate import Evaluation
from pretrain.tasks import dependencies
from pretrain.tasks.base import TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.questions import best_over
from pretrain.tasks.registry import FINE_TUNED, UNTRAINED
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import check_facts

pytestmark = pytest.mark.data


def folder_of(name: str) -> Path:
    """The folder of this name in the data, at any depth."""
    root = Path(os.environ["MASKMILL_DATA"])
    found = [path for path in sorted(root.rglob("*")) if path.is_dir() and path.name.lower() == name.lower()]
    assert found, f"{root} has no folder {name}"
    return found[0]


@cache
def data_of(task: str, folder: str, epochs: float = 1) -> TaskData:
    return FINE_TUNED[task].read(folder_of(folder), settings_for(task, {"epochs": epochs}))


@pytest.mark.parametrize(
    ("task", "folder", "sizes", "trivial"),
    [
        ("cola", "CoLA", (8551, 1043), {"matthews": 0.0, "accuracy": 69.1}),
        ("mrpc", "MRPC", (3668, 408), {"f1": 81.2, "accuracy": 68.4}),
        ("rte", "RTE", (2490, 277), {"accuracy": 52.7}),
        ("wnli", "WNLI", (635, 71), {"accuracy": 56.3}),
        ("codah", "CODAH", (1665, 556), {}),
        ("uner", "UNER_English-EWT", (12543, 2001), {"f1": 2.1}),
        ("wnut17", "WNUT17", (3394, 1009), {"f1": 4.5}),
        ("ud", "UD_English-EWT", (12544, 2001), {}),
    ],
)
def test_no_row_is_lost_and_the_floor_scores_as_known(
    task: str, folder: str, sizes: tuple[int, int], trivial: dict[str, float]
) -> None:
    data = data_of(task, folder)
    assert (len(data.train.items), len(data.scored[0].items)) == sizes
    assert data.train.skipped == data.scored[0].skipped == 0
    found = FINE_TUNED[task].baseline(data.scored[0], data)
    assert {name: round(found[name], 1) for name in trivial} == trivial


@pytest.mark.parametrize(
    ("task", "folder", "train", "dev"),
    [
        ("cola", "CoLA", {"1": 6023, "0": 2528}, {"1": 721, "0": 322}),
        ("mrpc", "MRPC", {"1": 2474, "0": 1194}, {"1": 279, "0": 129}),
        (
            "rte",
            "RTE",
            {"entailment": 1249, "not_entailment": 1241},
            {"entailment": 146, "not_entailment": 131},
        ),
        ("wnli", "WNLI", {"1": 312, "0": 323}, {"1": 31, "0": 40}),
        ("codah", "CODAH", {0: 426, 1: 402, 2: 404, 3: 433}, {0: 149, 1: 140, 2: 124, 3: 143}),
    ],
)
def test_labels_are_as_often_as_in_the_files(
    task: str, folder: str, train: dict[Any, int], dev: dict[Any, int]
) -> None:
    data = data_of(task, folder)
    for split, expected in ((data.train, train), (data.scored[0], dev)):
        assert Counter(item.label for item in split.items) == expected


def test_files_without_training_examples() -> None:
    qnli = data_of("qnli", "QNLI", epochs=0).scored[0].items
    assert len(qnli) == 5463
    assert Counter(item.label for item in qnli)["not_entailment"] == 2761  # 50.5 %
    assert [
        len(data_of("ud", name, epochs=0).scored[0].items)
        for name in ("UD_Swedish-Talbanken", "UD_Korean-GSD", "UD_Russian-GSD", "UD_Chinese-GSD")
    ] == [504, 950, 579, 500]


def test_the_diagnostic_file_at_hand_has_no_labels() -> None:
    """The 1,104 rows with labels are in diagnostic-full.tsv."""
    folder = folder_of("AX")
    if not (folder / "diagnostic-full.tsv").is_file():
        with pytest.raises(UserError, match=r"diagnostic\.tsv, .*has no labels"):
            data_of("ax", "AX", epochs=0)
        return
    (split,) = data_of("ax", "AX", epochs=0).scored
    assert len(split.items) == 1104
    assert {item.label for item in split.items} == {"contradiction", "entailment", "neutral"}


def test_xquad_has_the_same_questions_in_each_language() -> None:
    data = data_of("questions", "xquad", epochs=0)
    assert {f"xquad.{language}" for language in ("ar", "de", "en", "ru", "zh")} <= {
        s.name for s in data.scored
    }
    assert data.version == "1.1"
    assert data.notes == (), "each answer is in its text at its place"
    for split in data.scored:
        assert (len(split.items), len({item.context for item in split.items})) == (1190, 240)
        assert [item.id for item in split.items] == [item.id for item in data.scored[0].items]
        right = [best_over([item.answers[0].text], item.answers[0].text, False) for item in split.items]
        assert set(right) == {(1.0, 1.0)}


def test_covid_qa_is_a_single_file_that_can_be_divided() -> None:
    path = next(Path(os.environ["MASKMILL_DATA"]).rglob("covidqa_200423.json"))
    task = FINE_TUNED["questions"]
    whole = task.read(path.parent, settings_for("questions", {"epochs": 0.0}))
    assert (len(whole.scored[0].items), len({item.context for item in whole.scored[0].items})) == (1380, 98)
    misplaced = (
        "38 questions, scored by the words of their answers, whose answer is not in the text at its place"
    )
    assert whole.notes == ("dev is covidqa_200423.json", f"dev: {misplaced}")
    half = task.read(path.parent, settings_for("questions", {"carve": 0.5}))
    texts = [{item.context for item in split.items} for split in (half.train, *half.scored)]
    assert [len(one) for one in texts] == [49, 49]
    assert not texts[0] & texts[1]
    assert len(half.train.items) + half.train.skipped + len(half.scored[0].items) == 1380


def test_blimp_is_whole() -> None:
    material = UNTRAINED["blimp"].read(folder_of("BLiMP"), settings_for("blimp", {}))
    assert len(material.items) == 67
    assert {len(one.good) for one in material.items} == {len(one.bad) for one in material.items} == {1000}
    assert len({one.group for one in material.items}) == 12


@pytest.mark.parametrize(
    ("task", "folder", "train", "dev"),
    [
        (
            "uner",
            "UNER_English-EWT",
            {"PER": 2873, "LOC": 2698, "ORG": 1434},
            {"PER": 343, "LOC": 399, "ORG": 224},
        ),
        (
            "wnut17",
            "WNUT17",
            {
                "person": 660,
                "location": 548,
                "group": 264,
                "corporation": 221,
                "product": 142,
                "creative-work": 140,
            },
            {
                "person": 470,
                "location": 74,
                "group": 39,
                "corporation": 34,
                "product": 114,
                "creative-work": 105,  # one of them begins with I-, as conlleval counts it
            },
        ),
    ],
)
def test_entities_after_bio2(task: str, folder: str, train: dict[str, int], dev: dict[str, int]) -> None:
    data = data_of(task, folder)
    for split, expected in ((data.train, train), (data.scored[0], dev)):
        found = Counter(tag[2:] for item in split.items for tag in item.tags if tag.startswith("B-"))
        assert dict(found) == expected


@pytest.mark.parametrize("name", ["UD_English-EWT", "UD_Swedish-Talbanken", "UD_Korean-GSD"])
def test_the_official_scorer_on_a_treebank(name: str) -> None:
    """Gold against itself is 100; a subtype changes no LAS; one head that is wrong costs one word."""
    trees = data_of("ud", name, epochs=0).scored[0].items[:200]
    words = sum(len(tree.words) for tree in trees)

    def scored(change: Any) -> dict[str, float]:
        said = []
        for number, tree in enumerate(trees):
            rows = [list(row) for row in tree.rows]
            change(number, [rows[row] for row in tree.words])
            said.append("".join("\t".join(row) + "\n" for row in rows) + "\n")
        return dependencies._official(trees, said)

    def subtype(number: int, rows: list[list[str]]) -> None:
        rows[0][dependencies.DEPREL] = rows[0][dependencies.DEPREL].split(":")[0] + ":other"

    def one_head(number: int, rows: list[list[str]]) -> None:
        if number == 0:  # a word that no other hangs on moves to another head
            heads = {int(row[dependencies.HEAD]) for row in rows}
            leaf = next(i for i in range(1, len(rows) + 1) if i not in heads)
            old = int(rows[leaf - 1][dependencies.HEAD])
            rows[leaf - 1][dependencies.HEAD] = str(
                next(i for i in range(1, len(rows) + 1) if i not in (leaf, old))
            )

    assert set(scored(lambda number, rows: None).values()) == {100.0}
    assert scored(subtype)["LAS"] == 100.0
    found = scored(one_head)
    assert found["LAS"] == found["UAS"] == pytest.approx(100 * (1 - 1 / words))


@pytest.mark.parametrize(
    ("task", "folder", "sizes", "labels"),
    [
        ("mrpc", "MRPC", {"train": 3668, "dev": 408}, {"0": 0, "1": 1}),
        ("rte", "RTE", {"train": 2490, "dev": 277}, {"entailment": 0, "not_entailment": 1}),
        ("codah", "CODAH", {"train": 1665, "dev": 556}, {}),
        ("wnut17", "WNUT17", {"train": 3394, "dev": 1009}, None),
    ],
)
def test_a_result_says_what_makes_its_scores_comparable(
    task: str, folder: str, sizes: dict[str, int], labels: dict[str, int] | None, tmp_path: Path
) -> None:
    """Version or source, sizes, labels, metric, seeds, rate, what was chosen on what, rows skipped, segments, and how
    means are formed."""
    settings = settings_for(task, {"epochs": 1, "max_length": 24, "train_examples": 64})
    one = Evaluation(
        task, Encoder(encoder_folder("bert")), folder_of(folder), tmp_path, settings, [1, 2], True
    )
    note = one.run(lambda name, total: nullcontext(lambda n: None))
    check_facts(note, task)
    assert note["details"]["examples"] == sizes | {"train": 64}
    assert note["details"]["train_examples_available"] == sizes["train"]
    assert note["details"]["skipped"] == {"train": 0, "dev": 0}
    assert labels is None or note["details"]["labels"] == labels
    assert (note["seeds"], note["floor_seeds"]) == ([1, 2], [1, 2])
    assert note["segments"] == {"single": [0], "pair": [0, 1]}


@pytest.mark.parametrize(
    ("task", "folder", "low", "high"),
    [("cola", "CoLA", -8, 8), ("rte", "RTE", 45, 58), ("mrpc", "MRPC", 76, 83)],
)
def test_an_encoder_that_is_not_pretrained_scores_as_one(
    task: str, folder: str, low: float, high: float, tmp_path: Path
) -> None:
    """BERT-base without pretraining: CoLA 0.0, RTE 47.3, MRPC 77.9 (Geiping and Goldstein 2022, Table 4). A small one
    here, and a range as wide as single runs differ."""
    encoder = Encoder(encoder_folder("bert"), pretrained=False)
    settings = settings_for(task, {"epochs": 1, "max_length": 64})
    evaluation = Evaluation(task, encoder, folder_of(folder), tmp_path, settings, [1, 2, 3], False)
    scores = [
        evaluation.score(part._replace(encoder=encoder), lambda name, total: nullcontext(lambda n: None))
        for part in evaluation.parts
    ]
    found = float(np.median([one.splits["dev"][FINE_TUNED[task].headline] for one in scores]))
    assert low <= found <= high

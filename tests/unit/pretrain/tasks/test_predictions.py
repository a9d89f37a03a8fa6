"""What a fine-tuned model says of each example: in files that others score, by a threshold that no scored one chose."""

import json
import re
import shutil
import string
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.evaluate.evaluate import Evaluation
from pretrain.tasks import metrics
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.questions import Questions
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, TREES, check_facts, write

TEXT = "the quick fox jumped over some lazy dogs, that slept all day in the U.S. and did not wake up"
WORDS = ("fox", "lazy dogs", "The U.S.", "day")


def evaluation(task: str, folder: Path, out: str = "out", **changes: Any) -> Evaluation:
    wanted = settings_for(task, {"max_length": 48, "threads": 1, "epochs": 1.0, "batch": 8, **changes})
    where, encoder = folder.parent / out, Encoder(encoder_folder("bert"))
    return Evaluation(task, encoder, folder, where, wanted, [1], has_floor=False, predictions=True)


def run(one: Evaluation) -> tuple[dict[str, Any], dict[str, Any]]:
    """What result.json holds, and of the files of questions the contents."""
    note = one.run(lambda name, total: nullcontext(lambda n: None))
    folder = one.out / one.name / "predictions/seed-1/dev"
    return note, {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def paragraphs(texts: int, version: str, answer: int = 0) -> dict[str, Any]:
    """Four questions about each text; in 2.0 one of them, or two, without an answer. `answer`: 0 or 1, which changes
    all answers."""
    found, words = [], TEXT.split()
    for i in range(texts):
        context = " ".join(words[i:] + words[:i])
        qas = []
        for j in range(4):
            text = WORDS[(j + answer) % 4].removeprefix("The ")
            right = [{"text": text, "answer_start": context.index(text)}]
            none = version == "2.0" and (i + j) % 4 <= answer
            qas.append(
                {
                    "id": f"{i}-{j}",
                    "question": f"who {' '.join(words[: 2 * j])} ?",
                    "answers": [] if none else right,
                    "is_impossible": none,
                }
            )
        found.append({"context": context, "qas": qas})
    return {"version": version, "data": [{"paragraphs": found}]}


def squad(folder: Path, version: str, answer: int = 0) -> Path:
    """Training and dev files, the latter with these answers."""
    files = {"train": paragraphs(5, version), "dev": paragraphs(6, version, answer)}
    return write(folder, {f"{name}-v{version}.json": [json.dumps(file)] for name, file in files.items()})


def official(file: dict[str, Any], said: dict[str, str], odds: dict[str, float]) -> dict[str, float]:
    """Exact match and F1, and with odds their best over all thresholds, written from what the scripts document."""

    def words(text: str) -> list[str]:
        bare = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", bare).split()

    def f1(gold: list[str], told: list[str]) -> float:
        common = (Counter(gold) & Counter(told)).total()
        return 2 * common / (len(gold) + len(told)) if gold and told else float(gold == told)

    golds = {
        one["id"]: [words(a["text"]) for a in one["answers"]] or [[]]
        for of_text in file["data"][0]["paragraphs"]
        for one in of_text["qas"]
    }
    assert golds.keys() == said.keys()
    found = {}
    for name, measure in (("exact", lambda gold, told: float(gold == told)), ("f1", f1)):
        given = {key: max(measure(gold, words(said[key])) for gold in golds[key]) for key in golds}
        none = {key: float(golds[key] == [[]]) for key in golds}
        thresholds = [-np.inf, *odds.values()] if odds else []
        totals = [sum((given if odds[k] <= t else none)[k] for k in golds) for t in thresholds]
        found[name] = 100 * sum(given.values()) / len(golds)
        found |= {f"best_{name}": 100 * max(totals) / len(golds)} if totals else {}
    return found


def medians(note: dict[str, Any]) -> dict[str, float]:
    return {name: one["median"] for name, one in note["scores"]["dev"].items()}


def test_the_files_of_2_0_have_the_scores_that_are_reported(tmp_path: Path) -> None:
    folder = squad(tmp_path / "task", "2.0")
    file = json.loads((folder / "dev-v2.0.json").read_text())
    note, files = run(evaluation("squad2", folder, "first"))
    middle = float(np.median(list(files["null_odds.json"].values())))
    note, again = run(evaluation("squad2", folder, null_threshold=str(middle)))
    assert again["null_odds.json"] == files["null_odds.json"], "the same model, asked in another way"
    odds, said = again["null_odds.json"], again["predictions.json"]
    assert {key: not text for key, text in said.items()} == {key: odds[key] > middle for key in odds}
    assert 0 < sum(map(bool, said.values())) < len(said) == 24
    scores = official(file, said, {})
    assert scores == pytest.approx({name: medians(note)[name] for name in ("exact", "f1")})
    best = {
        key: next(r["text"] for r in rows if r["text"])
        for key, rows in again["nbest_predictions.json"].items()
    }
    found = official(file, best, odds)
    for name in ("best_exact", "best_f1"):
        assert found[name] == pytest.approx(medians(note)[name])
    assert note["details"]["selection"] == {"set": None, "chooses": []}


def test_the_files_of_1_1_have_the_scores_that_are_reported(tmp_path: Path) -> None:
    folder = squad(tmp_path / "task", "1.1")
    note, files = run(evaluation("squad1", folder, null_threshold="tune", tune_share=0.4))
    assert note["details"]["selection"]["chooses"] == ["epoch"], "of these no answer is ever withheld"
    assert files.keys() == {"predictions.json", "nbest_predictions.json"}
    assert all(files["predictions.json"].values())
    file = json.loads((folder / "dev-v1.1.json").read_text())
    assert official(file, files["predictions.json"], {}) == pytest.approx(medians(note))
    assert medians(note)["f1"] > 0


@pytest.mark.parametrize("more", [{}, {"by_epoch": True}])
def test_a_threshold_is_chosen_on_training_questions_alone(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other answers in the scored file change the scores and nothing else; nor is a text divided."""
    chosen_on: list[Any] = []
    trained: list[Any] = []
    decided, features = Questions.decided, Questions.features

    def spied(self: Any, answers: Any, *rest: Any) -> Any:
        chosen_on.append(answers.items)
        return decided(self, answers, *rest)

    def built(self: Any, items: Any, *rest: Any) -> Any:
        trained.append(items)
        return features(self, items, *rest)

    monkeypatch.setattr(Questions, "decided", spied)
    monkeypatch.setattr(Questions, "features", built)
    asked = {"null_threshold": "tune", "tune_share": 0.4, "epochs": 2.0, **more}
    results = []
    for answer in (0, 1):
        folder = squad(tmp_path / f"task-{answer}", "2.0", answer)
        results.append(run(evaluation("squad2", folder, f"out-{answer}", **asked)))
    (first, files), (second, others) = results
    assert files == others
    check_facts(first, "squad2")
    selection = first["details"]["selection"]
    assert selection == second["details"]["selection"]
    assert (selection["set"], selection["chooses"]) == ("tune", ["epoch", "null_threshold"])
    (one,) = selection["decided"]
    assert one["examples"] == 8, "of two texts of five"
    threshold, odds = one["null_threshold"], files["null_odds.json"]
    for key, text in files["predictions.json"].items():
        assert (text == "") == (odds[key] > threshold)
    assert (
        f"null_threshold chosen by questions kept from training: {threshold:.4g} by 8 questions with seed 1"
        in (first["notes"])
    )
    assert first["scores"]["dev"]["f1"] != second["scores"]["dev"]["f1"]
    tune = {item.context for items in chosen_on for item in items}
    assert len(tune) == 2
    assert {len(items) for items in chosen_on} == {8}
    assert not tune & {item.context for item in trained[0]}
    assert len(trained[0]) == 12


def test_a_model_that_is_trained_already_may_have_its_threshold_chosen(tmp_path: Path) -> None:
    folder = squad(tmp_path / "task", "2.0")
    trained = replace(evaluation("squad2", folder, "first", tune_share=0.4), save=True)
    run(trained)
    encoder = Encoder(tmp_path / "first/squad2/seed-1")
    again = evaluation("squad2", folder, "again", epochs=0.0, tune_share=0.4, null_threshold="tune")
    note, files = run(replace(again, encoder=encoder))
    selection = note["details"]["selection"]
    assert (selection["set"], selection["chooses"], len(selection["decided"])) == (
        "tune",
        ["null_threshold"],
        1,
    )
    odds, threshold = files["null_odds.json"], selection["decided"][0]["null_threshold"]
    assert [not text for text in files["predictions.json"].values()] == [
        one > threshold for one in odds.values()
    ]


def test_nothing_to_choose_a_threshold_by_is_refused(tmp_path: Path) -> None:
    folder = squad(tmp_path / "task", "2.0")
    (folder / "train-v2.0.json").write_text(json.dumps(paragraphs(5, "1.1")))
    with pytest.raises(UserError, match="has no question without an answer among 20 to train on"):
        run(evaluation("squad2", folder, null_threshold="tune", tune_share=0.4))


def test_predictions_are_kept_once_and_taken_away_with_their_result(tmp_path: Path) -> None:
    folder = squad(tmp_path / "task", "1.1")
    asked = evaluation("squad1", folder)
    kept = asked.out / "squad1/predictions/seed-1/dev/predictions.json"
    plain, _ = run(replace(asked, predictions=False))
    assert not kept.exists()
    first, _ = run(asked)
    assert kept.is_file(), "asked for later: the seed is repeated"
    assert first["scores"] == plain["scores"]
    kept.write_text('"as it was left"')
    run(asked)
    run(replace(asked, predictions=False))
    assert kept.read_text() == '"as it was left"', "a finished seed"
    assert [path.name for path in kept.parents[2].iterdir()] == ["seed-1"]
    other = replace(asked, settings=replace(asked.settings, lr=1e-3))
    run(replace(other, predictions=False))
    assert not kept.exists(), "they were of other settings"
    run(other)
    assert kept.is_file()


def test_a_model_and_predictions_of_other_settings_are_not_taken_for_this_results(tmp_path: Path) -> None:
    first = replace(evaluation("squad1", squad(tmp_path / "task", "1.1")), save=True)
    run(first)
    saved, said = first.out / "squad1/seed-1", first.out / "squad1/predictions/seed-1"
    other = replace(first, settings=replace(first.settings, lr=1e-3))
    run(replace(other, save=False, predictions=False))
    assert not saved.exists()
    assert not said.exists()
    run(replace(other, predictions=False))
    was = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(b"torn")
    run(replace(other, save=False))
    assert said.is_dir()
    assert (saved / "model.safetensors").read_bytes() == was, "kept before, so replaced with the scores"
    shutil.rmtree(saved)
    run(replace(other, predictions=False))
    assert saved.is_dir()
    assert said.is_dir(), "they too"


LABELS = ("entailment", "not_entailment")
RTE = [
    "index\tsentence1\tsentence2\tlabel",
    *(f"{n}\tA fox {n}.\tIt slept.\t{LABELS[n % 2]}" for n in range(6)),
]
STSB = [f"0\tn\tf\t2012\t{n}\ts\ts\tA fox {'ran ' * n}.\tB.\t{n / 2}" for n in range(1, 6)]
SWAG = [
    FILES["swag"]["train.csv"][0],
    *(f"{n},v,1,A fox {n},It sat.,It,gold,ran,slept {n},is,was,{n % 4}" for n in range(6)),
]


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("rte", {"train.tsv": RTE, "dev.tsv": RTE}),
        ("stsb", {**FILES["stsb"], "dev.tsv": FILES["stsb"]["dev.tsv"][:1] + STSB}),
        ("swag", {"train.csv": SWAG, "val.csv": SWAG}),
        (
            "tagging",
            {
                name: ["a b X B-A", "c d e O", "", "x y X I-A", "", "z z z O"]
                for name in ("train.txt", "dev.txt")
            },
        ),
        ("ud", FILES["ud"]),
    ],
)
def test_every_task_writes_what_its_scores_follow_from(
    task: str, files: dict[str, list[str]], tmp_path: Path
) -> None:
    note, _ = run(evaluation(task, write(tmp_path / "task", files)))
    (path,) = (tmp_path / "out" / task / "predictions/seed-1/dev").iterdir()
    text, scores = path.read_text(), medians(note)
    if task == "ud":
        assert path.name == "predictions.conllu"
        gold = "\n".join(line for line in "\n".join(TREES).split("\n") if not line.startswith("#"))
        assert metrics.conll18(f"{gold.strip()}\n\n", text, tuple(scores)) == pytest.approx(scores)
    elif task == "tagging":
        assert path.name == "predictions.conll"
        sentences = [[line.split(" ") for line in one.splitlines()] for one in text.split("\n\n")]
        assert [[row[:2] for row in one] for one in sentences] == [
            [["a", "B-A"], ["c", "O"]],
            [["x", "B-A"]],
            [["z", "O"]],
        ]
        gold, said = ([[row[i] for row in one] for one in sentences] for i in (1, 2))
        assert metrics.entity_f1(gold, said) == pytest.approx(scores)
    else:
        assert path.name == "predictions.jsonl"
        rows = [json.loads(line) for line in text.splitlines()]
        assert [row["index"] for row in rows] == list(range(len(rows)))
        gold, said = (np.array([row[name] for row in rows]) for name in ("label", "predicted"))
        if task == "stsb":
            assert np.corrcoef(gold, said)[0, 1] * 100 == pytest.approx(scores["pearson"])
        else:
            assert set(said.tolist()) <= {*LABELS, 0, 1, 2, 3}
            assert 100 * np.mean(gold == said) == pytest.approx(scores["accuracy"])

"""One task of one encoder, from its files to result.json: which parts it has, what they are told and what is kept."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation, evaluations_of
from pretrain.evaluate.fine_tune import FineTuner
from pretrain.export.tokenizer import INPUTS
from pretrain.tasks.classification import Classification
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import SOURCES, drawn
from pretrain.tasks.registry import FINE_TUNED, NAMES, OWN, chosen_tasks
from pretrain.tasks.settings import identity, settings_for
from tests.command_line import ROOT
from tests.factories.encoders import encoder_folder, write_encoder
from tests.factories.tasks import ARTICLES, FILES, SQUAD, check_facts, write, write_pairs
from tests.factories.vocabularies import trained

SILENT: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731


def evaluation(task: str, folder: Path, seeds: int = 1, name: str = "bert", **changes: Any) -> Evaluation:
    """With its floor, and results in OUT beside the folder."""
    wanted = settings_for(task, {"max_length": 32, "threads": 1, **changes})
    out = folder.parent / "out"
    return Evaluation(task, Encoder(encoder_folder(name)), folder, out, wanted, range(1, seeds + 1), True)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
@pytest.mark.parametrize("task", ["blimp", "perplexity"])
def test_without_training_each_seed_is_another_random_encoder(task: str, name: str, tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "task", 4) if task == "blimp" else tmp_path / "task"
    if task == "perplexity":
        write(folder, {"a.txt": ["The quick fox jumped over it.", "Dogs slept."]})
    one, three = (evaluation(task, folder, seeds, name) for seeds in (1, 3))
    assert [(part.encoder.pretrained, part.seed) for part in one.parts] == [(True, 1), (False, 1)]
    note = three.run(SILENT)
    assert note["seeds"] == [1]
    metric = note["headline"]
    assert len(note["scores"]["dev"][metric]["values"]) == 1
    floor = note["not_pretrained"]["dev"][metric]
    assert len(floor["values"]) == 3
    assert floor["std"] is not None
    assert task == "blimp" or len(set(floor["values"])) == 3


def test_with_training_each_seed_has_a_floor_of_its_own(tmp_path: Path) -> None:
    parts = evaluation("rte", write(tmp_path / "task", FILES["rte"]), 2).parts
    found = [(part.encoder.pretrained, part.seed) for part in parts]
    assert found == [(True, 1), (True, 2), (False, 1), (False, 2)]


RTE = {"entailment": 0, "not_entailment": 1}


@pytest.mark.parametrize(
    ("task", "examples", "skipped", "labels"),
    [
        ("rte", {"train": 1, "dev": 1}, {"train": 0, "dev": 0}, RTE),
        ("qqp", {"train": 1, "dev": 1}, {"train": 1, "dev": 0}, {"0": 0, "1": 1}),
        ("stsb", {"train": 1, "dev": 1}, {"train": 0, "dev": 0}, {}),
        ("swag", {"train": 1, "dev": 1}, {"train": 0, "dev": 0}, {}),
        ("squad1", {"train": 1, "dev": 1}, {"train": 0, "dev": 0}, {}),
        ("tagging", {"train": 1, "dev": 1}, {"train": 0, "dev": 0}, {"B-A": 0, "O": 1}),
        ("blimp", {"dev": 24}, {"dev": 0}, {}),
        ("ud", {"train": 2, "dev": 2}, {"train": 0, "dev": 0}, None),
    ],
)
def test_a_result_says_what_makes_its_scores_comparable(
    task: str,
    examples: dict[str, int],
    skipped: dict[str, int],
    labels: dict[str, int] | None,
    tmp_path: Path,
) -> None:
    folder = write_pairs(tmp_path / "task", 4) if task == "blimp" else write(tmp_path / "task", FILES[task])
    evaluation(task, folder, epochs=1.0).run(SILENT)
    note = json.loads((tmp_path / "out" / task / "result.json").read_text())
    check_facts(note, task)
    details = note["details"]
    assert (details["examples"], details["skipped"]) == (examples, skipped)
    assert details["selection"] == {"set": None, "chooses": []}
    assert note["segments"] == {"single": [0], "pair": [0, 1]}
    assert (note["seeds"], note["floor_seeds"]) == ([1], [1])
    if labels is not None:
        assert details["labels"] == labels
    else:
        assert details["labels"]["upos"] == {
            "ADP": 0,
            "AUX": 1,
            "DET": 2,
            "NOUN": 3,
            "PART": 4,
            "PRON": 5,
            "VERB": 6,
        }


@pytest.mark.parametrize(
    ("task", "changes", "trained", "note"),
    [
        ("rte", {"train_examples": 4}, 4, "trained on 4 of 10 training examples"),
        ("rte", {"train_examples": 0.3}, 3, "trained on 3 of 10 training examples"),
        ("rte", {"train_examples": 5, "tune_share": 0.2}, 4, "4 of 10 training examples, and chosen by 1"),
        ("rte", {"tune_share": 0.2}, 8, ""),
        ("rte", {"train_examples": 99}, 10, ""),
        ("squad1", {"train_examples": 1}, 1, "trained on 1 of 2 training examples"),
    ],
)
def test_a_result_says_how_many_examples_were_trained_on(
    task: str, changes: dict[str, Any], trained: int, note: str, tmp_path: Path
) -> None:
    """Examples, not windows of them, and what was used, not what was there."""
    files = FILES[task]
    if task == "rte":
        rows = [f"{n}\tA fox {n}.\tIt slept.\t{label}" for n in range(5) for label in RTE]
        files = {**files, "train.tsv": [files["train.tsv"][0], *rows]}
    else:
        text = "the quick fox slept " * 40
        asked = [{**SQUAD, "id": str(n)} for n in range(2)]
        article = json.dumps({"data": [{"paragraphs": [{"context": text, "qas": asked}]}]})
        files = {**files, "train-v1.1.json": [article]}
    one = evaluation(task, write(tmp_path / "task", files), epochs=1.0, **changes)
    found = replace(one, has_floor=False).run(SILENT)
    available = 2 if task == "squad1" else 10
    assert found["details"]["examples"]["train"] == trained
    assert found["details"]["train_examples_available"] == available
    assert (
        [line for line in found["notes"] if "trained on" in line and note in line]
        if note
        else not [line for line in found["notes"] if "trained on" in line]
    )


@pytest.mark.parametrize("task", ["stsb", "own"])
@pytest.mark.parametrize("changes", [{}, {"bilstm": True}])
def test_predicted_numbers_are_not_rounded_to_bf16(
    task: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """8 bits would be left of each: ties, and another rank correlation."""
    rows = [f"{n}\tn\tf\t2012\t1\ts\ts\tA fox {n}.\tIt slept {n % 7}.\t{n % 50 / 10}" for n in range(60)]
    head = FILES["stsb"]["train.tsv"][0]
    files = {"train.tsv": [head, *rows[:8]], "dev.tsv": [head, *rows]}
    if task == "own":
        changes = {**changes, "labels": "numbers"}
    one = evaluation(task, write(tmp_path / "task", files), epochs=1.0, precision="bf16", **changes)
    replace(one, has_floor=False, predictions=True).run(SILENT)
    [path] = (tmp_path / "out").glob("*/predictions/seed-1/dev/predictions.jsonl")
    said = np.array([json.loads(line)["predicted"] for line in path.read_text().splitlines()], np.float32)
    rounded = torch.from_numpy(said).bfloat16().float().numpy()
    assert (said != rounded).mean() > 0.5


def test_a_result_says_on_what_an_epoch_was_chosen(tmp_path: Path) -> None:
    rows = [f"{n}\tA fox {n}.\tIt slept.\t{label}" for n in range(5) for label in RTE]
    folder = write(tmp_path / "task", {**FILES["rte"], "train.tsv": [FILES["rte"]["train.tsv"][0], *rows]})
    note = evaluation("rte", folder, 2, epochs=3.0, tune_share=0.2).run(SILENT)
    check_facts(note, "rte")
    selection = note["details"]["selection"]
    assert (selection["set"], selection["chooses"], selection["examples"]) == ("tune", ["epoch"], 2)
    for seed, epoch in zip((1, 2), selection["epochs"], strict=True):
        kept = json.loads((tmp_path / "out" / "rte" / f"seed-{seed}.json").read_text())["result"]["details"]
        assert kept["tuned"][epoch - 1] == max(kept["tuned"])


@pytest.mark.parametrize("changes", [{}, {"train_examples": 10}, {"by_epoch": True, "patience": 1}])
def test_an_epoch_is_chosen_on_training_examples_that_are_not_trained_on(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never on scored ones."""
    rows = [f"{n}\tA fox {n}.\tIt slept.\t{label}" for n in range(15) for label in RTE]
    head = FILES["rte"]["train.tsv"][0]
    folder = write(tmp_path / "task", {"train.tsv": [head, *rows[:20]], "dev.tsv": [head, *rows[20:]]})
    built: list[tuple[Any, Any]] = []  # items, and their features
    trained: list[Any] = []
    judged: list[Any] = []  # while it trains, by what an epoch is chosen
    scored: list[Any] = []
    features, score, train = Classification.features, Classification.score, FineTuner.train

    def spied_features(self: Any, items: Any, *rest: Any) -> Any:
        built.append((items, features(self, items, *rest)))
        return built[-1][1]

    def spied_score(self: Any, answers: Any) -> Any:
        scored.append(answers.items)
        return score(self, answers)

    def spied_train(self: Any, given: Any, advance: Any, tune: Any, after_epoch: Any) -> Any:
        trained.extend(item for items, made in built if made is given for item in items)

        def judge() -> float:
            scored.clear()
            value = tune()
            judged.extend(scored)
            return value

        return train(self, given, advance, judge, after_epoch)

    monkeypatch.setattr(Classification, "features", spied_features)
    monkeypatch.setattr(Classification, "score", spied_score)
    monkeypatch.setattr(FineTuner, "train", spied_train)
    one = replace(evaluation("rte", folder, epochs=3.0, tune_share=0.3, **changes), has_floor=False)
    note = one.run(SILENT)
    data = FINE_TUNED["rte"].read(folder, one.settings)
    file, dev = set(data.train.items), set(data.scored[0].items)
    tune = set(judged[0])
    assert len(judged) >= 2
    assert all(set(items) == tune for items in judged)
    assert not tune & set(trained)
    assert not dev & (tune | set(trained))
    assert tune | set(trained) <= file
    assert len(tune) + len(trained) == changes.get("train_examples", 20)
    assert len(tune) == note["details"]["selection"]["examples"]
    assert set(scored[-1]) == dev


def test_a_result_names_the_order_of_the_classes_that_it_was_scored_with(tmp_path: Path) -> None:
    """That of the head in config.json, where the model was fine-tuned before."""
    folder = write(tmp_path / "task", FILES["rte"])
    one = evaluation("rte", folder, epochs=1.0)
    replace(one, save=True).run(SILENT)
    saved = tmp_path / "out" / "rte" / "seed-1"
    config = json.loads((saved / "config.json").read_text())
    names = {
        "id2label": {"0": "not_entailment", "1": "entailment"},
        "label2id": {v: 1 - k for v, k in RTE.items()},
    }
    (saved / "config.json").write_text(json.dumps({**config, **names}))
    again = replace(
        one, encoder=Encoder(saved), out=tmp_path / "again", settings=replace(one.settings, epochs=0.0)
    )
    assert again.run(SILENT)["details"]["labels"] == {"not_entailment": 0, "entailment": 1}


def stsb(*texts: str) -> list[str]:
    return [f"0\tn\tf\t2012\t1\ts\ts\t{text}\tB.\t{n}" for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("task", "lines", "constant", "note"),
    [
        ("cola", ["gj04\t1\t\tA fox.", "gj04\t0\t\tFox a."], True, "; not defined then, and 0: matthews"),
        ("stsb", stsb("A.", "C."), True, "; not defined then, and 0: pearson, spearman"),
        ("rte", ["0\tA.\tB.\tentailment", "1\tC.\tB.\tnot_entailment"], True, ""),
        ("stsb", stsb("A.", "The quick fox."), False, ""),
    ],
)
def test_predictions_that_are_all_the_same_are_said(
    task: str, lines: list[str], constant: bool, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = FILES[task]["dev.tsv"][: 0 if task == "cola" else 1]
    folder = write(tmp_path / "task", {**FILES[task], "dev.tsv": [*names, *lines]})
    if constant:
        width = 1 if task == "stsb" else 2
        monkeypatch.setattr(
            FineTuner, "answers", lambda self, features, advance: [np.ones(width)] * len(features)
        )
    found = [
        one for one in evaluation(task, folder, 2, epochs=1.0).run(SILENT)["notes"] if "prediction" in one
    ]
    every = "the same prediction for every example with seed 1, 2"
    assert found == ([f"dev: {every}{note}", f"dev: not pretrained, {every}{note}"] if constant else [])


def test_what_is_cut_is_counted_of_every_seed(tmp_path: Path) -> None:
    """Seeds that draw training examples of their own may cut another number of them."""
    rows = [f"{n}\t{'A fox slept. ' * (20 if n < 3 else 1)}\tB.\tentailment" for n in range(6)]
    head = FILES["rte"]["train.tsv"][0]
    folder = write(tmp_path / "task", {"train.tsv": [head, *rows], "dev.tsv": [head, *rows]})
    found = evaluation("rte", folder, 4, epochs=1.0, train_examples=2).run(SILENT)["notes"]
    train = FINE_TUNED["rte"].read(folder, settings_for("rte", {})).train
    counts = [sum(len(item.first) > 99 for item in drawn(train, 2, seed).items) for seed in (1, 2, 3, 4)]
    assert min(counts) < max(counts)
    assert f"train: {min(counts)} to {max(counts)} inputs cut to max_length" in found
    assert "dev: 3 inputs cut to max_length" in found


def test_questions_that_are_cut_are_counted_once_whatever_their_windows(tmp_path: Path) -> None:
    context = "the quick fox slept " * 40
    asked = [{**SQUAD, "id": str(n), "question": "Who " * (30 + 60 * n)} for n in range(2)]
    text = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]})
    folder = write(tmp_path / "task", {name: [text] for name in FILES["squad1"]})
    write_encoder(
        tmp_path / "model", "BertModel", trained("wordpiece"), INPUTS, {"max_position_embeddings": 96}
    )
    one = evaluation("squad1", folder, epochs=1.0, max_length=90)
    found = replace(one, encoder=Encoder(tmp_path / "model"), has_floor=False).run(SILENT)["notes"]
    assert found == ["train: 1 questions cut to 64 tokens", "dev: 1 questions cut to 64 tokens"]


def test_a_share_to_carve_makes_no_other_result_where_nothing_is_carved(tmp_path: Path) -> None:
    rows = [f"{n}\tA fox {n}.\tIt slept.\t{label}" for n in range(4) for label in RTE]
    head = FILES["rte"]["train.tsv"][0]
    folder = write(tmp_path / "task", {name: [head, *rows] for name in ("train.tsv", "dev.tsv")})
    one = replace(evaluation("rte", folder, epochs=1.0), has_floor=False)
    one.run(SILENT)
    path = tmp_path / "out" / "rte" / "seed-1.json"
    assert json.loads(path.read_text())["identity"]["settings"] == identity(one.settings)
    half = replace(one, settings=replace(one.settings, carve=0.5))
    was = path.stat().st_mtime_ns
    assert [again.replaced() for again in (one, half)] == ["", ""]
    assert half.run(SILENT)["scores"] == one.run(SILENT)["scores"]
    assert path.stat().st_mtime_ns == was, "trained again"
    (folder / "train.tsv").unlink()
    half, third = (replace(one, settings=replace(one.settings, carve=carve)) for carve in (0.5, 0.3))
    half.run(SILENT)
    assert half.replaced() == ""
    assert "replaces a result of other settings in" in third.replaced()
    blimp = evaluation("blimp", write_pairs(tmp_path / "pairs", 4), carve=0.5)
    assert blimp.known_by(blimp.parts[0])["settings"]["carve"] == 0


def test_a_file_says_its_version_and_a_result_repeats_it(tmp_path: Path) -> None:
    files = {name: [json.dumps({**ARTICLES, "version": "1.1"})] for name in FILES["squad1"]}
    note = evaluation("squad1", write(tmp_path / "task", files), epochs=1.0, max_length=48).run(SILENT)
    assert note["details"]["version"] == "1.1"


def test_every_published_task_has_a_source_that_the_docs_link_to() -> None:
    assert SOURCES.keys() == set(NAMES) - set(OWN)
    docs = (ROOT / "docs/reference/tasks.md").read_text()
    pages = {re.search(r"[a-z.-]+\.(com|org|edu|io|be)[\w/.-]*", source)[0] for source in SOURCES.values()}
    assert not [page for page in pages if f"(https://{page})" not in docs]


# What is scored: the evaluations of the chosen tasks, refused before anything is trained where they do not fit.


def chosen(
    data: Path, names: list[str], suite: str = "", changes: dict[str, Any] | None = None, **more: Any
) -> list[Evaluation]:
    tasks = chosen_tasks(names, suite, data)[0]
    return evaluations_of(tasks, changes or {}, [encoder_folder("bert")], data / "out", [1], **more)


@pytest.mark.parametrize(
    ("names", "changes", "setting", "said"),
    [
        (["mrpc"], {"part": 0.1}, "part", "is not for mrpc"),
        (["mrpc", "rte"], {"lr": 1e-4, "text": "title"}, "text", "is not for mrpc or rte"),
        (["blimp"], {"recipe": "small"}, "recipe", "is not for blimp"),
        (["attention"], {"precision": "bf16"}, "precision", "is not for attention"),
        (["mrpc"], {"test": True}, "test", "is not for mrpc"),
    ],
)
def test_a_setting_that_no_chosen_task_can_use_is_refused(
    names: list[str], changes: dict[str, Any], setting: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as found:
        chosen(tmp_path, names, changes=changes)
    assert str(found.value).startswith(f"{setting}: {said} (expected one of ")


def test_a_setting_that_one_of_them_can_use_is_not(tmp_path: Path) -> None:
    both = chosen(tmp_path, ["blimp", "mrpc"], changes={"part": 0.1, "recipe": "small"})
    assert [one.settings.part for one in both] == [0.1, 0.1]
    assert chosen(tmp_path, ["snli"], changes={"test": True})[0].settings.test


def test_two_results_of_one_name_are_refused(tmp_path: Path) -> None:
    for version in ("v2.13", "v2.14"):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "UD_English-EWT", FILES["ud"])
    with pytest.raises(UserError) as found:
        chosen(tmp_path, [], "ud")
    first, second = (tmp_path / version / "UD_English-EWT" for version in ("v2.13", "v2.14"))
    assert str(found.value) == (
        f"--data: holds ud-English-EWT twice: {first} and {second} (expected one folder of each name;"
        f" --data {tmp_path / 'v2.14'})"
    )
    assert [one.name for one in chosen(tmp_path / "v2.14", [], "ud")] == ["ud-English-EWT"]


@pytest.mark.parametrize(("names", "suite"), [(["mnli"], ""), ([], "glue"), (["rte"], "all")])
def test_no_chosen_task_starts_from_itself(names: list[str], suite: str, tmp_path: Path) -> None:
    for task in ("rte", "mnli"):
        write(tmp_path / task.upper(), FILES[task])
    with pytest.raises(UserError, match="--start-from: mnli cannot start from itself"):
        chosen(tmp_path, names, suite, start_from="mnli")
    with pytest.raises(UserError, match="no such task: mnlii"):
        chosen(tmp_path, ["rte"], start_from="mnlii")
    assert chosen(tmp_path, ["rte"], start_from="mnli")[0].name == "rte-from-mnli"


# A user's own files of two kinds are scored in one process, each by its own metrics.


QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731


def test_each_folder_is_known_by_its_own_metric(tmp_path: Path) -> None:
    rows = ["text\tlabel", *(f"the fox {n}\t{n % 30}" for n in range(60))]
    both = [
        Evaluation(
            "own",
            Encoder(encoder_folder("bert")),
            write(tmp_path / kind, {"train.tsv": rows, "dev.tsv": rows}),
            tmp_path / "out" / kind,
            settings_for(
                "own",
                {"epochs": 0.2, "max_length": 16, "labels": kind, "threads": 1, "tune_share": 0.5},
            ),
            [1],
            False,
        )
        for kind in ("numbers", "classes")
    ]
    for evaluation in both:
        evaluation.check()  # as `maskmill evaluate` and studies do, before anything is scored
    found = [evaluation.run(QUIET) for evaluation in both]
    assert [note["headline"] for note in found] == ["pearson", "accuracy"]
    assert [set(note["scores"]["dev"]) for note in found] == [{"pearson", "spearman"}, {"accuracy"}]

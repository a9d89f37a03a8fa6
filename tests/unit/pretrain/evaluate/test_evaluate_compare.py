"""Results of other encoders beside those of one: only what can be compared, and what differs is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.evaluate.compare import Other, apart, by_chance, read_other, remarks, result_lines
from pretrain.evaluate.results import spread
from pretrain.run.files import EVALUATION
from pretrain.run.task_scores import RESULT, task_scores
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import identity, settings_for
from tests.factories.encoders import encoder_folder

NOW = {"weights": "w", "config": "c", "tokenizer": "t"}


def note(task: str = "rte", *values: float, **changes: Any) -> dict[str, Any]:
    """What result.json holds of a task that is known by its accuracy."""
    settings = identity(settings_for("rte", changes.pop("settings", {})))
    return {
        "task": task,
        "headline": "accuracy",
        "encoder": NOW,
        "scores": {"dev": {"accuracy": spread(list(values))}},
        "trivial": {"dev": {"accuracy": 50.0}},
        "notes": [],
        "details": {"examples": {"train": 10, "dev": 4}},
        "settings": settings,
        "conditions": [{"precision": "fp32", "threads": 1}],
        "seeds": list(range(1, 1 + len(values))),
        "files": {"train.tsv": "a", "dev.tsv": "b"},
        **changes,
    }


def other(*notes: dict[str, Any], model: dict[str, str] | None = None) -> Other:
    return Other("runs/mine", (model,) if model else (), {one["task"]: one for one in notes})


def said(ours: dict[str, Any], theirs: Other) -> list[str]:
    return list(remarks([ours], [theirs], lambda one, tasks: f"evaluate {one.name} {' '.join(tasks)}"))


OURS = note("rte", 60.0, 62.0, 64.0)


def test_a_column_has_median_and_range_and_a_mark_where_no_seed_reaches_the_other() -> None:
    notes = [OURS, note("wnli", 50.0, 51.0, 52.0), note("cola", 1.0)]
    theirs = [note("rte", 70.0, 66.0, 64.5), note("wnli", 52.0, 53.0, 54.0)]
    assert result_lines(notes, [other(*theirs)])[:5] == [
        "task  metric    score  lowest to highest  not pretrained  trivial             runs/mine",
        "rte   accuracy   62.0     (60.0 to 64.0)                     50.0  66.0 (64.5 to 70.0)*",
        "wnli  accuracy   51.0     (50.0 to 52.0)                     50.0   53.0 (52.0 to 54.0)",
        "cola  accuracy    1.0                                        50.0",
        "* no seed of the one reaches the other; of equal encoders with 3 and 3 seeds in 1 of 10 cases",
    ]
    marked = result_lines(notes[:1], [other(theirs[0])], as_markdown=True)
    assert marked[2:4] == ["| rte | accuracy | 62.0 | (60.0 to 64.0) |  | 50.0 | 66.0 (64.5 to 70.0)* |", ""]
    assert marked[4].startswith("* no seed of the one")


@pytest.mark.parametrize(
    ("ours", "theirs", "are"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((3.0, 4.0), (1.0, 2.0), True),
        ((1.0, 3.0), (3.0, 4.0), False),  # one seed of the one reaches a seed of the other
        ((1.0, 5.0), (2.0, 3.0), False),
        ((1.0,), (3.0, 4.0), False),  # one seed says nothing of others
        ((1.0,), (3.0,), False),
        ((1.0, 1.0), (3.0, 4.0), False),  # equal seeds, as where nothing is trained, are one score
        ((1.0, 2.0), (3.0, 3.0), False),
    ],
)
def test_apart_are_ranges_of_several_seeds_that_do_not_overlap(
    ours: tuple[float, ...], theirs: tuple[float, ...], are: bool
) -> None:
    (one,), (another,) = (task_scores(note("rte", *values)) for values in (ours, theirs))
    assert apart(one, another) == are
    if len(ours) == len(theirs) == 2:
        assert by_chance(one, another) == pytest.approx(
            1 / 3
        )  # of six orders the two with both first or last


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"files": {"train.tsv": "a", "dev.tsv": "c"}}, "scored on other files: dev.tsv"),
        ({"files": {"dev.tsv": "b"}}, "scored on other files: train.tsv"),
        ({"files": {"train.tsv": "a", "dev.tsv": "b", "x": "c"}}, "scored on other files: x"),
        ({"details": {"examples": {"train": 6, "dev": 8}}}, "scored on 8 examples of dev, here 4"),
        ({"settings": {"label": "stars"}}, "scored with another label"),  # of own files: another column
        ({"headline": "f1"}, "scored by f1, here by accuracy"),
        ({"task": "wnli"}, "not scored yet"),
        ({"encoder": {"weights": "older"}}, "scored with other weights than it has now"),
        ({"encoder": {"weights": "w", "tokenizer": "t"}}, "scored by an older version"),
        ({"encoder": {**NOW, "config": "x"}}, "scored with another config.json or tokenizer than it has now"),
        (
            {"encoder": {**NOW, "tokenizer": "x"}},
            "scored with another config.json or tokenizer than it has now",
        ),
        (
            {"encoder": None, "files": [], "details": 1, "settings": ""},
            "scored with other weights than it has now",
        ),
    ],
)
def test_what_is_not_of_the_same_examples_and_metric_has_no_column_but_a_command(
    changes: dict[str, Any], why: str
) -> None:
    theirs = other({**note("rte", 70.0, 71.0), **changes}, model=NOW)
    assert said(OURS, theirs) == [f"runs/mine: rte {why}: evaluate runs/mine rte"]
    assert result_lines([OURS], [theirs])[1].endswith("50.0")


def test_a_test_file_of_one_alone_is_no_other_dev_file() -> None:
    scores = {split: {"accuracy": spread([70.0, 71.0, 72.0])} for split in ("dev", "test")}
    details = {"examples": {"train": 10, "dev": 4, "test": 3}}
    files = {**OURS["files"], "test.tsv": "c"}
    longer = note("rte", 1.0, 2.0, 3.0, settings={"test": True}, files=files, scores=scores, details=details)
    assert said(OURS, other(longer)) == said(longer, other(OURS)) == []
    assert result_lines([longer], [other(OURS)])[2].split()[:4] == ["rte", "test", "accuracy", "71.0"]
    assert "62.0" in result_lines([longer], [other(OURS)])[1]
    assert "62.0" not in result_lines([longer], [other(OURS)])[2]
    assert result_lines([OURS], [other(longer)])[1].endswith("71.0 (70.0 to 72.0)*")


def test_what_was_made_otherwise_is_said_once_for_its_tasks() -> None:
    changes = {"epochs": 4.0, "lr": 1e-4, "by_epoch": True, "recipe": "small", "max_length": 64}
    made = note("rte", 70.0, 71.0, settings=changes, conditions=[{"precision": "bf16"}])
    assert said(OURS, other(made)) == [
        "runs/mine: rte with epochs=4 (here 3), lr=0.0001 (here 5e-05), max_length=64 (here 128),"
        " precision=bf16 (here fp32), seeds=2 (here 3)"
    ]
    older = {**OURS, "settings": {k: v for k, v in OURS["settings"].items() if k != "grid"}}
    assert said(OURS, other(older)) == [], "of a version without a setting: it had what is its default"
    untrained = [
        {**note("blimp", 50.0), "settings": one["settings"], "details": {"examples": {"dev": 4}}}
        for one in (OURS, made)
    ]
    assert said(untrained[0], other(untrained[1])) == [], "settings of a training that is none"
    both = remarks([OURS, note("wnli", 1.0, 2.0, 3.0)], [other()], lambda one, tasks: " ".join(tasks))
    assert list(both) == ["runs/mine: rte, wnli not scored yet: rte wnli"]


def test_perplexities_per_token_stand_beside_those_of_the_same_vocabulary_alone() -> None:
    def of(tokenizer: str, value: float) -> dict[str, Any]:
        metrics = ("perplexity", "perplexity_per_word", "bits_per_character")
        scores = {"dev": {metric: spread([value]) for metric in metrics}}
        encoder = {"weights": "w", "tokenizer": tokenizer}
        found = note("perplexity", value, headline="perplexity", scores=scores, encoder=encoder, trivial={})
        return {**found, "details": {"examples": {"dev": 4}}, "seeds": [1]}

    for tokenizer, cells in (("t", ["7.0", "7.0", "7.000"]), ("another", ["", "7.0", "7.000"])):
        lines = result_lines([of("t", 5.0)], [other(of(tokenizer, 7.0))], as_markdown=True)[2:5]
        assert [line.strip("| ").split(" | ")[-1] for line in lines if line.startswith("|")][1:] == cells[1:]
        assert ("7.0" in lines[0]) == bool(cells[0])


def test_another_encoder_is_a_run_a_model_or_a_folder_of_results(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(encoder_folder("bert"), model)
    assert read_other(model) == Other(str(model), (Encoder(model).identity,), {})
    for folder in (model / EVALUATION, tmp_path / "out"):
        (folder / "rte").mkdir(parents=True)
        (folder / "rte" / RESULT).write_text(json.dumps(OURS))
    assert read_other(model).notes == read_other(tmp_path / "out").notes == {"rte": OURS}
    assert not read_other(tmp_path / "out").models
    for nothing in ("none", "empty"):
        if nothing == "empty":
            (tmp_path / nothing).mkdir()
        with pytest.raises(UserError, match=f"--against .*{nothing}: has neither a model nor results"):
            read_other(tmp_path / nothing)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    with pytest.raises(UserError, match="has not been exported yet"):
        read_other(tmp_path / "run")

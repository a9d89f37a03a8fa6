"""State what a reader of scores needs to compare them with others: sizes, labels, and what chose what."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from pretrain.evaluate.downstream import metrics
from pretrain.evaluate.downstream.device import chosen_device, conditions, used_precision
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.results.files import SeedResult, means_by_epoch
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Material, Scores, Task, TaskData, Untrained
from pretrain.evaluate.downstream.tasks.sources import SOURCES
from pretrain.evaluate.downstream.tasks.splits import SPLITS

PACKAGES = ("maskmill", "torch", "transformers", "tokenizers", *metrics.EXTRA)
"""Whose versions a result states."""
CORRELATIONS = ("matthews", "pearson", "spearman")
"""Metrics that are not defined for constant predictions."""
MEAN = "medians over the seeds; no mean over tasks, so none that WNLI could count in"


def common_facts(task: str, encoder: Encoder, settings: EvaluationSettings) -> dict[str, Any]:
    """Return where the task's files are published, the ids of segments that the encoder reads, and what means are."""
    return {
        "source": SOURCES.get(task, "a user's own files"),
        "segments": encoder.builder(settings.max_length).segment_ids,
        "mean": MEAN,
    }


class Facts(NamedTuple):
    """What result.json says of a task beside the scores."""

    details: dict[str, Any]
    trivial: dict[str, Scores]
    """Split -> scores of the best answer without input."""
    notes: list[str]
    """What is said below the table."""


def trained_facts(
    task: Task,
    data: TaskData,
    settings: EvaluationSettings,
    scores: Sequence[SeedResult],
    floor: Sequence[SeedResult],
) -> Facts:
    """Return the facts of a fine-tuning: version, examples and rows left out of each split, ids of labels, and what
    was chosen on which examples."""
    first, splits = scores[0].details, (data.train, *data.scored)
    details = {
        "version": data.version,
        "examples": {
            data.train.name: max(one.details["trained_examples"] for one in scores),
            **{split.name: len(split.items) for split in data.scored},
        },
        "train_examples_available": len(data.train.items),
        "skipped": {split.name: split.skipped for split in splits},
        "selection": _selection(scores),
        "labels": first["labels"],
    }
    if settings.by_epoch:
        details["by_epoch"] = means_by_epoch([one.details["by_epoch"] for one in scores])
    notes = [
        *split_notes(data, settings),
        *subset_notes(data, scores),
        *dict.fromkeys(note for one in scores for note in one.details.get("reading", ())),
        *cut_notes(task, scores),
        *choice_notes(scores),
        *threshold_notes(scores),
        *constant_notes(scores),
        *constant_notes(floor, "not pretrained, "),
    ]
    return Facts(details, {split.name: task.trivial(split, data) for split in data.scored}, notes)


def untrained_facts(material: Material, found: dict[str, Any]) -> Facts:
    """Return the facts of a task without training, which chooses nothing: those that scoring `found`, and how many
    items there are."""
    details = {
        "version": "",
        "examples": {"dev": material.size},
        "skipped": {"dev": material.skipped},
        "selection": {"set": None, "chooses": []},
        "labels": {},
        **{key: value for key, value in found.items() if key not in ("trivial", "notes")},
    }
    return Facts(details, {"dev": found["trivial"]}, found.get("notes", []))


def precision_now(task: Task | Untrained, settings: EvaluationSettings) -> str:
    """Return the precision in which a score of the task is computed in this process."""
    wanted = settings.precision if isinstance(task, Task) or task.has_precision else "fp32"
    return used_precision(wanted, chosen_device(), fine_tuned=isinstance(task, Task))


def conditions_now(task: Task | Untrained, settings: EvaluationSettings) -> dict[str, Any]:
    """Return under what conditions a score of the task is computed in this process."""
    versions = {name: version(name) for name in PACKAGES if metrics.is_installed(name)}
    return {"precision": precision_now(task, settings), **conditions(), "versions": versions}


def conditions_of(scores: Sequence[SeedResult]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the different conditions under which the seeds were scored, and a note where there are several."""
    found: list[dict[str, Any]] = []
    for one in scores:
        if one.conditions not in found:
            found.append(one.conditions)
    keys = {key for one in found for key in one}
    differ = sorted(key for key in keys if any(one.get(key) != found[0].get(key) for one in found))
    return found, [f"seeds were scored with different {', '.join(differ)}"] if differ else []


def cut_notes(task: Task, scores: Sequence[SeedResult]) -> list[str]:
    """Return a note for each split of which texts were cut: how many, from the fewest to the most of a seed, which may
    draw its own training examples."""
    notes = []
    for split in scores[0].details["cut_inputs"]:
        counts = [one.details["cut_inputs"][split] for one in scores]
        low, high = min(counts), max(counts)
        if high:
            notes.append(f"{split}: {low if low == high else f'{low} to {high}'} {task.cut}")
    return notes


def subset_notes(data: TaskData, scores: Sequence[SeedResult]) -> list[str]:
    """Return a note where fewer examples were trained on than the training file has: from the fewest to the most of a
    seed."""
    counts, every = [one.details["trained_examples"] for one in scores], len(data.train.items)
    low, high = min(counts), max(counts)
    kept = max(one.details["tune_examples"] for one in scores)
    if not high or low + kept >= every:
        return []
    chosen = f", and chosen by {kept:,} others" if kept else ""
    found = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return [f"trained on {found} of {every:,} training examples{chosen}"]


def split_notes(data: TaskData, settings: EvaluationSettings) -> list[str]:
    """Return a note where a test file was asked for and none is read for this task."""
    has_test = any(split.name == SPLITS[-1] for split in data.scored)
    return ["no test file with labels is published for this task"] if settings.test and not has_test else []


def choice_notes(scores: Sequence[SeedResult]) -> list[str]:
    """Return a note of what each seed chose, where it had candidates to choose among."""
    chosen = [
        f"{' '.join(f'{key}={value:g}' for key, value in one.details['chosen'].items())} with seed {one.seed}"
        for one in scores
        if one.details["chosen"]
    ]
    if not chosen:
        return []
    first = scores[0].details
    of = f"of {len(first['candidates'])} by {first['tune_examples']} examples kept from training"
    return [f"chosen {of}: {'; '.join(chosen)}"]


def threshold_notes(scores: Sequence[SeedResult]) -> list[str]:
    """Return a note of the threshold for no answer of each seed, where the tuning examples chose it."""
    found = [
        f"{one['null_threshold']:.4g} by {one['examples']} questions with seed {seed.seed}"
        for seed in scores
        if (one := _decided(seed))
    ]
    return [f"null_threshold chosen by questions kept from training: {'; '.join(found)}"] if found else []


def constant_notes(scores: Sequence[SeedResult], of: str = "") -> list[str]:
    """Return a note for each split whose examples all have the same prediction, and with which seeds: a score that is
    no better than a trivial one, and a correlation that is not defined."""
    notes = []
    for split, found in scores[0].splits.items() if scores else ():
        seeds = [str(one.seed) for one in scores if split in one.details["constant"]]
        undefined = [metric for metric in found if metric in CORRELATIONS]
        if seeds:
            note = f"{split}: {of}the same prediction for every example with seed {', '.join(seeds)}"
            notes.append(note + (f"; not defined then, and 0: {', '.join(undefined)}" if undefined else ""))
    return notes


def _selection(scores: Sequence[SeedResult]) -> dict[str, Any]:
    """Return on which examples what was chosen: the best epoch of each seed, counted from 1, of the candidates of a
    grid the best one, and the threshold for no answer, on the tuning share of the training examples, or nothing.
    Scored examples never choose."""
    tuned, decided = [one.details["tuned"] for one in scores], [_decided(one) for one in scores]
    if not all(tuned) and not all(decided):
        return {"set": None, "chooses": []}
    found: dict[str, Any] = {"set": "tune", "examples": scores[0].details["tune_examples"], "chooses": []}
    if all(tuned):
        found["chooses"] += ["epoch", *scores[0].details["chosen"]]
        found["epochs"] = [1 + int(np.argmax(one)) for one in tuned]
    if all(decided):
        found["chooses"].append("null_threshold")
        found["decided"] = decided
    if scores[0].details["chosen"]:
        found["chosen"] = [one.details["chosen"] for one in scores]
        found["candidates"] = [one.details["candidates"] for one in scores]
    return found


def _decided(score: SeedResult) -> dict[str, Any]:
    """Return what the tuning examples chose of a seed after its training, and how many they are; empty for nothing."""
    found = score.details["decided"]
    return {**found, "examples": score.details["tune_examples"]} if found else {}

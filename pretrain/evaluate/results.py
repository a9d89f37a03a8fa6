"""Write and read results: a JSON file per seed while a task is evaluated, and one for all of it at the end.

    OUT/TASK/seed-1.json              scores of one fine-tuning, and the hashes and settings that it is known by
    OUT/TASK/floor-seed-1.json        of the same encoder, not pretrained
    OUT/TASK/result.json              all seeds with median and spread, the floors, versions
    OUT/TASK/predictions/seed-1/dev/  what was answered to each example of a split, if that is asked for

result.json states beside the scores what a reader needs to compare them with others: sizes, labels, and what chose
what.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.files import own_folder, temporary_folder, whole_folder, write_whole
from pretrain.run.files import table
from pretrain.run.task_scores import RESULT
from pretrain.tasks import metrics
from pretrain.tasks.base import Material, Scores, Task, TaskData, Untrained
from pretrain.tasks.class_names import usual_order
from pretrain.tasks.encoders import Encoder, chosen_device, conditions, used_precision
from pretrain.tasks.files import SOURCES, SPLITS
from pretrain.tasks.registry import settings_of
from pretrain.tasks.settings import EvaluationSettings, defaults, identity

# Write and read the files of a seed and of a task.


FORMAT = 3
"""Version of these files: results of another one are not continued."""


@dataclass(frozen=True)
class SeedResult:
    """Of one seed: split -> scores, and how the training went."""

    seed: int
    splits: dict[str, Scores]
    seconds: float
    details: dict[str, Any]
    conditions: dict[str, Any] = field(default_factory=dict)
    """Precision, threads, device and versions of libraries."""


def seed_file(out: Path, task: str, seed: int, pretrained: bool) -> Path:
    """Return where the result of one seed is."""
    return out / task / f"{'' if pretrained else 'floor-'}seed-{seed}.json"


def read_seed(path: Path, identity: dict[str, Any]) -> SeedResult | None:
    """Return what an earlier call left, if it is of the same identity."""
    note = seed_note(path)
    return SeedResult(**note["result"]) if note and not differing(note, identity) else None


def seed_note(path: Path) -> dict[str, Any]:
    """Return what the file of one seed holds; empty where there is none of this format."""
    note = table(path) if path.is_file() else {}
    return note if note.get("format") == FORMAT and isinstance(note.get("identity"), dict) else {}


def differing(note: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """Return in what an earlier result of one seed is of another identity."""
    known, before = json.loads(json.dumps(identity)), note["identity"]
    settings = before.get("settings")
    if isinstance(settings, dict):  # of a version without some settings: it had what is their default now
        settings = json.loads(json.dumps(defaults())) | settings
        before = before | {"settings": settings}
    return [key for key in known if before.get(key) != known[key]]


def saved_model(out: Path, task: str, seed: int, encoder: Encoder) -> Path:
    """Return the folder in which --save kept a fine-tuned model of this encoder. Raises UserError where there is none,
    or one that was fine-tuned from another."""
    result = seed_file(out, task, seed, pretrained=True)
    folder = result.with_suffix("")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"has no model of {task} with seed {seed}",
            where=folder,
            remedy=f"evaluate {task} first, with --save and as many --seeds",
        )
    note = seed_note(result)
    if not note or note["identity"].get("encoder") != encoder.identity:
        raise UserError(
            f"is not known to be fine-tuned from the weights, config.json and tokenizer in {encoder.folder}",
            where=folder,
            remedy=f"evaluate {task} again, with --save",
        )
    return folder


def write_seed(path: Path, identity: dict[str, Any], result: SeedResult) -> None:
    """Write the result of one seed, whole or not at all."""
    _write(path, {"format": FORMAT, "identity": identity, "result": asdict(result)})


def predictions_folder(out: Path, task: str, seed: int) -> Path:
    """Return where the predictions of one seed are."""
    return out / task / "predictions" / f"seed-{seed}"


def remove_seed(out: Path, task: str, seed: int) -> None:
    """Remove the scores of a seed, and then its model and predictions: none of them may be taken for another's."""
    path = seed_file(out, task, seed, pretrained=True)
    path.unlink(missing_ok=True)
    for folder in (path.with_suffix(""), predictions_folder(out, task, seed)):
        if folder.is_dir():
            with temporary_folder(folder) as old:
                folder.rename(old / folder.name)


def write_predictions(folder: Path, found: dict[str, dict[str, str]]) -> None:
    """Write split -> file -> content into a new folder, all of it or nothing."""
    with whole_folder(folder) as partial:
        for split, files in found.items():
            (partial / split).mkdir()
            for name, content in files.items():
                write_whole(partial / split / name, content.encode())


def write_result(out: Path, task: str, note: dict[str, Any]) -> Path:
    """Write the result of a task and return where."""
    path = out / task / RESULT
    _write(path, {"format": FORMAT, **note})
    return path


def _write(path: Path, note: dict[str, Any]) -> None:
    try:
        own_folder(path.parent, parents=True)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}", where=path.parent, remedy="--out FOLDER writes elsewhere"
        ) from None
    write_whole(path, (json.dumps(note, indent=1, ensure_ascii=False) + "\n").encode())


# Sum up scores over the seeds.


def spread(values: list[float]) -> dict[str, Any]:
    """Return median, lowest and highest, mean and sample standard deviation (None of a single value)."""
    array = np.array(values)
    return {
        "median": float(np.median(array)),
        "min": float(array.min()),
        "max": float(array.max()),
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(values) > 1 else None,
        "values": values,
    }


def means_by_epoch(curves: list[list[dict[str, Scores]]]) -> dict[str, dict[str, list[float]]]:
    """Return split -> metric -> its mean over the seeds after each epoch, as far as all of them trained."""
    epochs = list(zip(*curves, strict=False))
    return {
        split: {
            metric: [float(np.mean([one[split][metric] for one in seeds])) for seeds in epochs]
            for metric in scores
        }
        for split, scores in (epochs[0][0] if epochs else {}).items()
    }


def over_seeds(results: Sequence[SeedResult]) -> dict[str, dict[str, Any]]:
    """Return split -> metric -> its spread over the seeds."""
    return {
        split: {metric: spread([one.splits[split][metric] for one in results]) for metric in scores}
        for split, scores in results[0].splits.items()
    }


# State the sizes, labels and conditions of a result, what chose what, and notes of them.


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
    return Facts(details, {split.name: task.baseline(split, data) for split in data.scored}, notes)


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


# Say what a score is known by: what an earlier call kept under the same is not made again.


def result_name(
    task: str, encoder: Encoder, folder: Path, settings: EvaluationSettings, start_from: str
) -> str:
    """Return what a result is called: the task, its treebank, what its tagger is where there are several kinds, and
    what it was started from. `folder`: of the task's files."""
    flags = [name for name in ("bilstm", "crf") if getattr(settings, name)]
    treebank = folder.name.removeprefix("UD_") if folder.name.startswith("UD_") else ""
    origin = f"from-{start_from}" if start_from else ""
    return "-".join(filter(None, (task, encoder.kind, treebank, settings.features, *flags, origin)))


def score_identity(
    task: Task | Untrained,
    name: str,
    encoder: Encoder,
    seed: int,
    settings: EvaluationSettings,
    data: Material | TaskData,
) -> dict[str, Any]:
    """Return what tells the score of an encoder with a seed from others. `name`: that of the result, `data`: what the
    task's files hold."""
    outputs = {}
    if isinstance(data, TaskData) and data.labels and not settings.epochs:
        outputs = {"nameless_outputs": list(usual_order(task.name, data.labels))}
    return {
        **outputs,
        "task": name,
        "seed": seed,
        "encoder": encoder.identity,
        "settings": deciding_settings(task, settings, data),
        "precision": precision_now(task, settings),
        "files": data.files,
    }


def deciding_settings(
    task: Task | Untrained, settings: EvaluationSettings, data: Material | TaskData
) -> dict[str, Any]:
    """Return the settings that decide a score. Those which say nothing about the task are at their defaults, and carve
    where nothing is carved, as beside a training file: with other ones the result is the same."""
    used = settings_of(task.name)
    if isinstance(data, Material) or not data.train.is_carved:
        used -= {"carve"}
    return {key: value if key in used else defaults()[key] for key, value in identity(settings).items()}


# Compose what result.json holds of a task: scores and floors over the seeds, and the facts beside them.


def result_note(
    task: Task | Untrained,
    name: str,
    encoder: Encoder,
    settings: EvaluationSettings,
    data: Any,
    scores: Sequence[SeedResult],
    floor: Sequence[SeedResult],
    started: Sequence[str],
) -> dict[str, Any]:
    """Return what result.json holds. `name`: that of the result, `data`: what the task's files hold, `floor`: of the
    same encoder without its weights, `started`: notes of what the seeds began with."""
    if isinstance(task, Untrained):
        facts, headline = untrained_facts(data, scores[0].details), task.headline
    else:
        facts, headline = trained_facts(task, data, settings, scores, floor), task.headline_of(data)
    conditions, differ = conditions_of((*scores, *floor))
    return {
        "task": name,
        "headline": headline,
        "encoder": {"folder": str(encoder.folder), **encoder.identity},
        "scores": over_seeds(scores),
        "not_pretrained": over_seeds(floor) if floor else {},
        "trivial": facts.trivial,
        "notes": [*data.notes, *started, *facts.notes, *differ],
        "details": facts.details,
        "settings": deciding_settings(task, settings, data),
        "conditions": conditions,
        "seeds": [one.seed for one in scores],
        "floor_seeds": [one.seed for one in floor],
        "seconds": sum(one.seconds for one in (*scores, *floor)),
        "files": data.files,
        **common_facts(task.name, encoder, settings),
    }

"""Write and read results: a JSON file per seed while a task is evaluated, and one for all of it at the end.

OUT/TASK/seed-1.json              scores of one fine-tuning, and the hashes and settings that it is known by
OUT/TASK/floor-seed-1.json        of the same encoder, not pretrained
OUT/TASK/seed-1.unfinished.json   of a grid that goes on: what its finished candidates came to
OUT/TASK/result.json              all seeds with median and spread, the floors, versions
OUT/TASK/predictions/seed-1/dev/  what was answered to each example of a split, if that is asked for
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.files import own_folder, temporary_folder, whole_folder, write_whole
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.settings import defaults
from pretrain.evaluate.downstream.tasks.base import Scores
from pretrain.run.files import number, objects, table
from pretrain.run.task_scores import RESULT

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


@dataclass
class Unfinished:
    """A seed with several candidates while they are trained: what those that are finished came to, in a file beside the
    seed's. A part of the work (a seed, with weights or without) has a file of its own, which one process writes, so
    that shares and jobs need not know of each other."""

    path: Path
    identity: dict[str, Any]
    """That of the seed, and its conditions: metrics of another precision or machine are not to choose by together, and
    the result is then to the bit that of a training which nothing has stopped."""
    candidates: list[dict[str, Any]] = field(default_factory=list)
    """Of each finished one in its turn: values, restart, and the metric that it is compared by as `tuned`."""
    seconds: float = 0.0
    """What they took."""

    def take(self, found: SeedResult) -> None:
        """Take over what the candidates of a seed that is finished came to, if it had several."""
        if candidates := found.details.get("candidates"):
            self.candidates, self.seconds = candidates, found.seconds

    def keep(self, seconds: float) -> None:
        """Write what is known now, whole or not at all."""
        note = {"format": FORMAT, "identity": self.identity}
        _write(self.path, {**note, "candidates": self.candidates, "seconds": seconds})

    def remove(self) -> None:
        """Forget it, when the seed has its result."""
        self.path.unlink(missing_ok=True)


def read_unfinished(seed: Path, identity: dict[str, Any]) -> Unfinished:
    """Return what an earlier call that was stopped knew of the seed whose file is to be `seed`; nothing where there was
    none of the same identity, or its file is damaged."""
    found = Unfinished(seed.with_suffix(".unfinished.json"), identity)
    note = seed_note(found.path)
    seconds = number(note.get("seconds"))
    if note and not differing(note, identity) and seconds is not None:
        found.candidates, found.seconds = objects(note.get("candidates")), seconds
    return found


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

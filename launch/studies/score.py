"""Score the model of a cell on the tasks of its study."""

import fnmatch
import os
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from launch.studies.place import Place, last_line, maskmill
from launch.studies.read import run_folder, run_of
from pretrain.evaluate.evaluate import Evaluation, beside, pick_encoder
from pretrain.studies.design import Design, Scoring
from pretrain.studies.measured import Cell
from pretrain.studies.segment_edits import edited_folder
from pretrain.tasks.encoders import find_encoders
from pretrain.tasks.registry import OWN, folder_of, folders_of
from pretrain.tasks.settings import settings_for


def model_of(design: Design, cell: Cell, place: Place) -> Path:
    """Return the folder of the model to score: exported, given, or taken from another arm and changed."""
    arm = design.arms[cell.arm]
    source = place.model or _exported(Cell(arm.model_of or cell.arm, cell.seed, cell.tuned), place)
    if not arm.segments:
        return source
    return edited_folder(source, arm.segments, run_folder(place.folder, cell) / "model")


def _exported(cell: Cell, place: Place) -> Path:
    folder = run_folder(place.folder, cell)
    if not (folder / "export").is_dir():
        log = place.folder / "logs" / f"{cell.name}.log"
        code, output = maskmill(["export", str(folder)], log)
        if code:
            raise UserError(f"the export failed: {last_line(output)}", where=f"{cell.name} ({log})")
    return folder / "export"


class Scored(NamedTuple):
    """Scores of a task by `TASK.METRIC`, means over the seeds of fine-tuning."""

    figures: dict[str, float]
    by_epoch: dict[str, list[float]]
    """After each epoch of fine-tuning, where `by_epoch` asks for that."""
    trivial: dict[str, float]
    """Of the best answer that needs no input."""


def scores(
    design: Design,
    cell: Cell,
    place: Place,
    model: Path,
    scoring: Scoring,
    number: int,
    data: Path,
    notes: list[str],
) -> Scored:
    """Score the model on a task with the files in `data`; nothing, and a note, where it cannot be scored on it. A
    metric that a model does not have is absent."""
    first = (cell.seed - 1) * scoring.seeds + 1 if place.model else 1
    settings = {"threads": place.threads, **scoring.settings, **design.arms[cell.arm].evaluation}
    try:
        other = design.arms[cell.arm].beside
        second = _exported(Cell(other, cell.seed), place) if other and not place.model else None
        evaluation = Evaluation(
            scoring.task,
            beside(pick_encoder(scoring.task, find_encoders(model)), second),
            data,
            run_folder(place.folder, cell) / "evaluation" / str(number),
            settings_for(scoring.task, settings),
            range(first, first + scoring.seeds),
            has_floor=False,
        )
        note = evaluation.run(lambda name, total: nullcontext(lambda n: None))
    except UserError as error:
        notes.append(f"{design.label(cell.arm)} has no score of {scoring.task}: {error}")
        return Scored({}, {}, {})
    split = next(iter(note["scores"]))
    found = note["scores"][split]
    wanted = scoring.metrics or [note["headline"]]
    names = {
        metric: f"{scoring.name or note['task']}.{metric}"
        for pattern in wanted
        for metric in fnmatch.filter(found, pattern)
    }
    curves = note["details"].get("by_epoch", {}).get(split, {})
    trivial = note["trivial"].get(split, {})
    return Scored(
        {name: found[metric]["mean"] for metric, name in names.items()},
        {name: curves[metric] for metric, name in names.items() if metric in curves},
        {name: trivial[metric] for metric, name in names.items() if metric in trivial},
    )


def data_of(design: Design, cell: Cell, place: Place, scoring: Scoring) -> list[Path]:
    """Return the folders of a task's files for a cell: several treebanks, one of other tasks, or none."""
    own, _, named = scoring.data.partition(" of ")
    if own == "shards":
        source = Cell(
            named or design.arms[cell.arm].model_of or cell.arm, cell.seed, () if named else cell.tuned
        )
        return [Path(run_of(design, source, place.folder, place.threads).phases[-1].data.out)]
    if scoring.data:
        return [folder_of(scoring.task, Path(os.path.expanduser(scoring.data)))]
    if place.data is None:
        return []
    return [place.data] if scoring.task in OWN else folders_of(scoring.task, place.data)

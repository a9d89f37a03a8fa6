"""Choose what is scored, and score its parts, each a task, a seed and an encoder: one by one or side by side."""

import os
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from data_pipeline.stages.executors import ALL, Share, processes_for_jobs
from pretrain.evaluate.downstream.encoders import Encoder, find_encoders
from pretrain.evaluate.downstream.evaluate import Evaluation, Part
from pretrain.evaluate.downstream.heads.two_way import TwoWay
from pretrain.evaluate.downstream.settings import settings_for
from pretrain.evaluate.downstream.tasks.registry import UNTRAINED, check_name, check_setting


def score_parts(
    evaluations: Sequence[Evaluation], progress: ShowProgress, jobs: int = 1, share: Share = ALL
) -> int:
    """Score this share of the parts of all evaluations, `jobs` at a time in processes of their own, and return how
    many there are in it. What is scored already is not repeated. Raises UserError as Evaluation.score does."""
    parts = [(evaluation, part) for evaluation in evaluations for part in evaluation.parts]
    mine = [parts[number] for number in share.tasks(len(parts))]
    checked = list({id(evaluation): evaluation for evaluation, _ in mine}.values())
    with progress("files of the tasks", len(checked)) as advance:
        for evaluation in checked:
            evaluation.check()
            advance(1)
    if jobs == 1:
        for evaluation, part in mine:
            evaluation.score(part, progress)
        return len(mine)
    count = min(jobs, len(mine)) or 1
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    with processes_for_jobs(count) as pool:
        futures = [
            pool.submit(_score, *_with_threads(evaluation, part, threads)) for evaluation, part in mine
        ]
        with progress("scores of a task and seed", len(mine)) as advance:
            for future in as_completed(futures):
                future.result()
                advance(1)
    return len(mine)


def _with_threads(evaluation: Evaluation, part: Part, threads: int) -> tuple[Evaluation, Part]:
    wanted = replace(evaluation.settings, threads=evaluation.settings.threads or threads)
    return replace(evaluation, settings=wanted), part


def _score(evaluation: Evaluation, part: Part) -> None:
    """Score one part in a process of its own, silently."""
    evaluation.score(part, lambda name, total: nullcontext(lambda n: None))


def evaluations_of(
    chosen: Sequence[tuple[str, Path]],
    changes: dict[str, Any],
    found: Sequence[Path],
    out: Path,
    seeds: Sequence[int],
    *,
    floor: bool = True,
    save: bool = False,
    start_from: str = "",
    predictions: bool = False,
    other: Path | None = None,
) -> list[Evaluation]:
    """Return the evaluations of the chosen tasks, each with the folder of its files, by the one of the `found` models
    that it is for, with `other` beside it. `changes`: settings that differ from the recipe's. See Evaluation for the
    rest.

    Raises UserError for a setting that none of the tasks can use, a task that starts from itself, two results of one
    name, and for models and settings that do not fit."""
    names = [name for name, _ in chosen]
    for setting in changes:
        check_setting(names, setting)
    if start_from and check_name(start_from) in names:
        raise UserError(
            f"{start_from} cannot start from itself", where="--start-from", expected="other tasks"
        )
    evaluations = [
        each
        for name, folder in chosen
        for each in with_lower_features(
            Evaluation(
                name,
                beside(pick_encoder(name, found), other),
                folder,
                out,
                settings_for(name, changes),
                seeds,
                floor,
                save,
                start_from,
                predictions,
            )
        )
    ]
    _refuse_same_names(evaluations)
    return evaluations


def _refuse_same_names(evaluations: Sequence[Evaluation]) -> None:
    """Raise UserError where two evaluations would write the same files, as of two versions of a treebank."""
    folders: dict[str, Path] = {}
    for one in evaluations:
        if (first := folders.setdefault(one.name, one.folder)) != one.folder:
            raise UserError(
                f"holds {one.name} twice: {first} and {one.folder}",
                where="--data",
                expected="one folder of each name",
                remedy=f"--data {one.folder.parent}",
            )


def with_lower_features(evaluation: Evaluation) -> list[Evaluation]:
    """Return the evaluation and, where it reads features of a frozen encoder, one of what the embeddings alone give: a
    floor as the encoder without its weights is one."""
    wanted = evaluation.settings
    if not wanted.features or wanted.features == "embeddings" or not evaluation.has_floor:
        return [evaluation]
    return [evaluation, replace(evaluation, settings=replace(wanted, features="embeddings"))]


def beside(encoder: Encoder, other: Path | None) -> Encoder:
    """Return the encoder, or what it is side by side with the model of the other direction in `other`. Raises UserError
    where the two do not fit."""
    if other is None:
        return encoder
    found = find_encoders(other)
    return TwoWay(encoder.folder, other=found[0]).checked()


def pick_encoder(task: str, found: Sequence[Path]) -> Encoder:
    """Return the encoder to score of those that a run exports: of ELECTRA's the one that predicts words for tasks
    without training, and the discriminator for fine-tuning. Raises UserError where that is not clear."""
    if len(found) == 1:
        return Encoder(found[0])
    encoders = [Encoder(folder) for folder in found]
    predicts = [e for e in encoders if "ForMaskedLM" in str(e.config.architectures)]
    chosen = predicts if task in UNTRAINED else [e for e in encoders if e not in predicts]
    if len(chosen) != 1:
        names = ", ".join(folder.name for folder in found)
        raise UserError(f"holds several models: {names}", where=found[0].parent, remedy="name one of them")
    return chosen[0]

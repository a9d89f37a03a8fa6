"""Score encoders on tasks: choose what is scored, and fine-tune, predict and score with each seed.

An evaluation is one task of one encoder. It reads the task's files, then for each seed fine-tunes, predicts and
scores, beside what needs no pretraining. Its parts, each a task, a seed and an encoder, are scored one by one or side
by side. Seeds that an earlier call finished are not repeated.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import whole_folder
from data_pipeline.records import ShowProgress
from data_pipeline.stages.executors import ALL, Share, processes_for_jobs
from pretrain.evaluate.results import (
    SeedResult,
    conditions_now,
    differing,
    predictions_folder,
    read_seed,
    remove_seed,
    result_name,
    result_note,
    saved_model,
    score_identity,
    seed_file,
    seed_note,
    write_predictions,
    write_result,
    write_seed,
)
from pretrain.evaluate.seed_run import SeedRun
from pretrain.tasks import metrics
from pretrain.tasks.base import ScoreInputs, Task, Untrained
from pretrain.tasks.encoders import Encoder, TwoWay, find_encoders, use_threads
from pretrain.tasks.registry import FINE_TUNED, UNTRAINED, check_name, check_setting
from pretrain.tasks.settings import EvaluationSettings, settings_for

HEAD_SETTINGS = ("features", "crf", "bilstm")
"""Settings that are for some kinds of tasks; see Task.head_settings."""


class Part(NamedTuple):
    """One score of a task: of an encoder, with its weights or without, and a seed."""

    encoder: Encoder
    seed: int


@dataclass(frozen=True)
class Evaluation:
    """One task of one encoder."""

    task: str
    encoder: Encoder
    folder: Path
    """Of the task's files."""
    out: Path
    settings: EvaluationSettings
    seeds: Sequence[int]
    has_floor: bool
    """Whether the same encoder is scored without its weights as well."""
    save: bool = False
    """Keep each fine-tuned model as a Hugging Face folder."""
    start_from: str = ""
    """Another task, whose fine-tuned models in `out`, a seed each, are trained further instead of the encoder."""
    predictions: bool = False
    """Keep what each fine-tuned model says of every scored example, in the form in which others score it."""

    def __post_init__(self) -> None:
        """Raises UserError for settings of another kind of task."""
        for setting in HEAD_SETTINGS:
            if getattr(self.settings, setting):
                check_setting([self.task], setting)
        if self.encoder.kind and (not self.settings.features or self.save):
            raise UserError(
                f"cannot fine-tune {self.task}, nor be saved",
                where="--beside",
                expected="features=last, or other layers, of a task that tags words, without --save",
            )

    def run(self, progress: ShowProgress) -> dict[str, Any]:
        """Score every part that is not scored yet, and return what result.json holds. Raises UserError for files,
        settings or an encoder that do not fit."""
        scores = [self.score(part, progress) for part in self.parts]
        pretrained = [part.encoder.pretrained for part in self.parts]
        found, floor = (
            [one for one, has in zip(scores, pretrained, strict=True) if has == kind]
            for kind in (True, False)
        )
        note = self._note(found, floor)
        write_result(self.out, self.name, note)
        return note

    @property
    def parts(self) -> list[Part]:
        """The work: a part for each seed, where something is trained, and as many for the floor. A task without
        training has one score of the encoder, which no seed changes, and a floor for each seed, of other random
        weights: one by default, since each takes as long as the encoder itself, and more for an interval."""
        seeds = self.seeds[:1] if self.task in UNTRAINED else self.seeds
        # nothing can be fine-tuned of a floor where nothing is fine-tuned
        has_floor = self.has_floor and (self.task in UNTRAINED or self.settings.epochs > 0)
        floor = replace(self.encoder, pretrained=False)
        return [Part(self._start(seed), seed) for seed in seeds] + [
            Part(floor, seed) for seed in self.seeds if has_floor
        ]

    def score(self, part: Part, progress: ShowProgress) -> SeedResult:
        """Return what an earlier call found for this part, or do the work and keep it."""
        path = seed_file(self.out, self.name, part.seed, part.encoder.pretrained)
        known = self.known_by(part)
        found = read_seed(path, known)
        if found is None or not self._is_kept(part):
            use_threads(self.settings.threads)
            conditions = conditions_now(self._kind, self.settings)
            if self.task in UNTRAINED:
                found = self._score_as_is(part, progress)
            else:
                found = self._fine_tune(part, progress, is_again=found is not None)
            found = replace(found, conditions=conditions)
            write_seed(path, known, found)
        return found

    def _is_kept(self, part: Part) -> bool:
        """Return whether all is there that is kept of a part beside its scores."""
        if self.task in UNTRAINED or not part.encoder.pretrained:
            return True
        wanted = {self._saved(part.seed): self.save, self._predictions(part.seed): self.predictions}
        return all(folder.is_dir() for folder, is_wanted in wanted.items() if is_wanted)

    def _saved(self, seed: int) -> Path:
        return seed_file(self.out, self.name, seed, pretrained=True).with_suffix("")

    def _predictions(self, seed: int) -> Path:
        return predictions_folder(self.out, self.name, seed)

    def known_by(self, part: Part) -> dict[str, Any]:
        """Return what tells the score of a part from others."""
        return score_identity(self._kind, self.name, part.encoder, part.seed, self.settings, self._data)

    def replaced(self) -> str:
        """Say in what an earlier result under the same name differs, which this one takes the place of; empty where
        there is none, or it is continued."""
        for part in self.parts:
            path = seed_file(self.out, self.name, part.seed, part.encoder.pretrained)
            if not path.is_file():
                continue
            note = seed_note(path)
            if not note:
                return f"{self.name}: replaces a result of an older version in {path.parent}"
            if other := differing(note, self.known_by(part)):
                return f"{self.name}: replaces a result of other {' and '.join(other)} in {path.parent}"
        return ""

    @property
    def _kind(self) -> Task | Untrained:
        return UNTRAINED.get(self.task) or FINE_TUNED[self.task]

    @cached_property
    def _data(self) -> Any:
        """What the task's files hold: Material or TaskData."""
        metrics.require(self.task)
        if self.task in UNTRAINED:
            return UNTRAINED[self.task].read(self.folder, self.settings)
        data = FINE_TUNED[self.task].read(self.folder, self.settings)
        if self.settings.epochs and not data.train.items:
            raise UserError(
                "has no training examples",
                where=self.folder,
                expected="some, or epochs=0, which scores a model that has been fine-tuned",
            )
        return data

    def check(self) -> None:
        """Read the files and the encoders' configurations and tokenizers, so that what is wrong with them is said
        before hours of work. Raises UserError as `score` does."""
        _ = self._data
        if self.task in FINE_TUNED:
            FINE_TUNED[self.task].check_encoder(self.encoder)
        for part in self.parts:
            _ = part.encoder.identity
            part.encoder.builder(self.settings.max_length)

    @property
    def name(self) -> str:
        """What its result is called."""
        return result_name(self.task, self.encoder, self.folder, self.settings, self.start_from)

    def _start(self, seed: int) -> Encoder:
        """Return the encoder that one seed begins with. Raises UserError where the other task has left none, or one of
        another encoder."""
        if not self.start_from:
            return self.encoder
        return Encoder(saved_model(self.out, self.start_from, seed, self.encoder))

    def _score_as_is(self, part: Part, progress: ShowProgress) -> SeedResult:
        started = time.monotonic()
        doing = self._doing(part, 0 if part.encoder.pretrained else part.seed)
        with progress(doing, self._data.size) as advance:
            inputs = ScoreInputs(part.encoder, self._data, self.settings, part.seed, advance)
            details = UNTRAINED[self.task].score(inputs)
        return SeedResult(part.seed, {"dev": details.pop("scores")}, time.monotonic() - started, details)

    def _fine_tune(self, part: Part, progress: ShowProgress, *, is_again: bool) -> SeedResult:
        """Fine-tune with one seed, score every split, and keep what is wanted. `is_again`: what an earlier call kept
        beside the same scores is replaced, too."""
        task, name = FINE_TUNED[self.task], self._doing(part, part.seed)
        saved, predictions = self._saved(part.seed), self._predictions(part.seed)
        saves = self.save or (is_again and saved.is_dir())
        predicts = part.encoder.pretrained and (self.predictions or (is_again and predictions.is_dir()))
        run = SeedRun(name, task, self._data, part.encoder, self.settings, part.seed, progress, predicts)
        model: Any  # of transformers, or a head of its own with the same method
        model, result = run.run()
        if part.encoder.pretrained:
            remove_seed(self.out, self.name, part.seed)
            if saves:
                with whole_folder(saved) as partial:
                    model.save_pretrained(partial)
                    part.encoder.tokenizer.save_pretrained(partial)
            if predicts:
                write_predictions(predictions, run.predictions)
        return result

    def _doing(self, part: Part, seed: int) -> str:
        what = "" if part.encoder.pretrained else ", not pretrained"
        return f"{self.name}{f', seed {seed}' if seed else ''}{what}"

    def _note(self, scores: list[SeedResult], floor: list[SeedResult]) -> dict[str, Any]:
        """Return what result.json holds."""
        started = [f"started from {self.start_from}"] if self.start_from else []
        if started and floor:
            started.append(f"not pretrained: trained on {self.task} alone, without {self.start_from}")
        return result_note(
            self._kind, self.name, self.encoder, self.settings, self._data, scores, floor, started
        )


# Score the parts of several evaluations, a share of them, one by one or side by side.


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


# Choose what is scored: the evaluations of some tasks, and the encoder of each.


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

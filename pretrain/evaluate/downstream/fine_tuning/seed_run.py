"""Fine-tune an encoder on a task with one seed, and score it: of all candidates of the settings' grid and all restarts
the one that is best on the tuning examples."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.downstream.device import chosen_device
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.fine_tuning.candidates import Candidate, candidates
from pretrain.evaluate.downstream.fine_tuning.fine_tune import DivergedError, FineTuner, Trained
from pretrain.evaluate.downstream.heads.frozen import frozen_tagger, with_states
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.results.files import SeedResult
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Split, Task, TaskData, carve, drawn


@dataclass
class Fitted:
    """A candidate after its training."""

    candidate: Candidate
    tuner: FineTuner
    trained: Trained
    curves: list[dict[str, Scores]]
    """With by_epoch: the scores of each split after each epoch."""

    @property
    def tuned(self) -> float:
        """The best metric of an epoch on the tuning examples; without these no candidate is compared."""
        return max(self.trained.tuned, default=-math.inf)


@dataclass
class SeedRun:
    """One fine-tuning, from its examples to its scores."""

    name: str
    """As shown in progress."""
    task: Task
    data: TaskData
    encoder: Encoder
    settings: EvaluationSettings
    seed: int
    progress: ShowProgress
    constant: dict[str, bool] = field(default_factory=dict)
    """Of each split that was scored last: whether all predictions are the same."""

    def run(self) -> tuple[nn.Module, SeedResult]:
        """Return the fine-tuned model and its scores on every split. Raises UserError for an encoder that does not fit
        and where the loss of every candidate is not finite."""
        started, settings, task = time.monotonic(), self.settings, self.task
        train, tune = self._divided()
        model = self._first_model()
        model.to(chosen_device())
        features = self._features(train.items, model, "train")
        tuned = self._features(tune.items, model, "tune")
        scored = {split.name: self._features(split.items, model, split.name) for split in self.data.scored}
        if settings.epochs:
            best, table = self._best(model, features, (tune, tuned), scored)
        else:
            untrained = FineTuner(task, model, self._builder, settings, self.seed, chosen_device())
            best, table = Fitted(Candidate({}, 0), untrained, Trained(), []), []
        splits, cut = {}, {"train": task.count_cut(features)}
        is_scored = bool(best.curves) and not tune.items  # after the last epoch, whose weights it has
        for split in self.data.scored:
            found = scored[split.name]
            with self.progress(f"{self.name}: scoring {split.name}", len(found)) as advance:
                splits[split.name] = (
                    best.curves[-1][split.name]
                    if is_scored
                    else self._scores(best.tuner, split, found, advance)
                )
            cut[split.name] = task.count_cut(found)
        details = {
            "updates": best.trained.updates,
            "epochs": best.trained.epochs,
            "tuned": best.trained.tuned,
            "tune_examples": len(tune.items),
            "candidates": table,
            "chosen": {**best.candidate.values, "restart": best.candidate.restart} if table else {},
            "labels": self.data.label_ids,
            "by_epoch": best.curves,
            "last_losses": best.trained.losses[-10:],
            "trained_examples": len(features) if settings.epochs else 0,
            "cut_inputs": cut,
            "constant": [name for name, is_constant in self.constant.items() if is_constant],
        }
        return best.tuner.model, SeedResult(self.seed, splits, time.monotonic() - started, details)

    @cached_property
    def _builder(self) -> InputBuilder:
        return self.encoder.builder(self.settings.max_length)

    def _divided(self) -> tuple[Split, Split]:
        """Return what to train on, and what to choose by."""
        train = drawn(self.data.train, self.settings.train_examples, self.seed)
        if not self.settings.tune_share:
            return train, Split("tune", [])
        tune, train = carve(train, self.settings.tune_share)
        if not tune.items or not train.items:
            raise UserError(
                f"leaves {len(train.items)} examples to train on and {len(tune.items)} to choose by",
                where=f"tune_share={self.settings.tune_share:g}",
                expected="some of both",
            )
        return train, tune

    def _first_model(self) -> nn.Module:
        """Return the model of the first candidate; where nothing is trained the finished one, whose order of the
        classes the data takes over."""
        if self.settings.epochs:
            return self._new_model(candidates(self.settings)[0])
        model, self.data = self.task.finished_model(self.encoder, self.data, self.settings)
        return model

    def _new_model(self, candidate: Candidate) -> nn.Module:
        settings = candidate.of(self.settings)
        return self.task.model(self.encoder, self.data, candidate.seed(self.seed), settings)

    def _features(self, items: Sequence[Any], model: nn.Module, split: str) -> list[Feature]:
        found = self.task.features(items, self._builder, self.data)
        if not self.settings.features or not found:
            return found
        with self.progress(f"{self.name}: hidden states of {split}", len(found)) as advance:
            return with_states(frozen_tagger(model), found, self._builder, chosen_device(), advance)

    def _best(
        self,
        model: nn.Module,
        features: list[Feature],
        tune: tuple[Split, list[Feature]],
        scored: dict[str, list[Feature]],
    ) -> tuple[Fitted, list[dict[str, Any]]]:
        """Train every candidate, `model` as the first one. Return the one with the best metric of an epoch on the
        tuning examples, the earlier of equal ones; and of each its values, restart and that metric, None where its loss
        was not finite. The table is empty where there is but one."""
        every = candidates(self.settings)
        best: Fitted | None = None
        table: list[dict[str, Any]] = []
        for number, candidate in enumerate(every):
            model = self._new_model(candidate).to(chosen_device()) if number else model
            doing = f"{self.name}, {number + 1} of {len(every)}: {candidate}" if len(every) > 1 else self.name
            note: dict[str, Any] = {**candidate.values, "restart": candidate.restart, "tuned": None}
            table.append(note)
            try:
                fitted = self._fit(candidate, model, features, tune, scored, doing)
            except DivergedError:
                if best is None and number == len(every) - 1:
                    raise
                continue
            note["tuned"] = fitted.tuned
            if best is None or fitted.tuned > best.tuned:
                best = fitted
        assert best is not None
        return best, table if len(every) > 1 else []

    def _fit(
        self,
        candidate: Candidate,
        model: nn.Module,
        features: list[Feature],
        tune: tuple[Split, list[Feature]],
        scored: dict[str, list[Feature]],
        doing: str,
    ) -> Fitted:
        settings = candidate.of(self.settings)
        tuner = FineTuner(
            self.task, model, self._builder, settings, candidate.seed(self.seed), chosen_device()
        )
        fitted = Fitted(candidate, tuner, Trained(), [])

        def tune_score() -> float:
            answers = tuner.answers(tune[1], lambda n: None)
            return self.task.score(tune[0].items, tune[1], answers, self.data)[self.task.headline]

        def after_epoch() -> None:
            if settings.by_epoch:
                curve = {
                    split.name: self._scores(tuner, split, scored[split.name], lambda n: None)
                    for split in self.data.scored
                }
                fitted.curves.append(curve)

        with self.progress(doing, round(settings.epochs * len(features))) as advance:
            fitted.trained = tuner.train(features, advance, tune_score if tune[1] else None, after_epoch)
        return fitted

    def _scores(
        self, tuner: FineTuner, split: Split, features: list[Feature], advance: Callable[[int], None]
    ) -> Scores:
        answers = tuner.answers(features, advance)
        self.constant[split.name] = self.task.is_constant(answers, self.data)
        return self.task.score(split.items, features, answers, self.data)

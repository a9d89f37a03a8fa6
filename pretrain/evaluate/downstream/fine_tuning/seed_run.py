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
from pretrain.evaluate.downstream.fine_tuning.candidates import Candidate, candidates, leading
from pretrain.evaluate.downstream.fine_tuning.fine_tune import DivergedError, FineTuner, Trained
from pretrain.evaluate.downstream.heads.frozen import frozen_tagger, with_states
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.results.files import SeedResult, Unfinished
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task, TaskData
from pretrain.evaluate.downstream.tasks.splits import Split, carve, drawn

Tuning = tuple[Split, list[Feature]]
"""What candidates and epochs are chosen by: examples, and their features."""


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
    unfinished: Unfinished
    """What an earlier call that was stopped knew of it."""
    predicts: bool = False
    """Whether `said` is wanted."""
    said: dict[str, dict[str, str]] = field(default_factory=dict)
    """After `run`: split -> file -> content, what the scored model says of each example."""
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
        data = self._decided(best.tuner, (tune, tuned))
        splits, cut = {}, {"train": task.count_cut(features)}
        # after the last epoch, whose weights it has
        is_scored = bool(best.curves) and not tune.items and not self.predicts
        for split in self.data.scored:
            found = scored[split.name]
            with self.progress(f"{self.name}: scoring {split.name}", len(found)) as advance:
                splits[split.name] = (
                    best.curves[-1][split.name]
                    if is_scored
                    else self._scores(best.tuner, split, found, data, advance, self.predicts)
                )
            cut[split.name] = task.count_cut(found)
        details = {
            "updates": best.trained.updates,
            "epochs": best.trained.epochs,
            "tuned": best.trained.tuned,
            "tune_examples": len(tune.items),
            "candidates": table,
            "chosen": {**best.candidate.values, "restart": best.candidate.restart} if table else {},
            "decided": {} if data is self.data else {"null_threshold": data.null_threshold},
            "labels": self.data.label_ids,
            "by_epoch": best.curves,
            "last_losses": best.trained.losses[-10:],
            "trained_examples": len(features) if settings.epochs else 0,
            "cut_inputs": cut,
            "constant": [name for name, is_constant in self.constant.items() if is_constant],
        }
        seconds = self.unfinished.seconds + time.monotonic() - started
        return best.tuner.model, SeedResult(self.seed, splits, seconds, details)

    @cached_property
    def _builder(self) -> InputBuilder:
        return self.encoder.builder(self.settings.max_length)

    def _divided(self) -> tuple[Split, Split]:
        """Return what to train on, and what to choose by."""
        train = drawn(self.data.train, self.settings.train_examples, self.seed)
        if not self.settings.tune_share:
            return train, Split("tune", [])
        tune, train = carve(train, self.settings.tune_share, self.task.groups(train.items))
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
        self, model: nn.Module, features: list[Feature], tune: Tuning, scored: dict[str, list[Feature]]
    ) -> tuple[Fitted, list[dict[str, Any]]]:
        """Train every candidate that an earlier call has not finished, `model` as the first one. Return the one with
        the best metric of an epoch on the tuning examples, the earlier of equal ones, and the outcome of each; these
        are empty where there is but one.

        Of an earlier call the outcomes are kept, and no weights: where the best one is of then, it is trained again,
        which gives the same to the bit. That costs as much as one candidate, and only after a kill."""
        every, started = candidates(self.settings), time.monotonic()
        first = {0: model}

        def fit(number: int, doing: str, curves: bool) -> Fitted:
            found = first.pop(number, None)
            found = self._new_model(every[number]) if found is None else found
            return self._fit(every[number], found.to(chosen_device()), features, tune, scored, doing, curves)

        wanted = self.settings.by_epoch
        if len(every) == 1:
            return fit(0, self.name, wanted), []
        is_again = wanted and self._is_less_again(len(every), features, tune, scored)
        outcomes, best = self._finished(every), None
        for number in range(len(outcomes), len(every)):
            tuned = None
            try:
                doing = f"{self.name}, {number + 1} of {len(every)}: {every[number]}"
                fitted = fit(number, doing, wanted and not is_again)
                tuned = fitted.tuned
            except DivergedError:
                if leading(outcomes) is None and number == len(every) - 1:
                    raise
            outcomes.append(every[number].outcome(tuned))
            if leading(outcomes) == number and not is_again:
                best = fitted
            self.unfinished.candidates = outcomes
            self.unfinished.keep(self.unfinished.seconds + time.monotonic() - started)
        chosen = leading(outcomes)
        assert chosen is not None
        if best is None:
            best = fit(chosen, f"{self.name}: again the best one, {every[chosen]}", wanted)
        return best, outcomes

    def _finished(self, every: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Return the outcomes of an earlier call; none where they are not those of the first candidates."""
        kept = self.unfinished.candidates
        expected = [one.outcome(note.get("tuned")) for one, note in zip(every, kept, strict=False)]
        return kept if kept == expected else []

    def _is_less_again(
        self, count: int, features: list[Feature], tune: Tuning, scored: dict[str, list[Feature]]
    ) -> bool:
        """Return whether the chosen one's curve of by_epoch is had by fewer passes if it is trained once more at the
        end than if every candidate is scored after each epoch, since which one is chosen is not known before. An
        epoch's training is as three passes for each example. On published files scoring all is nearly always less: the
        dev file of MNLI is a twentieth of its training file. The third way, to keep the weights of every epoch, takes
        as many times the model's memory."""
        return (count - 1) * sum(map(len, scored.values())) > 3 * len(features) + len(tune[1])

    def _fit(
        self,
        candidate: Candidate,
        model: nn.Module,
        features: list[Feature],
        tune: Tuning,
        scored: dict[str, list[Feature]],
        doing: str,
        curves: bool,
    ) -> Fitted:
        settings = candidate.of(self.settings)
        tuner = FineTuner(
            self.task, model, self._builder, settings, candidate.seed(self.seed), chosen_device()
        )
        fitted = Fitted(candidate, tuner, Trained(), [])

        def tune_score() -> float:
            told = (tune[0].items, tune[1], tuner.answers(tune[1], lambda n: None))
            return self.task.score(*told, self.task.decided(*told, self.data))[self.task.headline]

        def after_epoch() -> None:
            if curves:
                data = self._decided(tuner, tune)
                curve = {
                    split.name: self._scores(tuner, split, scored[split.name], data, lambda n: None)
                    for split in self.data.scored
                }
                fitted.curves.append(curve)

        with self.progress(doing, round(settings.epochs * len(features))) as advance:
            fitted.trained = tuner.train(features, advance, tune_score if tune[1] else None, after_epoch)
        return fitted

    def _decided(self, tuner: FineTuner, tune: tuple[Split, list[Feature]]) -> TaskData:
        """Return the data with what the model's answers to the tuning examples choose; itself where they choose
        nothing, and are not asked for."""
        if self.data.null_threshold is not None:
            return self.data
        answers = tuner.answers(tune[1], lambda n: None)
        return self.task.decided(tune[0].items, tune[1], answers, self.data)

    def _scores(
        self,
        tuner: FineTuner,
        split: Split,
        features: list[Feature],
        data: TaskData,
        advance: Callable[[int], None],
        predicts: bool = False,
    ) -> Scores:
        answers = tuner.answers(
            features, advance
        )  # large: of a parser some megabytes a sentence, so not kept
        self.constant[split.name] = self.task.is_constant(answers, data)
        if predicts:
            self.said[split.name] = self.task.predictions(split.items, features, answers, data)
        return self.task.score(split.items, features, answers, data)

"""Fine-tune an encoder on a task with one seed, and score it: of several candidates the best one.

Candidates are all combinations of the values of the settings' grid, with all restarts of each. The best one is that
of the best metric on the tuning examples.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from torch import nn

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.fine_tune import DivergedError, FineTuner, Trained
from pretrain.evaluate.results import SeedResult
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData
from pretrain.tasks.encoders import Encoder, chosen_device
from pretrain.tasks.files import Split, carve, drawn
from pretrain.tasks.heads import frozen_tagger, with_states
from pretrain.tasks.inputs import Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

# List the candidates of a seed.


SEEDS = 1_000_000
"""Distance of the seeds of two restarts, beyond that of any two seeds of a result."""


class Candidate(NamedTuple):
    """One combination of values and one restart of it."""

    values: dict[str, Any]
    restart: int
    """Counted from 0, which begins as a single training does."""

    def __str__(self) -> str:
        """Name it as on the command line.

        >>> str(Candidate({"lr": 3e-05, "batch": 16}, 1))
        'lr=3e-05 batch=16 restart 1'
        """
        names = [f"{key}={value:g}" for key, value in self.values.items()]
        return " ".join(names + ([f"restart {self.restart}"] if self.restart else [])) or "first training"

    def outcome(self, tuned: float | None) -> dict[str, Any]:
        """Return what result.json says of it: `tuned` is its metric on the tuning examples, None where its loss was not
        finite."""
        return {**self.values, "restart": self.restart, "tuned": tuned}

    def of(self, settings: EvaluationSettings) -> EvaluationSettings:
        """Return the settings with its values in place."""
        return replace(settings, **self.values)

    def seed(self, seed: int) -> int:
        """Return the seed of its head and of the order of its examples."""
        return seed + SEEDS * self.restart


def candidates(settings: EvaluationSettings) -> list[Candidate]:
    """Return all of them, in the order of the grid's keys and values, restarts last; a single one without a grid.

    >>> grid = {"lr": [5e-5, 3e-5], "batch": [16, 32]}
    >>> [str(one) for one in candidates(EvaluationSettings(grid=grid, tune_share=0.1))]
    ['lr=5e-05 batch=16', 'lr=5e-05 batch=32', 'lr=3e-05 batch=16', 'lr=3e-05 batch=32']
    """
    combinations = product(*settings.grid.values())
    return [
        Candidate(dict(zip(settings.grid, values, strict=True)), restart)
        for values in combinations
        for restart in range(settings.restarts)
    ]


def leading(outcomes: Sequence[dict[str, Any]]) -> int | None:
    """Return the number of the best outcome, the earlier of equal ones; None where no loss was finite.

    >>> leading([{"tuned": None}, {"tuned": 60.0}, {"tuned": 60.0}])
    1
    """
    finite = [number for number, one in enumerate(outcomes) if one["tuned"] is not None]
    return max(finite, key=lambda number: outcomes[number]["tuned"], default=None)


# Train the candidates of a seed, and choose the one that is best on the tuning examples.


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
class Search:
    """The fine-tunings that a seed chooses between."""

    name: str
    """As shown in progress."""
    task: Task
    settings: EvaluationSettings
    seed: int
    builder: InputBuilder
    features: Sequence[Feature]
    """Of the training examples."""
    new_model: Callable[[Candidate], nn.Module]
    tune: Callable[[FineTuner], float] | None
    """Returns the metric of the tuning examples by which epochs and candidates are chosen; None without such ones."""
    curve: Callable[[FineTuner], dict[str, Scores]]
    """Returns the scores of each split, for by_epoch."""
    is_less_again: bool
    """Whether a chosen one of several has its curve by fewer passes if it is trained once more at the end."""
    progress: ShowProgress
    made: dict[int, nn.Module] = field(default_factory=dict)
    """Number of a candidate -> its model, where it is made already."""

    def best(self, model: nn.Module) -> tuple[Fitted, list[dict[str, Any]]]:
        """Train every candidate, `model` as the first one. Return the one with the best metric of an epoch on the
        tuning examples, the earlier of equal ones, and the outcome of each; these are empty where there is but one.
        Raises DivergedError where the loss of none is finite."""
        every, wanted = candidates(self.settings), self.settings.by_epoch
        self.made = {0: model}
        if len(every) == 1:
            return self._fit(every, 0, self.name, wanted), []
        is_again = wanted and self.is_less_again
        best: Fitted | None = None
        outcomes: list[dict[str, Any]] = []
        for number, candidate in enumerate(every):
            tuned = None
            try:
                doing = f"{self.name}, {number + 1} of {len(every)}: {candidate}"
                fitted = self._fit(every, number, doing, wanted and not is_again)
                tuned = fitted.tuned
            except DivergedError:
                if leading(outcomes) is None and number == len(every) - 1:
                    raise
            outcomes.append(candidate.outcome(tuned))
            if leading(outcomes) == number and not is_again:
                best = fitted
        chosen = leading(outcomes)
        assert chosen is not None
        if best is None:
            best = self._fit(every, chosen, f"{self.name}: again the best one, {every[chosen]}", wanted)
        return best, outcomes

    def _fit(self, every: Sequence[Candidate], number: int, doing: str, curves: bool) -> Fitted:
        candidate, device, tune = every[number], chosen_device(), self.tune
        settings, seed = candidate.of(self.settings), candidate.seed(self.seed)
        model = self.made.pop(number) if number in self.made else self.new_model(candidate)
        tuner = FineTuner(self.task, model.to(device), self.builder, settings, seed, device)
        fitted = Fitted(candidate, tuner, Trained(), [])

        def after_epoch() -> None:
            if curves:
                fitted.curves.append(self.curve(tuner))

        with self.progress(doing, round(settings.epochs * len(self.features))) as advance:
            fitted.trained = tuner.train(
                self.features, advance, (lambda: tune(tuner)) if tune else None, after_epoch
            )
        return fitted


# Run a seed: from its examples to its scores.


@dataclass(frozen=True)
class Examples:
    """What a seed is trained on, chosen by and scored on: features, and of the tuning examples themselves."""

    train: list[Feature]
    trained: int
    """Training examples that these are of: of questions there are several windows each."""
    tune: Split
    tuned: list[Feature]
    scored: dict[str, list[Feature]]
    """By split."""


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
    predicts: bool = False
    """Whether `predictions` are wanted."""
    predictions: dict[str, dict[str, str]] = field(default_factory=dict)
    """After `run`: split -> file -> content, what the scored model says of each example."""
    notes: list[str] = field(default_factory=list)
    """After `run`: how a finished model's outputs are read, and what its answers let suspect of that."""
    constant: dict[str, bool] = field(default_factory=dict)
    """Of each split that was scored last: whether all predictions are the same."""

    def run(self) -> tuple[nn.Module, SeedResult]:
        """Return the fine-tuned model and its scores on every split. Raises UserError for an encoder that does not fit
        and where the loss of every candidate is not finite."""
        started = time.monotonic()
        train, tune = self._divided()
        if not self.settings.epochs:
            train = replace(train, items=[])
        model = self._first_model()
        model.to(chosen_device())
        examples = Examples(
            self._features(train.items, model, "train"),
            len(train.items),
            tune,
            self._features(tune.items, model, "tune"),
            {split.name: self._features(split.items, model, split.name) for split in self.data.scored},
        )
        if self.settings.epochs:
            best, table = self._search(examples).best(model)
        else:
            tuner = FineTuner(self.task, model, self._builder, self.settings, self.seed, chosen_device())
            best, table = Fitted(Candidate({}, 0), tuner, Trained(), []), []
        data = self._decided(best.tuner, examples)
        splits = self._final_scores(best, examples, data)
        details = self._details(best, table, examples, data)
        return best.tuner.model, SeedResult(self.seed, splits, time.monotonic() - started, details)

    def _details(
        self, best: Fitted, table: list[dict[str, Any]], examples: Examples, data: TaskData
    ) -> dict[str, Any]:
        """Return how the training went, what was chosen and what was cut. `table`: the outcomes of all candidates."""
        features = {"train": examples.train, **examples.scored}
        return {
            "updates": best.trained.updates,
            "epochs": best.trained.epochs,
            "tuned": best.trained.tuned,
            "tune_examples": len(examples.tune.items),
            "candidates": table,
            "chosen": {**best.candidate.values, "restart": best.candidate.restart} if table else {},
            "decided": {} if data is self.data else {"null_threshold": data.null_threshold},
            "labels": self.data.label_ids,
            "by_epoch": best.curves,
            "last_losses": best.trained.losses[-10:],
            "trained_examples": examples.trained,
            "cut_inputs": {split: self.task.count_cut(found) for split, found in features.items()},
            "reading": [*self.data.reading, *self.notes],
            "constant": [split for split, is_constant in self.constant.items() if is_constant],
        }

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

    def _search(self, examples: Examples) -> Search:
        """Return the fine-tunings to choose between."""
        count = len(candidates(self.settings))
        return Search(
            self.name,
            self.task,
            self.settings,
            self.seed,
            self._builder,
            examples.train,
            self._new_model,
            (lambda tuner: self._tune_score(tuner, examples)) if examples.tuned else None,
            lambda tuner: self._curve(tuner, examples),
            is_less_again(count, examples),
            self.progress,
        )

    def _tune_score(self, tuner: FineTuner, examples: Examples) -> float:
        """Return the metric by which epochs and candidates are chosen."""
        answered = self._tuning_answers(tuner, examples)
        found = self.task.score(replace(answered, data=self.task.decided(answered)))
        return found[self.task.headline_of(self.data)]

    def _tuning_answers(self, tuner: FineTuner, examples: Examples) -> ModelAnswers:
        answers = tuner.answers(examples.tuned, lambda n: None)
        return ModelAnswers(examples.tune.items, examples.tuned, answers, self.data)

    def _curve(self, tuner: FineTuner, examples: Examples) -> dict[str, Scores]:
        """Return the scores of each split by a model that goes on to be trained."""
        data = self._decided(tuner, examples)
        return {
            split.name: self._scores(tuner, split, examples.scored[split.name], data, lambda n: None)
            for split in self.data.scored
        }

    def _decided(self, tuner: FineTuner, examples: Examples) -> TaskData:
        """Return the data with what the model's answers to the tuning examples choose; itself where they choose
        nothing, and are not asked for."""
        if self.data.null_threshold is not None:
            return self.data
        return self.task.decided(self._tuning_answers(tuner, examples))

    def _final_scores(self, best: Fitted, examples: Examples, data: TaskData) -> dict[str, Scores]:
        """Return the scores of each split: those after the last epoch of a curve, where the model has the weights of
        then and nothing else is wanted of its answers."""
        is_scored = bool(best.curves) and not examples.tune.items and not self.predicts
        splits = {}
        for split in self.data.scored:
            found = examples.scored[split.name]
            with self.progress(f"{self.name}: scoring {split.name}", len(found)) as advance:
                splits[split.name] = (
                    best.curves[-1][split.name]
                    if is_scored
                    else self._scores(best.tuner, split, found, data, advance, self.predicts)
                )
        return splits

    def _scores(
        self,
        tuner: FineTuner,
        split: Split,
        features: list[Feature],
        data: TaskData,
        advance: Callable[[int], None],
        predicts: bool = False,
    ) -> Scores:
        # large: of a parser some megabytes a sentence, so not kept
        answered = ModelAnswers(split.items, features, tuner.answers(features, advance), data)
        self.constant[split.name] = self.task.is_constant(answered)
        if note := self.task.note(answered):
            self.notes.append(f"{split.name}: {note}")
        if predicts:
            self.predictions[split.name] = self.task.predictions(answered)
        return self.task.score(answered)


def is_less_again(count: int, examples: Examples) -> bool:
    """Return whether the chosen one's curve of by_epoch is had by fewer passes if it is trained once more at the end
    than if all `count` candidates are scored after each epoch, since which one is chosen is not known before. An
    epoch's training is as three passes for each example. On published files scoring all is nearly always less: the dev
    file of MNLI is a twentieth of its training file. The third way, to keep the weights of every epoch, takes as many
    times the model's memory."""
    scored = sum(map(len, examples.scored.values()))
    return (count - 1) * scored > 3 * len(examples.train) + len(examples.tuned)

"""Train the candidates of a seed, and choose the one that is best on the tuning examples."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from data_pipeline.records import ShowProgress
from pretrain.evaluate.downstream.device import chosen_device
from pretrain.evaluate.downstream.fine_tuning.candidates import Candidate, candidates, leading
from pretrain.evaluate.downstream.fine_tuning.fine_tune import DivergedError, FineTuner, Trained
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.results.files import Unfinished
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task


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
    unfinished: Unfinished
    """What an earlier call that was stopped knew of it."""
    made: dict[int, nn.Module] = field(default_factory=dict)
    """Number of a candidate -> its model, where it is made already."""

    def best(self, model: nn.Module) -> tuple[Fitted, list[dict[str, Any]]]:
        """Train every candidate that an earlier call has not finished, `model` as the first one. Return the one with
        the best metric of an epoch on the tuning examples, the earlier of equal ones, and the outcome of each; these
        are empty where there is but one.

        Of an earlier call the outcomes are kept, and no weights: where the best one is of then, it is trained again,
        which gives the same to the bit. That costs as much as one candidate, and only after a kill."""
        every, wanted = candidates(self.settings), self.settings.by_epoch
        self.made = {0: model}
        if len(every) == 1:
            return self._fit(every, 0, self.name, wanted), []
        is_again, outcomes = wanted and self.is_less_again, self._finished(every)
        best = self._train_rest(every, outcomes, is_again)
        chosen = leading(outcomes)
        assert chosen is not None
        if best is None:
            best = self._fit(every, chosen, f"{self.name}: again the best one, {every[chosen]}", wanted)
        return best, outcomes

    def _train_rest(
        self, every: Sequence[Candidate], outcomes: list[dict[str, Any]], is_again: bool
    ) -> Fitted | None:
        """Train the candidates that have no outcome yet, and add theirs. Return the best one; None where it has been
        trained before, or `is_again`: where it is to be trained once more. Raises DivergedError where the loss of none
        is finite."""
        started, best = time.monotonic(), None
        for number in range(len(outcomes), len(every)):
            tuned = None
            try:
                doing = f"{self.name}, {number + 1} of {len(every)}: {every[number]}"
                fitted = self._fit(every, number, doing, self.settings.by_epoch and not is_again)
                tuned = fitted.tuned
            except DivergedError:
                if leading(outcomes) is None and number == len(every) - 1:
                    raise
            outcomes.append(every[number].outcome(tuned))
            if leading(outcomes) == number and not is_again:
                best = fitted
            self.unfinished.candidates = outcomes
            self.unfinished.keep(self.unfinished.seconds + time.monotonic() - started)
        return best

    def _finished(self, every: Sequence[Candidate]) -> list[dict[str, Any]]:
        """Return the outcomes of an earlier call; none where they are not those of the first candidates."""
        kept = self.unfinished.candidates
        expected = [one.outcome(note.get("tuned")) for one, note in zip(every, kept, strict=False)]
        return kept if kept == expected else []

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

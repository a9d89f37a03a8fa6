"""Score an encoder within seconds, as while it trains: on BLiMP, or by a linear model on its last layer.

Of BLiMP a fixed tenth is scored as it is. A task of texts or words is read from the frozen encoder's last layer by a
linear model, the least that can read a task from it.

Nothing is drawn from torch's or numpy's global generators except what `torch.random.fork_rng` takes back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from data_pipeline.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.base import Material, ModelAnswers, ScoreInputs, Task, TaskData
from pretrain.tasks.classification import Classification
from pretrain.tasks.encoders import Encoder, chosen_device, precision, tokens_per_pass, width_of
from pretrain.tasks.files import drawn, evenly_spaced
from pretrain.tasks.inputs import IGNORED, Feature, InputBuilder, collate, scoring_batches, sizes, token_slice
from pretrain.tasks.registry import FINE_TUNED, UNTRAINED, folder_of
from pretrain.tasks.settings import EvaluationSettings, settings_for
from pretrain.tasks.tagging import Tagging

# Fit a linear model to classes or to numbers. Both problems are convex, so what is fitted depends on the vectors
# alone: there is no seed and no order.


ITERATIONS = 200
"""Of L-BFGS, at most."""
Predict = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""(examples, width) -> (examples, classes) logits, or (examples, 1) numbers."""


def fit_classes(vectors: NDArray[np.float32], classes: NDArray[np.int64], count: int) -> Predict:
    """Fit multinomial logistic regression to (examples, width) vectors and their classes 0 to count - 1, the weights
    penalised by half their squared norm, as scikit-learn's default does; columns are standardised first."""
    scale = _standardised(vectors)
    rows, targets = scale(vectors), torch.from_numpy(classes)
    with torch.enable_grad():
        weights = torch.zeros(rows.shape[1], count, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(count, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([weights, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = functional.cross_entropy(rows @ weights + bias, targets)
            found = found + weights.square().sum() / (2 * len(rows))
            found.backward()
            return found

        optimizer.step(loss)
    return lambda others: (scale(others) @ weights + bias).detach().float().numpy()


def fit_numbers(vectors: NDArray[np.float32], numbers: NDArray[np.float64]) -> Predict:
    """Fit ridge regression of a number, with penalty 1, to (examples, width) vectors; columns are standardised
    first."""
    scale = _standardised(vectors)
    rows, targets = scale(vectors), torch.from_numpy(numbers)
    mean = targets.mean()
    penalty = torch.eye(rows.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(rows.T @ rows + penalty, rows.T @ (targets - mean))
    return lambda others: (scale(others) @ weights + mean)[:, None].float().numpy()


def _standardised(vectors: NDArray[np.float32]) -> Callable[[NDArray[np.float32]], Tensor]:
    """Return what brings each column to mean 0 and deviation 1 on these vectors; a constant column becomes 0."""
    rows = torch.from_numpy(vectors).double()
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    deviation = torch.where(deviation > 1e-12, deviation, torch.inf)
    return lambda others: (torch.from_numpy(others).double() - mean) / deviation


# Read the files of a probe, and score an encoder on them.


BLIMP = "blimp"
PART = 0.1
"""Share of each of BLiMP's sets, evenly spaced: always the same pairs."""
EXAMPLES = 2000
"""Most training examples, drawn once, and most scored ones, evenly spaced."""


def probe_names() -> list[str]:
    """Return the tasks that a probe can be: not one without training examples, which a linear model needs (ax)."""
    trained = [name for name in FINE_TUNED if settings_for(name, {}).epochs]
    return [BLIMP, *(name for name in trained if isinstance(FINE_TUNED[name], Classification | Tagging))]


@dataclass(frozen=True)
class ProbeTask:
    """A task whose files have been read."""

    name: str
    data: Any
    """Material of BLiMP, else TaskData of at most EXAMPLES training and scored examples."""
    settings: EvaluationSettings

    @classmethod
    def read(cls, name: str, folder: Path) -> "ProbeTask":
        """Read the files of a task. Raises UserError for a task that cannot be a probe and for files that are missing
        or malformed."""
        if name not in probe_names():
            raise UserError(
                f"no such probe: {name}", where="train.probe", expected=f"one of {', '.join(probe_names())}"
            )
        settings = settings_for(name, {"part": PART})
        place = folder_of(name, folder)
        if name == BLIMP:
            return cls(name, UNTRAINED[name].read(place, settings), settings)
        metrics.require(name)
        data = FINE_TUNED[name].read(place, settings)
        first = data.scored[0]
        kept = [
            first.items[i] for i in evenly_spaced(len(first.items), min(1.0, EXAMPLES / len(first.items)))
        ]
        scored = (replace(first, items=kept),)
        return cls(name, replace(data, train=drawn(data.train, EXAMPLES, 0), scored=scored), settings)

    def score(self, encoder: Encoder) -> dict[str, float]:
        """Return {TASK_METRIC: the task's first metric, TASK_trivial: of an answer that needs no input}, in percent.
        torch's generators are left as they were."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            score, baseline, headline = self._blimp(encoder) if self.name == BLIMP else self._linear(encoder)
        return {f"{self.name}_{headline}": score, f"{self.name}_trivial": baseline}

    def _blimp(self, encoder: Encoder) -> tuple[float, float, str]:
        task, data = UNTRAINED[BLIMP], self.data
        assert isinstance(data, Material)
        found = task.score(ScoreInputs(encoder, data, self.settings, 0, lambda n: None))
        return found["scores"][task.headline], found["trivial"][task.headline], task.headline

    def _linear(self, encoder: Encoder) -> tuple[float, float, str]:
        """Fit a linear model to the training examples' vectors, and score what it says of the others."""
        task, data = FINE_TUNED[self.name], self.data
        assert isinstance(data, TaskData)
        builder, scored = encoder.builder(self.settings.max_length), data.scored[0]
        train, others = (task.features(split.items, builder, data) for split in (data.train, scored))
        reader = VectorReader(task, encoder, builder, self.settings)
        targets = np.concatenate([_targets(feature) for feature in train])
        vectors = np.concatenate(reader.vectors(train))
        if data.labels:
            predict = fit_classes(vectors, targets.astype(np.int64), len(data.labels))
        else:
            predict = fit_numbers(vectors, targets.astype(np.float64))
        answers = [
            _at_tokens(predict(rows), feature) if task.per_token else predict(rows)[0]
            for rows, feature in zip(reader.vectors(others), others, strict=True)
        ]
        found = task.score(ModelAnswers(scored.items, others, answers, data))
        headline = task.headline_of(data)
        return found[headline], task.baseline(scored, data)[headline], headline


class VectorReader:
    """Computes what a linear model reads: of a text, or of both of a pair, the mean of the last layer over its tokens
    without special ones; of words, the last layer at the first token of each."""

    def __init__(
        self, task: Task, encoder: Encoder, builder: InputBuilder, settings: EvaluationSettings
    ) -> None:
        self._task, self._builder, self._settings = task, builder, settings
        self._device = chosen_device()
        self._model = encoder.load("", 0)
        self._model.to(self._device)  # type: ignore[arg-type]  # its decorator loses the type
        self._special = set(builder.tokenizer.all_special_ids) - {builder.unknown}

    @torch.no_grad()
    def vectors(self, features: Sequence[Feature]) -> list[NDArray[np.float32]]:
        """Return the (rows, width) vectors of each feature: a row, or one for each word."""
        width, lengths = width_of(self._model), sizes(features)
        found = [np.zeros((0, width), np.float32)] * len(features)
        for chosen in scoring_batches(lengths, tokens_per_pass(self._device)):
            plain = [replace(features[i], targets={}) for i in chosen]
            batch = collate(plain, self._builder, self._device, choices=False)
            with precision(self._settings.precision, self._device, fine_tuned=True):
                states = self._model(**batch).last_hidden_state.float().cpu().numpy()
            for i, rows in zip(chosen.tolist(), states, strict=True):
                place = token_slice(int(lengths[i]), states.shape[1], self._builder.left_padded)
                found[i] = self._of(features[i], rows[place])
        return found

    def _of(self, feature: Feature, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._task.per_token:
            return rows[_places(feature)]
        kept = [i for i, token in enumerate(feature.inputs[0].ids) if token not in self._special]
        return rows[kept or [0]].mean(0, keepdims=True)


def _places(feature: Feature) -> list[int]:
    """Return the places of the tokens with a target."""
    targets = feature.targets["labels"]
    assert isinstance(targets, list)
    return [place for place, target in enumerate(targets) if target != IGNORED]


def _targets(feature: Feature) -> NDArray[Any]:
    targets = feature.targets["labels"]
    return np.array([targets[i] for i in _places(feature)] if isinstance(targets, list) else [targets])


def _at_tokens(rows: NDArray[np.float32], feature: Feature) -> NDArray[np.float32]:
    """Return the rows at their tokens, 0 at the others."""
    found = np.zeros((len(feature.inputs[0].ids), rows.shape[1]), np.float32)
    found[_places(feature)] = rows
    return found

"""Define what a task is: it reads its files, builds inputs, and scores what a model answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.tasks.class_names import read_outputs
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import Split
from pretrain.tasks.inputs import Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

Scores = dict[str, float]
"""Metric -> value in percent, as papers print them."""


@dataclass(frozen=True)
class TaskData:
    """What the files of a task hold."""

    train: Split
    scored: tuple[Split, ...]
    labels: tuple[str, ...] = ()
    """The classes in the order of their ids; empty for a regression."""
    files: dict[str, str] = field(default_factory=dict)
    """File -> SHA-256."""
    notes: tuple[str, ...] = ()
    """What a reader of the scores must know: a dev file that was divided, rows that were skipped."""
    label_sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of each column, where a task predicts several."""
    measured: tuple[str, ...] = ()
    """The metrics, the one that the task is known by first, where its files decide them; empty: always the same."""
    version: str = ""
    """What the files themselves say of their version."""
    reading: tuple[str, ...] = ()
    """How the outputs of a finished model are read as the classes: what a reader of the scores must know."""
    is_assumed: bool = False
    """Whether the outputs of a finished model have no names, and their order is the usual one."""
    null_threshold: float | None = 0.0
    """Of questions: the odds of no answer above which none is given; None: still to be chosen, by `Task.decided`."""

    @property
    def label_ids(self) -> dict[str, Any]:
        """Class -> its id; of each column, where a task predicts several. Empty where there are no classes."""
        if self.label_sets:
            return {name: _ids(labels) for name, labels in self.label_sets.items()}
        return _ids(self.labels)


def _ids(labels: tuple[str, ...]) -> dict[str, int]:
    return {label: i for i, label in enumerate(labels)}


@dataclass(frozen=True)
class ModelAnswers:
    """What a fine-tuned model answers to examples of a task."""

    items: Sequence[Any]
    features: Sequence[Feature]
    """Of `items`, in their order."""
    answers: list[NDArray[Any]]
    """To each feature: arrays as `Task.answer` gives them."""
    data: TaskData


class Task(ABC):
    """A task that an encoder is fine-tuned on."""

    kind: ClassVar[str]
    """transformers' task class is AutoModelFor + this name."""
    outputs: ClassVar[tuple[str, ...]] = ("score",)
    """Names of the logits where there are no classes."""
    per_token: ClassVar[bool] = False
    """Whether a model answers with a row per token, not per example."""
    head_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that choose another head than that of transformers' class."""
    needs_both_ways: ClassVar[str] = ""
    """Why a model that reads in one direction is refused; empty where it is not."""
    cut: ClassVar[str] = "inputs cut to max_length"
    """What `count_cut` counts."""
    file_settings: tuple[str, ...] = ()
    """Other settings that are for some kinds of tasks: how files are read, when an answer is withheld."""

    def __init__(self, name: str, folder: str, headline: str) -> None:
        self.name, self.folder, self.headline = name, folder, headline

    @abstractmethod
    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files of the task. Raises UserError for one that is missing or malformed."""

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder of the official name is this task's: other tasks may share it."""
        return True

    @abstractmethod
    def features(self, items: Sequence[Any], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return the features of `items`, in their order; several of an item where it is cut into windows."""

    @abstractmethod
    def score(self, answered: ModelAnswers) -> Scores:
        """Return the metrics of a model's answers."""

    @abstractmethod
    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return file -> content: what the answers say of each item, in the form in which others score it."""

    @abstractmethod
    def baseline(self, split: Split, data: TaskData) -> Scores:
        """Return of each metric the best of some answers that need no input, as always the same label."""

    def check_encoder(self, encoder: Encoder) -> None:
        """Raises UserError for an encoder that the head cannot stand on."""
        if encoder.reads_one_way and self.needs_both_ways:
            raise UserError(
                f"reads in one direction, so that {self.needs_both_ways}",
                where=encoder.folder,
                expected=f"an encoder that reads both ways, for {self.name}",
            )

    def model(self, encoder: Encoder, data: TaskData, seed: int, settings: EvaluationSettings) -> nn.Module:
        """Return the model to train: its forward takes the arrays of a batch and returns loss and logits. Raises
        UserError as check_encoder does."""
        self.check_encoder(encoder)
        names = data.labels or self.outputs
        config = {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: i for i, name in enumerate(names)},
            "problem_type": None,  # what another task left would choose its loss; None: these labels do
        }
        return encoder.load(f"For{self.kind}", seed, config | with_dropout(encoder, settings.dropout))

    def finished_model(
        self, encoder: Encoder, data: TaskData, settings: EvaluationSettings
    ) -> tuple[nn.Module, TaskData]:
        """Return the model of a folder that has been fine-tuned already, and the data with a class for each of the
        model's outputs. Raises UserError where the folder has no such head, or one without some of the classes."""
        model = encoder.load(f"For{self.kind}", 0, has_head=True)
        by_output: dict[Any, str] = dict(model.config.id2label or {})
        names = [str(by_output[output]) for output in sorted(by_output)]
        if self.kind == "MultipleChoice":  # one score per choice, whatever its config.json says
            return model, data
        self.refuse_order(data, settings)
        if data.labels:
            return model, self.with_outputs(data, names, settings, encoder.folder)
        if len(names) != len(self.outputs):
            raise UserError(
                f"classifies as {', '.join(names[:5])}",
                where=encoder.folder,
                expected=", ".join(self.outputs[:5]),
            )
        return model, data

    def refuse_order(self, data: TaskData, settings: EvaluationSettings) -> None:
        """Raise UserError for an order of classes where there are none."""
        if settings.class_order and not data.labels:
            raise UserError("is for classes", where="class_order", expected=f"no order, for {self.name}")

    def with_outputs(
        self, data: TaskData, names: Sequence[str], settings: EvaluationSettings, where: Path
    ) -> TaskData:
        """Return the data with a label for each output of a finished model in `where`, which has these names. Raises
        UserError as read_outputs does."""
        found = read_outputs(names, data.labels, self.name, settings.class_order, where, self.per_token)
        return replace(data, labels=found.labels, reading=found.notes, is_assumed=found.is_assumed)

    def note(self, answered: ModelAnswers) -> str:
        """Return what the answers let suspect of the assumed order of a finished model's outputs; empty for nothing."""
        return ""

    def decided(self, answered: ModelAnswers) -> TaskData:
        """Return the data with what a model's answers to tuning examples still have to choose, if anything: `score`
        and `predictions` want it chosen."""
        return answered.data

    def headline_of(self, data: TaskData) -> str:
        """Return the metric that the task is known by on these files."""
        return data.measured[0] if data.measured else self.headline

    def groups(self, items: Sequence[Any]) -> Sequence[str]:
        """Return of each item a name that it shares with those which may not be divided from it; empty: all may."""
        return ()

    def is_constant(self, answered: ModelAnswers) -> bool:
        """Return whether a model gives several examples one and the same label or number; False where a task has
        neither."""
        return False

    def count_cut(self, features: Sequence[Feature]) -> int:
        """Return of how many examples text was left out, for it was too long."""
        return sum(any(one.was_cut for one in feature.inputs) for feature in features)

    def answer(self, output: Any) -> Any:
        """Return what is kept of a model's output: a tensor with a row per example."""
        return output.logits


@dataclass(frozen=True)
class Material:
    """What a task without training is scored on."""

    items: Any
    size: int
    """Number of items, for the progress shown."""
    files: dict[str, str]
    """File -> SHA-256."""
    notes: tuple[str, ...] = ()
    """What a reader of the scores must know."""
    skipped: int = 0
    """Parts of the files that are left out."""


@dataclass(frozen=True)
class ScoreInputs:
    """What a task without training scores."""

    encoder: Encoder
    material: Material
    settings: EvaluationSettings
    seed: int
    """Draws the weights of an encoder that is not pretrained."""
    on_progress: Callable[[int], None]
    """Called with the number of items done."""


class Untrained(ABC):
    """A task that scores an encoder as it is, by its head of pretraining."""

    has_precision: ClassVar[bool] = True
    """Whether it computes in settings.precision; if not, in fp32."""

    def __init__(self, name: str, folder: str, headline: str) -> None:
        self.name, self.folder, self.headline = name, folder, headline

    @abstractmethod
    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Read the files of the task. Raises UserError for one that is missing or malformed."""

    @abstractmethod
    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return {"scores": metric -> value} and further details; under "trivial" the scores of the best answer
        that needs no input. Raises UserError for an encoder without the head or the vocabulary for it."""


def with_dropout(encoder: Encoder, dropout: float) -> dict[str, float]:
    """Return the fields of the encoder's config.json that are probabilities of dropout, set to `dropout`; empty for
    -1."""
    if dropout < 0:
        return {}
    fields = encoder.config.to_dict()
    names = [name for name in fields if "dropout" in name]
    return {name: dropout for name in names if fields[name] is None or _is_rate(fields[name])}


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Define what a study is: its arms, what they differ in and what they have in common, its two forms."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from pretrain.config.phases import leaves
from pretrain.run.files import objects

Settings = dict[str, Any]
"""Dotted names of settings -> values."""
EQUALITIES = ("examples", "masks", "weights", "shared_weights", "content", "content_masks")
"""What may be declared to be equal in arms (equality.py)."""
FORMS = ("hour", "long")
OF_TASKS = "evaluate."
"""How the settings of `maskmill evaluate` begin among those of the command line: evaluate.TASK.SETTING."""


@dataclass(frozen=True)
class Arm:
    """What is compared. It trains, unless it takes the model of another arm."""

    label: str = ""
    """Its name in tables and pictures; empty: its name."""
    recipe: str = ""
    """The recipe that it extends; empty: the study's."""
    settings: Settings = field(default_factory=dict)
    """Settings of the run in which it differs."""
    model_of: str = ""
    """Take the exported model of this arm, of the same seed, instead of training."""
    beside: str = ""
    """With model_of, an arm that reads from left to right: put the model of this one, which reads from right to left,
    beside it."""
    segments: str = ""
    """With model_of: how the rows of the segment table are changed before fine-tuning (segment_edits.py)."""
    evaluation: Settings = field(default_factory=dict)
    """Settings of `maskmill evaluate` in which it differs."""
    published: dict[str, float] = field(default_factory=dict)
    """Figures of a paper for this arm, by name: shown beside its own, never compared with them."""

    @property
    def sources(self) -> list[str]:
        """The arms whose models it takes."""
        return [name for name in (self.model_of, self.beside) if name]


@dataclass(frozen=True)
class Scoring:
    """A task that the model of each arm is scored on."""

    task: str
    settings: Settings = field(default_factory=dict)
    seeds: int = 1
    """Of fine-tuning, for each model; the mean is the model's score."""
    data: str = ""
    """Folder of its files; `shards`: those of the arm; `shards of ARM`: another one's, so that all have the same
    masks; empty: what --data names."""
    metrics: tuple[str, ...] = ()
    """The metrics to compare, of which `*` stands for any part of a name; empty: the task's own."""
    name: str = ""
    """What its figures are named by, where a task is scored on several data; empty: the task."""

    @property
    def known_as(self) -> str:
        """What forms and the command line call it."""
        return self.name or self.task


@dataclass(frozen=True)
class Form:
    """A size of a study: which arms it has, and what it changes."""

    arms: tuple[str, ...] = ()
    """Empty: all."""
    seeds: int = 3
    recipe: str = ""
    settings: Settings = field(default_factory=dict)
    scoring: tuple[str, ...] | None = None
    """Tasks of `evaluate`; None: all."""
    evaluation: Settings = field(default_factory=dict)
    """Settings of `maskmill evaluate` that it changes: SETTING in all tasks, TASK.SETTING in one."""


@dataclass(frozen=True)
class Design:
    """A study, of one form."""

    name: str
    title: str
    question: str
    recipe: str
    arms: dict[str, Arm]
    settings: Settings
    reference: str
    """The arm that all others are compared with."""
    figure: str
    """The figure that leads; lower is better where it is a loss or a count of tokens."""
    figures: tuple[str, ...]
    contrasts: dict[str, dict[str, float]]
    """Name -> arm -> its weight in a sum that is compared with 0: main effects and interactions, where the arms are the
    cells of a table."""
    equal: dict[str, tuple[str, ...]]
    """Kind (EQUALITIES) -> the arms in which it must be the same."""
    equal_time: bool
    """Whether arms have as many steps as take the time of the reference's, in place of as many as it."""
    evaluate: tuple[Scoring, ...]
    tune: dict[str, tuple[Any, ...]]
    """Setting -> its grid: each arm is shown at its own best value, by the first seed."""
    needs_context: bool
    """Whether an arm that predicts no better than the unigram is left out of comparisons."""
    evaluations: int
    """Evaluations of a run, evenly apart: points of its curve."""
    reading: str
    """What the study shows and what it does not, for its page."""
    requires: tuple[str, ...]
    """Settings that the command line has to give, as the text where none is shipped."""
    form: str
    seeds: tuple[int, ...]

    @property
    def others(self) -> list[str]:
        """The arms that are compared with the reference."""
        return [name for name in self.arms if name != self.reference]

    def label(self, arm: str) -> str:
        """Return what an arm is called."""
        return self.arms[arm].label or arm

    @property
    def trained(self) -> tuple[str, ...]:
        """The arms that train."""
        return tuple(name for name, arm in self.arms.items() if not arm.model_of)

    def differing(self) -> set[str]:
        """Return the settings in which arms differ, those of their phases included."""
        own = {key for arm in self.arms.values() for key in arm.settings}
        phases = [objects(arm.settings.get("phases")) for arm in self.arms.values()]
        inside = {key for of_arm in phases for phase in of_arm for key, _ in leaves(phase)}
        return own | inside | set(self.tune)


def require_given(design: Design) -> None:
    """Raise UserError where the command line does not give what the study requires."""
    for key in design.requires:
        if not design.settings.get(key):
            raise UserError(
                f"needs {key}",
                where=f"study {design.name}",
                remedy="--source FOLDER, whose files or folders are named by their languages, as fi.jsonl",
            )


class Changes(NamedTuple):
    """What the command line changes in a study."""

    form: str = "hour"
    seeds: int = 0
    """0: the form's."""
    arms: tuple[str, ...] = ()
    settings: Settings = {}  # noqa: RUF012 (nothing writes into it)
    """Of the run; evaluate.TASK.SETTING: of `maskmill evaluate`."""

"""Define what a study is: its arms, what they differ in and what they have in common, its two forms.

A study is read from the mapping that a YAML file holds, in one of its forms, with what the command line changes, and
checked: its parts must fit each other.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from data_pipeline.errors import UserError, one_error
from data_pipeline.fields import Rule, broken, made, setting, unknown_key
from pretrain.config.phases import leaves
from pretrain.run.files import objects

Settings = dict[str, Any]
"""Dotted names of settings -> values."""
EQUALITIES = ("examples", "masks", "weights", "shared_weights", "content", "content_masks")
"""What may be declared to be equal in arms (measured.py)."""
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
    seeds: int = setting(1, at_least=1)
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
    seeds: int = setting(3, at_least=1)
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


# Check that the parts of a study fit each other.


_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


def check_design(design: Design, where: object) -> None:
    """Raise UserError, listing all, for names that no arm can have, arms that take what is not there, and parts that
    contradict each other."""
    rules = [*_arm_rules(design, where), *_task_rules(design, where)]
    if design.equal_time:
        rules += _time_rules(design, f"{where}, equal_time")
    if wrong := broken(rules):
        raise one_error(wrong, where=str(where))


def _arm_rules(design: Design, where: object) -> Iterator[Rule]:
    trained = design.trained
    for name, arm in design.arms.items():
        place = f"{where}, arm {name}"
        yield Rule(
            not _NAME.fullmatch(name),
            f"cannot name an arm {name!r}",
            "small letters, digits and _",
            str(where),
        )
        for key in ("segments", "beside"):
            is_alone = bool(getattr(arm, key)) and not arm.model_of
            yield Rule(is_alone, f"{key} needs model_of", "model_of: ARM", place)
        for source in arm.sources:
            yield Rule(source not in trained, f"no such arm that trains: {source}", "model_of: ARM", place)
        is_both = bool(arm.model_of and (arm.settings or arm.recipe))
        yield Rule(is_both, "trains nothing, and has settings of a run", "leave them out", place)


def _task_rules(design: Design, where: object) -> Iterator[Rule]:
    for scoring in design.evaluate:
        named = scoring.data.partition("shards of ")[2]
        yield Rule(
            bool(named) and named not in design.arms,
            f"{scoring.task} is scored on the shards of {named}, which is no arm here",
            "data: shards of ARM",
            str(where),
        )
    for equal in design.equal:
        yield Rule(equal not in EQUALITIES, f"unknown {equal!r}", ", ".join(EQUALITIES), f"{where}, equal")
    takes = any(arm.model_of for arm in design.arms.values())
    yield Rule(
        bool(design.tune) and takes,
        "cannot be tuned where arms take the model of another",
        "a study of arms that all train",
        f"{where}, tune",
    )
    yield Rule(not all(design.tune.values()), "an empty grid", "SETTING: [a, b]", f"{where}, tune")


def _time_rules(design: Design, where: str) -> Iterator[Rule]:
    """Yield what else than the time of the reference's steps would decide those of an arm."""
    yield Rule(
        bool(design.arms[design.reference].model_of),
        "the reference trains nothing",
        "reference: an arm that trains",
        where,
    )
    yield Rule(
        "train.steps" not in design.settings,
        "has no steps",
        "settings: {train.steps: NUMBER}, the reference's",
        where,
    )
    for name, arm in design.arms.items():
        for key in sorted(arm.settings.keys() & {"train.steps", "train.minutes"}):
            yield Rule(True, f"arm {name} has its own {key}", "one time for all arms", where)
    for key in design.tune:
        is_longer = not key.startswith("optim.")
        yield Rule(is_longer, f"{key} is tuned", "settings that no step is longer for: optim.*", where)


# Read a study from a mapping.


def parse_design(name: str, values: Mapping[str, Any], changes: Changes, where: object) -> Design:
    """Return the study that a YAML file's `values` describe, in the form that `changes` asks for. Raises UserError for
    an unknown key, and for arms, tasks or forms that do not exist."""
    _refuse_unknown(values, (*_TOP, "hour", "long"), where)
    lacking = [key for key in ("title", "question", "recipe", "arms") if not values.get(key)]
    if lacking:
        expected = ", ".join(f"{key}: and what it is" for key in lacking)
        raise UserError(f"has no {', '.join(lacking)}", where=where, expected=expected)
    if changes.form not in FORMS:
        raise UserError(f"unknown {changes.form!r}", where="--form", expected=" or ".join(FORMS))
    form = _form(values.get(changes.form), f"{where}, {changes.form}")
    arms = {key: _arm(value, f"{where}, arm {key}") for key, value in _mapping(values["arms"], where).items()}
    chosen = _chosen(arms, changes.arms or form.arms, where)
    tasks = [_scoring(item, where) for item in values.get("evaluate") or ()]
    tasks = _evaluated(tasks, form.evaluation, f"{where}, {changes.form}, evaluation")
    tasks = [task for task in tasks if form.scoring is None or task.task in form.scoring]
    tasks = _evaluated(tasks, _of_tasks(changes.settings, chosen), "command line")
    tune = {key: tuple(_list(grid, where)) for key, grid in flat(values.get("tune") or {}, where).items()}
    figures = tuple(_list(values.get("figures") or ["held_out_mask_loss"], where))
    design = Design(
        name=name,
        title=str(values["title"]),
        question=str(values["question"]).strip(),
        recipe=form.recipe or str(values["recipe"]),
        arms=chosen,
        settings=flat(values.get("settings") or {}, where) | form.settings,
        reference=_reference(values, arms, chosen, where),
        figure=figures[0],
        figures=figures,
        contrasts=_contrasts(values.get("contrasts") or {}, arms, chosen, where),
        equal=_equal(values.get("equal") or [], arms, chosen, f"{where}, equal"),
        equal_time=bool(values.get("equal_time", False)),
        evaluate=tuple(tasks),
        tune=tune,
        needs_context=bool(values.get("needs_context", True)),
        evaluations=int(values.get("evaluations", 8)),
        reading=str(values.get("reading", "")).strip(),
        requires=tuple(_list(values.get("requires") or [], where)),
        form=changes.form,
        seeds=tuple(range(1, 1 + (changes.seeds or form.seeds))),
    )
    check_design(design, where)
    run = {key: value for key, value in changes.settings.items() if not key.startswith(OF_TASKS)}
    return _with_settings(design, run)


_TOP = ("title", "question", "recipe", "arms", "settings", "reference", "figures", "contrasts", "equal", "equal_time",
        "evaluate", "tune", "needs_context", "evaluations", "reading", "requires")  # fmt: skip


def _of_tasks(settings: Settings, chosen: Mapping[str, Arm]) -> Settings:
    """Return what the command line changes of `maskmill evaluate`, by TASK.SETTING. Raises UserError for a setting in
    which arms differ."""
    differing = {key for arm in chosen.values() for key in arm.evaluation}
    found = {key.removeprefix(OF_TASKS): v for key, v in settings.items() if key.startswith(OF_TASKS)}
    for key in found:
        if key.rpartition(".")[2] in differing:
            raise UserError(
                f"the arms differ in {key.rpartition('.')[2]}", where=f"command line, {OF_TASKS}{key}"
            )
    return found


def _evaluated(tasks: Sequence[Scoring], changes: Settings, where: object) -> list[Scoring]:
    """Return the tasks with settings that are changed: SETTING in all of them, TASK.SETTING in one. Raises UserError
    for a task that is not there."""
    known = [task.known_as for task in tasks]
    common = {key: value for key, value in changes.items() if "." not in key}
    own: dict[str, Settings] = {}
    for key in [key for key in changes if key not in common]:
        name, _, setting = key.rpartition(".")
        if name not in known:
            raise UserError(f"{name} is not scored", where=where, expected=f"one of {', '.join(known)}")
        own.setdefault(name, {})[setting] = changes[key]
    return [replace(task, settings=task.settings | common | own.get(task.known_as, {})) for task in tasks]


def _with_settings(design: Design, settings: Settings) -> Design:
    """Return the study with other common settings. A list in place of a tuned setting is its grid. Raises UserError for
    a setting in which arms differ, since it would make them the same."""
    tune = dict(design.tune)
    for key in [key for key in settings if key in tune]:
        if not isinstance(settings[key], list) or not settings[key]:
            raise UserError(f"{key} is tuned", where="command line", expected=f"a grid: {key}=[a, b]")
        tune[key] = tuple(settings[key])
    differing = design.differing() - tune.keys()
    wrong = sorted(key for key in settings if {key, key.partition(".")[0]} & differing)
    if wrong:
        raise UserError(
            f"the arms differ in {wrong[0]}",
            where="command line",
            expected="a setting that they have in common",
            remedy="a copy of the study's YAML can have other arms",
        )
    common = {key: value for key, value in settings.items() if key not in tune}
    return replace(design, settings=design.settings | common, tune=tune)


def _reference(
    values: Mapping[str, Any], arms: Mapping[str, Arm], chosen: Mapping[str, Arm], where: object
) -> str:
    reference = str(values.get("reference") or next(iter(arms)))
    if reference not in arms:
        raise UserError(f"no such arm: {reference}", where=f"{where}, reference", expected=", ".join(arms))
    return reference if reference in chosen else next(iter(chosen))


def _chosen(arms: dict[str, Arm], names: tuple[str, ...], where: object) -> dict[str, Arm]:
    """Return the arms of these names, all for none, with those that others take their models from."""
    for name in names:
        if name not in arms:
            near = difflib.get_close_matches(name, arms, n=3)
            remedy = f"did you mean {' or '.join(near)}?" if near else ""
            raise UserError(f"no such arm: {name}", where=where, expected=", ".join(arms), remedy=remedy)
    wanted = set(names or arms)
    wanted |= {source for name in wanted for source in arms[name].sources}
    return {name: arm for name, arm in arms.items() if name in wanted}


def _contrasts(
    values: Any, arms: Mapping[str, Arm], chosen: Mapping[str, Arm], where: object
) -> dict[str, dict[str, float]]:
    """Return the contrasts whose arms are all in this form."""
    found: dict[str, dict[str, float]] = {}
    for name, weights in _mapping(values, f"{where}, contrasts").items():
        place = f"{where}, contrast {name!r}"
        given = _mapping(weights, place)
        _refuse_unknown(given, arms, place)
        numbers = {arm: float(w) for arm, w in given.items() if isinstance(w, int | float)}
        if (
            len(numbers) < len(given)
            or len(given) < 2
            or not math.isclose(sum(numbers.values()), 0, abs_tol=1e-9)
        ):
            raise UserError(
                "does not compare", where=place, expected="ARM: NUMBER of two or more, their sum 0"
            )
        if given.keys() <= chosen.keys():
            found[name] = numbers
    return found


def _equal(
    values: Any, arms: Mapping[str, Arm], chosen: Mapping[str, Arm], where: object
) -> dict[str, tuple[str, ...]]:
    """Return the arms of this form in which each kind must be the same: of a list, all that train."""
    trained = [name for name, arm in arms.items() if not arm.model_of]
    given = {str(kind): trained for kind in values} if isinstance(values, list) else _mapping(values, where)
    for kind, names in given.items():
        if wrong := [name for name in _list(names, where) if name not in trained]:
            raise UserError(
                f"no such arm that trains: {wrong[0]}", where=f"{where}, {kind}", expected=", ".join(trained)
            )
    return {kind: tuple(name for name in names if name in chosen) for kind, names in given.items()}


def _arm(value: Any, where: object) -> Arm:
    values = _mapping(value or {}, where)
    values |= {key: flat(values.get(key) or {}, where) for key in ("settings", "evaluation")}
    return made(Arm, values, where)


def _scoring(value: Any, where: object) -> Scoring:
    values = _mapping({"task": value} if isinstance(value, str) else value, where)
    values["settings"] = flat(values.get("settings") or {}, where)
    values["metrics"] = tuple(_list(values.get("metrics") or [], f"{where}, evaluate"))
    return made(Scoring, values, f"{where}, evaluate")


def _form(value: Any, where: object) -> Form:
    values = _mapping(value or {}, where)
    for key in ("arms", "scoring"):
        if key in values:
            values[key] = tuple(_list(values[key], where))
    values |= {key: flat(values.get(key) or {}, where) for key in ("settings", "evaluation")}
    return made(Form, values, where)


def flat(values: Any, where: object, prefix: str = "") -> Settings:
    """Return settings by their dotted names, from a mapping with groups, dotted names or both."""
    found: Settings = {}
    for key, value in _mapping(values, where).items():
        found |= (
            flat(value, where, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return found


def _mapping(value: Any, where: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError("is no mapping", where=where, expected="KEY: VALUE")
    return {str(key): item for key, item in value.items()}


def _list(value: Any, where: object) -> list[Any]:
    if not isinstance(value, list):
        raise UserError(f"{value!r} is no list", where=where, expected="[a, b]")
    return value


def _refuse_unknown(values: Mapping[str, Any], known: Collection[str], where: object) -> None:
    """Raise UserError that lists the keys that are none of the `known` ones."""
    if wrong := [unknown_key(key, known, where) for key in values if key not in known]:
        raise one_error(wrong, where=str(where))

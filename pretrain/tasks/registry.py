"""Name every task, and the suites of them."""

import difflib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.tasks.attention import AttentionTask
from pretrain.tasks.base import Task, Untrained
from pretrain.tasks.choice import Codah, Swag
from pretrain.tasks.classification import GLUE, SUITE, Own
from pretrain.tasks.dependencies import DEPENDENCIES
from pretrain.tasks.held_out import HeldOut
from pretrain.tasks.likelihood import Blimp, Perplexity
from pretrain.tasks.pair_context import PairContext
from pretrain.tasks.questions import QUESTIONS
from pretrain.tasks.settings import EvaluationSettings
from pretrain.tasks.tagging import TAGGING

UNTRAINED: dict[str, Untrained] = {
    task.name: task for task in (AttentionTask(), Blimp(), HeldOut(), PairContext(), Perplexity())
}
FINE_TUNED: dict[str, Task] = {
    task.name: task for task in (*GLUE, Swag(), Codah(), *QUESTIONS, *TAGGING, DEPENDENCIES, Own())
}
NAMES = (*UNTRAINED, *FINE_TUNED)
OWN = ("own", "questions", "tagging", "attention", "held_out", "pairs", "perplexity")
"""Tasks of a user's own files."""
SUITES = {
    "glue": SUITE,
    "blimp": ("blimp",),
    "ud": ("ud",),
    "all": tuple(name for name in NAMES if name not in (*OWN, "ax", "wnli")),
}


def check_name(name: str) -> str:
    """Return the name of a task. Raises UserError, with the nearest names, where there is none of that name."""
    if name in NAMES:
        return name
    near = difflib.get_close_matches(name.lower(), NAMES, n=3)
    raise UserError(
        f"no such task: {name}",
        expected=f"one of {', '.join(NAMES)}",
        remedy=f"did you mean {' or '.join(near)}?" if near else "",
    )


def settings_of(task: str) -> set[str]:
    """Return the settings of `maskmill evaluate` that say something about a task."""
    if task in UNTRAINED:
        return {"part", "threads", *(["precision"] if UNTRAINED[task].has_precision else [])}
    own = {name: {*each.head_settings, *each.file_settings} for name, each in FINE_TUNED.items()}
    of_some = {"part"}.union(*own.values())
    return {field.name for field in fields(EvaluationSettings)} - of_some | own[task]


def check_setting(tasks: Sequence[str], setting: str) -> None:
    """Raise UserError for a setting of `maskmill evaluate` that says nothing about any of these tasks."""
    able = [name for name in NAMES if setting in settings_of(name)]
    if not set(tasks) & set(able):
        raise UserError(
            f"is not for {' or '.join(dict.fromkeys(tasks))}",
            where=setting,
            expected=f"one of {', '.join(able)}",
        )


def folder_of(name: str, data: Path) -> Path:
    """Return the folder with the task's files: the one of the task's official name in `data`, or `data` itself, which
    may be a file of text for `perplexity`. Raises UserError where `data` is no folder."""
    if name == "perplexity" and data.is_file():
        return data
    if not data.is_dir():
        raise UserError("no such folder", where=data, expected="the files of the task, or folders of tasks")
    official = (UNTRAINED.get(name) or FINE_TUNED[name]).folder
    for entry in sorted(data.iterdir()):
        if official != "." and entry.is_dir() and entry.name.lower() == official.lower():
            return entry
    return data


def chosen_tasks(names: list[str], suite: str, data: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    """Return the tasks to score, each with its folder, and those of the suite that there is no folder of, or, where
    tasks share one, no file. Those of a suite are looked for in `data` and the folders in it; there may be several
    treebanks. Raises UserError where there is nothing to score."""
    if suite and suite not in SUITES:
        raise UserError(f"no such suite: {suite}", where="--suite", expected=f"one of {', '.join(SUITES)}")
    found = [(name, folder_of(check_name(name), data)) for name in names]
    missing = []
    for name in SUITES.get(suite, ()):
        folders = folders_of(name, data)
        if not folders and len(SUITES[suite]) == 1:
            folders = [folder_of(name, data)]
        found += [(name, folder) for folder in folders]
        missing += [] if folders else [name]
    if not found:
        raise UserError(
            "no task to score",
            where=data,
            expected=f"{', '.join(missing)} in it" if missing else f"one of {', '.join(NAMES)}, or --suite",
        )
    return list(dict.fromkeys(found)), missing  # a suite may have what was named, too


def folders_of(name: str, data: Path) -> list[Path]:
    """Return the folders of a task in `data` or in a folder in it: every treebank, else the first of its name, or of
    those that several tasks share the first that has its file."""
    places = [data, *sorted(entry for entry in data.iterdir() if entry.is_dir())] if data.is_dir() else []
    if name == "ud":
        return [entry for place in places for entry in sorted(place.glob("UD_*")) if entry.is_dir()]
    found = [folder for place in places if (folder := folder_of(name, place)) != place]
    return [folder for folder in found if name in UNTRAINED or FINE_TUNED[name].is_in(folder)][:1]

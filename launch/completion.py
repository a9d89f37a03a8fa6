"""Complete a half-typed word for the shell, and list every setting with its value and meaning.

typer calls this at every TAB, so it is quick: no torch, no files except the recipes' names and the source of the
settings.

If only one word fits, a shell appends a space, which is wrong after `key=`: so each key comes with a value, its
choices or its default. bash treats `=` as the end of a word: the part before it is then among the previous words.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from data_pipeline.fields import declared
from launch.recipes import recipe_names
from pretrain.config.settings import RunConfig

Found = list[tuple[str, str]]
"""Words, each with its meaning, which zsh and fish show."""


def recipes(incomplete: str) -> Found:
    """Complete shipped recipes; if none fits, the shell completes file names."""
    return [(name, "a shipped recipe") for name in recipe_names() if name.startswith(incomplete)]


def settings(ctx: Any, incomplete: str) -> Found:
    """Complete `key=` and `key=value`."""

    before = [str(word) for word in ctx.params.get("overrides") or []]
    if before and before[-1] == "=":  # bash: `key`, `=`, and the value so far
        before.pop()
    known = {key: (default, meaning) for key, default, meaning in manual()}
    if before and before[-1] in known:
        return [(value, "") for value in _values(before[-1], known) if value.startswith(incomplete)]
    key, equals, value = incomplete.partition("=")
    if equals:
        return [(f"{key}={v}", "") for v in _values(key, known) if v.startswith(value)]
    found: Found = []
    for key, (default, meaning) in known.items():
        if key.startswith(incomplete) and key != "phases":
            short = meaning.partition(". ")[0].partition("; ")[0]
            values = _values(key, known)
            found += [(f"{key}=", f"{short} (now {default})")]
            found += [(f"{key}={value}", short) for value in values or ["VALUE"]]
    return found


def words_of_settings(incomplete: str) -> Found:
    """Complete keys and their groups."""

    keys = [(key, meaning) for key, _, meaning in manual() if key.startswith(incomplete)]
    groups = dict.fromkeys(f"{key.partition('.')[0]}." for key, _ in keys if "." in key)
    return [*((group, "all of them") for group in groups), *keys] if "." not in incomplete else keys


def stages(incomplete: str) -> Found:
    """Complete stages of a chain of jobs, separated by commas."""
    from launch.jobs import STAGES

    given, _, last = incomplete.rpartition(",")
    head = f"{given}," if given else ""
    return [(head + name, "") for name in STAGES if name.startswith(last) and name not in given.split(",")]


def gpu_names(incomplete: str) -> Found:
    """Complete the GPUs that `maskmill plan` knows."""
    from pretrain.preflight.gpus import GPUS

    return [(name, "") for name in GPUS if name.startswith(incomplete)]


def _values(key: str, known: dict[str, tuple[str, str]]) -> list[str]:
    """List the values of a setting if they are enumerable; otherwise its default, if it has one to show."""
    declaration = dict(declared(RunConfig)).get(key)
    values = declaration.metadata.get("values") if declaration else None
    if values and values.one_of:
        return [str(choice) for choice in values.choices]
    default = known.get(key, ("", ""))[0]
    if default in ("True", "False"):
        return ["true", "false"]
    return [default] if default not in ("", "''", "[]", "None") and " " not in default else []


# List the settings of RunConfig or of another group, with the meanings that the source of its class gives.


def manual(settings: Any = None, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, value, meaning) of each setting; the meaning is the docstring under the field. Without `settings`,
    values are the defaults."""
    settings = RunConfig() if settings is None else settings
    owner = type(settings)
    meanings, hints = _meanings(owner), get_type_hints(owner)
    for f in fields(owner):
        value: Any = getattr(settings, f.name)
        if is_dataclass(hints[f.name]):
            yield from manual(value, f"{prefix}{f.name}.")
        else:
            yield (
                f"{prefix}{f.name}",
                repr(value) if value == "" else str(value),
                meanings.get(f.name, ""),
            )


def _meanings(owner: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found

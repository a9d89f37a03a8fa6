"""Merge the phase settings of a command line or a child recipe into the phases of a recipe."""

from collections.abc import Iterable
from typing import Any

from data_pipeline.errors import UserError
from pretrain.config.phases import LENGTHS, leaves


def as_typed(changes: dict[str, Any], typed: dict[str, Any]) -> dict[str, Any]:
    """Return `changes` with the values that the typed merge made of them."""
    return {
        key: as_typed(value, typed[key]) if isinstance(value, dict) else typed[key]
        for key, value in changes.items()
    }


def with_changes(phases: list[dict[str, Any]], changes: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the phases after `changes`, name -> settings."""
    names = [str(phase["name"]) for phase in phases]
    for name, settings in changes.items():
        if name not in names:
            raise UserError(
                f"there is no phase {name!r}",
                where=where,
                expected=f"phases.NAME.KEY=value with NAME one of {', '.join(names)}"
                if names
                else "a recipe with phases",
            )
        if not isinstance(settings, dict):
            raise UserError(f"phases.{name} is a phase", where=where, expected=f"phases.{name}.KEY=value")
        place = names.index(name)
        phases[place] = _deep(phases[place], settings)
    return phases


def check_one_length(overrides: Iterable[str]) -> None:
    """Raise UserError if a command line sets both the steps and the minutes of a run or a phase."""
    pairs = (override.partition("=") for override in overrides)
    given = {key for key, _, value in pairs if value not in ("0", "0.0")}
    for key in sorted(given):
        if key.endswith("train.minutes") and (steps := key.removesuffix("minutes") + "steps") in given:
            raise UserError(
                f"{steps} and {key} both say how long to train",
                where="command line",
                remedy="leave one of them out",
            )


def _deep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        if key in LENGTHS and LENGTHS[key] not in new:
            result.pop(LENGTHS[key], None)
        inner = result.get(key)
        result[key] = _deep(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def check_not_in_phases(phases: list[dict[str, Any]], values: dict[str, Any], where: str) -> None:
    """Raise UserError for a setting that a phase sets itself: the value would be silently lost."""
    rivals = {f"train.{one}": f"train.{other}" for one, other in LENGTHS.items()}
    for key, _ in leaves(values):
        setting = [str(phase["name"]) for phase in phases if {key, rivals.get(key)} & {*dict(leaves(phase))}]
        if setting:
            raise UserError(
                f"{key} is a setting of the {'phases' if len(setting) > 1 else 'phase'} {' and '.join(setting)}",
                where=where,
                expected=f"phases.{setting[0]}.{key}=...",
            )

"""Merge the phase settings of a command line or a child recipe into the phases of a recipe."""

from typing import Any

from data_pipeline.errors import UserError
from pretrain.config.phases import leaves


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


def _deep(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for key, value in new.items():
        inner = result.get(key)
        result[key] = _deep(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def check_not_in_phases(phases: list[dict[str, Any]], values: dict[str, Any], where: str) -> None:
    """Raise UserError for a setting that a phase sets itself: the value would be silently lost."""
    for key, _ in leaves(values):
        setting = [str(phase["name"]) for phase in phases if key in dict(leaves(phase))]
        if setting:
            raise UserError(
                f"{key} is a setting of the {'phases' if len(setting) > 1 else 'phase'} {' and '.join(setting)}",
                where=where,
                expected=f"phases.{setting[0]}.{key}=...",
            )

"""Read the `key=value` pairs of `maskmill evaluate`."""

import difflib
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from data_pipeline.errors import UserError, one_error
from launch.settings.overrides import parse_override, whole
from pretrain.config.yaml_files import merged, typed
from pretrain.tasks.settings import EvaluationSettings


def read_changes(overrides: list[str]) -> dict[str, Any]:
    """Return the settings that the pairs change, typed. Raises UserError that lists all invalid ones."""
    names = {f.name: f.type for f in fields(EvaluationSettings)}
    changes: dict[str, Any] = {}
    wrong = []
    for override in overrides:
        try:
            (key, value), *_ = parse_override(override).items()
            if key not in names:
                near = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
                raise UserError(
                    f"unknown key {key}",
                    expected=f"one of {', '.join(near or names)}",
                    where="command line",
                )
            value = whole(value) if names[key] is int else value
            base = OmegaConf.structured(EvaluationSettings)
            found = getattr(typed(merged(base, {key: value}, "command line"), "command line"), key)
            changes[key] = changes.get(key, {}) | found if isinstance(found, dict) else found
        except UserError as error:
            wrong.append(error)
    if wrong:
        raise one_error(wrong, where="command line")
    return changes

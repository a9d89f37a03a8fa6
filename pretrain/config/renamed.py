"""Read settings by the names that they had before.

Recipes, studies and command lines may still have them, with a line that says the new name; run folders and checkpoints
of older versions have them, and so has what is hashed, so that a new name changes no hash.
"""

from collections.abc import Mapping
from typing import Any

from data_pipeline.errors import UserError

RENAMED = {
    "data.mask_prob": "data.mask_replace_prob",
    "optim.muon_rate": "optim.muon_adjust_lr_fn",
    "run.step_limit": "run.step_timeout",
}
"""Old name of a setting -> new one, in the same group."""
_OLD = {new: old for old, new in RENAMED.items()}


def with_new_names(values: Any, where: object, prefix: str = "") -> tuple[Any, list[str]]:
    """Return what a YAML file or a command line holds with settings under their new names, and the old ones that it
    had. They may be in groups, have dotted names, or be in lists and groups of phases and arms. Raises UserError for
    one that has both names."""
    if isinstance(values, list):
        items = [with_new_names(value, where, prefix) for value in values]
        return [item for item, _ in items], [name for _, names in items for name in names]
    if not isinstance(values, dict):
        return values, []
    result, old_names = {}, []
    for key, value in values.items():
        full = f"{prefix}.{key}"
        old = next((name for name in RENAMED if full.endswith(f".{name}")), "")
        if old:
            old_names.append(old)
            key = key.removesuffix(old.rpartition(".")[2]) + RENAMED[old].rpartition(".")[2]
            if key in values:
                raise UserError(
                    f"{old} and {RENAMED[old]} are one setting", where=where, remedy=f"leave {old} out"
                )
        result[key], more = with_new_names(value, where, full)
        old_names += more
    return result, old_names


def with_new_keys(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's identity, as run.json or a checkpoint has it, with settings under their new names."""
    return {RENAMED.get(key, key): value for key, value in identity.items()}


def with_old_keys(settings: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Return settings by their dotted names, or those of one group, under the names that hashes have of them."""
    prefix = f"{group}." if group else ""
    return {
        _OLD.get(prefix + key, prefix + key).removeprefix(prefix): value for key, value in settings.items()
    }

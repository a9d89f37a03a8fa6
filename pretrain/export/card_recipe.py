"""Write the model card's section on how to reproduce the model, without private data.

It shows only the last name of files and folders, nothing in URIs that could be secret, and only the settings that
decide the result.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from data_pipeline.errors import redact_settings
from data_pipeline.shards.index import Index
from data_pipeline.sources.snapshot import name_only
from pretrain.config.settings import RunConfig

PLACES = ("sources", "out", "vocab", "lexicon", "shards", "init_from")
"""Settings that name files or folders."""
NO_PART_OF_A_RECIPE = {
    "data": ("workers", "executor", "scheduler", "work", "tokens", "verify", "on_damage"),
    "run": (
        "dir",
        "ranks",
        "threads",
        "stop_after",
        "restarts",
        "restart_delay",
        "step_limit",
        "stage_limit",
        "folder_wait",
    ),
    "checkpoint": None,
    "monitor": None,
    "export": None,
}
"""Groups or settings that define where and how a run is executed, not what it learns."""


def reproduce(whole: RunConfig, index: Index, summary: Mapping[str, Any]) -> str:
    """Return the recipe and the commands that reproduce the model from the same text."""
    versions = ", ".join(f"{name} {number}" for name, number in dict(summary.get("versions") or {}).items())
    return _REPRODUCE.format(
        recipe=recipe_yaml(whole), index=index.identity, versions=versions or "not recorded"
    )


_REPRODUCE = """\
Save these settings as `recipe.yaml` and put your own folders in: of files and folders only the last name is given.

```yaml
{recipe}```

```
maskmill vocab recipe.yaml      # or the tokenizer.json of this model as data.vocab
maskmill prepare recipe.yaml    # its index.json has the SHA-256 {index}
maskmill train recipe.yaml
maskmill export recipe.yaml
```

The same text gives the same shards, byte for byte. On the same build, kind of device, number of ranks and threads
the weights are the same bit for bit; elsewhere within rounding, with other draws of dropout. Versions: {versions}."""


def recipe_yaml(config: RunConfig) -> str:
    """Return a recipe of the non-default settings that decide what is learnt, with only the last names of files and
    folders."""
    differing = _differing(asdict(config), asdict(RunConfig()))
    return yaml.safe_dump(redact_settings(_named(differing)), sort_keys=False, allow_unicode=True, width=100)


def _differing(values: Mapping[str, Any], defaults: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    left_out = NO_PART_OF_A_RECIPE.get(group) or ()
    found: dict[str, Any] = {}
    for key, value in values.items():
        if (not group and NO_PART_OF_A_RECIPE.get(key, ()) is None) or key in left_out:
            continue
        if isinstance(value, dict):
            if inner := _differing(value, defaults[key], key):
                found[key] = inner
        elif value != defaults[key]:
            found[key] = value if key != "phases" else [_learnt(phase) for phase in value]
    return found


def _learnt(phase: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: {k: v for k, v in value.items() if k not in (NO_PART_OF_A_RECIPE.get(key) or ())}
        if isinstance(value, dict)
        else value
        for key, value in phase.items()
    }


def _named(values: Any) -> Any:
    """Replace every file and folder by its last name."""
    if isinstance(values, list):
        return [_named(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {key: _places(value) if key in PLACES else _named(value) for key, value in values.items()}


def _places(value: Any) -> Any:
    return [name_only(str(v)) for v in value] if isinstance(value, list) else name_only(str(value))

"""Merge what the Hugging Face folder in init_from states into the settings of a run."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from data_pipeline.errors import UserError
from pretrain.config.yaml_files import refuse_odd
from pretrain.preflight.ranges import value_of
from pretrain.run.folder import CONFIG, read_config


def with_folder_settings(merged: DictConfig, given: set[str]) -> DictConfig:
    """Return the settings with those of the folder in place of defaults. `given`: the dotted keys that recipe and
    command line set, which stay. Raises UserError, listing both values of each, for those that contradict the folder.
    """
    source = os.path.expanduser(str(merged.init_from))
    stated = _stated(source, os.path.expanduser(str(merged.run.dir))) if source else {}
    refuse_odd(stated, f"init_from={source}")
    differing = [
        f"{key}={OmegaConf.select(merged, key)} (there: {value})"
        for key, value in stated.items()
        if key in given and _contradicts(key, OmegaConf.select(merged, key), value)
    ]
    if differing:
        raise UserError(
            f"is another model: {', '.join(differing)}",
            where=f"init_from={source}",
            remedy="leave these settings out, here and in the recipe: they are read from the folder",
        )
    for key, value in stated.items():
        if key not in given:
            OmegaConf.update(merged, key, value)
    return merged


def _stated(source: str, run: str) -> dict[str, Any]:
    """Return the settings that the folder states; if it is gone, those that the run in `run` read from it."""
    from pretrain.huggingface.folder import folder_settings  # reads vocabularies

    if "://" in source or os.path.exists(source):
        return {} if "://" in source else folder_settings(Path(source))
    if not (Path(run) / CONFIG).is_file():
        return {}
    before = read_config(Path(run))
    if before.init_from != source:
        return {}
    keys = [f"encoder.{name}" for name in vars(before.encoder)]
    keys += ["objective.name", "data.vocab", "vocabulary.kind", "vocabulary.specials"]
    return {key: value_of(before, key) for key in keys}


def _contradicts(key: str, given: Any, stated: Any) -> bool:
    from pretrain.huggingface.folder import MAY_DIFFER, MAY_EXCEED

    if key in MAY_DIFFER:
        return False
    return bool(given < stated) if key in MAY_EXCEED else bool(given != stated)

"""Give the typed schema of all settings, into which recipes and run folders are merged."""

from copy import deepcopy
from functools import cache

from omegaconf import DictConfig, OmegaConf

from pretrain.config.settings import RunConfig


def schema() -> DictConfig:
    """Return every setting of RunConfig at its default; the caller may change it."""
    return deepcopy(_built())


@cache
def _built() -> DictConfig:
    return OmegaConf.structured(RunConfig)  # takes five times as long as a copy of what it makes

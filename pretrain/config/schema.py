"""Give the typed schema of all settings, and merge recipes, overrides and run folders into it."""

from copy import deepcopy
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data_pipeline.errors import UserError, first_line
from pretrain.config.safe_yaml import refuse_odd
from pretrain.config.settings import RunConfig


def schema() -> DictConfig:
    """Return every setting of RunConfig at its default; the caller may change it."""
    return deepcopy(_built())


@cache
def _built() -> DictConfig:
    return OmegaConf.structured(RunConfig)  # takes five times as long as a copy of what it makes


def merged(config: DictConfig, values: dict[str, Any], where: object) -> DictConfig:
    """Return `config`, which is used up, with `values` in place of its own. Raises UserError for what `refuse_odd`
    refuses, and for keys and types that `config` does not have."""
    refuse_odd(values, where)
    try:
        return OmegaConf.unsafe_merge(config, values)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise _user_error(error, where) from None


def typed(config: DictConfig, where: object) -> Any:
    """Return the dataclass that `config` describes. Raises UserError for a value that is lacking (`???`), and for
    numbers, which were texts until now, that `refuse_odd` refuses."""
    try:
        refuse_odd(OmegaConf.to_container(config, resolve=False), where)
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise _user_error(error, where) from None


def _user_error(error: OmegaConfBaseException, where: object) -> UserError:
    key = getattr(error, "full_key", "") or ""
    return UserError(f"{key}: {first_line(error)}" if key else first_line(error), where=where)

"""Check a RunConfig, and report all wrong settings in one UserError."""

import copy
from collections.abc import Callable
from typing import Any

from data_pipeline.errors import UserError, one_error
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.settings import mask_stages, stated_languages, stated_weights
from pretrain.config.settings import RunConfig
from pretrain.objectives.registry import registered
from pretrain.preflight.contradictions.find import contradictions
from pretrain.preflight.ranges import CHOICES, RANGES, out_of_range, value_of


def check(config: RunConfig) -> None:
    """Raise UserError that lists every value out of range and every contradiction, each with what to do."""
    if wrong := wrong_settings(config, config.train.steps):
        raise one_error(wrong, where="settings")


def wrong_settings(config: RunConfig, schedule_steps: int) -> list[UserError]:
    """List the wrong settings; follow-up errors of another mistake are left out. `schedule_steps`: the length of the
    schedule (config/phases.py)."""
    keys = [key for key in {**CHOICES, **RANGES} if out_of_range(key, value_of(config, key))]
    wrong = [_error(config, key) for key in keys]
    wrong += filter(None, (_refused(check, config) for check in _CHECKS))
    if any(error.where == "objective.name" for error in wrong):
        return wrong  # the allowed values are unknown
    rest, defaults = copy.deepcopy(config), RunConfig()
    for key in keys:
        _set(rest, key, value_of(defaults, key))
    if _refused(_mask_stages, rest):
        rest.data.mask_stages = []
    found = [UserError(rule.what, remedy=rule.remedy) for rule in contradictions(rest, schedule_steps)]
    return wrong + [error for error in found if not any(key in error.what for key in keys)]


def _error(config: RunConfig, key: str) -> UserError:
    value = value_of(config, key)
    if (key, value) == ("zero.offload", "nvme"):
        return UserError(
            "zero.offload=nvme: the norms of LAMB and every checkpoint need all masters and moments in memory",
            remedy="zero.offload=cpu, or more ranks at zero.stage=3",
        )
    return UserError(out_of_range(key, value))


def _refused(check: Callable[[RunConfig], object], config: RunConfig) -> UserError | None:
    try:
        check(config)
    except UserError as error:
        return error
    return None


def _objective(config: RunConfig) -> None:
    registered(config.objective.name)


def _languages(config: RunConfig) -> None:
    if config.data.sources:
        stated_languages(config.data)


def _weights(config: RunConfig) -> None:
    if config.data.sources and not _refused(_languages, config):
        stated_weights(config.data)


def _mask_stages(config: RunConfig) -> None:
    mask_stages(config.data)


def _mask_budget(config: RunConfig) -> None:
    MaskBudget.of(config.data)


_CHECKS = (_objective, _languages, _weights, _mask_stages, _mask_budget)


def _set(config: RunConfig, key: str, value: Any) -> None:
    group, _, name = key.rpartition(".")
    setattr(value_of(config, group) if group else config, name, value)

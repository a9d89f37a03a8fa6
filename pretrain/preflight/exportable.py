"""Warn, before a run begins, about an encoder that no class of transformers has: its export will be refused."""

from collections.abc import Sequence

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.export.families.registry import chosen_families


def export_warnings(config: RunConfig, families: Sequence[str]) -> list[str]:
    """Return a line with the settings that stand in the way of an export as one of `families`, those of the run's
    objective; none if there is a class for the run's encoder. The run may train all the same, as an experiment."""
    try:
        chosen_families(families, config)
    except UserError as error:
        return [f"{error.what} (known: {error.expected}); it trains, and `maskmill export` will refuse it"]
    return []

"""The registry of objectives: a name in, an objective (data recipe and model) out. One line registers one."""

from importlib import import_module
from typing import TYPE_CHECKING

from data_pipeline.errors import UserError

if TYPE_CHECKING:
    from pretrain.objectives.base import Objective

OBJECTIVES = {
    "bert": "pretrain.objectives.bert:Bert",
    "mlm": "pretrain.objectives.mlm:Mlm",
}
"""Name in `objective.name` -> module:class."""


def load(name: str) -> "type[Objective]":
    """The objective of this name; its module is imported only now. Raises UserError for an unknown name."""
    if name not in OBJECTIVES:
        raise UserError(f"unknown {name!r}", where="objective.name", expected=" or ".join(OBJECTIVES))
    module, _, attribute = OBJECTIVES[name].partition(":")
    return getattr(import_module(module), attribute)

"""Register the optimizers by name: what is known of each without importing it, or torch. One record registers one."""

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from data_pipeline.errors import UserError

if TYPE_CHECKING:
    from pretrain.optim.base import BaseOptimizer

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of Adam's moments, in optimizer state and checkpoints."""


class OptimizerRecord(NamedTuple):
    """Facts about an optimizer that are available without importing its module and torch."""

    place: str
    """module:class"""
    settings: tuple[str, ...] = ()
    """Settings of optim.* that it reads, beside lr, betas, eps and weight_decay, which all of them do."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """Values of zero.stage that it runs at."""
    moments: tuple[str, ...] = MOMENTS
    """What it keeps of each parameter in its state and in checkpoints, fp32 each."""
    matrix_moments: tuple[str, ...] | None = None
    """Of the matrices that it updates otherwise than the rest (groups with `matrices`); None: the same."""

    def moments_of(self, *, matrices: bool) -> tuple[str, ...]:
        """Return the moments of the parameters in a group."""
        return self.matrix_moments if matrices and self.matrix_moments is not None else self.moments

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a parameter in a checkpoint, at most: its fp32 weight and moments."""
        return 4 * (1 + len(self.moments))


OPTIMIZERS = {
    # no decoupled_decay: the trust ratio scales the decay with the update
    "lamb": OptimizerRecord("pretrain.optim.lamb:Lamb", ("variant", "trust_clamp")),
    "adamw": OptimizerRecord("pretrain.optim.base:AdamW", ("decoupled_decay",)),
    "stable_adamw": OptimizerRecord("pretrain.optim.lamb:StableAdamW", ("decoupled_decay",)),
    "muon": OptimizerRecord(
        "pretrain.optim.muon:Muon",
        (
            *("decoupled_decay", "muon_momentum", "muon_nesterov", "muon_iterations", "muon_adjust_lr_fn"),
            *("muon_lr_ratio", "muon_precision"),
        ),
        zero_stages=(0, 1, 2),  # stage 3 cuts every matrix over all ranks
        matrix_moments=MOMENTS[:1],
    ),
}
"""Name in `optim.name` -> optimizer."""


def optimizer_record(name: str) -> OptimizerRecord:
    """Return the record of this name. Raises UserError for an unknown one."""
    if name not in OPTIMIZERS:
        raise UserError(f"unknown {name!r}", where="optim.name", expected=" or ".join(OPTIMIZERS))
    return OPTIMIZERS[name]


def load(name: str) -> "type[BaseOptimizer]":
    """Return the class of the optimizer; its module is imported only now. Raises UserError for an unknown name."""
    module, _, attribute = optimizer_record(name).place.partition(":")
    optimizer: type[BaseOptimizer] = getattr(import_module(module), attribute)
    return optimizer

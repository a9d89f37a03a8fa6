"""What runs of a study came to, and the facts of its page."""

from pretrain.studies.measured import Cell, Measured
from pretrain.studies.page import Facts

FACTS = Facts("maskmill study x", "4 runs.", {"1": {"masks": "abc"}}, {"b-2": "no room"}, [])


def measured(arm: str, seed: int, loss: float, unigram: float = 6.0, **tuned: float) -> Measured:
    figures = {"held_out_mask_loss": loss, "held_out_mask_unigram_loss": unigram}
    curve = [
        {"step": n, "tokens": 100.0 * n, **figures, "held_out_mask_loss": loss + 2 - n} for n in (0, 1, 2)
    ]
    return Measured(arm, seed, [[f"optim.{key}", value] for key, value in tuned.items()], figures, curve, 3.0)


def found_of(*runs: Measured) -> dict[Cell, Measured]:
    return {one.cell: one for one in runs}

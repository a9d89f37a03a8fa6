"""Extend a table of learned positions to longer texts.

Shape legend: P positions of the model that a run starts from, L positions of the run, E embedding size.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def repeated(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Repeat the table's rows in their order: (L, E). Beltagy et al. 2020 (Longformer, section 5) extend RoBERTa's
    512 positions so, and find that it keeps what attention knows of near tokens everywhere but at the seams."""
    return table_PE[torch.arange(len(fresh_LE)) % len(table_PE)]


def interpolated(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Stretch the table over all positions, linearly between neighbouring rows, its ends at the ends: (L, E). Every
    position changes; neighbours become more alike."""
    stretched_1EL = torch.nn.functional.interpolate(
        table_PE.T[None], size=len(fresh_LE), mode="linear", align_corners=True
    )
    return stretched_1EL[0].T.contiguous()


def with_fresh_rows(table_PE: Tensor, fresh_LE: Tensor) -> Tensor:
    """Keep the table's rows and take those beyond from a new model's table: (L, E)."""
    return torch.cat((table_PE, fresh_LE[len(table_PE) :]))


def is_position_table(name: str) -> bool:
    """Return whether a parameter of ours with this name is a table of learned positions."""
    return ".embeddings.position." in name


EXTENSIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "repeat": repeated,
    "interpolate": interpolated,
    "fresh": with_fresh_rows,
}
"""By the value of init_positions: (the trained rows, fresh ones for the whole length) -> the first table so long."""

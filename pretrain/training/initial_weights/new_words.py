"""Extend the tensors that have a row for each entry of a vocabulary by rows of new words.

Shape legend: V old entries, N new ones; further dimensions (the embedding size, or none of a bias) stay.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Pieces = Sequence[Sequence[int]]
"""For each new entry the old ids that its text was cut into."""


def means(table_V: Tensor, pieces_N: Pieces, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Return the mean of the rows of each new entry's old pieces: (N, ...). A new word then means, at first, what its
    pieces did, and the output's bias is theirs too."""
    return torch.stack([table_V[list(pieces)].mean(0) for pieces in pieces_N])


def firsts(table_V: Tensor, pieces_N: Pieces, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Return the row of each new entry's first old piece: (N, ...)."""
    return table_V[[pieces[0] for pieces in pieces_N]]


def fresh(table_V: Tensor, pieces_N: Pieces, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Return the rows of a new model: (N, ...)."""
    return fresh_N()


ROWS: dict[str, Callable[[Tensor, Pieces, Callable[[], Tensor]], Tensor]] = {
    "mean": means,
    "first": firsts,
    "fresh": fresh,
}
"""By the value of init_new_words: (the folder's table, old pieces, what draws a new model's rows) -> the new rows."""


def with_new_rows(table_V: Tensor, pieces_N: Pieces, how: str, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Append rows for new entries to a table, as `how` says, a key of ROWS: (V + N, ...), the first V unchanged."""
    return torch.cat((table_V, ROWS[how](table_V, pieces_N, fresh_N)))

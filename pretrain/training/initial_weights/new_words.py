"""Extend the tensors that have a row for each entry of a vocabulary by rows of new words.

Shape legend: V old entries, N new ones; further dimensions (the embedding size, or none of a bias) stay.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Pieces = Sequence[Sequence[int]]
"""For each new entry the old ids that its text was cut into; none where the old vocabulary does not know its text."""


def mean(table_V: Tensor, pieces: Sequence[int]) -> Tensor:
    """Return the mean of the rows of a new entry's old pieces: (...). A new word then means, at first, what its pieces
    did, and the output's bias is theirs too."""
    return table_V[list(pieces)].mean(0)


def first(table_V: Tensor, pieces: Sequence[int]) -> Tensor:
    """Return the row of a new entry's first old piece: (...)."""
    return table_V[pieces[0]]


ROWS: dict[str, Callable[[Tensor, Sequence[int]], Tensor] | None] = {
    "mean": mean,
    "first": first,
    "fresh": None,
}
"""By the value of init_new_words: (the folder's table, an entry's old pieces) -> its row; None: that of a new model."""


def with_new_rows(table_V: Tensor, pieces_N: Pieces, how: str, fresh_N: Callable[[], Tensor]) -> Tensor:
    """Append rows for new entries to a table, as `how` says, a key of ROWS: (V + N, ...), the first V unchanged. An
    entry without old pieces gets the row of a new model, which `fresh_N` draws: from [UNK] all such would be equal."""
    row = ROWS[how]
    if row is None:
        return torch.cat((table_V, fresh_N()))
    drawn = fresh_N() if count_unknown(pieces_N) else table_V[:0]
    rows = [row(table_V, pieces) if pieces else drawn[n] for n, pieces in enumerate(pieces_N)]
    return torch.cat((table_V, torch.stack(rows)))


def count_unknown(pieces_N: Pieces) -> int:
    """Count the new entries without old pieces."""
    return sum(not pieces for pieces in pieces_N)

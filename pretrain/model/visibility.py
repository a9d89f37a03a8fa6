"""Describe which tokens attend to which within an example.

Every backend of attention takes this one description: the whole example (BERT), the past (left-to-right models), a
window (local layers of ModernBERT), or an order of its own for each example (the factorization orders of XLNet).

Shape legend: T packed tokens, E examples and S length of a tile.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Visibility(NamedTuple):
    """Which keys a query sees, of those in its own example: the ones that pass every limit set here."""

    causal: bool = False
    """A query sees no later key."""
    window: int = 0
    """A query sees keys at most so many tokens away, before and after; 0: no limit."""
    query_ranks_T: Tensor | None = None
    """int64: a query sees keys whose rank is not above its own; given together with `key_ranks_T`. The two streams of
    Yang et al. 2019 (XLNet, section 2.3) are two pairs of ranks: the content stream has the place of each token in the
    factorization order for both, the query stream that place less one for its queries."""
    key_ranks_T: Tensor | None = None

    @property
    def full(self) -> bool:
        """Whether all see all."""
        return not self.causal and not self.window and not self.ranked

    @property
    def ranked(self) -> bool:
        """Whether ranks limit what is seen: only backends of dense tiles can do that."""
        return self.query_ranks_T is not None


FULL = Visibility()
"""All tokens of an example attend to all of them."""
CAUSAL = Visibility(causal=True)
"""All tokens attend to themselves and what is before them."""


def visible(visibility: Visibility, positions_ES: Tensor, tokens_ES: Tensor) -> Tensor:
    """Compute an (E, 1, S, S) bool mask: whether the query of each row of a tile sees the key of each column.

    `positions_ES` and `tokens_ES` are each row's place in its example and in the packed run; those of padding are its
    example's last token's, so that a padded query sees what that token sees."""
    query_E1S1, key_E11S = positions_ES[:, None, :, None], positions_ES[:, None, None, :]
    length = positions_ES.shape[1]
    seen = torch.ones((len(positions_ES), 1, length, length), dtype=torch.bool, device=positions_ES.device)
    if visibility.causal:
        seen &= key_E11S <= query_E1S1
    if visibility.window:
        seen &= (key_E11S - query_E1S1).abs() <= visibility.window
    if visibility.query_ranks_T is not None and visibility.key_ranks_T is not None:
        query_ranks_ES = visibility.query_ranks_T[tokens_ES]
        key_ranks_ES = visibility.key_ranks_T[tokens_ES]
        seen &= key_ranks_ES[:, None, None, :] <= query_ranks_ES[:, None, :, None]
    return seen

"""Describe which tokens attend to which within an example.

Every backend of attention takes this one description: the whole example (BERT), the past (left-to-right models), a
window (local layers of ModernBERT), or an order of its own for each example (the factorization orders of XLNet).

Shape legend: T packed tokens, E examples or blocks, S queries and K keys of a tile.
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


class Places(NamedTuple):
    """Where the rows of a tile are: (E, S) int64 each. Padding has its example's last token's."""

    positions_ES: Tensor
    """In their examples."""
    tokens_ES: Tensor
    """In the packed run."""


def visible(visibility: Visibility, queries: Places, keys: Places) -> Tensor:
    """Compute an (E, 1, S, K) bool mask: whether the query of each row of a tile sees the key of each column. A padded
    query sees what its example's last token sees."""
    query_E1S1, key_E11K = queries.positions_ES[:, None, :, None], keys.positions_ES[:, None, None, :]
    shape = torch.broadcast_shapes(query_E1S1.shape, key_E11K.shape)
    seen = torch.ones(shape, dtype=torch.bool, device=key_E11K.device)
    if visibility.causal:
        seen &= key_E11K <= query_E1S1
    if visibility.window:
        seen &= (key_E11K - query_E1S1).abs() <= visibility.window
    if visibility.query_ranks_T is not None and visibility.key_ranks_T is not None:
        query_ranks_ES = visibility.query_ranks_T[queries.tokens_ES]
        key_ranks_EK = visibility.key_ranks_T[keys.tokens_ES]
        seen &= key_ranks_EK[:, None, None, :] <= query_ranks_ES[:, None, :, None]
    return seen

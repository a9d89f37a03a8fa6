"""Compute how many tokens of an example are predicted, and say where a cap makes it fewer than the rate asks for.

An example of n tokens, [CLS] and [SEP] counted, has max(1, round(rate * n)) tokens predicted, and no more than
data.max_predictions where that is above 0 (google-research/bert, create_pretraining_data.py). In exact mode 0 stands
for 20, the default of that script's flag max_predictions_per_seq.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.settings import UNMASKED, DataSettings, predictions_cap

if TYPE_CHECKING:
    from data_pipeline.shards.index import Index


MAX_PREDICTIONS = 2**16 - 1
"""Masked positions of an example: positions are stored in 16 bits."""


class MaskBudget(NamedTuple):
    """How many tokens of an example are predicted."""

    rate: float
    """Share of the tokens; 0: none is predicted."""
    cap: int
    """At most so many; 0: no cap."""

    @classmethod
    def of(cls, settings: DataSettings) -> "MaskBudget":
        """What these settings ask for. Raises UserError where one is out of its range."""
        rate, cap = settings.masked_lm_prob, predictions_cap(settings)
        if settings.masking == UNMASKED:
            return cls(0.0, 0)
        if not 0 < rate <= 1:
            raise UserError(f"must be in (0, 1], got {rate}", where="data.masked_lm_prob")
        if not 0 <= cap <= MAX_PREDICTIONS:
            raise UserError(f"must be from 0 to {MAX_PREDICTIONS}, got {cap}", where="data.max_predictions")
        return cls(rate, cap)

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> "MaskBudget | None":
        """What the settings in an index.json, which others may write, asked for; None where they do not say."""
        if settings.get("masking") == UNMASKED:
            return cls(0.0, 0)
        rate, cap = settings.get("masked_lm_prob"), settings.get("max_predictions")
        if not isinstance(rate, int | float) or not isinstance(cap, int) or not 0 < rate <= 1 or cap < 0:
            return None
        return cls(float(rate), cap)

    def uncapped(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """Tokens that the rate alone asks for in examples of these lengths; halves are rounded to even, as Python
        does."""
        return np.maximum(np.rint(lengths * self.rate).astype(np.int64), self.rate > 0)

    def counts(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """The most tokens that are predicted in examples of these lengths."""
        wanted = self.uncapped(lengths)
        return np.minimum(wanted, self.cap) if self.cap else wanted

    def count(self, length: int) -> int:
        """The most tokens that are predicted in an example of this length."""
        return int(self.counts(np.array([length]))[0])

    def mean_count(self, mean_length: float) -> float:
        """How many tokens are predicted, on average at most, in examples of this mean length."""
        wanted = max(self.rate * mean_length, float(self.rate > 0))
        return min(wanted, self.cap) if self.cap else wanted

    def binds(self, longest: int) -> bool:
        """Whether the cap takes tokens from examples of so many tokens."""
        return 0 < self.cap < int(self.uncapped(np.array([longest]))[0])

    def note(self, length: int) -> str:
        """What the cap does to examples of `length` tokens, for people; empty where it does nothing."""
        if not self.binds(length):
            return ""
        return (
            f"data.max_predictions={self.cap} caps what is predicted: {self.cap / length:.1%} of an example of "
            f"{length} tokens, {_asked(self.rate)}"
        )


def measured_note(index: "Index") -> str:
    """What the cap did to the training examples of these shards, for people; empty where it did nothing."""
    budget, split = MaskBudget.stored(index.settings), index.train
    if budget is None or not budget.binds(split.max_tokens):
        return ""
    return (
        f"data.max_predictions={budget.cap} caps what is predicted: {split.masked / max(split.tokens, 1):.1%} of the "
        f"tokens in {index.folder}, {_asked(budget.rate)}"
    )


def _asked(rate: float) -> str:
    return f"where data.masked_lm_prob={rate:g} asks for {rate:.1%}; data.max_predictions=0 lifts the cap"

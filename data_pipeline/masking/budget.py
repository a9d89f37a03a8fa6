"""Compute how many tokens of an example are predicted, and report if a cap reduces that number.

An example of n tokens, including [CLS] and [SEP], has max(1, round(rate * n)) predicted tokens, at most
data.max_predictions if that is above 0 (google-research/bert, create_pretraining_data.py). In exact mode 0 means 20,
the default of that script's flag max_predictions_per_seq. Does not import numpy: settings are checked before anything
else is loaded.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from data_pipeline.settings import UNMASKED, DataSettings, predictions_cap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MaskBudget(NamedTuple):
    """The number of predicted tokens per example: a rate and a cap."""

    rate: float
    """Share of the tokens; 0: no predictions."""
    cap: int
    """Maximum per example; 0: no cap."""

    @classmethod
    def of(cls, settings: DataSettings) -> "MaskBudget":
        """Make the budget of these settings."""
        if settings.masking == UNMASKED:
            return cls(0.0, 0)
        return cls(settings.masked_lm_prob, predictions_cap(settings))

    @classmethod
    def stored(cls, settings: Mapping[str, Any]) -> "MaskBudget | None":
        """Make the budget of the settings in an index.json, perhaps of another writer; None if missing or invalid."""
        if settings.get("masking") == UNMASKED:
            return cls(0.0, 0)
        rate, cap = settings.get("masked_lm_prob"), settings.get("max_predictions")
        if not isinstance(rate, int | float) or not isinstance(cap, int) or not 0 < rate <= 1 or cap < 0:
            return None
        return cls(float(rate), cap)

    def uncapped(self, lengths: "NDArray[np.integer]") -> "NDArray[np.int64]":
        """Compute the predicted tokens without the cap for these lengths; halves are rounded to even, as in Python."""
        return (lengths * self.rate).round().astype("int64").clip(min=int(self.rate > 0))

    def counts(self, lengths: "NDArray[np.integer]") -> "NDArray[np.int64]":
        """Compute the maximum number of predicted tokens in examples of these lengths."""
        wanted = self.uncapped(lengths)
        return wanted.clip(max=self.cap) if self.cap else wanted

    def count(self, length: int) -> int:
        """Compute the maximum number of predicted tokens in an example of this length."""
        wanted = self._uncapped_count(length)
        return min(wanted, self.cap) if self.cap else wanted

    def _uncapped_count(self, length: int) -> int:
        return max(round(length * self.rate), int(self.rate > 0))

    def mean_count(self, mean_length: float) -> float:
        """Compute an upper bound of the mean number of predicted tokens in examples of this mean length."""
        wanted = max(self.rate * mean_length, float(self.rate > 0))
        return min(wanted, self.cap) if self.cap else wanted

    def binds(self, longest: int) -> bool:
        """Return whether the cap reduces the predictions in examples of `longest` tokens."""
        return 0 < self.cap < self._uncapped_count(longest)

    def note(self, length: int) -> str:
        """Describe the effect of the cap on examples of `length` tokens; empty if it has none."""
        if not self.binds(length):
            return ""
        return (
            f"data.max_predictions={self.cap} caps what is predicted: {self.cap / length:.1%} of an example of "
            f"{length} tokens, {rate_note(self.rate)}"
        )


def rate_note(rate: float) -> str:
    return f"where data.masked_lm_prob={rate:g} asks for {rate:.1%}; data.max_predictions=0 lifts the cap"

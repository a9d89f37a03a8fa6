"""Turn sequences into training examples: masked, or unchanged."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from data_pipeline.masking.masker import Masker
from data_pipeline.records import Examples, Segments
from data_pipeline.rng import CORRUPT
from data_pipeline.settings import UNMASKED, DataSettings

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


class Corruption(Protocol):
    """Makes examples from sequences. It holds plain arrays and numbers, so it can be sent to any worker."""

    def __call__(self, segments: Segments, seed: int, purpose: int = CORRUPT) -> Examples:
        """Corrupt every sequence of `segments`, in order; the draws are keyed by (seed, segments.keys, purpose)."""

    def expected(self, mean_length: float) -> float:
        """Compute an upper bound of the mean number of masked tokens in sequences of this mean length."""

    def max_rows(self, length: int) -> int:
        """Compute the maximum number of masked tokens in a sequence of this length."""


@dataclass(frozen=True)
class Unmasked:
    """Leave the text unchanged and mask nothing, for objectives that predict without masks."""

    def __call__(self, segments: Segments, seed: int, purpose: int = CORRUPT) -> Examples:
        """Make an unmasked example of every sequence."""
        return Examples.of(
            segments,
            masked_positions=np.zeros(0, np.uint16),
            masked_ids=np.zeros(0, segments.tokens.dtype),
            masked_offsets=np.zeros(len(segments) + 1, np.int64),
        )

    def expected(self, mean_length: float) -> float:
        """Return 0: nothing is masked."""
        return 0.0

    def max_rows(self, length: int) -> int:
        """Return 0: nothing is masked."""
        return 0


def corruption_of(settings: DataSettings, vocabulary: "Vocabulary") -> Corruption:
    """Make the corruption that data.masking names. Raises UserError for a setting out of range or an unusable
    lexicon."""
    return Unmasked() if settings.masking == UNMASKED else Masker.from_settings(settings, vocabulary)

"""Leave out the [SEP] of pairs, or put periods in their places: what data.separators asks for.

The shards have [CLS] A [SEP] B [SEP] in all cases, and their masks were drawn there, so that runs which differ in their
separators alone read the same text with the same masks.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.records import Examples
from data_pipeline.settings import SEPARATORS, DataSettings
from data_pipeline.shards.index import Index

PERIOD = "."


@dataclass(frozen=True)
class Separators:
    """Which separators examples have. `kind`: one of SEPARATORS; `gap`: a second segment whose separator before it
    is left out keeps its positions; `period`: id of the period, for the kind that needs it."""

    kind: str
    gap: bool
    sep: int
    period: int = -1

    def __call__(self, examples: Examples) -> Examples:
        """Return the examples, which have [SEP] behind each segment, with these separators; no token or mask of
        their text changes. Raises UserError for examples without [SEP] there."""
        mid, end = separator_places(examples.offsets, examples.first_lengths)
        if (examples.tokens[np.concatenate((mid, end))] != self.sep).any():
            raise UserError("the shards have no [SEP] at the ends of segments", where="data.separators")
        if self.kind == "period":
            tokens = examples.tokens.copy()
            tokens[mid] = tokens[end] = self.period
            return replace(examples, tokens=tokens)
        left_out = {"none": (mid, end), "mid": (end,), "end": (mid,)}[self.kind]
        return without_tokens(examples, np.concatenate(left_out), keeps_positions=self.gap)


def without_tokens(examples: Examples, places: NDArray[np.int64], *, keeps_positions: bool) -> Examples:
    """Return the examples without the tokens at these places of all of them, none of which is to be predicted;
    `keeps_positions`: the others keep their positions."""
    kept = np.ones(len(examples.tokens), np.bool_)
    kept[places] = False
    before = np.concatenate(([0], np.cumsum(~kept)))  # tokens left out before each place
    starts = examples.offsets[:-1]
    owners = np.repeat(starts, np.diff(examples.masked_offsets))
    masked = owners + examples.masked_positions
    ends = starts + examples.first_lengths
    return replace(
        examples,
        tokens=examples.tokens[kept],
        offsets=offsets_of(np.diff(examples.offsets - before[examples.offsets])),
        first_lengths=(examples.first_lengths - (before[ends] - before[starts])).astype(np.uint16),
        masked_positions=(examples.masked_positions - (before[masked] - before[owners])).astype(np.uint16),
        segment_ids=None if examples.segment_ids is None else examples.segment_ids[kept],
        positions=examples.places[kept].astype(np.uint16) if keeps_positions else None,
    )


def separator_places(
    offsets: NDArray[np.int64], first_lengths: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the separators of framed pairs: those between two segments, and those at the ends."""
    starts, ends = offsets[:-1], offsets[1:]
    firsts = starts + first_lengths.astype(np.int64)
    return firsts[firsts < ends] - 1, ends - 1


def separators_of(settings: DataSettings, index: Index, tokens: list[str]) -> Separators | None:
    """Return what gives examples of these shards the separators of the settings; None where they have them.
    `tokens`: the vocabulary. Raises UserError for shards without separators or a vocabulary without a period."""
    if settings.separators not in SEPARATORS[1:]:
        return None
    if index.settings.get("separators") is False:
        raise UserError(
            f"hold no [SEP] that data.separators={settings.separators} could change",
            where=index.folder,
            remedy="prepare them with data.separators=both",
        )
    if settings.separators == "period" and PERIOD not in tokens:
        raise UserError(
            f"has no {PERIOD!r}", where="the vocabulary", expected="one for data.separators=period"
        )
    period = tokens.index(PERIOD) if settings.separators == "period" else -1
    return Separators(settings.separators, settings.separator_gap, index.vocabulary.sep, period)

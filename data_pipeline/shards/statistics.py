"""Count what examples hold and what batches of them cost a reader, as figures that add up over shards."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.jit import allocating, jit
from data_pipeline.records import Examples, Segments
from data_pipeline.sequences.registry import pair_task
from data_pipeline.settings import DataSettings
from data_pipeline.sources.listing import language_numbers

# Compute the tokens that padded, binned or packed batches cost a reader, from lengths in reading order.


class Padding(NamedTuple):
    """Tokens that a model would compute for the same examples, batched in three ways."""

    padded: int
    """Each batch padded to its longest example."""
    binned: int
    """The same, each batch of examples of one length bin."""
    packed: int
    """Each batch packed by first fit into rows of the sequence length, every row counted as full."""


class PaddingCounter:
    """Adds up Padding over lengths that arrive in parts; batches continue across parts."""

    def __init__(self, batch: int, bin_width: int, sequence_length: int) -> None:
        self.batch, self.bin_width, self.sequence_length = batch, bin_width, sequence_length
        bins = -(-sequence_length // bin_width)
        self._open = np.zeros(
            (bins + 1, 2), np.int64
        )  # (examples, longest) of each bin's batch; last: any length
        self._done = np.zeros(2, np.int64)
        self._left, self._rows = np.zeros(0, np.int64), 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Add the next examples' lengths, each from 1 to the sequence length."""
        _pad(lengths, self.batch, self.bin_width, self._open, self._done)
        waiting = np.concatenate([self._left, lengths])
        whole = len(waiting) // self.batch * self.batch
        self._rows += packed_rows(waiting[:whole], self.batch, self.sequence_length)
        self._left = waiting[whole:]

    def result(self) -> Padding:
        """Return the sums so far, including batches that are not full."""
        open_ones = self._open[:, 0] * self._open[:, 1]
        rows = self._rows + packed_rows(self._left, self.batch, self.sequence_length)
        return Padding(
            padded=int(self._done[0] + open_ones[-1]),
            binned=int(self._done[1] + open_ones[:-1].sum()),
            packed=rows * self.sequence_length,
        )


def padded_tokens(lengths: NDArray[np.int64], batch: int) -> int:
    """Count the tokens of all batches of `batch` examples, each padded to its longest one."""
    if not len(lengths):
        return 0
    starts = np.arange(0, len(lengths), batch)
    counts = np.diff(np.append(starts, len(lengths)))
    return int((np.maximum.reduceat(lengths, starts) * counts).sum())


def packed_rows(lengths: NDArray[np.int64], batch: int, room: int) -> int:
    """Count the rows of `room` tokens that the examples of each batch of `batch` fill, packed by first fit: each
    goes into the first row of its batch that has room for it."""
    return int(_first_fit(np.ascontiguousarray(lengths), batch, room))


@jit
def _pad(lengths, batch, bin_width, open_ones, done):
    mixed = len(open_ones) - 1
    for length in lengths:
        for way, place in enumerate((mixed, (length - 1) // bin_width)):
            open_ones[place, 0] += 1
            open_ones[place, 1] = max(open_ones[place, 1], length)
            if open_ones[place, 0] == batch:
                done[way] += batch * open_ones[place, 1]
                open_ones[place, 0] = open_ones[place, 1] = 0


@allocating
def _first_fit(lengths, batch, room):
    """Find the first row with room in log2(batch) steps: a tree over the rows, each node with the maximum room below
    it."""
    leaves = 1
    while leaves < min(batch, len(lengths)):
        leaves *= 2
    tree = np.empty(2 * leaves, np.int64)
    rows = 0
    for first in range(0, len(lengths), batch):
        tree[:] = room
        used = -1
        for i in range(first, min(first + batch, len(lengths))):
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < lengths[i]:
                    node += 1
            used = max(used, node - leaves)
            tree[node] -= lengths[i]
            while node > 1:
                node //= 2
                tree[node] = max(tree[2 * node], tree[2 * node + 1])
        rows += used + 1
    return rows


# Count what examples and documents hold, and say what the counts tell.

FEW_HELD_OUT = 20
"""Held-out documents below which `prepare` and `inspect` warn."""
BINS = 16
"""Bins of the length histogram, equal parts of the sequence length."""


def shard_statistics(
    examples: Examples, originals: NDArray[np.unsignedinteger], settings: DataSettings, mask_id: int
) -> dict[str, Any]:
    """Count the contents of some examples. `originals`: the tokens before masking, at the same places as
    examples.tokens."""
    lengths, task = examples.lengths, pair_task(settings.sequences)
    width = settings.sequence_length / BINS
    histogram = np.bincount(np.minimum((lengths - 1) // width, BINS - 1).astype(int), minlength=BINS)
    rows = np.repeat(examples.offsets[:-1], np.diff(examples.masked_offsets)) + examples.masked_positions
    shown, hidden = examples.tokens[rows], originals[rows]
    masked = int((shown == mask_id).sum())
    kept = int((shown == hidden).sum())
    return {
        "examples": len(examples),
        "tokens": int(lengths.sum()),
        "masked": len(rows),
        "masked_as_mask": masked,
        "masked_as_itself": kept,
        "masked_as_random": len(rows) - masked - kept,
        "pair_labels": {
            name: int((examples.labels == label).sum())
            for label, name in enumerate(task.labels if task else ())
        },
        "single_sequences": int(((examples.labels < 0) & (examples.first_lengths == lengths)).sum()),
        "full_length_examples": int((lengths == settings.sequence_length).sum()),
        "length_histogram": histogram.tolist(),
    }


def padding_statistics(lengths: NDArray[np.int64], settings: DataSettings) -> dict[str, int]:
    """Count the tokens that a reader of whole blocks would compute, for a shard or some of its blocks with these
    lengths in this order: each block padded to its longest example; the same with the lengths mixed; and the
    examples of each block packed by first fit into rows of sequence_length."""
    size = settings.block_examples
    mixed = rng.permutation(settings.seed, 0, rng.SHUFFLE, len(lengths)) if settings.bin_width else None
    return {
        "padded_tokens": padded_tokens(lengths, size),
        "padded_tokens_mixed": padded_tokens(lengths if mixed is None else lengths[mixed], size),
        "packed_tokens": packed_rows(lengths, size, settings.sequence_length) * settings.sequence_length,
    }


def held_out_note(statistics: Mapping[str, Any]) -> str:
    """Warn where the shards with these statistics hold out few documents; empty where they hold out enough, or none, or
    do not say."""
    held_out = statistics.get("held_out")
    count = held_out.get("documents") if isinstance(held_out, Mapping) else None
    if not isinstance(count, int) or count >= FEW_HELD_OUT:
        return ""
    return (
        f"{count} document{'s are' if count != 1 else ' is'} held out, fewer than {FEW_HELD_OUT}: what is measured on "
        f"{'them' if count != 1 else 'it'} says little of other text"
    )


def language_statistics(segments: Segments, settings: DataSettings) -> dict[str, Any]:
    """Count one shard by language: examples and tokens by the language in which they begin, and the pairs, and
    single streams, whose two ends differ in language."""
    languages, numbers = language_numbers(settings)
    firsts, lasts = numbers[segments.first_sources], numbers[segments.last_sources]
    tokens = np.bincount(firsts, weights=np.diff(segments.offsets), minlength=len(languages))
    examples = np.bincount(firsts, minlength=len(languages))
    return {
        "languages": {
            name: {"examples": int(n), "tokens": int(t)}
            for name, n, t in zip(languages, examples, tokens, strict=True)
        },
        "pairs_across_languages": int(((firsts != lasts) & (segments.labels >= 0)).sum()),
        "single_sequences_across_languages": int(((firsts != lasts) & (segments.labels < 0)).sum()),
    }


def text_statistics(
    tokens: NDArray[np.int64], passes: NDArray[np.int64], least_tokens: int, used: int
) -> dict[str, int]:
    """Count how much of the documents, of `tokens` each and with `passes` over each, is used: tokens that one pass puts
    into an example, each counted once; as a random second segment it does not count. Documents of fewer than
    `least_tokens` cannot make an example of the kind, those without a pass (data.weights below 1) make none."""
    passed, long = passes > 0, tokens >= least_tokens
    return {
        "text_documents": int((passed & long).sum()),
        "text_tokens": int(tokens[passed & long].sum()),
        "text_tokens_used": used,
        "documents_too_short": int((passed & ~long).sum()),
        "tokens_too_short": int(tokens[passed & ~long].sum()),
        "documents_not_passed": int((~passed).sum()),
        "tokens_not_passed": int(tokens[~passed].sum()),
    }


def text_share(recorded: object) -> float | None:
    """Return the share of the text's tokens that the examples use, from the statistics of a split in index.json. None:
    the shards were made before it was counted, or by another program."""
    tokens, used = _count(recorded, "text_tokens"), _count(recorded, "text_tokens_used")
    return None if tokens is None or used is None else used / max(tokens, 1)


def text_note(recorded: object) -> str:
    """Say how much of the text the examples of a split use, as `text_share`, and what makes none."""
    share = text_share(recorded)
    if share is None:
        return "the share of the text that examples use is not recorded"
    tokens, documents = _count(recorded, "text_tokens"), _count(recorded, "text_documents")
    # rounded down: 100 % is all
    note = f"examples use {math.floor(1e4 * share) / 1e4:.2%} of {tokens:,} tokens in {documents or 0:,} documents"
    for name, why in (("too_short", "too short for an example"), ("not_passed", "left out by data.weights")):
        if count := _count(recorded, f"documents_{name}"):
            note += f"; left aside: {count:,} {why}, of {_count(recorded, f'tokens_{name}') or 0:,} tokens"
    return note


def _count(recorded: object, name: str) -> int | None:
    value = recorded.get(name) if isinstance(recorded, Mapping) else None
    return value if type(value) is int and value >= 0 else None


def add_up(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sum counts name by name, also within groups; histograms bin by bin."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                total[name] = add_up([total.get(name, {}), value])
            elif isinstance(value, list):
                total[name] = [a + b for a, b in zip(total.get(name, [0] * len(value)), value, strict=True)]
            else:
                total[name] = total.get(name, 0) + value
    return total


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Compute the entropy, in nats per token, of the distribution with these counts: the loss of a model that only
    knows the frequencies of words."""
    seen = counts[counts > 0].astype(np.float64)
    shares = seen / seen.sum()
    return float(-(shares * np.log(shares)).sum())

"""Count what examples hold, as figures that add up over shards."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline import rng
from data_pipeline.records import Examples, Segments
from data_pipeline.sequences.registry import pair_task
from data_pipeline.settings import DataSettings
from data_pipeline.shards.padding_cost import packed_rows, padded_tokens
from data_pipeline.sources.listing import language_numbers

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

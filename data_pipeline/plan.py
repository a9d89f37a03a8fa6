"""Tokenized parts in; which documents form a pool of donors, and which a shard, out.

Both are ranges of documents in the order of their keys, which are hashes: every range is a uniform sample of the
corpus. The plan follows from the documents and the settings alone.
"""

import json
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from data_pipeline import draws
from data_pipeline.corpus import document_tokens
from data_pipeline.entries import canonical_json
from data_pipeline.errors import UserError
from data_pipeline.index import HELD_OUT, TRAIN
from data_pipeline.records import Corpus
from data_pipeline.settings import DataSettings

PARTITION_TOKENS = 256_000_000
"""Tokens of a partition, about, where that leaves it enough donors: half a gigabyte on disk."""


@dataclass(frozen=True)
class Unit:
    """Documents start..stop-1 of a partition, which become one shard."""

    start: int
    stop: int


@dataclass(frozen=True)
class Partition:
    """The documents of one split with low <= key <= high: random next segments come from among them."""

    split: str
    low: int
    high: int
    units: tuple[Unit, ...]


def plan(parts: list[Corpus], settings: DataSettings) -> list[Partition]:
    """The partitions of both splits, training first. Raises UserError where a split has no document."""
    keys = np.concatenate([np.asarray(part.keys) for part in parts])
    tokens = np.concatenate([document_tokens(part) for part in parts])
    if not len(keys):
        raise UserError(
            "no text to learn from: the sources hold no document with a token",
            where="data.sources",
            remedy="check the files, data.text_field and data.vocab",
        )
    order = np.argsort(keys, kind="stable")
    keys, tokens = keys[order], tokens[order]
    if (repeated := int((keys[1:] == keys[:-1]).sum())) > 0:
        raise UserError(
            f"{repeated} documents have the id of another",
            where="data.id_field",
            expected="a field that differs in every record",
            remedy="leave it empty to number the records",
        )
    aside = is_held_out(keys, settings)
    if settings.held_out > 0 and not 0 < aside.sum() < len(aside):
        raise UserError(
            f"data.held_out={settings.held_out} sets aside {aside.sum()} of {len(aside)} documents",
            where="data.sources",
            expected="some for training and some for evaluation",
            remedy="change data.held_out, or data.held_out=0",
        )
    partitions = _partitions(TRAIN, keys[~aside], tokens[~aside], settings)
    if aside.any():
        partitions += _partitions(HELD_OUT, keys[aside], tokens[aside], settings)
    return partitions


def is_held_out(keys: NDArray[np.uint64], settings: DataSettings) -> NDArray[np.bool_]:
    """Whether each document is set aside: drawn from its key alone, so the same in every run and part."""
    if settings.held_out <= 0:
        return np.zeros(len(keys), np.bool_)
    limit = np.uint64(min(int(settings.held_out * 2.0**64), 2**64 - 1))
    return draws.first_words(settings.seed, keys, draws.HELD_OUT) < limit


def _partitions(
    split: str, keys: NDArray[np.uint64], tokens: NDArray[np.int64], settings: DataSettings
) -> list[Partition]:
    count = max(1, min(int(tokens.sum()) // PARTITION_TOKENS, len(keys) // settings.min_donors))
    borders = [len(keys) * n // count for n in range(count + 1)]
    return [
        Partition(split, int(keys[first]), int(keys[last - 1]), _units(tokens[first:last], settings))
        for first, last in pairwise(borders)
    ]


def _units(tokens: NDArray[np.int64], settings: DataSettings) -> tuple[Unit, ...]:
    """Runs of documents of about shard_tokens over all passes: a new run begins with the document that crosses
    a multiple of it."""
    each = max(1, settings.shard_tokens // settings.dupe_factor)
    number = (np.cumsum(tokens) - tokens) // each
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return tuple(Unit(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True))


def plan_json(partitions: list[Partition]) -> bytes:
    """The plan as a file, as `parsed_plan` reads it."""
    return canonical_json([asdict(partition) for partition in partitions])


def parsed_plan(data: bytes) -> list[Partition]:
    """The plan that `plan_json` wrote."""
    return [
        Partition(**(fields | {"units": tuple(Unit(**unit) for unit in fields["units"])}))
        for fields in json.loads(data)
    ]

"""What bench_gpu.py measures: sizes of models, lengths of examples, and the speed that is aimed at."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from data_pipeline.loader.bin_packing import Caps
from data_pipeline.loader.packing import StepShare, pack
from pretrain.config.settings import EncoderSettings
from pretrain.model.batch import Shape
from tests.factories.shards import filled


class Row(NamedTuple):
    """What is measured."""

    encoder: EncoderSettings
    micro_batch: int  # examples of full length
    length: int
    lengths: Callable[[int], np.ndarray]
    masked: float  # share of the tokens
    target: float  # examples a second on one H100
    aim: float


def full(length: int) -> Callable[[int], np.ndarray]:
    return lambda count: np.full(count, length, np.int64)


def like_wikipedia(longest: int) -> Callable[[int], np.ndarray]:
    """A fifth of full length, the others even from 4 % to 70 % of it: at 512 a mean of 254 tokens and some 497 GFLOP a
    sequence of BERT-large."""

    def draw(count: int) -> np.ndarray:
        draws = np.random.RandomState(0)
        short = draws.randint(max(8, longest * 4 // 100), longest * 70 // 100, count)
        return np.where(draws.rand(count) < 0.2, longest, short).astype(np.int64)

    return draw


LARGE = EncoderSettings(layers=24, hidden=1024, heads=16, intermediate=4096)
BASE = EncoderSettings()
ROWS = {
    "large-128": Row(LARGE, 128, 128, full(128), 20 / 128, 1650, 2050),
    "large-512": Row(LARGE, 32, 512, like_wikipedia(512), 0.15, 800, 970),
    "base-128": Row(BASE, 256, 128, full(128), 20 / 128, 5000, 6400),
}
TINY = EncoderSettings(layers=2, hidden=32, heads=2, intermediate=64, max_positions=64)


def sized(row: Row, arguments: argparse.Namespace) -> Row:
    if arguments.tiny:
        length = 64 if row.length > 128 else 32
        lengths = like_wikipedia(length) if row.length > 128 else full(length)
        row = row._replace(encoder=TINY, micro_batch=4, length=length, lengths=lengths)
    encoder = replace(row.encoder, dropout=arguments.dropout, attention_dropout=arguments.dropout)
    return row._replace(encoder=encoder, micro_batch=arguments.micro_batch or row.micro_batch)


def global_batch(row: Row, arguments: argparse.Namespace) -> tuple[StepShare, Shape]:
    """Random examples that fill so many micro-batches, packed as the loader packs them."""
    tokens = row.micro_batch * row.length
    mean = row.lengths(10_000).mean()
    lengths = (
        row.lengths(int(arguments.accumulation * tokens * 0.985 / mean))
        if mean < row.length
        else row.lengths(arguments.accumulation * row.micro_batch)
    )
    examples = filled(lengths, np.random.default_rng(1), row.masked, arguments.vocabulary)
    masked = np.diff(examples.masked_offsets)
    rows = int(tokens * row.masked * 1.04) + int(masked.max())
    caps = Caps(
        tokens, int(2 * tokens / mean) + 8, rows if mean < row.length else row.micro_batch * int(masked[0])
    )
    numbers = np.arange(len(lengths))
    return pack(examples, caps, batch=0, epochs=numbers * 0, numbers=numbers), Shape.of(caps, row.length)

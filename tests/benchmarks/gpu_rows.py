"""What bench_gpu.py measures: sizes of models, lengths of examples, and the speed that is aimed at where one is."""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.loader.packing import Caps, StepShare, pack
from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.model.batch import Shape
from tests.factories.models import config_of
from tests.factories.shards import filled


class Row(NamedTuple):
    """What is measured."""

    encoder: EncoderSettings
    micro_batch: int  # examples of full length
    length: int
    lengths: Callable[[int], np.ndarray]
    masked: float  # share of the tokens
    target: float = 0.0  # examples a second on one H100; 0: no goal was set
    aim: float = 0.0
    objective: str = "bert"
    vocabulary: int = 30522


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
MODERN = EncoderSettings(
    layers=22, intermediate=1152, gated=True, activation="gelu", biases=False, norm_place="pre", norm_biases=False,
    layer_norm_eps=1e-5, positions="rope", rope_theta=160_000.0, local_rope_theta=10_000.0, max_positions=8192,
    global_every=3, local_attention=128, segments=0, dropout=0.0, attention_dropout=0.0, attention_output_dropout=0.1,
)  # fmt: skip
"""ModernBERT-base, as the recipe of that name has it."""
EVERYWHERE = replace(MODERN, global_every=1)
"""The same without local layers: what a window saves."""
ROWS = {
    "large-128": Row(LARGE, 128, 128, full(128), 20 / 128, 1650, 2050),
    "large-512": Row(LARGE, 32, 512, like_wikipedia(512), 0.15, 800, 970),
    "base-128": Row(BASE, 256, 128, full(128), 20 / 128, 5000, 6400),
    "modern-1024": Row(MODERN, 96, 1024, full(1024), 0.3, objective="mlm", vocabulary=50368),
    "modern-8192": Row(MODERN, 12, 8192, full(8192), 0.3, objective="mlm", vocabulary=50368),
    "global-8192": Row(EVERYWHERE, 12, 8192, full(8192), 0.3, objective="mlm", vocabulary=50368),
}
TINY = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 64, "max_positions": 64}


def add_row_options(parser: argparse.ArgumentParser, steps: int) -> None:
    """Add the options of which rows are measured, and how; `steps`: the default of a window."""
    parser.add_argument("--row", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", choices=("on", "off"), default="on")
    parser.add_argument("--dropout", type=float, help="default: the row's own")
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="in full-length examples; 0: the row's own"
    )
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches a step")
    parser.add_argument("--steps", type=int, default=steps, help="a window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=0, help="0: the row's own")
    parser.add_argument("--json", type=Path, help="a file that gets the figures beside those that it has")
    parser.add_argument("--tiny", action="store_true", help="a model and batches of next to nothing")


def figures_in(path: Path | None) -> list[dict[str, Any]]:
    """Return the figures that --json holds already."""
    return json.loads(path.read_text()) if path and path.is_file() else []


def sized(row: Row, arguments: argparse.Namespace) -> Row:
    """Return the row with what the command line says of it."""
    if arguments.tiny:
        length = 64 if row.length > 128 else 32
        lengths = full(length) if row.lengths(1)[0] == row.length else like_wikipedia(length)
        row = row._replace(
            encoder=replace(row.encoder, **TINY), micro_batch=4, length=length, lengths=lengths
        )
    if arguments.dropout is not None:
        rates = ("dropout", "attention_dropout", "attention_output_dropout")
        encoder = replace(row.encoder, **dict.fromkeys(rates, arguments.dropout))
        row = row._replace(encoder=encoder)
    return row._replace(
        micro_batch=arguments.micro_batch or row.micro_batch,
        vocabulary=arguments.vocabulary or row.vocabulary,
    )


def config_of_row(row: Row) -> RunConfig:
    """Return the settings of a run of the row's objective and encoder."""
    return config_of(row.objective, row.encoder)


def drawn(row: Row, arguments: argparse.Namespace) -> Examples:
    """Random examples that fill the micro-batches of a step when they are packed."""
    tokens = row.micro_batch * row.length
    mean = row.lengths(10_000).mean()
    lengths = (
        row.lengths(int(arguments.accumulation * tokens * 0.985 / mean))
        if mean < row.length
        else row.lengths(arguments.accumulation * row.micro_batch)
    )
    return filled(lengths, np.random.default_rng(1), row.masked, row.vocabulary)


def global_batch(row: Row, arguments: argparse.Namespace) -> tuple[StepShare, Shape]:
    """The examples in micro-batches, packed as the loader packs them."""
    examples, tokens = drawn(row, arguments), row.micro_batch * row.length
    mean = row.lengths(10_000).mean()
    masked = np.diff(examples.masked_offsets)
    rows = int(tokens * row.masked * 1.04) + int(masked.max())
    caps = Caps(
        tokens, int(2 * tokens / mean) + 8, rows if mean < row.length else row.micro_batch * int(masked[0])
    )
    numbers = np.arange(len(examples))
    return pack(examples, caps, batch=0, epochs=numbers * 0, numbers=numbers), Shape.of(caps, row.length)

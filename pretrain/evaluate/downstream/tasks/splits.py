"""Find, divide and draw from the examples of a task's files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256
from pretrain.evaluate.downstream.settings import EvaluationSettings

SPLITS = ("train", "dev", "test")
"""Names of the splits, of which the last is scored with settings.test."""


@dataclass(frozen=True)
class Split:
    """The examples of one file."""

    name: str
    items: Sequence[Any]
    skipped: int = 0
    """Rows left out: malformed or without a label in the official file itself..."""
    unlabelled: int = 0
    """... and how many of these have no label."""
    is_carved: bool = False
    """Whether these are training examples taken from the dev file."""


def evenly_spaced(count: int, part: float) -> NDArray[np.int64]:
    """Return the indices of this share of `count` items, at least one, spread over them.

    >>> evenly_spaced(10, 0.3).tolist()
    [0, 4, 9]
    """
    return np.linspace(0, count - 1, max(1, round(part * count))).round().astype(np.int64)


def hashes(paths: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file that is there, by its name."""
    return {path.name: file_sha256(path) for path in paths if path.is_file()}


def not_empty(split: Split, where: Path) -> Split:
    """Return the split. Raises UserError where it has no example."""
    if not split.items:
        raise UserError("has no example", where=where, expected="at least one to train on and to score")
    return split


def carve(split: Split, share: float, groups: Sequence[str] = ()) -> tuple[Split, Split]:
    """Divide a split in two: examples to train on, and the rest to score. Which are which depends on nothing but their
    number, so that all seeds and encoders are scored on the same ones. `groups`: of each example, a name; those of one
    name stay together, and it is the names that are divided."""
    names = list(dict.fromkeys(groups)) or [str(i) for i in range(len(split.items))]
    order = np.random.Generator(np.random.PCG64(20181011)).permutation(len(names))
    chosen = {names[i] for i in order[: round(share * len(order))].tolist()}
    owners = groups or names
    train = [item for item, name in zip(split.items, owners, strict=True) if name in chosen]
    rest = [item for item, name in zip(split.items, owners, strict=True) if name not in chosen]
    return Split("train", train), replace(split, items=rest)


def one_file(folder: Path, pattern: str) -> Path:
    """Return the file of this name pattern. Raises UserError unless there is exactly one."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    if len(found) != 1:
        raise UserError(
            f"has {len(found) or 'no'} files {pattern}",
            where=folder,
            expected="exactly one",
            remedy="--data names the folder with the task's files",
        )
    return found[0]


def with_training(
    train: Split | None, dev: Split, missing: Path, settings: EvaluationSettings, groups: Sequence[str] = ()
) -> tuple[Split, Split, list[str]]:
    """Return what to train on, what to score, and a note: without a training file, `dev` is divided as settings.carve
    says. Raises UserError where it says nothing, unless nothing is trained. `missing`: the training file;
    `groups` as in `carve`."""
    if train is not None:
        return train, dev, []
    if not settings.epochs:
        return Split("train", []), dev, []
    if not settings.carve:
        raise UserError(
            "no such file",
            where=missing,
            remedy=f"carve=0.5 trains on half of {dev.name} and scores the other half",
        )
    train, rest = carve(dev, settings.carve, groups)
    if not train.items or not rest.items:
        raise UserError(
            f"leaves {len(train.items)} of {len(dev.items)} examples to train on and {len(rest.items)} to score",
            where=f"carve={settings.carve:g}",
            expected="some of both",
        )
    train = replace(train, is_carved=True)
    return train, rest, [f"no {missing.name}: {settings.carve:.0%} of {dev.name} trained on, the rest scored"]


def drawn(split: Split, wanted: float, seed: int) -> Split:
    """Return so many examples of a split, or this share of them, at least one, if `wanted` is below 1; all for 0. They
    are drawn by the seed alone and in the split's order."""
    count = max(1, round(wanted * len(split.items))) if 0 < wanted < 1 else int(wanted)
    if not count or count >= len(split.items):
        return split
    order = np.random.Generator(np.random.PCG64([20181011, seed])).permutation(len(split.items))[:count]
    return replace(split, items=[split.items[i] for i in sorted(order.tolist())])

"""A small checkpoint, and a process that dies at the k-th thing it does to a disk or a store."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.checkpoint import fragments, mirror
from pretrain.checkpoint.store import Checkpoint, name_latest, save_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment

WEIGHT = torch.arange(12.0).view(3, 4)
SHAPES = {"a.weight": [3, 4], "a.bias": [2]}


def pieces(step: int = 0) -> list[Fragment]:
    """A weight in two fragments, as two ranks would leave it; its values tell the step."""
    flat = WEIGHT.reshape(-1) + step
    return [
        Fragment("master", "a.weight", 0, flat[:7]),
        Fragment("master", "a.weight", 7, flat[7:]),
        Fragment("exp_avg", "a.weight", 0, flat * 2),
        Fragment("master", "a.bias", 0, torch.tensor([1.0, -1.0])),
    ]


def save(run: Path, step: int = 5, loss: float | None = None) -> Path:
    """A checkpoint of `pieces(step)`."""
    state = {"position": {"step": step}, "held_out_loss": loss}
    folder = save_checkpoint(run, step, pieces(step), SHAPES, state, World())
    name_latest(folder)
    return folder


def is_right(checkpoint: Checkpoint) -> bool:
    """Whether it holds what `save` wrote for its step."""
    checkpoint.verify()
    return torch.equal(checkpoint.tensor("a.weight"), WEIGHT + checkpoint.step)


def run_config(run: Path, *, mirror: str = "", keep: int = 2) -> RunConfig:
    """Settings of a run of these checkpoints."""
    config = RunConfig()
    config.run.dir, config.checkpoint.mirror, config.checkpoint.keep = str(run), mirror, keep
    config.run.folder_wait = 0.0  # what is missing here never comes
    return config


class Killed(BaseException):
    """The process is gone: no handler of `Exception` sees it, and whatever is tried after it fails as well."""


class Tripwire:
    """Counts effects, and lets none happen from the `at`-th on."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def effect(self) -> None:
        """One is about to happen."""
        if self.seen >= self.at:
            raise Killed
        self.seen += 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, as an effect."""

        def watched(*arguments: Any, **options: Any) -> Any:
            self.effect()
            return function(*arguments, **options)

        return watched


@contextmanager
def killed_at(at: int) -> Iterator[Tripwire]:
    """Dies before the `at`-th change of a disk (half-written files and what is fetched included) or of a store."""
    wire = Tripwire(at)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, wire.around(getattr(os, name)))
        for name in ("write_object", "upload", "remove_object", "download"):
            patch.setattr(mirror, name, wire.around(getattr(mirror, name)))
        whole = fragments._parts

        def parts(found: Any) -> Iterator[Any]:
            for part in whole(found):
                wire.effect()
                yield part

        patch.setattr(fragments, "_parts", parts)
        yield wire

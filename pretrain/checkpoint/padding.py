"""Save and exchange the engine's tensors without the rows that pad a vocabulary, and read them with these rows."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.checkpoint.store import Checkpoint
from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import Reader
from pretrain.model.initialize import vocabulary_rows
from pretrain.optim.flat_layout import Fragment


def real_shapes(engine: Engine) -> dict[str, list[int]]:
    """Return the shape of every named tensor, without vocabulary padding."""
    rows = vocabulary_rows(engine.module)
    return {
        name: [rows[name], *shape[1:]] if name in rows else list(shape)
        for name, shape in engine.partition.shapes.items()
    }


def unpadded(fragments: Iterable[Fragment], shapes: dict[str, list[int]]) -> Iterator[Fragment]:
    """Return the fragments without vocabulary padding, the tail of its tensor."""
    for fragment in fragments:
        left = math.prod(shapes[fragment.name]) - fragment.start
        if left > 0:
            yield replace(fragment, values=fragment.values[:left])


def reader(checkpoint: Checkpoint, engine: Engine) -> Reader:
    """Return a reader of pieces of the engine's tensors from the checkpoint; vocabulary padding is zero.

    Raises UserError if the checkpoint is of another model."""
    shapes = real_shapes(engine)
    differing = [
        f"{n} {checkpoint.shapes.get(n)} (here {shape})"
        for n, shape in shapes.items()
        if checkpoint.shapes.get(n) != shape
    ]
    if differing:
        raise UserError(f"holds another model: {', '.join(differing[:5])}", where=checkpoint.folder)
    return padded(checkpoint.read, shapes)


def padded(read: Callable[[str, str, int, int], Tensor], shapes: dict[str, list[int]]) -> Reader:
    """Return a reader of padded tensors from one of tensors without padding, of these shapes; padding is zero."""

    def with_zeros(name: str, kind: str, start: int, length: int) -> Tensor:
        real = max(0, min(length, math.prod(shapes[name]) - start))
        values = torch.zeros(length)
        if real:
            values[:real] = read(name, kind, start, real)
        return values

    return with_zeros

"""Count the memory and the operations of a forward and backward pass without running it.

The pass is that of the real model on the meta device, where tensors have shapes and no storage. For it torch imports
its compiler, which takes longer than the counting; so `pass_costs` keeps what it has counted in the user's cache.
"""

import contextlib
import hashlib
import json
import os
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from data_pipeline.errors import UserError
from data_pipeline.io.files import hash_sources, package_folder, user_caches, write_whole
from data_pipeline.masking.budget import MaskBudget
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import dtype_of
from pretrain.model.batch import MicroBatch

MEASURED_EXAMPLES = (8, 16)
"""Examples in the two passes from which memory is extrapolated."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "attn", "attention")
"""Parts of the names of operations that keep their own kernel in a compiled model."""


class PassCost(NamedTuple):
    """What one forward and backward pass over a micro-batch takes."""

    peak: int
    """Bytes of activations, logits and temporaries at their peak. Parameters' gradients count only while they are
    computed."""
    operations: int
    """Operations that would launch a kernel: all but views."""
    products: int
    """Of them, matrix products and attentions."""


class PeakBytes(TorchDispatchMode):
    """Count what PassCost holds of all operations under it, and the bytes of the storages that live on."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.operations = self.products = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.operations += 1
            self.products += any(part in func.overloadpacket.__name__ for part in PRODUCTS)
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._known and id(storage) not in given:
                    self._watch(storage)
        return result

    def _watch(self, storage: Any) -> None:
        size = storage.nbytes()
        self._known.add(storage)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size


def pass_costs(model: nn.Module, config: RunConfig, precision: str) -> list[PassCost]:
    """Count one pass of `model`, which the config builds on the meta device, for each number of full-length examples
    in MEASURED_EXAMPLES. What was counted before for the same model, lengths and sources is read from the user's
    cache."""
    length = config.data.sequence_length
    masked = MaskBudget.of(config.data).count(length)
    known = _cache_file(model, config, precision, masked)
    if (found := _read(known)) is None:
        found = [pass_cost(model, precision, examples, length, masked) for examples in MEASURED_EXAMPLES]
        _write(known, found)
    return found


def pass_cost(model: nn.Module, precision: str, examples: int, length: int, masked: int) -> PassCost:
    """Count one forward and backward pass over `examples` examples of `length` tokens with `masked` predictions each
    of a model on the meta device."""
    model.to(dtype_of(precision))
    batch = MicroBatch.from_arrays(
        tokens=np.ones(examples * length, np.int64),
        lengths=[length] * examples,
        first_lengths=[length // 2] * examples,
        masked_positions=np.tile(np.arange(masked), examples),
        masked_ids=np.ones(examples * masked, np.int64),
        masked_counts=[masked] * examples,
        labels=[0] * examples,
    ).to("meta")
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(_drop_gradient)
    model.train()
    with PeakBytes() as counter:
        terms, _ = model(batch)
        total = sum((term.sum for term in terms.values()), torch.zeros((), device="meta"))
        del terms
        total.backward()
    return PassCost(counter.peak, counter.operations, counter.products)


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _cache_file(model: nn.Module, config: RunConfig, precision: str, masked: int) -> Path | None:
    """Return where the costs of these passes are kept: a name from all that decides them, the shapes of a frozen
    teacher's tensors among it. None where the user has no cache."""
    decides = (
        hash_sources(package_folder(__name__)),
        torch.__version__,
        (MEASURED_EXAMPLES, precision, masked),
        (
            config.train.activation_checkpointing,
            asdict(config.encoder),
            asdict(config.objective),
            asdict(config.data),
        ),
        [tuple(p.shape) for each in (model, *getattr(model, "frozen", ())) for p in each.parameters()],
    )
    name = hashlib.blake2b(repr(decides).encode(), digest_size=16).hexdigest()
    return next((folder / "passes" / f"{name}.json" for folder in user_caches(os.environ)), None)


def _read(path: Path | None) -> list[PassCost] | None:
    """Return the costs kept in the file; None if there are none, or the file is damaged."""
    try:
        costs = json.loads(path.read_text(encoding="utf-8")) if path else None
        found = [PassCost(*map(int, cost)) for cost in costs or ()]
    except (OSError, ValueError, TypeError):
        return None
    return found if len(found) == len(MEASURED_EXAMPLES) else None


def _write(path: Path | None, costs: list[PassCost]) -> None:
    """Keep the costs; nowhere, where no file can be written."""
    if path:
        with contextlib.suppress(OSError, UserError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(costs).encode())

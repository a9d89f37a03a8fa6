"""Compute the bytes per rank: model states, and the peak of one forward and backward pass.

Weights, gradients and optimizer state are counted as the engine lays them out at each ZeRO stage. The pass is that of
the real model on the meta device, where tensors have shapes and no storage: it is counted without running it. For it
torch imports its compiler, which takes longer than the counting; so `pass_peaks` keeps what it has counted in the
user's cache.

Not counted: the CUDA context, NCCL's buffers and fragmentation in the allocator; RESERVED_SHARE reserves memory for
them.
"""

import contextlib
import hashlib
import json
import math
import os
import weakref
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from data_pipeline.errors import UserError
from data_pipeline.io.caches import hash_sources, package_folder, user_caches
from data_pipeline.io.files import write_whole
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.distributed.deepspeed_patches import BUCKET_ELEMENTS
from pretrain.distributed.launch_env import dtype_of
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import vocabulary_rows
from pretrain.model.torch_internals import TorchDispatchMode, tree_leaves
from pretrain.objectives.registry import load
from pretrain.optim.base import parameter_groups

# The memory of a forward and backward pass.

MEASURED_EXAMPLES = (8, 16)
"""Examples in the two passes from which memory is extrapolated."""


class PeakBytes(TorchDispatchMode):
    """Count the bytes of the storages that operations under it make: those that live on, and at their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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


def pass_peaks(model: nn.Module, config: RunConfig, precision: str) -> list[int]:
    """Count `pass_peak` of `model`, which the config builds on the meta device, for each number of full-length examples
    in MEASURED_EXAMPLES. What was counted before for the same model, lengths and sources is read from the user's
    cache."""
    length = config.data.sequence_length
    masked = MaskBudget.of(config.data).count(length)
    known = _cache_file(model, config, precision, masked)
    if (found := _read(known)) is None:
        found = [pass_peak(model, precision, examples, length, masked) for examples in MEASURED_EXAMPLES]
        _write(known, found)
    return found


def pass_peak(model: nn.Module, precision: str, examples: int, length: int, masked: int) -> int:
    """Count the bytes of activations, logits and temporaries, at their peak, of one forward and backward pass of a
    model on the meta device over `examples` examples of `length` tokens with `masked` predictions each. Gradients of
    parameters count only while they are computed."""
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
    return counter.peak


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _cache_file(model: nn.Module, config: RunConfig, precision: str, masked: int) -> Path | None:
    """Return where the peaks of these passes are kept: a name from all that decides them, the shapes of a frozen
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


def _read(path: Path | None) -> list[int] | None:
    """Return the peaks kept in the file; None if there are none, or the file is damaged."""
    try:
        peaks = [int(peak) for peak in json.loads(path.read_text(encoding="utf-8"))] if path else []
    except (OSError, ValueError, TypeError):
        return None
    return peaks if len(peaks) == len(MEASURED_EXAMPLES) else None


def _write(path: Path | None, peaks: list[int]) -> None:
    """Keep the peaks; nowhere, where no file can be written."""
    if path:
        with contextlib.suppress(OSError, UserError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(peaks).encode())


# Model states, and the memory of a GPU at each ZeRO stage.

RESERVED_SHARE = 0.08
"""Share of a GPU's memory reserved for CUDA, NCCL and the allocator."""
_ALIGNMENT = 2  # DeepSpeed pads each group of a partition to a multiple of this many elements per rank


@dataclass(frozen=True)
class States:
    """Bytes kept between micro-batches, on the rank with the most."""

    weights: int
    """Weights used in forward and backward, including frozen models, which every rank holds whole."""
    gradients: int
    """The accumulated gradient, fp32, and its communication bucket."""
    masters: int
    """fp32 copies that the optimizer updates; 0 if it updates the weights themselves, or on the CPU."""
    moments: int
    """0 if they are on the CPU."""
    streams: int = 0
    """What the objective remembers of this rank's streams, fp32 (training/stream_memory.py)."""

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.masters + self.moments + self.streams


class Memory(NamedTuple):
    """Bytes on one GPU at one ZeRO stage."""

    stage: int
    states: States
    activations: int  # at the configured micro-batch
    largest_micro_batch: int  # examples of full length; 0: the states alone do not fit

    @property
    def total(self) -> int:
        return self.states.total + self.activations


def meta_model(config: RunConfig, vocabulary_size: int) -> nn.Module:
    """Build the run's model on the meta device, in fp32."""
    with torch.device("meta"):
        return load(config).training_model(VocabularyStamp.of_size(vocabulary_size))


def states(model: nn.Module, config: RunConfig, precision: str, ranks: int) -> States:
    """Compute the bytes of `model` on one of `ranks` ranks at the config's ZeRO stage (distributed/engine.py lists the
    wrappers)."""
    found = _states(model, config, precision, ranks)
    frozen = sum(p.numel() for other in getattr(model, "frozen", ()) for p in other.parameters())
    found = replace(
        found,
        weights=found.weights + (4 if precision == "fp32" else 2) * frozen,
        streams=stream_memory(config, ranks),
    )
    return replace(found, masters=0, moments=0) if config.zero.offload == "cpu" else found


def stream_memory(config: RunConfig, ranks: int) -> int:
    """Count the bytes that are remembered between steps of as many streams as a rank has examples of the batch, and of
    a spare one."""
    of_a_stream = sum(math.prod(shape) for shape in load(config).memory.values())
    return 4 * of_a_stream * (-(-config.train.global_batch // ranks) + 1) if of_a_stream else 0


def check_stream_memory(config: RunConfig, ranks: int, room: float | None) -> None:
    """Raise UserError if what is remembered of a rank's streams takes more than `room` bytes, those of its GPU; None:
    the ranks share this machine's memory."""
    taken, of = stream_memory(config, ranks), "a GPU"
    if room is None:
        room, of = (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / ranks,
            "a rank's share of this machine",
        )
    if taken > room:
        raise UserError(
            f"objective.name={config.objective.name} remembers {taken / 1e9:,.1f} GB of a rank's "
            f"{-(-config.train.global_batch // ranks):,} streams, and {of} has {room / 1e9:,.1f} GB",
            where="settings",
            expected="a memory that fits beside the model (`maskmill plan` shows both)",
            remedy=f"a smaller objective.{config.objective.name}.memory_length or train.global_batch, or more ranks",
        )


def _states(model: nn.Module, config: RunConfig, precision: str, ranks: int) -> States:
    stage, half = config.zero.stage, precision != "fp32"
    built = parameter_groups(model, config.optim)
    groups = [[p.numel() for p in group["params"]] for group in built]
    kept = [4 * len(group["moments"]) for group in built]  # bytes of moments per parameter
    count = sum(map(sum, groups))
    if stage == 0:
        masters = 4 * count if half else 0
        moments = sum(size * sum(group) for size, group in zip(kept, groups, strict=True))
        return States((2 if half else 4) * count, 4 * count, masters, moments)
    bucket = 4 * min(BUCKET_ELEMENTS, count) if ranks > 1 else 0
    if stage == 3:
        shares = [sum(-(-size // ranks) for size in group) for group in groups]
        share, moments = sum(shares), sum(size * own for size, own in zip(kept, shares, strict=True))
        weights = (2 if half else 4) * share
        return States(weights, 4 * share + bucket, 4 * share, moments)
    padding = _ALIGNMENT * ranks
    shares = [-(-sum(group) // padding) * padding // ranks for group in groups]
    share, moments = sum(shares), sum(size * own for size, own in zip(kept, shares, strict=True))
    gradients = count
    if stage == 2:  # in low precision DeepSpeed keeps one flat buffer, in fp32 the tensors that it contains
        gradients = share if half else _most_gradients(groups, shares, ranks)
    return States((2 if half else 4) * count, 4 * gradients + bucket, 4 * share, moments)


def _most_gradients(groups: list[list[int]], shares: list[int], ranks: int) -> int:
    """Count the gradient elements that the fullest rank accumulates at stage 2 in fp32. A tensor across the border of
    two ranks' partitions is accumulated whole on both."""
    held = np.zeros(ranks, np.int64)
    for sizes, share in zip(groups, shares, strict=True):
        ends = np.cumsum(sizes)
        first, last = (ends - sizes) // share, (ends - 1) // share
        for size, a, b in zip(sizes, first, last, strict=True):
            held[a : b + 1] += size
    return int(held.max())


def memory_by_stage(
    model: nn.Module, config: RunConfig, precision: str, room: float, ranks: int, peaks: list[int]
) -> tuple[Memory, ...]:
    """Compute memory on one of `ranks` GPUs of `room` bytes, at ZeRO stages 0 to 3, from `pass_peaks`: activations
    grow by a constant per additional example."""
    few, many = peaks
    slope = (many - few) / (MEASURED_EXAMPLES[1] - MEASURED_EXAMPLES[0])
    base = few - MEASURED_EXAMPLES[0] * slope
    free = room * (1 - RESERVED_SHARE)
    found = []
    for stage in range(4):
        staged = replace(config, zero=replace(config.zero, stage=stage))
        kept = states(model, staged, precision, ranks)
        largest = max(0, math.floor((free - kept.total - base) / slope))
        found.append(Memory(stage, kept, round(base + slope * config.train.micro_batch), largest))
    return tuple(found)


def parameters_of(config: RunConfig, vocabulary_size: int) -> int:
    """Count the elements of all weights of the run's model, without vocabulary padding."""
    model = meta_model(config, vocabulary_size)
    rows = vocabulary_rows(model)
    return sum(math.prod([rows.get(name, p.shape[0]), *p.shape[1:]]) for name, p in model.named_parameters())

"""Cut features into batches of near lengths, and order those of training by a seed."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrain.evaluate.downstream.inputs.builder import InputBuilder, padded, token_slice
from pretrain.evaluate.downstream.tasks.base import Feature

WINDOW_BATCHES = 16
"""Batches whose examples are sorted by length together: less padding, and still a random order."""
PLACES = {"start_positions", "end_positions", "root", "owners", "heads"}
"""Targets that are places in the sequence: padding on the left moves them."""
IGNORED = -100
"""Target of a position without one (torch's cross-entropy)."""


def training_batches(
    lengths: NDArray[np.int64], batch: int, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """Return the examples of each batch of one epoch: all of them once, the last batch smaller, in an order that
    depends on the arguments alone. Examples are permuted, windows of WINDOW_BATCHES batches sorted by length, and the
    batches of the epoch permuted."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], np.uint64)))
    order = generator.permutation(len(lengths))
    window = WINDOW_BATCHES * batch
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), window):
        near = order[start : start + window]
        near = near[np.argsort(lengths[near], kind="stable")]
        batches += [near[i : i + batch] for i in range(0, len(near), batch)]
    return [batches[i] for i in generator.permutation(len(batches))]


def scoring_batches(lengths: NDArray[np.int64], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield the examples of each batch, from the longest to the shortest: as many as fit into `tokens` tokens."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, tokens // max(1, int(lengths[order[start]])))
        yield order[start : start + count]
        start += count


def sizes(features: Sequence[Feature]) -> NDArray[np.int64]:
    """Return the longest sequence of each feature, in tokens."""
    return np.array([max(len(one.ids) for one in feature.inputs) for feature in features], np.int64)


def collate(
    features: Sequence[Feature], builder: InputBuilder, device: torch.device, choices: bool
) -> dict[str, Tensor]:
    """Return the arguments of a model's forward: (examples, longest), or (examples, choices, longest) where a feature
    has several sequences; targets (examples,), or (examples, longest) where they are per token; states (examples,
    longest, layers, width)."""
    arrays = padded([one for feature in features for one in feature.inputs], builder)
    if choices:
        arrays = {k: v.reshape(len(features), -1, v.shape[-1]) for k, v in arrays.items()}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    longest = arrays["input_ids"].shape[-1]
    starts = torch.tensor([_start(feature, longest, builder) for feature in features])
    if (states := features[0].states) is not None:
        rows = np.zeros((len(features), longest, *states.shape[1:]), np.float16)
        for row, feature in zip(rows, features, strict=True):
            assert feature.states is not None
            row[token_slice(len(feature.states), longest, builder.left_padded)] = feature.states
        tensors["states"] = torch.from_numpy(rows)
    for name in features[0].targets:
        values = [feature.targets[name] for feature in features]
        if isinstance(values[0], list):
            rows = np.full((len(values), longest), IGNORED, np.int64)
            for row, value in zip(rows, values, strict=True):
                assert isinstance(value, list)
                row[token_slice(len(value), longest, builder.left_padded)] = value
            tensors[name] = torch.from_numpy(rows)
        else:
            tensors[name] = torch.tensor(values)
        if name in PLACES:
            shift = starts.view(-1, *[1] * (tensors[name].ndim - 1))
            tensors[name] = torch.where(tensors[name] == IGNORED, IGNORED, tensors[name] + shift)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _start(feature: Feature, longest: int, builder: InputBuilder) -> int:
    """Return where the tokens of the feature's first sequence begin in a row of `longest`."""
    return int(token_slice(len(feature.inputs[0].ids), longest, builder.left_padded).start)

"""Read and change attention weights of transformers' models: the only use of its registry of attention functions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "maskmill_attention"


@dataclass
class Attention:
    """What a forward pass keeps of its attention, and what it changes."""

    blocked: Tensor | None = None
    """(examples, 1 or queries, keys) bool: pairs whose weight becomes 0; what is left of a row is scaled to a sum of 1,
    and a row without anything left stays 0."""
    layers: frozenset[int] | None = None
    """Layers, from 0, in which weights are blocked; None: all."""
    keeps: bool = False
    """Whether the weights are kept, for their gradients too."""
    weights: list[Tensor] = field(default_factory=list)
    """Of each layer, in the order of the pass: (examples, heads, queries, keys)."""
    passed: int = 0
    """Layers that the pass has been through."""

    def changed(self, weights: Tensor) -> Tensor:
        """Return the weights of the next layer as they are to be used."""
        number, self.passed = self.passed, self.passed + 1
        if self.blocked is not None and (self.layers is None or number in self.layers):
            weights = weights.masked_fill(self.blocked[:, None], 0.0)
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        if self.keeps:
            self.weights.append(weights)
        return weights


_IN_USE: list[Attention] = []


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(Q K^T * scaling) V explicitly, as transformers' eager attention does, without dropout."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    if _IN_USE:
        weights = _IN_USE[-1].changed(weights)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def controlled(model: PreTrainedModel, attention: Attention) -> Iterator[Attention]:
    """Within it, forward passes of the model read and change its attention; one pass for each Attention that keeps
    weights."""
    model.set_attn_implementation(NAME)
    _IN_USE.append(attention)
    try:
        yield attention
    finally:
        _IN_USE.pop()

"""Define one encoder layer, from hidden states to hidden states.

Shape legend: T packed tokens, P rows that are asked for, H hidden size, N heads, D size of a head (N * D = H).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.config.layer_sharing import HALVES
from pretrain.config.settings import EncoderSettings
from pretrain.model.attention import Packing, attend
from pretrain.model.dropout import Dropout
from pretrain.model.initialize import bare
from pretrain.model.visibility import FULL, Visibility

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": torch.relu,
}
"""Activations by the name in `encoder.activation`."""


class SelfAttention(nn.Module):
    """Multi-head self-attention within each example.

    Query, key and value are three matrices, not one: LAMB's trust ratio is a tensor's, and three separate
    modules are gathered by ZeRO-3 like any other."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.heads = settings.heads
        self.dropout = settings.attention_dropout
        self.query = bare(nn.Linear, settings.hidden, settings.hidden)
        self.key = bare(nn.Linear, settings.hidden, settings.hidden)
        self.value = bare(nn.Linear, settings.hidden, settings.hidden)
        self.output = bare(nn.Linear, settings.hidden, settings.hidden)

    def forward(
        self, x_TH: Tensor, packing: Packing, rows_P: Tensor | None = None, visibility: Visibility = FULL
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run."""
        q_TND, k_TND, v_TND = (
            project(x_TH).unflatten(-1, (self.heads, -1)) for project in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        attended_TND = attend(q_TND, k_TND, v_TND, packing, dropout, visibility)
        return self.output(_of_rows(attended_TND.flatten(-2), rows_P))


class FeedForward(nn.Module):
    """Linear, activation, Linear, on each token."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.intermediate = bare(nn.Linear, settings.hidden, settings.intermediate)
        self.output = bare(nn.Linear, settings.intermediate, settings.hidden)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x_TH: Tensor) -> Tensor:
        return self.output(self.activation(self.intermediate(x_TH)))


class Layer(nn.Module):
    """Post-LayerNorm: x = LN(x + drop(attention(x))); x = LN(x + drop(feed_forward(x))).

    `attention` and `feed_forward` are layers whose half, with its LayerNorm, this one uses too (config/layer_sharing.py
    says which share). It stays their submodule alone: the parameters have one name, and ZeRO-3, which hooks a module
    once for each parent, hooks it once."""

    attention: SelfAttention
    attention_norm: nn.LayerNorm
    feed_forward: FeedForward
    feed_forward_norm: nn.LayerNorm

    def __init__(
        self, settings: EncoderSettings, attention: "Layer | None" = None, feed_forward: "Layer | None" = None
    ) -> None:
        super().__init__()
        if attention is None:
            self.attention = SelfAttention(settings)
            self.attention_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        else:
            _use(self, attention, "attention")
        if feed_forward is None:
            self.feed_forward = FeedForward(settings)
            self.feed_forward_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        else:
            _use(self, feed_forward, "feed_forward")
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, x_TH: Tensor, packing: Packing, rows_P: Tensor | None = None, visibility: Visibility = FULL
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run: everything after attention is computed for these
        only."""
        attended = self.dropout(self.attention(x_TH, packing, rows_P, visibility))
        x_PH = self.attention_norm(_of_rows(x_TH, rows_P) + attended)
        return self.feed_forward_norm(x_PH + self.dropout(self.feed_forward(x_PH)))


def _use(layer: Layer, owner: Layer, half: str) -> None:
    for name in HALVES[half]:
        object.__setattr__(layer, name, getattr(owner, name))  # not registered a second time


def _of_rows(x_TH: Tensor, rows_P: Tensor | None) -> Tensor:
    return x_TH if rows_P is None else x_TH.index_select(0, rows_P)

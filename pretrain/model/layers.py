"""Define one encoder layer, from hidden states to hidden states.

Shape legend: T packed tokens, P rows that are asked for, H hidden size, N heads, M heads of
keys and values, D size of a head (N * D = H).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pretrain.config.encoder import HALVES, EncoderSettings
from pretrain.model.attention.attend import Packing, attend
from pretrain.model.dropout import Dropout
from pretrain.model.embeddings import Rotation, rotated
from pretrain.model.initialize import bare, bare_norm, bare_residual
from pretrain.model.visibility import FULL, Visibility

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": torch.relu,
    "silu": F.silu,
}
"""Activations by the name in `encoder.activation`."""


class SelfAttention(nn.Module):
    """Multi-head self-attention within each example.

    Query, key and value are three matrices, not one: LAMB's trust ratio is a tensor's, and three separate
    modules are gathered by ZeRO-3 like any other."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.size = settings.head_size
        self.dropout = settings.attention_dropout
        hidden, biases = settings.hidden, settings.biases
        keys = settings.key_heads * settings.head_size
        self.query = bare(nn.Linear, hidden, hidden, bias=biases)
        self.key = bare(nn.Linear, hidden, keys, bias=biases)
        self.value = bare(nn.Linear, hidden, keys, bias=biases)
        self.output = bare_residual(settings, hidden, hidden)

    def forward(
        self,
        x_TH: Tensor,
        packing: Packing,
        rows_P: Tensor | None = None,
        visibility: Visibility = FULL,
        by: Rotation | None = None,
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run; with `by`, queries and keys are rotated."""
        q_TND, k_TMD, v_TMD = (
            project(x_TH).unflatten(-1, (-1, self.size)) for project in (self.query, self.key, self.value)
        )
        if by is not None:
            q_TND, k_TMD = rotated(q_TND, by), rotated(k_TMD, by)
        dropout = self.dropout if self.training else 0.0
        attended_TND = attend(q_TND, k_TMD, v_TMD, packing, dropout, visibility)
        return self.output(_of_rows(attended_TND.flatten(-2), rows_P))


class FeedForward(nn.Module):
    """Linear, activation, Linear, on each token; with a gate, the activation's result times a second Linear of the
    input (Shazeer 2020)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        sizes = (settings.hidden, settings.intermediate)
        self.intermediate = bare(nn.Linear, *sizes, bias=settings.biases)
        self.gate = bare(nn.Linear, *sizes, bias=settings.biases) if settings.gated else None
        self.output = bare_residual(settings, settings.intermediate, settings.hidden)
        self.activation = ACTIVATIONS[settings.activation]

    def forward(self, x_TH: Tensor) -> Tensor:
        activated = self.activation(self.intermediate(x_TH))
        return self.output(activated if self.gate is None else activated * self.gate(x_TH))


class Layer(nn.Module):
    """Post-norm: x = norm(x + drop(attention(x))); x = norm(x + drop(feed_forward(x))).
    Pre-norm: x = x + drop(attention(norm(x))); x = x + drop(feed_forward(norm(x))); `first`: without the first norm.

    `attention` and `feed_forward` are layers whose half, with its norm, this one uses too (config/layer_sharing.py
    says which share). It stays their submodule alone: the parameters have one name, and ZeRO-3, which hooks a module
    once for each parent, hooks it once."""

    attention: SelfAttention
    attention_norm: nn.Module
    feed_forward: FeedForward
    feed_forward_norm: nn.Module

    def __init__(
        self,
        settings: EncoderSettings,
        attention: "Layer | None" = None,
        feed_forward: "Layer | None" = None,
        first: bool = False,
    ) -> None:
        super().__init__()
        self.pre = settings.norm_place == "pre"
        if attention is None:
            self.attention = SelfAttention(settings)
            normed = self.pre and first and settings.embedding_norm
            self.attention_norm = nn.Identity() if normed else bare_norm(settings, settings.hidden)
        else:
            _use(self, attention, "attention")
        if feed_forward is None:
            self.feed_forward = FeedForward(settings)
            self.feed_forward_norm = bare_norm(settings, settings.hidden)
        else:
            _use(self, feed_forward, "feed_forward")
        self.dropout = Dropout(settings.dropout)
        rate = settings.attention_output_dropout
        self.attention_output_dropout = Dropout(settings.dropout if rate < 0 else rate)

    def forward(
        self,
        x_TH: Tensor,
        packing: Packing,
        rows_P: Tensor | None = None,
        visibility: Visibility = FULL,
        by: Rotation | None = None,
    ) -> Tensor:
        """Compute (T, H), or (P, H) for the given rows of the run: everything after attention is computed for these
        only."""
        read_TH = self.attention_norm(x_TH) if self.pre else x_TH
        attended = self.attention_output_dropout(self.attention(read_TH, packing, rows_P, visibility, by))
        x_PH = _of_rows(x_TH, rows_P) + attended
        if self.pre:
            return x_PH + self.dropout(self.feed_forward(self.feed_forward_norm(x_PH)))
        x_PH = self.attention_norm(x_PH)
        return self.feed_forward_norm(x_PH + self.dropout(self.feed_forward(x_PH)))


def _use(layer: Layer, owner: Layer, half: str) -> None:
    for name in HALVES[half]:
        object.__setattr__(layer, name, getattr(owner, name))  # not registered a second time


def _of_rows(x_TH: Tensor, rows_P: Tensor | None) -> Tensor:
    return x_TH if rows_P is None else x_TH.index_select(0, rows_P)

"""Encode packed tokens in two streams: what a token is, and what its place predicts without it.

(Yang et al. 2019, XLNet, sections 2.3 to 2.5; zihangdai/xlnet, modeling.py.)

Shape legend: T packed tokens, R target rows, E examples, M length of the memory, W directions, L distances, H hidden
size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pretrain.config.encoder import EncoderSettings
from pretrain.model import layers
from pretrain.model.batch import MicroBatch
from pretrain.model.dropout import Dropout
from pretrain.model.encoder import check_settings
from pretrain.model.initialize import bare, bare_embedding, padded
from pretrain.model.two_stream.attention import RelativeAttention, sinusoids
from pretrain.model.two_stream.plan import StreamPlan, plan_streams


class Streams(NamedTuple):
    """The last hidden states."""

    content_TH: Tensor | None
    """Of all tokens; None where they were not asked for."""
    query_RH: Tensor
    """Of the batch's masked rows, without what their tokens are."""
    memory: Tensor | None
    """(E, layers, M, H), for the next step; None without a memory."""


class StreamEmbeddings(nn.Module):
    """Words for the content stream, one vector for every target for the query stream; neither positions nor a
    LayerNorm."""

    def __init__(self, settings: EncoderSettings, vocabulary_size: int) -> None:
        super().__init__()
        self.word = bare_embedding(padded(vocabulary_size), settings.hidden)
        self.target = nn.Parameter(torch.empty(settings.hidden))
        self.dropout = Dropout(settings.dropout)
        self.vocabulary_rows = {"word.weight": vocabulary_size}

    def forward(self, input_ids_T: Tensor, targets: int) -> tuple[Tensor, Tensor]:
        """Return (T, H) of the tokens and (R, H) of `targets` targets."""
        return self.dropout(self.word(input_ids_T)), self.dropout(self.target.expand(targets, -1))


class FeedForward(layers.FeedForward):
    """BERT's, with dropout behind the activation as well."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        self.dropout = Dropout(settings.dropout)

    def forward(self, x_TH: Tensor) -> Tensor:
        return self.output(self.dropout(self.activation(self.intermediate(x_TH))))


class TwoStreamLayer(nn.Module):
    """Post-LayerNorm, as BERT's: both streams as rows of one run."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.attention = RelativeAttention(settings)
        self.attention_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        self.feed_forward = FeedForward(settings)
        self.feed_forward_norm = bare(nn.LayerNorm, settings.hidden, eps=settings.layer_norm_eps)
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        content_TH: Tensor,
        query_RH: Tensor,
        memory_EMH: Tensor | None,
        distances_WLH: Tensor,
        plan: StreamPlan,
        with_content: bool,
    ) -> tuple[Tensor, Tensor]:
        """Compute (T, H) and (R, H); without `with_content` (0, H) instead of the first."""
        rows = len(content_TH) if with_content else 0
        x_PH = torch.cat((content_TH[:rows], query_RH))
        attended = self.attention(x_PH, content_TH, memory_EMH, distances_WLH, plan, rows)
        x_PH = self.attention_norm(x_PH + self.dropout(attended))
        x_PH = self.feed_forward_norm(x_PH + self.dropout(self.feed_forward(x_PH)))
        return x_PH[:rows], x_PH[rows:]


class TwoStreamEncoder(nn.Module):
    """XLNet's encoder over packed tokens, with an optional memory of what came before each example.

    Its parameters are not set yet: call `initialize` or `load_parameters` on the module that holds it. With
    `activation_checkpointing` each layer keeps only its inputs. Raises UserError if a setting is out of range."""

    def __init__(
        self, settings: EncoderSettings, vocabulary_size: int, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        check_settings(settings)
        self.settings, self.vocabulary_size = settings, vocabulary_size
        self.activation_checkpointing = activation_checkpointing
        self.embeddings = StreamEmbeddings(settings, vocabulary_size)
        self.layers = nn.ModuleList(TwoStreamLayer(settings) for _ in range(settings.layers))
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        batch: MicroBatch,
        ranks_T: Tensor | None = None,
        memory: Tensor | None = None,
        with_content: bool = False,
        backwards_E: Tensor | None = None,
    ) -> Streams:
        """Encode the batch's tokens, and its masked rows from what they see of the others.

        `ranks_T` as in `plan_streams`; `memory` (E, layers, M, H) of each example's stream, seen by all its tokens as
        text before it, of segment 0, or as text after it where `backwards_E` (E,) bool says so. The last layer computes
        the content stream only `with_content`: in pretraining nothing reads it."""
        length = 0 if memory is None else memory.shape[2]
        plan = plan_streams(batch, ranks_T, length, self.settings.heads, backwards_E)
        content_TH, query_RH = self.embeddings(batch.input_ids, len(batch.masked_index))
        both = backwards_E is not None
        distances_WLH = sinusoids(plan.longest, length, self.settings.hidden, content_TH.device, both)
        distances_WLH = self.dropout(distances_WLH.to(content_TH.dtype))
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        remembered = []
        for number, layer in enumerate(self.layers):
            past_EMH = None
            if memory is not None:
                past_EMH = memory[:, number].to(content_TH.dtype)
                remembered.append(plan.remember(content_TH, past_EMH))
            wanted = with_content or number < len(self.layers) - 1
            given = (content_TH, query_RH, past_EMH, distances_WLH, plan, wanted)
            if recompute:
                content_TH, query_RH = checkpoint(layer, *given, use_reentrant=False)
            else:
                content_TH, query_RH = layer(*given)
        return Streams(
            self.dropout(content_TH) if with_content else None,
            self.dropout(query_RH),
            torch.stack(remembered, 1) if remembered else None,
        )

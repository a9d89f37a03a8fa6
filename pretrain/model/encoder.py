"""Encode a MicroBatch of packed tokens: one hidden state per token.

Shape legend: T packed tokens, P rows that are asked for, E embedding size, H hidden size.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data_pipeline.errors import UserError
from pretrain.config.layer_sharing import HALVES, owner_of
from pretrain.config.settings import EncoderSettings
from pretrain.model.batch import MicroBatch
from pretrain.model.embeddings import Embeddings
from pretrain.model.initialize import bare
from pretrain.model.layers import ACTIVATIONS, Layer
from pretrain.model.visibility import FULL, Visibility


class Encoder(nn.Module):
    """BERT's encoder (Devlin et al. 2019) over packed tokens: no padding, no ranks, any device and dtype.

    Its parameters are not set yet: call `initialize` or `load_parameters` on the module that holds it. With
    `activation_checkpointing` each layer keeps only its input and is recomputed in the backward pass, with the same
    dropout. `embeddings` are those of another encoder, which this one shares: they are that one's submodule, not
    this one's, since ZeRO-3 hooks a module once for each parent. With `settings.sharing` layers use parameters of
    earlier ones (config/layer_sharing.py). Raises UserError if a setting is out of range."""

    def __init__(
        self,
        settings: EncoderSettings,
        vocabulary_size: int,
        activation_checkpointing: bool = False,
        embeddings: Embeddings | None = None,
    ) -> None:
        super().__init__()
        check_settings(settings)
        self.settings = settings
        self.vocabulary_size = vocabulary_size
        self.activation_checkpointing = activation_checkpointing
        if embeddings is None:
            self.embeddings = Embeddings(settings, vocabulary_size)
        else:
            object.__setattr__(self, "embeddings", embeddings)
        self.projection: nn.Linear | None = None
        if settings.embedding_width != settings.hidden:
            self.projection = bare(nn.Linear, settings.embedding_width, settings.hidden)
        layers: list[Layer] = []
        for number in range(settings.layers):
            owners = {half: owner_of(settings, number, half) for half in HALVES}
            shared = {half: layers[owner] for half, owner in owners.items() if owner < number}
            layers.append(Layer(settings, **shared))
        self.layers = nn.ModuleList(layers)

    def forward(
        self, batch: MicroBatch, rows_P: Tensor | None = None, visibility: Visibility = FULL
    ) -> Tensor:
        """Compute the hidden states (T, H) of the batch's tokens, in the parameters' dtype, with attention limited
        by `visibility`.

        With `rows_P`, the rows of the run that heads read, (P, H) of these: the last layer computes no others. A row
        may come twice. In pretraining they are a sixth of all."""
        x_TE = self.embeddings(batch.input_ids, batch.segment_ids, batch.positions)
        x_TH = x_TE if self.projection is None else self.projection(x_TE)
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        for number, layer in enumerate(self.layers, start=1):
            rows = rows_P if number == len(self.layers) else None
            if recompute:
                x_TH = checkpoint(layer, x_TH, batch.packing, rows, visibility, use_reentrant=False)
            else:
                x_TH = layer(x_TH, batch.packing, rows, visibility)
        return x_TH


def check_settings(settings: EncoderSettings) -> None:
    """Raise UserError for invalid sizes, rates and names."""
    for name in ("layers", "hidden", "heads", "intermediate", "max_positions"):
        if getattr(settings, name) < 1:
            raise UserError(f"is {getattr(settings, name)}", where=f"encoder.{name}", expected="1 or more")
    if not 1 <= settings.groups <= settings.layers:
        raise UserError(
            f"is {settings.groups}", where="encoder.groups", expected=f"1 to encoder.layers={settings.layers}"
        )
    if settings.hidden % settings.heads:
        raise UserError(
            f"{settings.hidden} cannot be shared out among {settings.heads} heads",
            where="encoder.hidden",
            expected="a multiple of encoder.heads",
        )
    if settings.activation not in ACTIVATIONS:
        raise UserError(
            f"unknown {settings.activation!r}", where="encoder.activation", expected=", ".join(ACTIVATIONS)
        )
    for name in ("dropout", "attention_dropout"):
        if not 0.0 <= getattr(settings, name) < 1.0:
            raise UserError(
                f"is {getattr(settings, name)}", where=f"encoder.{name}", expected="0 up to below 1"
            )

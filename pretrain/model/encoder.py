"""Encode a MicroBatch of packed tokens: one hidden state per token.

Shape legend: T packed tokens, P rows that are asked for, E embedding size, H hidden size.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data_pipeline.errors import UserError
from pretrain.config.encoder import HALVES, EncoderSettings, owner_of
from pretrain.model.batch import MicroBatch
from pretrain.model.embeddings import Embeddings, Rotation, rotation
from pretrain.model.initialize import bare, bare_norm
from pretrain.model.layers import ACTIVATIONS, Layer
from pretrain.model.visibility import FULL, Visibility


class Encoder(nn.Module):
    """BERT's encoder (Devlin et al. 2019) over packed tokens: no padding, no ranks, any device and dtype. Its settings
    make of it what came later: norms before the halves of a layer, RoPE, gates, local layers (Warner et al. 2024,
    ModernBERT), RMSNorm and grouped heads (Boizard et al. 2025, EuroBERT).

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
            layers.append(Layer(settings, **shared, first=number == 0))
        self.layers = nn.ModuleList(layers)
        pre = settings.norm_place == "pre"
        self.final_norm = bare_norm(settings, settings.hidden) if pre else nn.Identity()

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
        windowed = visibility._replace(window=self.settings.local_reach)
        everywhere, nearby = self._rotations(batch.positions)
        packing = batch.packing
        if recompute and torch.compiler.is_compiling():  # torch 2.11 guards all that `checkpoint` is given
            packing = replace(packing, lengths=())
        for number, layer in enumerate(self.layers):
            local = self.settings.is_local(number)
            rows = rows_P if number == len(self.layers) - 1 else None
            reach, turned = (windowed, nearby) if local else (visibility, everywhere)
            given = (x_TH, packing, rows, reach, turned)
            x_TH = checkpoint(layer, *given, use_reentrant=False) if recompute else layer(*given)
        return self.final_norm(x_TH)

    def _rotations(self, positions_T: Tensor) -> tuple[Rotation | None, Rotation | None]:
        """Compute the rotations of global and of local layers; None where positions are learned."""
        settings = self.settings
        if settings.positions == "learned":
            return None, None
        thetas = (settings.rope_theta, settings.local_rope_theta)
        first, second = (rotation(positions_T, theta, settings.head_size) for theta in thetas)
        return first, second


def set_thetas(module: nn.Module, settings: EncoderSettings) -> None:
    """Let every encoder in `module` that rotates use the thetas of `settings`: they are no parameters, and may change
    between phases."""
    for encoder in module.modules():
        if isinstance(encoder, Encoder) and encoder.settings.positions == "rope":
            encoder.settings = replace(
                encoder.settings,
                rope_theta=settings.rope_theta,
                local_rope_theta=settings.local_rope_theta,
            )


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
    if settings.heads % settings.key_heads:
        raise UserError(
            f"{settings.heads} heads cannot share {settings.kv_heads} of keys",
            where="encoder.kv_heads",
            expected="a divisor of encoder.heads",
        )
    if settings.positions == "rope" and settings.head_size % 2:
        raise UserError(
            f"heads of {settings.head_size} have no halves to rotate",
            where="encoder.heads",
            expected="heads of an even size",
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

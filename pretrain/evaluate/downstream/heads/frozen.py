"""Tag words by features of a frozen encoder: chosen layers, a BiLSTM and a linear layer are all that is trained (Devlin
et al. 2019, section 5.3 and Table 7)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.device import tokens_per_pass
from pretrain.evaluate.downstream.encoders import width_of
from pretrain.evaluate.downstream.heads.bilstm import WIDTH, BiLstm
from pretrain.evaluate.downstream.heads.saved import HEAD_FILE, Output, load_beside, save_beside
from pretrain.evaluate.downstream.inputs.batches import IGNORED, collate, scoring_batches, sizes
from pretrain.evaluate.downstream.inputs.builder import InputBuilder, token_slice
from pretrain.evaluate.downstream.tasks.base import Feature


def chosen_layers(name: str, count: int) -> range:
    """Return which hidden states of an encoder of `count` layers a setting of `features` stands for; 0 is what the
    embeddings give, `count` the last layer.

    >>> [list(chosen_layers(name, 6)) for name in ("embeddings", "last", "concat_last_4")]
    [[0], [6], [3, 4, 5, 6]]
    >>> list(chosen_layers("sum_last_4", 2))
    [1, 2]
    """
    last = count + 1
    return {
        "embeddings": range(1),
        "second_to_last": range(max(0, last - 2), last - 1),
        "last": range(last - 1, last),
        "sum_last_4": range(max(1, last - 4), last),
        "concat_last_4": range(max(1, last - 4), last),
        "sum_all": range(1, last),
    }[name]


class FrozenTagger(nn.Module):
    """A BiLSTM and a linear layer on hidden states of an encoder that learns nothing."""

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any, features: str, labels: int, dropout: float) -> None:
        """`encoder`: a bare model of transformers. `dropout`: of the BiLSTM's input."""
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        config = encoder.config
        self.layers = chosen_layers(features, int(config.num_hidden_layers))
        self.concatenates = features.startswith("concat")
        width = width_of(encoder)
        # ELMo's weighted sum (Peters et al. 2018, equation 1): softmax of a weight per layer, and a scale
        self.weights, self.scale = nn.Parameter(torch.zeros(len(self.layers))), nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(max(dropout, 0.0))
        self.lstm = BiLstm(width * len(self.layers) if self.concatenates else width)
        self.classifier = nn.Linear(WIDTH, labels)

    def forward(
        self,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        states: Tensor | None = None,
        **batch: Tensor,
    ) -> Output:
        """Return the loss, if there are labels, and (examples, tokens, labels) logits. states: (examples, tokens,
        layers, width) as `hidden` gives them, which are computed where they are not given."""
        if states is None:
            states = self.hidden(attention_mask=attention_mask, **batch)
        vectors = self.dropout(self._mixed(states.float()))
        logits = self.classifier(self.lstm.read(vectors, attention_mask).states)
        if labels is None:
            return Output(None, logits)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return Output(loss, logits)

    def _mixed(self, states: Tensor) -> Tensor:
        """Return (examples, tokens, width): the layers side by side, or their weighted sum."""
        if self.concatenates:
            return states.flatten(2)
        return self.scale * torch.einsum("btlh,l->bth", states, self.weights.softmax(0))

    @torch.no_grad()
    def hidden(self, **batch: Tensor) -> Tensor:
        """Return the frozen encoder's chosen hidden states, (examples, tokens, layers, width), without dropout."""
        self.encoder.eval()
        found = self.encoder(**batch, output_hidden_states=True).hidden_states
        return torch.stack([found[layer] for layer in self.layers], 2)

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as it is, and the head beside it."""
        self.encoder.save_pretrained(folder)
        save_beside(self, folder / HEAD_FILE, without="encoder.")

    def load_head(self, folder: Path) -> "FrozenTagger":
        """Read the head that `save_pretrained` wrote. Raises UserError where there is none of this shape."""
        load_beside(self, folder / HEAD_FILE, without="encoder.")
        return self


def frozen_tagger(model: nn.Module) -> FrozenTagger:
    """Return the part of a model that reads hidden states."""
    return next(module for module in model.modules() if isinstance(module, FrozenTagger))


def with_states(
    model: FrozenTagger,
    features: Sequence[Feature],
    builder: InputBuilder,
    device: torch.device,
    advance: Callable[[int], None],
) -> list[Feature]:
    """Return the features with the encoder's hidden states, computed once for all epochs: float16, 2 bytes for each
    token, layer and width.

    Raises UserError where a state is too large for them."""
    lengths = sizes(features)
    found: list[Feature] = list(features)
    for chosen in scoring_batches(lengths, tokens_per_pass(device)):
        batch = collate([replace(features[i], targets={}) for i in chosen], builder, device, choices=False)
        states = model.hidden(**batch).to(torch.float16).cpu().numpy()
        if not np.isfinite(states).all():
            raise UserError(
                "hidden states are beyond the range of float16",
                where="features",
                remedy="take other layers: maskmill evaluate x --settings lists them",
            )
        longest = states.shape[1]
        for i, row in zip(chosen.tolist(), states, strict=True):
            place = token_slice(int(lengths[i]), longest, builder.left_padded)
            found[i] = replace(features[i], states=row[place])
        advance(len(chosen))
    return found

"""Export small models of random weights to Hugging Face folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.export.card import Card
from pretrain.export.export import export
from pretrain.export.parity import Parity
from pretrain.model.initialize import without_padding
from tests.factories.models import config_of, fresh_model

CARD = Card(
    {
        "Data": {"documents": 12, "held-out | share": 0.05},
        "Recipe": {"optim.lr": 1e-3},
        "Notes": "A test.",
    }
)
WORDS = 85
"""Entries of the vocabulary of the reference tests."""


def random_weights(name: str, settings: EncoderSettings) -> dict[str, Tensor]:
    """Weights of the objective's model, none of them 0 and no two tensors of a shape equal."""
    model = fresh_model(name, settings, WORDS, seed=1)
    generator = torch.Generator().manual_seed(6)
    for parameter in model.parameters():  # biases and norms too
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return without_padding(model, {n: p.detach() for n, p in model.named_parameters()})


@dataclass
class Exporter:
    """What all exports of a test have in common."""

    settings: EncoderSettings
    tokenizer_json: str
    examples: Examples
    card: Card = CARD

    def export(self, out: Path, name: str = "bert", **options: Any) -> dict[str, Parity]:
        """Exports a model of the objective `name` to `out`, with the options of `export`."""
        config, state = config_of(name, self.settings), random_weights(name, self.settings)
        return export(state, config, self.tokenizer_json, out, self.examples, self.card, **options)

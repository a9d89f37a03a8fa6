"""Put the states of two models of one direction each side by side, as ELMo does (Peters et al. 2018): what Devlin et
al. 2019, section 5.1, hold against an encoder that reads both ways."""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.encoders import BACKWARDS, FORWARDS, Encoder


class States(NamedTuple):
    """What transformers' bare models return by the same names: (examples, tokens, width of both)."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


class SideBySide(nn.Module):
    """Two models, of which the second one reads each example's tokens in reversed order. Padding is on the right."""

    def __init__(self, forwards: PreTrainedModel, backwards: PreTrainedModel) -> None:
        super().__init__()
        self.forwards, self.backwards = forwards, backwards
        self.config = deepcopy(forwards.config)
        self.config.hidden_size += backwards.config.hidden_size

    def forward(self, attention_mask: Tensor, output_hidden_states: bool = True, **batch: Tensor) -> States:
        """Return the states of both at each token of the text, first those of the one that reads forwards."""
        lengths = attention_mask.sum(1, keepdim=True)
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device).expand_as(attention_mask)
        turned = torch.where(places < lengths, lengths - 1 - places, places)  # its own inverse
        batches = batch, {name: values.gather(1, turned) for name, values in batch.items()}
        first, second = (
            model(**one, attention_mask=attention_mask, output_hidden_states=True).hidden_states
            for model, one in zip((self.forwards, self.backwards), batches, strict=True)
        )
        both = tuple(
            torch.cat([one, other.gather(1, turned[..., None].expand_as(other))], -1)
            for one, other in zip(first, second, strict=True)
        )
        return States(both[-1], both)


@dataclass(frozen=True)
class TwoWay(Encoder):
    """A folder whose model reads from left to right, and `other`, whose model reads from right to left."""

    other: Path = Path()

    def checked(self) -> "TwoWay":
        """Return itself. Raises UserError unless both directions are there, of one vocabulary and as many layers."""
        backwards = Encoder(self.other)
        for one, direction in ((self, FORWARDS), (backwards, BACKWARDS)):
            if one.direction != direction:
                raise UserError(
                    f"reads {one.direction.replace('_', ' ') or 'both ways'}",
                    where=one.folder,
                    expected=f"the export of a run with objective.causal.direction={direction}",
                )
        if self.identity["tokenizer"] != backwards.identity["tokenizer"]:
            raise UserError("has another vocabulary", where=self.other, expected=f"that of {self.folder}")
        layers = [encoder.config.num_hidden_layers for encoder in (self, backwards)]
        if len(set(layers)) > 1:
            raise UserError(
                f"has {layers[1]} layers", where=self.other, expected=f"{layers[0]}, as the other"
            )
        return self

    @property
    def kind(self) -> str:
        """See Encoder.kind."""
        return "two-way"

    @property
    def identity(self) -> dict[str, str]:
        """Return the hashes of both; see Encoder.identity."""
        other = self._one(self.other).identity
        hashes = {"beside": other["weights"], "beside_config": other["config"]}
        return {**self._one(self.folder).identity, **hashes}

    def load(self, kind: str, seed: int, config: dict[str, Any] | None = None, has_head: bool = False) -> Any:
        """Return both bare models side by side; see Encoder.load. Raises UserError for a model with a head."""
        if kind:
            raise UserError(
                f"has no AutoModel{kind} of two models",
                where="--beside",
                expected="features=last, or other layers",
            )
        models = [
            self._one(folder).load("", seed + 1000 * i, config)
            for i, folder in enumerate((self.folder, self.other))
        ]
        return SideBySide(*models).eval()

    def _one(self, folder: Path) -> Encoder:
        return replace(Encoder(folder), pretrained=self.pretrained)

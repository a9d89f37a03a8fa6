"""Compute the logits of a head that is kept beside a model of transformers, as its reader would."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN


class WithTokenHead(nn.Module):
    """A bare model with a head that gives one logit for each token: Linear, the model's activation, Linear."""

    def __init__(self, model: PreTrainedModel, file: Path, prefix: str) -> None:
        """Read the head from a safetensors file, which names its tensors with `prefix`."""
        super().__init__()
        width = model.config.hidden_size
        self.model, self.activation = model, ACT2FN[model.config.hidden_activation]
        self.dense, self.prediction = nn.Linear(width, width), nn.Linear(width, 1)
        stored = {name.removeprefix(prefix): tensor for name, tensor in load_file(file).items()}
        for name in ("dense", "prediction"):
            part = {kind: stored.pop(f"{name}.{kind}") for kind in ("weight", "bias")}
            getattr(self, name).load_state_dict(part)
        assert not stored

    @torch.no_grad()
    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        """Compute the model's last hidden states (examples, longest, H) and the logits (examples, longest)."""
        hidden = self.model(**inputs).last_hidden_state
        logits = self.prediction(self.activation(self.dense(hidden)))[..., 0]
        return {"last_hidden_state": hidden, "logits": logits}

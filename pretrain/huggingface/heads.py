"""Compute a model of transformers in float64 throughout, and the logits of a head that is kept beside one.

Both serve the comparison of an export with our own model (export/parity.py).
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.activations import ACT2FN


class KeepFloat64(TorchFunctionMode):
    """Leave float64 tensors as they are where they would become float32: rotations and RMSNorm of transformers round
    there whatever the dtype, and two programs could only be compared to 1e-7. Other dtypes are not touched."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rounds = func is torch.Tensor.float or (func is torch.Tensor.to and args[1:] == (torch.float32,))
        if rounds and not kwargs and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


class WithTokenHead(nn.Module):
    """A bare model with a head that is kept beside it, computed as its reader would: one logit for each token, by
    Linear, the model's activation, Linear."""

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

"""Compare the logits of our model with those of the exported folder on real examples: every export must pass.

In float64 with dropout off, two programs that compute the same function agree to rounding. A difference above 1e-9 of
the largest logit means a wrong name, setting or mask, and the export fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.activations import ACT2FN

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.huggingface.base import Family
from pretrain.huggingface.load import load_class
from pretrain.model.batch import MicroBatch
from pretrain.objectives.base import Model

TOLERANCE = 1e-9
"""Allowed difference in float64, as a share of the largest logit if that is above 1."""
EXAMPLES = 16
"""Number of compared examples, from the shortest to the longest available."""


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

    def __init__(self, model: transformers.PreTrainedModel, file: Path, prefix: str) -> None:
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


@dataclass(frozen=True)
class Parity:
    """The difference between the logits of one head."""

    difference: float  # largest absolute difference of two logits, in float64
    allowed: float
    largest_logit: float
    difference_float32: float


def check_parity(
    model: Model, folder: Path, family: Family, held_out: Examples, pad: int
) -> dict[str, Parity]:
    """Compare `model` with what transformers loads from `folder`, each head of the family separately, at every token of
    EXAMPLES of `held_out`. `model` is left in float32 and evaluation mode. `pad` is the id of [PAD].

    Raises UserError if keys are missing or left over, weights are not tied, or a head's logits differ."""
    theirs: Any = _loaded(folder, family.export_class)
    if family.token_head:
        theirs = WithTokenHead(theirs, folder / family.token_head, family.beside[family.token_head])
    batches = list(_batches(held_out))
    exact = _compare(model.double().eval(), theirs.double().eval(), family, batches, pad)
    single = _compare(model.float(), theirs.float(), family, batches, pad)
    parities = {
        head: Parity(difference, TOLERANCE * max(1.0, largest), largest, single[head][0])
        for head, (difference, largest) in exact.items()
    }
    for head, parity in parities.items():
        if not parity.difference <= parity.allowed:  # so that NaN fails too
            raise UserError(
                f"the {head} logits of the exported model differ from ours by {parity.difference:.3g}",
                where=folder,
                expected=f"at most {parity.allowed:.3g} in float64",
                remedy="nothing was exported; this is an error of the exporter, please report it",
            )
    return parities


def _loaded(folder: Path, export_class: str) -> transformers.PreTrainedModel:
    model, info = load_class(folder, export_class)
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        raise UserError(
            f"{export_class} loads with {wrong}", where=folder, expected="every key, and no other"
        )
    output = model.get_output_embeddings()  # None: its heads predict no words
    if output is not None and output.weight is not model.get_input_embeddings().weight:
        raise UserError(
            f"{export_class} loads untied", where=folder, expected="one tensor for both embeddings"
        )
    return model


def _batches(held_out: Examples) -> Iterator[MicroBatch]:
    """Yield pairs of a short and a long example, so that one of them is padded on the other side, with a prediction at
    every token. Only two at a time, since a row of logits is as long as the vocabulary."""
    if not len(held_out):
        raise UserError("no example to compare the exported model on", remedy="set data.held_out above 0")
    by_length = np.argsort(held_out.lengths, kind="stable")
    chosen = by_length[np.linspace(0, len(by_length) - 1, min(EXAMPLES, len(by_length))).round().astype(int)]
    for i in range((len(chosen) + 1) // 2):
        pair = chosen[sorted({i, len(chosen) - 1 - i})]
        batch = MicroBatch.from_examples(held_out.take(pair))
        rows = torch.arange(batch.tokens)
        yield replace(batch, masked_index=rows, masked_ids=torch.full_like(rows, -1))


@torch.no_grad()
def _compare(
    ours: Model, theirs: transformers.PreTrainedModel, family: Family, batches: list[MicroBatch], pad: int
) -> dict[str, tuple[float, float]]:
    """Return the largest difference and the largest logit over `batches` for each head of the family."""
    found = dict.fromkeys(family.heads, (0.0, 0.0))
    for batch in batches:
        our_logits = ours.logits(batch)
        with KeepFloat64():
            their_logits = family.logits(theirs, batch, pad)
        for head, (difference, largest) in found.items():
            logits = our_logits[head]
            apart = (logits - their_logits[head]).abs().max()  # max of a NaN is NaN
            found[head] = (_larger(difference, float(apart)), max(largest, float(logits.abs().max())))
    return found


def _larger(a: float, b: float) -> float:
    return a if a >= b or a != a else b

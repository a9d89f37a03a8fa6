"""Read and change attention weights of models, and measure what attention does with each kind of token.

The task `attention` measures that on the held-out examples of prepared shards, above all for [SEP]. From Clark et al.
2019 (arXiv 1906.04341, section 3): the share of attention that each head gives to a kind of token, on text without
masks, and the magnitude of the gradient of the masked loss to the attention weights, on masked text. Beside that the
attribution, weight times gradient, and the causal check: what the loss becomes where nothing attends to [SEP].

No other module uses transformers' registry of attention functions. The task `pairs` changes attention by `controlled`
too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import Separators, original_tokens, separator_places
from data_pipeline.records import NO_LABEL, Examples
from pretrain.tasks.base import Material, ScoreInputs, Scores, Untrained
from pretrain.tasks.encoders import Encoder, chosen_device, projected_rows
from pretrain.tasks.held_out import (
    Batch,
    ExampleBatches,
    HeldOut,
    held_out_batches,
    masked_logits,
    own_separators,
    pair_logits,
    segments_of,
    with_heads,
)
from pretrain.tasks.settings import EvaluationSettings

# Register an attention function of ours with transformers: it shows the weights of a forward pass, and changes them.


NAME = "maskmill_attention"


@dataclass
class Attention:
    """What a forward pass keeps of its attention, and what it changes."""

    blocked: Tensor | None = None
    """(examples, 1 or queries, keys) bool: pairs whose weight becomes 0; what is left of a row is scaled to a sum of 1,
    and a row without anything left stays 0."""
    layers: frozenset[int] | None = None
    """Layers, from 0, in which weights are blocked; None: all."""
    keeps: bool = False
    """Whether the weights are kept, for their gradients too."""
    weights: list[Tensor] = field(default_factory=list)
    """Of each layer, in the order of the pass: (examples, heads, queries, keys)."""
    passed: int = 0
    """Layers that the pass has been through."""

    def changed(self, weights: Tensor) -> Tensor:
        """Return the weights of the next layer as they are to be used."""
        number, self.passed = self.passed, self.passed + 1
        if self.blocked is not None and (self.layers is None or number in self.layers):
            weights = weights.masked_fill(self.blocked[:, None], 0.0)
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        if self.keeps:
            self.weights.append(weights)
        return weights


_IN_USE: list[Attention] = []


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(Q K^T * scaling) V explicitly, as transformers' eager attention does, without dropout."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    if _IN_USE:
        weights = _IN_USE[-1].changed(weights)
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)


@contextmanager
def controlled(model: PreTrainedModel, attention: Attention) -> Iterator[Attention]:
    """Within it, forward passes of the model read and change its attention; one pass for each Attention that keeps
    weights."""
    model.set_attn_implementation(NAME)
    _IN_USE.append(attention)
    try:
        yield attention
    finally:
        _IN_USE.pop()


# Measure attention by kind of token, and the loss without attention to [SEP].


CLASSES = ("cls", "sep_mid", "sep_end", "punctuation", "mask", "other_a", "other_b")
"""Kinds of tokens. What stands in the places of [SEP], as a period may, counts as [SEP]."""
SEPARATING = (CLASSES.index("sep_mid"), CLASSES.index("sep_end"))
BATCH_TOKENS = 2048
"""Tokens of a batch, of which the weights of all layers are in memory."""


class AttentionTask(Untrained):
    """The task `attention`. Its items are examples."""

    has_precision = False

    def __init__(self) -> None:
        super().__init__("attention", ".", "sep_attention")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Open the shards of the folder. Raises UserError as the task `held_out` does."""
        return HeldOut().read(folder, settings)

    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return, over all heads and with _layer_N of one: sep_attention, sep_attribution (percent), sep_gradient (the
        mean magnitude at [SEP] over that at all tokens); and blocked_loss and blocked_nsp_accuracy, the changes of
        masked loss (nats) and pair accuracy (percentage points) where no token of any layer, or of layer N, attends to
        [SEP]. Trivial: the share of tokens that are [SEP]. Details: every head and kind of token.

        Raises UserError for a model whose attention weights cannot be read."""
        encoder, (index, chosen) = inputs.encoder, inputs.material.items
        separators = own_separators(encoder, index)
        device = chosen_device()
        model = with_heads(encoder, inputs.seed, device)
        found = _Found(encoder, model, ExampleBatches(encoder, device), separators)
        for examples in held_out_batches(index, chosen, separators, BATCH_TOKENS):
            found.add(examples)
            inputs.on_progress(len(examples))
        return {"scores": found.scores(), "trivial": found.baseline(), **found.details()}


class _Found:
    """Sums over examples."""

    def __init__(
        self,
        encoder: Encoder,
        model: PreTrainedModel,
        batches: ExampleBatches,
        separators: Separators | None,
    ) -> None:
        self.model, self.batches, self.separators = model, batches, separators
        self.ids = encoder.tokenizer
        self.punctuation = [i for i in (self.ids.get_vocab().get(token) for token in ".,") if i is not None]
        self.layers, self.heads = model.config.num_hidden_layers, model.config.num_attention_heads
        shape = (self.layers, self.heads, len(CLASSES))
        self.attention, self.attribution, self.gradient = (np.zeros(shape) for _ in range(3))
        self.pairs_of_class = np.zeros(len(CLASSES))  # (query, key) pairs
        self.examples, self.shares = 0, np.zeros(len(CLASSES))
        # plain, blocked in all layers, blocked in each: predictions, losses; pairs, right ones
        self.checked = np.zeros((2 + self.layers, 4))

    def add(self, examples: Examples) -> None:
        """Measure these examples."""
        batch, classes_BLC = self.batches.batch(examples), self._classes(examples)
        real_BL = classes_BLC.sum(-1)
        text = self.batches.batch(replace(examples, tokens=original_tokens(examples)))
        with torch.no_grad(), controlled(self.model, Attention(keeps=True)) as seen:
            self.model(**text.inputs)
        if [tuple(w.shape[1:2]) for w in seen.weights] != [(self.heads,)] * self.layers:
            raise UserError(
                f"its attention weights cannot be read: {len(seen.weights)} of {self.layers} layers",
                where=type(self.model).__name__,
                expected="a model of full attention, as BERT's",
            )
        lengths_B = real_BL.sum(-1)
        for layer, a_BNQK in enumerate(seen.weights):
            to_BNC = torch.einsum("bnqk,bq,bkc->bnc", a_BNQK, real_BL, classes_BLC)
            self.attention[layer] += _array((to_BNC / lengths_B[:, None, None]).sum(0))
        self.examples += len(examples)
        self.shares += _array((classes_BLC.sum(1) / lengths_B[:, None]).sum(0))
        self._gradients(examples, batch, classes_BLC, real_BL)
        self._check(examples, batch, classes_BLC)

    def _gradients(self, examples: Examples, batch: Batch, classes_BLC: Tensor, real_BL: Tensor) -> None:
        """Add the gradients of the sum of the masked losses, since a mean would depend on the number of masks."""
        with torch.enable_grad(), controlled(self.model, Attention(keeps=True)) as seen:
            loss = self._losses(examples, batch)[0].sum()
            gradients = torch.autograd.grad(loss, seen.weights)
        for layer, (a_BNQK, g_BNQK) in enumerate(zip(seen.weights, gradients, strict=True)):
            for sums, value in ((self.gradient, g_BNQK), (self.attribution, a_BNQK.detach() * g_BNQK)):
                found = torch.einsum("bnqk,bq,bkc->nc", value.abs(), real_BL, classes_BLC)
                sums[layer] += _array(found)
        self.pairs_of_class += _array(torch.einsum("bq,bkc->c", real_BL, classes_BLC))

    @torch.no_grad()
    def _check(self, examples: Examples, batch: Batch, classes_BLC: Tensor) -> None:
        """Add losses with and without attention to separators."""
        keys_BK = classes_BLC[:, :, list(SEPARATING)].sum(-1) > 0
        none = Attention()
        blocked = [Attention(keys_BK[:, None], frozenset({n})) for n in range(self.layers)]
        for row, attention in enumerate((none, Attention(keys_BK[:, None]), *blocked)):
            with controlled(self.model, attention):
                losses_R, pairs_BC = self._losses(examples, batch)
            self.checked[row, :2] += len(losses_R), float(losses_R.double().sum())
            known = examples.labels != NO_LABEL
            if pairs_BC is not None and known.any():
                answers = pairs_BC.argmax(-1).cpu().numpy()[known]
                self.checked[row, 2:] += known.sum(), (answers == examples.labels[known]).sum()

    def _losses(self, examples: Examples, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the loss of each masked token, (R,), and the logits of pairs."""
        with projected_rows(self.model, batch.owners, batch.places):
            output = self.model(**batch.inputs)
        logits = masked_logits(output)
        wanted = torch.from_numpy(examples.masked_ids.astype(np.int64)).to(logits.device)
        return F.cross_entropy(logits.float(), wanted, reduction="none"), pair_logits(output)

    def _classes(self, examples: Examples) -> Tensor:
        """Return the kind of each token: (examples, longest, kinds), 0 or 1; nothing at padding."""
        tokens = examples.tokens.astype(np.int64)
        kinds = CLASSES.index("other_a") + np.minimum(segments_of(examples), 1)
        kinds[np.isin(tokens, self.punctuation)] = CLASSES.index("punctuation")
        kinds[tokens == self.ids.mask_token_id] = CLASSES.index("mask")
        kinds[tokens == self.ids.cls_token_id] = CLASSES.index("cls")
        mid, end = separator_places(examples.offsets, examples.first_lengths)
        has_period = self.separators is not None and self.separators.kind == "period"
        for places, kind in ((mid, SEPARATING[0]), (end, SEPARATING[1])):
            is_one = np.full(len(places), has_period) | (tokens[places] == self.ids.sep_token_id)
            kinds[places[is_one]] = kind
        longest = int(examples.lengths.max())
        table = np.zeros((len(examples), longest, len(CLASSES)), np.float32)
        rows = np.repeat(np.arange(len(examples)), examples.lengths)
        table[rows, examples.places, kinds] = 1
        return torch.from_numpy(table).to(self.batches.device)

    def scores(self) -> Scores:
        """Return the figures by name."""
        attention = self.attention / self.examples
        found = _by_layer("sep_attention", 100 * attention[..., SEPARATING].sum(-1).mean(-1))
        if not self.pairs_of_class[list(SEPARATING)].any():
            return found
        for_sep = self.attribution[..., SEPARATING].sum((1, 2)), self.attribution.sum((1, 2))
        found |= _by_layer("sep_attribution", 100 * for_sep[0] / for_sep[1])
        at_sep = self.gradient[..., SEPARATING].sum((1, 2)) / self.pairs_of_class[list(SEPARATING)].sum()
        at_all = self.gradient.sum((1, 2)) / self.pairs_of_class.sum()
        found |= _by_layer("sep_gradient", at_sep / at_all)
        losses = self.checked[:, 1] / self.checked[:, 0]
        found |= _named("blocked_loss", losses[1:] - losses[0])
        if self.checked[0, 2]:
            right = 100 * self.checked[:, 3] / self.checked[:, 2]
            found |= _named("blocked_nsp_accuracy", right[1:] - right[0])
        return found

    def baseline(self) -> Scores:
        """Return what attention that is spread evenly gives."""
        return {"sep_attention": float(100 * self.shares[list(SEPARATING)].sum() / self.examples)}

    def details(self) -> dict[str, Any]:
        """Return every layer, head and kind: its share of attention, mean gradient and share of the attribution."""
        attention = self.attention / self.examples
        gradient = self.gradient / np.maximum(self.pairs_of_class, 1)
        share = self.attribution / self.attribution.sum(-1, keepdims=True).clip(np.finfo(float).tiny)
        tables = {"attention": attention, "gradient": gradient, "attribution": share}
        return {
            "kinds": list(CLASSES),
            "evenly": (self.shares / self.examples).tolist(),
            "heads": {name: table.tolist() for name, table in tables.items()},
        }


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()


def _by_layer(name: str, layers: NDArray[np.float64]) -> Scores:
    return _named(name, np.concatenate(([layers.mean()], layers)))


def _named(name: str, values: NDArray[np.float64]) -> Scores:
    """Name the value of all layers, which is the first one, and those of each."""
    whole, *each = values.tolist()
    return {name: whole} | {f"{name}_layer_{n}": value for n, value in enumerate(each, 1)}

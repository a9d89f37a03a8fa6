"""Give held-out examples of prepared shards to an encoder, and score its heads of pretraining on them.

The task `held_out` scores masked tokens by what is in their place, by segment and by the label of their pair, and the
pairs themselves. The tasks `attention` and `pairs` read the same examples by the same functions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import held_out_examples, shards_vocabulary
from data_pipeline.loader.packing import Separators, separators_of
from data_pipeline.records import NO_LABEL, Examples
from data_pipeline.sequences.registry import PairTask, pair_task
from data_pipeline.shards.index import INDEX, Index
from pretrain.run.learning import pair_majority, unigram
from pretrain.tasks.base import Material, ScoreInputs, Scores, Untrained
from pretrain.tasks.encoders import (
    Encoder,
    chosen_device,
    precision,
    projected_rows,
    refuse_discriminator,
    tokens_per_pass,
)
from pretrain.tasks.files import evenly_spaced
from pretrain.tasks.inputs import Input, batches_by_cost, padded, token_slice
from pretrain.tasks.settings import EvaluationSettings

# Give examples to an encoder as transformers' models take them, and judge its answers.


READ = 4096
"""Examples in memory at a time."""


@dataclass(frozen=True)
class Batch:
    """Examples as a model takes them."""

    inputs: dict[str, torch.Tensor]
    """By the names of transformers' arguments, (examples, longest)."""
    owners: torch.Tensor
    """(R,) the row of each masked token, and..."""
    places: torch.Tensor
    """(R,) its column."""
    starts: NDArray[np.int64]
    """Of each example, the column of its first token."""


class ExampleBatches:
    """Make batches for one encoder."""

    def __init__(self, encoder: Encoder, device: torch.device) -> None:
        self.builder, self.first_position = encoder.builder(encoder.max_positions), encoder.first_position
        self.device = device

    def batch(self, examples: Examples, segment_ids: NDArray[np.int64] | None = None) -> Batch:
        """Return the batch of these examples; `segment_ids` in place of their own."""
        segments = segments_of(examples) if segment_ids is None else segment_ids
        borders = list(pairwise(examples.offsets.tolist()))
        rows = [Input(examples.tokens[a:b].tolist(), segments[a:b].tolist()) for a, b in borders]
        arrays = padded(rows, self.builder)
        longest, left = arrays["input_ids"].shape[1], self.builder.left_padded
        starts = np.array([token_slice(b - a, longest, left).start for a, b in borders])
        owners = np.repeat(np.arange(len(rows)), np.diff(examples.masked_offsets))
        places = starts[owners] + examples.masked_positions.astype(np.int64)
        if self.first_position:  # or transformers takes a random word that is the padding token for padding
            arrays["position_ids"] = np.tile(self.first_position + np.arange(longest), (len(rows), 1))
        if examples.positions is not None:
            arrays["position_ids"] = np.zeros((len(rows), longest), np.int64)
            for row, (a, b) in enumerate(borders):
                own = self.first_position + examples.positions[a:b].astype(np.int64)
                arrays["position_ids"][row, starts[row] : starts[row] + b - a] = own
        inputs = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        index, columns = (torch.from_numpy(found).to(self.device) for found in (owners, places))
        return Batch(inputs, index, columns, starts)


def _kind_of(encoder: Encoder) -> str:
    """Return which of transformers' classes has all heads that the folder has."""
    refuse_discriminator(encoder)
    architecture = str((encoder.config.architectures or [""])[0])
    return "ForPreTraining" if "ForPreTraining" in architecture else "ForMaskedLM"


def with_heads(encoder: Encoder, seed: int, device: torch.device) -> PreTrainedModel:
    """Return the encoder's model with all heads that the folder has, on the device."""
    model = encoder.load(_kind_of(encoder), seed, has_head=True)
    model.to(device)  # type: ignore[arg-type]  # its decorator loses the type
    return model


def masked_logits(output: Any) -> torch.Tensor:
    """Return the logits of words in a model's output, by either of their names in transformers."""
    return output.logits if hasattr(output, "logits") else output.prediction_logits


def pair_logits(output: Any) -> torch.Tensor | None:
    """Return the logits of pairs in a model's output, if it has a head for them."""
    names = (name for name in ("seq_relationship_logits", "sop_logits") if hasattr(output, name))
    return next((getattr(output, name) for name in names), None)


def own_separators(encoder: Encoder, index: Index) -> Separators | None:
    """Return what gives the examples the separators that the encoder was trained on. Raises UserError for an encoder
    of another vocabulary than the shards' or too few positions."""
    tokens = shards_vocabulary(index).tokens
    own = encoder.tokenizer.get_vocab()
    other = next((number for number, token in enumerate(tokens) if own.get(token) != number), None)
    if other is not None:
        raise UserError(
            f"has another vocabulary than {index.folder}: its token {tokens[other]!r} is {own.get(tokens[other])},"
            f" not {other}",
            where=encoder.folder,
            remedy="prepare the text with the encoder's own vocabulary (data.vocab=FOLDER)",
        )
    if index.held_out.max_tokens > encoder.max_positions:
        raise UserError(
            f"has positions for {encoder.max_positions} tokens",
            where=encoder.folder,
            expected=f"{index.held_out.max_tokens}, the longest example of {index.folder}",
        )
    return separators_of(encoder.input_format, index, tokens)


def held_out_batches(
    index: Index, chosen: NDArray[np.int64], separators: Separators | None, tokens: int
) -> Iterator[Examples]:
    """Yield the chosen held-out examples, of near lengths together, about so many tokens at a time."""
    for start in range(0, index.held_out.examples, READ):
        stop = min(start + READ, index.held_out.examples)
        own = chosen[(chosen >= start) & (chosen < stop)]
        if len(own):
            examples = held_out_examples(index, start, stop, separators).take(own - start)
            for batch in batches_by_cost(examples.lengths.tolist(), tokens):
                yield examples.take(np.array(batch))


def segments_of(examples: Examples) -> NDArray[np.int64]:
    """Return the segment of each token."""
    if examples.segment_ids is not None:
        return examples.segment_ids.astype(np.int64)
    first = np.repeat(examples.offsets[:-1] + examples.first_lengths, examples.lengths)
    return (np.arange(len(examples.tokens)) >= first).astype(np.int64)


def judged(logits: torch.Tensor, targets: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the cross-entropy of each row, and whether its likeliest answer is right."""
    wanted = torch.from_numpy(targets).to(logits.device)
    losses = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")
    return losses.double().cpu().numpy(), (logits.argmax(-1) == wanted).cpu().numpy()


# Score masked tokens and pairs.


KINDS = ("mask", "kept", "random")
SEGMENTS = ("segment_a", "segment_b")


class HeldOut(Untrained):
    """The task `held_out`. Its items are examples."""

    def __init__(self) -> None:
        super().__init__("held_out", ".", "mask_loss")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Open the shards of the folder. Raises UserError where none are there, or nothing is held out or masked."""
        index = Index.load(folder)
        if not index.held_out.masked:
            raise UserError(
                "holds no masked example that is held out",
                where=folder,
                expected="shards prepared with data.held_out and data.masking",
            )
        chosen = evenly_spaced(index.held_out.examples, settings.part)
        return Material((index, chosen), len(chosen), {INDEX: index.identity})

    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return losses in nats and accuracies in percent, named as in training: mask_loss at [MASK], kept_accuracy and
        so on; with _segment_a, _is_next or both (_is_next_segment_a) of the positions there alone. Trivial: the unigram
        and the most frequent token at the same positions, the commoner label of the same pairs. Encoders without a head
        for pairs have no scores of pairs."""
        encoder, (index, chosen) = inputs.encoder, inputs.material.items
        separators = own_separators(encoder, index)
        task = pair_task(index.settings.get("sequences"))
        device = chosen_device()
        found = _Sums(task, encoder, inputs.settings, device)
        model = with_heads(encoder, inputs.seed, device)
        for examples in held_out_batches(index, chosen, separators, tokens_per_pass(device)):
            found.add(model, examples)
            inputs.on_progress(len(examples))
        return {"scores": found.scores(), "trivial": found.baseline(), "cells": found.cells()}


class _Sums:
    """Counts, losses and right answers of every (kind of position, label, segment), and of pairs."""

    def __init__(
        self, task: PairTask | None, encoder: Encoder, settings: EvaluationSettings, device: torch.device
    ) -> None:
        self.task, self.settings, self.device = task, settings, device
        self.batches = ExampleBatches(encoder, device)
        self.mask = encoder.tokenizer.mask_token_id
        self.labels = (*(task.labels if task else ()), "none")
        self.sums = np.zeros((3, len(KINDS), len(self.labels), len(SEGMENTS)))
        self.words = np.zeros(len(encoder.tokenizer), np.int64)
        self.pairs = np.zeros((3, len(self.labels)))

    @torch.no_grad()
    def add(self, model: PreTrainedModel, examples: Examples) -> None:
        """Predict these examples."""
        batch = self.batches.batch(examples)
        with (
            precision(self.settings.precision, self.device, fine_tuned=False),
            projected_rows(model, batch.owners, batch.places),
        ):
            output = model(**batch.inputs)
        words = masked_logits(output)
        self._add_words(examples, batch.owners.cpu().numpy(), words)
        pairs = pair_logits(output)
        if self.task and pairs is not None:
            self._add_pairs(examples.labels, pairs)

    def _add_words(self, examples: Examples, owners: NDArray[np.int64], logits_RV: torch.Tensor) -> None:
        targets = examples.masked_ids.astype(np.int64)
        places = examples.offsets[owners] + examples.masked_positions
        shown = examples.tokens[places]
        kinds = np.where(shown == self.mask, 0, np.where(shown == targets, 1, 2))
        segments = segments_of(examples)[places]
        labels = examples.labels[owners].astype(np.int64)  # -1, no label, is the last row
        self.words += np.bincount(targets[kinds == 0], minlength=len(self.words))
        losses, right = judged(logits_RV, targets)
        cells = (kinds, labels, np.minimum(segments, 1))
        for row, values in enumerate((np.ones(len(losses)), losses, right)):
            np.add.at(self.sums[row], cells, values)

    def _add_pairs(self, labels: NDArray[np.int8], logits_BC: torch.Tensor) -> None:
        known = np.flatnonzero(labels != NO_LABEL)  # by number: a GPU would have to count what a mask selects
        targets = labels[known].astype(np.int64)
        losses, right = judged(logits_BC[torch.from_numpy(known).to(logits_BC.device)], targets)
        for row, values in enumerate((np.ones(len(losses)), losses, right)):
            np.add.at(self.pairs[row], targets, values)

    def scores(self) -> Scores:
        """Return the figures by name."""
        found: Scores = {}
        for n, kind in enumerate(KINDS):
            found |= _mean(kind, self.sums[:, n].sum((1, 2)))
        for n, label in enumerate(self.labels[:-1]):
            found |= _mean("mask", self.sums[:, 0, n].sum(1), f"_{label}")
        if self.sums[0, 0, :, 1].any():
            for n, segment in enumerate(SEGMENTS):
                found |= _mean("mask", self.sums[:, 0, :, n].sum(1), f"_{segment}")
                for m, label in enumerate(self.labels[:-1]):
                    found |= _mean("mask", self.sums[:, 0, m, n], f"_{label}_{segment}")
        if self.task:
            found |= _mean(self.task.name, self.pairs.sum(1))
            for n, label in enumerate(self.task.labels):
                found |= _mean(self.task.name, self.pairs[:, n], f"_{label}")
        return found

    def baseline(self) -> Scores:
        """Return what frequencies alone give."""
        known = unigram("mask", self.words)
        found = {"mask_loss": known["mask_unigram_loss"], "mask_accuracy": 100 * known["mask_majority"]}
        if self.task and self.pairs[0].any():
            majority = pair_majority(self.task.name, self.pairs[0].astype(np.int64))
            found[f"{self.task.name}_accuracy"] = 100 * majority[f"{self.task.name}_majority"]
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Return count, mean loss and accuracy of every combination that occurs."""
        return [
            {
                "position": KINDS[kind],
                "pair": self.labels[label],
                "segment": SEGMENTS[segment],
                "count": int(self.sums[0, kind, label, segment]),
                **_mean("", self.sums[:, kind, label, segment]),
            }
            for kind, label, segment in np.argwhere(self.sums[0]).tolist()
        ]


def _mean(kind: str, sums: NDArray[np.float64], of: str = "") -> Scores:
    """Return loss and accuracy, in percent, from (count, losses, right answers); empty for a count of 0."""
    count, losses, right = sums.tolist()
    prefix = f"{kind}_" if kind else ""
    if not count:
        return {}
    return {f"{prefix}loss{of}": losses / count, f"{prefix}accuracy{of}": 100 * right / count}

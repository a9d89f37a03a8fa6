"""Score the heads of pretraining on the held-out examples of prepared shards: masked tokens by what is in their
place, by segment and by the label of their pair, and the pairs themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from data_pipeline.records import NO_LABEL, Examples
from data_pipeline.sequences.registry import PairTask, pair_task
from data_pipeline.shards.index import INDEX, Index
from pretrain.evaluate.downstream.device import chosen_device, precision, tokens_per_pass
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.shards.example_batches import (
    ExampleBatches,
    held_out_batches,
    judged,
    masked_logits,
    own_separators,
    pair_logits,
    segments_of,
    with_heads,
)
from pretrain.evaluate.downstream.tasks.base import Material, Scores, Untrained
from pretrain.evaluate.downstream.tasks.splits import evenly_spaced
from pretrain.evaluate.downstream.tasks.untrained.likelihood import projected_rows
from pretrain.run.metrics import pair_majority, unigram

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

    def score(
        self,
        encoder: Encoder,
        material: Material,
        settings: EvaluationSettings,
        seed: int,
        advance: Callable[[int], None],
    ) -> dict[str, Any]:
        """Return losses in nats and accuracies in percent, named as in training: mask_loss at [MASK], kept_accuracy and
        so on; with _segment_a, _is_next or both (_is_next_segment_a) of the positions there alone. Trivial: the unigram
        and the most frequent token at the same positions, the commoner label of the same pairs. Encoders without a head
        for pairs have no scores of pairs."""
        index, chosen = material.items
        separators = own_separators(encoder, index)
        task = pair_task(index.settings.get("sequences"))
        device = chosen_device()
        found = _Sums(task, encoder, settings, device)
        model = with_heads(encoder, seed, device)
        for examples in held_out_batches(index, chosen, separators, tokens_per_pass(device)):
            found.add(model, examples)
            advance(len(examples))
        return {"scores": found.scores(), "trivial": found.trivial(), "cells": found.cells()}


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

    def trivial(self) -> Scores:
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

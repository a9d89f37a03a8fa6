"""Score the heads of pretraining on the held-out examples of prepared shards: masked tokens by what stands in their
place, by segment and by the label of their pair, and the pairs themselves."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from data_pipeline.errors import UserError
from data_pipeline.loader.dynamic_masking import shards_vocabulary
from data_pipeline.loader.loader import held_out_examples
from data_pipeline.records import NO_LABEL, Examples
from data_pipeline.sequences.registry import PairTask, pair_task
from data_pipeline.shards.index import INDEX, Index
from pretrain.downstream.device import chosen_device, precision
from pretrain.downstream.encoders import Encoder
from pretrain.downstream.inputs import Input, padded, token_slice
from pretrain.downstream.likelihood import TOKENS, batches_by_cost, projected_rows, refuse_discriminator
from pretrain.downstream.settings import EvaluationSettings
from pretrain.downstream.tasks.base import Material, Scores, Untrained, evenly_spaced
from pretrain.evaluate.baselines import pair_majority, unigram

READ = 4096
"""Examples in memory at a time."""
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
        so on; with _segment_a or _is_next of the positions there alone. Trivial: the unigram and the most frequent
        token at the same positions, the commoner label of the same pairs. Encoders without a head for pairs have no
        scores of pairs."""
        index, chosen = material.items
        _check(encoder, index)
        task = pair_task(index.settings.get("sequences"))
        device = chosen_device()
        found = _Sums(task, encoder, settings, device)
        model = encoder.load(_kind(encoder), seed, has_head=True)
        model.to(device)  # type: ignore[arg-type]  # its decorator loses the type
        for start in range(0, index.held_out.examples, READ):
            stop = min(start + READ, index.held_out.examples)
            own = chosen[(chosen >= start) & (chosen < stop)]
            if not len(own):
                continue
            examples = held_out_examples(index, start, stop).take(own - start)
            for batch in batches_by_cost(examples.lengths.tolist(), TOKENS):
                found.add(model, examples.take(np.array(batch)))
                advance(len(batch))
        return {"scores": found.scores(), "trivial": found.trivial(), "cells": found.cells()}


def _kind(encoder: Encoder) -> str:
    """Return which of transformers' classes has all heads that the folder has."""
    refuse_discriminator(encoder)
    architecture = str((encoder.config.architectures or [""])[0])
    return "ForPreTraining" if "ForPreTraining" in architecture else "ForMaskedLM"


def _check(encoder: Encoder, index: Index) -> None:
    """Raise UserError for an encoder of another vocabulary or too few positions."""
    own, tokens = encoder.tokenizer.get_vocab(), shards_vocabulary(index).tokens
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


class _Sums:
    """Counts, losses and right answers of every (kind of position, label, segment), and of pairs."""

    def __init__(
        self, task: PairTask | None, encoder: Encoder, settings: EvaluationSettings, device: torch.device
    ) -> None:
        self.task, self.settings, self.device = task, settings, device
        self.builder = encoder.builder(encoder.max_positions)
        self.first_position = encoder.first_position
        self.mask = encoder.tokenizer.mask_token_id
        self.labels = (*(task.labels if task else ()), "none")
        self.sums = np.zeros((3, len(KINDS), len(self.labels), len(SEGMENTS)))
        self.words = np.zeros(len(encoder.tokenizer), np.int64)
        self.pairs = np.zeros((3, len(self.labels)))

    @torch.no_grad()
    def add(self, model: PreTrainedModel, examples: Examples) -> None:
        """Predict these examples."""
        inputs = list(_inputs(examples))
        arrays = padded(inputs, self.builder)
        longest, left = arrays["input_ids"].shape[1], self.builder.left_padded
        starts = np.array([token_slice(len(one.ids), longest, left).start for one in inputs])
        owners = np.repeat(np.arange(len(examples)), np.diff(examples.masked_offsets))
        places = examples.masked_positions.astype(np.int64)
        index, columns = (torch.from_numpy(a).to(self.device) for a in (owners, starts[owners] + places))
        if self.first_position:  # or transformers takes a random word that is the padding token for padding
            arrays["position_ids"] = np.tile(self.first_position + np.arange(longest), (len(inputs), 1))
        batch = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        with precision(self.settings.precision, self.device), projected_rows(model, index, columns):
            output = model(**batch)
        words = output.logits if hasattr(output, "logits") else output.prediction_logits
        self._add_words(examples, owners, places, words)
        for name in ("seq_relationship_logits", "sop_logits"):
            if self.task and hasattr(output, name):
                self._add_pairs(examples.labels, getattr(output, name))

    def _add_words(
        self,
        examples: Examples,
        owners: NDArray[np.int64],
        places: NDArray[np.int64],
        logits_RV: torch.Tensor,
    ) -> None:
        targets = examples.masked_ids.astype(np.int64)
        shown = examples.tokens[examples.offsets[owners] + places]
        kinds = np.where(shown == self.mask, 0, np.where(shown == targets, 1, 2))
        segments = _segments(examples)[examples.offsets[owners] + places]
        labels = examples.labels[owners].astype(np.int64)  # -1, no label, is the last row
        self.words += np.bincount(targets[kinds == 0], minlength=len(self.words))
        losses, right = _judged(logits_RV, targets)
        cells = (kinds, labels, np.minimum(segments, 1))
        for row, values in enumerate((np.ones(len(losses)), losses, right)):
            np.add.at(self.sums[row], cells, values)

    def _add_pairs(self, labels: NDArray[np.int8], logits_BC: torch.Tensor) -> None:
        known = labels != NO_LABEL
        targets = labels[known].astype(np.int64)
        losses, right = _judged(logits_BC[torch.from_numpy(known).to(logits_BC.device)], targets)
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


def _inputs(examples: Examples) -> Iterator[Input]:
    segments, borders = _segments(examples), examples.offsets.tolist()
    for start, stop in pairwise(borders):
        yield Input(examples.tokens[start:stop].tolist(), segments[start:stop].tolist())


def _segments(examples: Examples) -> NDArray[np.int64]:
    """Return the segment of each token."""
    if examples.segment_ids is not None:
        return examples.segment_ids.astype(np.int64)
    first = np.repeat(examples.offsets[:-1] + examples.first_lengths, examples.lengths)
    return (np.arange(len(examples.tokens)) >= first).astype(np.int64)


def _judged(
    logits: torch.Tensor, targets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the cross-entropy of each row, and whether its likeliest answer is right."""
    wanted = torch.from_numpy(targets).to(logits.device)
    losses = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")
    return losses.double().cpu().numpy(), (logits.argmax(-1) == wanted).cpu().numpy()


def _mean(kind: str, sums: NDArray[np.float64], of: str = "") -> Scores:
    """Return loss and accuracy, in percent, from (count, losses, right answers); empty for a count of 0."""
    count, losses, right = sums.tolist()
    prefix = f"{kind}_" if kind else ""
    if not count:
        return {}
    return {f"{prefix}loss{of}": losses / count, f"{prefix}accuracy{of}": 100 * right / count}

"""Measure what the other segment of a pair is to the prediction of masked words: true, random, absent or out of sight.

On held-out pairs whose B follows A, the tokens and masks of the one segment are held, and the other one is (i) the true
one, (ii) as many tokens of other pairs, (iii) left out, all positions kept, (iv) the true one, which the scored segment
and it cannot attend to directly, only by way of [CLS] and [SEP]. (ii) - (i) is what the right context is worth,
(ii) - (iii) what a wrong one costs, (iv) - (i) what is seen directly.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import take_ragged
from data_pipeline.loader.packing import without_tokens
from data_pipeline.records import Examples
from data_pipeline.sequences.registry import pair_task
from pretrain.tasks.attention import Attention, controlled
from pretrain.tasks.base import Material, ScoreInputs, Scores, Untrained
from pretrain.tasks.encoders import chosen_device, projected_rows
from pretrain.tasks.held_out import (
    ExampleBatches,
    HeldOut,
    held_out_batches,
    judged,
    masked_logits,
    own_separators,
    segments_of,
    with_heads,
)
from pretrain.tasks.settings import EvaluationSettings

FOLLOWS = 0
"""Label of a pair whose B follows A."""
VARIANTS = ("true", "random", "none", "blocked")
SEGMENTS = ("segment_a", "segment_b")
BATCH_TOKENS = 8192
"""Tokens of a batch, whose examples take text of one another: the same on every device."""


class PairContext(Untrained):
    """The task `pairs`. Its items are examples."""

    has_precision = False

    def __init__(self) -> None:
        super().__init__("pairs", ".", "use_segment_b")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Open the shards of the folder. Raises UserError as the task `held_out` does, and where there are no pairs."""
        found = HeldOut().read(folder, settings)
        if pair_task(found.items[0].settings.get("sequences")) is None:
            raise UserError("holds no pairs", where=folder, expected="data.sequences=segment_pair")
        return found

    def score(self, inputs: ScoreInputs) -> dict[str, Any]:
        """Return for each scored segment the mean loss at [MASK] (nats) of each variant of the other one, as
        true_loss_segment_b, and use_, harm_ and cut_segment_b: random - true, random - none, blocked - true. Details:
        their standard errors, over examples, how many examples have a B that follows A, and in how many of these
        predictions of each segment are scored.

        Raises UserError where a segment has not two such examples: each takes another's text."""
        encoder, (index, chosen) = inputs.encoder, inputs.material.items
        separators = own_separators(encoder, index)
        device = chosen_device()
        model = with_heads(encoder, inputs.seed, device)
        batches = ExampleBatches(encoder, device)
        specials = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
        sums: dict[str, list[NDArray[np.float64]]] = {segment: [] for segment in SEGMENTS}
        donors, following = (Donors(), Donors()), 0
        for examples in held_out_batches(index, chosen, separators, BATCH_TOKENS):
            inputs.on_progress(len(examples))
            pairs = examples.take(np.flatnonzero(examples.labels == FOLLOWS))
            following += len(pairs)
            for segment, found in enumerate(sums.values()):
                given = scored_in(pairs, segment, encoder.tokenizer.mask_token_id)
                for one, source in donors[segment].of(given):
                    found.append(_losses(model, batches, one, source, segment, specials))
        if not all(sums.values()):
            raise UserError(
                "has no two pairs whose B follows A, with [MASK] in each segment",
                where=index.folder,
                expected="some, to take the text of one for another",
                remedy="a larger part, or more of data.held_out",
            )
        rows = {name: np.concatenate(found) for name, found in sums.items()}
        errors = {f"{k}_{name}": v for name, table in rows.items() for k, v in _errors(table).items()}
        return {
            "scores": _scores(rows),
            "trivial": {},
            "standard_errors": errors,
            "examples": {"dev": following},
            "scored": {name: len(table) for name, table in rows.items()},
        }


class Donors:
    """Finds other examples for those of each batch, whose text these are shown: those of the same batch, or, for an
    example that is alone in its batch, those of the batch before, or behind where there is none before."""

    def __init__(self) -> None:
        self._before: Examples | None = None
        self._waiting: Examples | None = None

    def of(self, given: Examples) -> list[tuple[Examples, Examples]]:
        """Return what can be scored now that the batch `given` is known, each with the examples to take text from,
        which are itself or others."""
        if not len(given):
            return []
        before, self._before = self._before, given
        source = given if len(given) > 1 else before
        found = [] if source is None else [(given, source)]
        if self._waiting is not None:
            found.append((self._waiting, given))
        self._waiting = given if source is None else None
        return found


@torch.no_grad()
def _losses(
    model: Any,
    batches: ExampleBatches,
    given: Examples,
    source: Examples,
    segment: int,
    specials: tuple[int, ...],
) -> NDArray[np.float64]:
    """Return for each example its number of predictions and their summed loss in each variant: (examples, 5)."""
    other, of_source = (
        ~np.isin(one.tokens, specials) & (segments_of(one) != segment) for one in (given, source)
    )
    alone = without_tokens(given, np.flatnonzero(other), keeps_positions=True)
    random = with_other_text(given, other, source, of_source)
    shown = {"true": given, "random": random, "none": alone, "blocked": given}
    owners = np.repeat(np.arange(len(given)), np.diff(given.masked_offsets))
    columns = [np.diff(given.masked_offsets).astype(np.float64)]
    for variant in VARIANTS:
        batch = batches.batch(shown[variant])
        attention = Attention()
        if variant == "blocked":
            longest = batch.inputs["input_ids"].shape[1]
            blocked = _between(given, other, segment, specials, batch.starts, longest)
            attention = Attention(blocked.to(batches.device))
        with controlled(model, attention), projected_rows(model, batch.owners, batch.places):
            output = model(**batch.inputs)
        logits = masked_logits(output)
        losses, _ = judged(logits, given.masked_ids.astype(np.int64))
        columns.append(np.bincount(owners, losses, minlength=len(given)).astype(np.float64))
    return np.stack(columns, 1)


def scored_in(examples: Examples, segment: int, mask: int) -> Examples:
    """Return the examples that show [MASK] in this segment, with these positions alone to be predicted."""
    owners = np.repeat(np.arange(len(examples)), np.diff(examples.masked_offsets))
    places = examples.offsets[owners] + examples.masked_positions
    wanted = (segments_of(examples)[places] == segment) & (examples.tokens[places] == mask)
    counts = np.bincount(owners[wanted], minlength=len(examples))
    found = replace(
        examples,
        masked_positions=examples.masked_positions[wanted],
        masked_ids=examples.masked_ids[wanted],
        masked_offsets=offsets_of(counts),
    )
    return found.take(np.flatnonzero(counts))


def with_other_text(
    examples: Examples, other: NDArray[np.bool_], source: Examples, of_source: NDArray[np.bool_]
) -> Examples:
    """Return the examples with the text at `other` replaced by as much of what is at `of_source` in the examples of
    `source`: where these are the same, those behind each, from the one half the batch away on."""
    count = len(source)
    lengths = np.add.reduceat(of_source, source.offsets[:-1])
    text, offsets = source.tokens[of_source], offsets_of(lengths)
    tokens = examples.tokens.copy()
    for number in range(len(examples)):
        order = [(number + count // 2 + n) % count for n in range(count)]
        if source is examples:
            order = [one for one in order if one != number]
        donors = take_ragged(np.array(order), offsets, text)[0]
        start, stop = examples.offsets[number], examples.offsets[number + 1]
        places = start + np.flatnonzero(other[start:stop])
        tokens[places] = np.resize(donors, len(places)) if len(donors) else tokens[places]
    return replace(examples, tokens=tokens)


def _between(
    examples: Examples,
    other: NDArray[np.bool_],
    segment: int,
    specials: tuple[int, ...],
    starts: NDArray[np.int64],
    longest: int,
) -> torch.Tensor:
    """Mark (query, key) pairs of one token of text in each segment: (examples, longest, longest) bool."""
    own = ~np.isin(examples.tokens, specials) & (segments_of(examples) == segment)
    rows = np.repeat(np.arange(len(examples)), examples.lengths)
    places = examples.places + np.repeat(starts, examples.lengths)
    tables = np.zeros((2, len(examples), longest), np.bool_)
    for table, marked in zip(tables, (own, other), strict=True):
        table[rows, places] = marked
    first, second = tables
    return torch.from_numpy((first[:, :, None] & second[:, None]) | (second[:, :, None] & first[:, None]))


def _scores(rows: dict[str, NDArray[np.float64]]) -> Scores:
    found: Scores = {}
    for name, table in rows.items():
        means = dict(zip(VARIANTS, (table[:, 1:].sum(0) / table[:, 0].sum()).tolist(), strict=True))
        found |= {f"{variant}_loss_{name}": loss for variant, loss in means.items()}
        found[f"use_{name}"] = means["random"] - means["true"]
        found[f"harm_{name}"] = means["random"] - means["none"]
        found[f"cut_{name}"] = means["blocked"] - means["true"]
    return found


def _errors(table: NDArray[np.float64]) -> dict[str, float]:
    """Return the standard errors of the differences, as of a ratio of sums over examples."""
    counts, losses = table[:, 0], dict(zip(VARIANTS, table[:, 1:].T, strict=True))
    found = {}
    for name, (one, base) in {
        "use": ("random", "true"),
        "harm": ("random", "none"),
        "cut": ("blocked", "true"),
    }.items():
        differences = losses[one] - losses[base]
        rest = differences - counts * differences.sum() / counts.sum()
        found[name] = float(np.sqrt((rest**2).sum()) / counts.sum())
    return found

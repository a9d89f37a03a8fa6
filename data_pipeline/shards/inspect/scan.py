"""Scan a folder of shards for facts about every example, and verify all hashes.

    verified blocks -> one compiled pass over their columns -> counts by split -> facts, and what they mean

Memory is bounded at any size: counts, one block, and at most repeats.KEPT hashes. rules.py judges the facts, text.py
shows them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import jit
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.records import REQUIRED, Examples, ShowProgress
from data_pipeline.rng import MULTIPLIER, finalize
from data_pipeline.sequences.registry import label_names
from data_pipeline.shards.index import INDEX, SPLITS, Index, Split
from data_pipeline.shards.inspect.repeat_counter import Repeats
from data_pipeline.shards.inspect.rules import findings
from data_pipeline.shards.padding_cost import PaddingCounter
from data_pipeline.shards.schema import MAX_TOKENS, VocabularyStamp
from data_pipeline.shards.statistics import text_share
from data_pipeline.shards.writer import BlockReader, tokenizer_problem, verified_blocks

BATCH = 32
"""Default batch size, in examples, for counting padding."""
HISTOGRAM_BINS = 16
NAMED = 10
"""Maximum damaged files that an error names."""


def lint(
    index: Index, stage: ShowProgress, batch: int = BATCH, plan: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return everything that `maskmill inspect` reports about shards, as JSON values. `plan`: `steps`, `global_batch`
    and `examples` (of all steps) of a training, `dynamic_masking` 0 or 1.

    Raises UserError that names missing or damaged files."""
    if batch < 1:
        raise UserError(f"must be 1 example or more, got {batch}", where="--batch")
    splits = _scanned(index, stage, batch)
    facts: dict[str, Any] = {
        "kind": "shards",
        "documents": documents(index),
        "splits": splits,
        "statistics": dict(index.statistics),
        "settings": dict(index.settings),
        "vocabulary": index.vocabulary._asdict(),
        "identity": index.identity,
        "hashes": "all hold",
        "not_sealed": [] if index.is_sealed else [INDEX],
    }
    if plan is not None:
        examples = index.train.examples
        facts["plan"] = {**plan, "epochs": plan["examples"] / max(examples, 1)}
    for name, split in splits.items():
        split["text_share"] = text_share(index.statistics.get(name))
    facts["findings"] = findings(facts)
    return facts


def documents(index: Index) -> int | None:
    """Return the number of documents that the examples were made from; None if index.json does not say."""
    reading = index.statistics.get("reading")
    if not isinstance(reading, dict) or not isinstance(reading.get("documents"), int):
        return None
    without = reading.get("documents_without_tokens", 0)
    return reading["documents"] - (without if isinstance(without, int) else 0)


def _scanned(index: Index, stage: ShowProgress, batch: int) -> dict[str, Any]:
    """Gather facts by split. All files are read before an error names the damaged ones."""
    damaged = [error for error in [tokenizer_problem(index)] if error]
    scans = {name: _Scan(index, index.splits[name], batch) for name in SPLITS}
    total = sum(len(split.shards) for split in index.splits.values())
    with stage("reading shards", total) as advance:
        for scan in scans.values():
            reader = BlockReader(index, scan.split)
            for number in range(len(scan.split.shards)):
                try:
                    for block in verified_blocks(reader, number):
                        scan.add(block)
                except UserError as error:
                    damaged.append(error)
                advance(1)
    if len(damaged) == 1:
        raise damaged[0]
    if damaged:
        names = ", ".join(error.where.rsplit("/", 1)[-1] for error in damaged[:NAMED])
        raise UserError(
            f"{len(damaged)} damaged files: {names}{', ...' if len(damaged) > NAMED else ''}; "
            f"the first: {damaged[0].what}",
            where=index.folder,
            remedy="copy or prepare the shards again",
        )
    return {name: scan.facts() for name, scan in scans.items()}


class _Scan:
    """Counts over the blocks of one split."""

    def __init__(self, index: Index, split: Split, batch: int) -> None:
        self.index, self.split = index, split
        self.room = max(_setting(index, "sequence_length"), split.max_tokens, 1)
        width = _setting(index, "bin_width") or -(-self.room // 8)
        self.padding = PaddingCounter(batch, width, self.room)
        self.repeats = Repeats()
        self.lengths = np.zeros(self.room + 1, np.int64)  # examples of each length
        self.ids = np.zeros(index.vocabulary.size, np.int64)  # tokens of each id, before masking
        self.names = label_names(index.settings.get("sequences"))
        self.labels = np.zeros(len(self.names) + 1, np.int64)  # examples of each label; last: without one
        self.tally = np.zeros(len(_TALLY), np.int64)

    def add(self, block: Examples) -> None:
        hashes = np.empty(len(block), np.uint64)
        columns = tuple(getattr(block, name) for name in REQUIRED)
        _count(columns, self.index.vocabulary.mask, self.lengths, self.ids, self.labels, self.tally, hashes)
        self.repeats.add(hashes)
        self.padding.add(block.lengths)

    def facts(self) -> dict[str, Any]:
        split, tally = self.split, dict(zip(_TALLY, self.tally.tolist(), strict=True))
        masked = max(split.masked, 1)
        return {
            "shards": len(split.shards),
            "examples": split.examples,
            "tokens": split.tokens,
            "masked": split.masked,
            "labels": dict(zip((*self.names, "none"), self.labels.tolist(), strict=True)),
            "second_segments": tally["second_segments"],
            "lengths": self._lengths(),
            "masks": {
                "share_of_tokens": split.masked / max(split.tokens, 1),
                **_asked(self.lengths, self.index.settings, split.tokens),
                "an_example": split.masked / max(split.examples, 1),
                "most": split.max_masked,
                "examples_without": tally["unmasked"],
                **{kind: tally[kind] / masked for kind in ("mask", "random_token", "kept")},
            },
            "vocabulary": _words(self.ids, self.index.vocabulary),
            "repeats": self.repeats.result(),
            "padding": self._padding(),
        }

    def _lengths(self) -> dict[str, Any]:
        found = np.flatnonzero(self.lengths)
        edges = [self.room * i // HISTOGRAM_BINS for i in range(HISTOGRAM_BINS + 1)]
        sums = offsets_of(self.lengths[1:])
        return {
            "shortest": int(found[0]) if len(found) else 0,
            "longest": self.split.max_tokens,
            "mean": self.split.tokens / max(self.split.examples, 1),
            "distinct": len(found),
            "room": self.room,
            "up_to": edges[1:],
            "histogram": np.diff(sums[edges]).tolist(),
        }

    def _padding(self) -> dict[str, Any]:
        cost = self.padding.result()._asdict()
        full = {f"{way}_full": self.split.tokens / max(tokens, 1) for way, tokens in cost.items()}
        return {"batch": self.padding.batch, "bin_width": self.padding.bin_width, **cost, **full}


def _setting(index: Index, name: str) -> int:
    """Return a setting that counts tokens; 0 if index.json, which others may write, lacks it."""
    value = index.settings.get(name)
    return value if isinstance(value, int) and 0 <= value <= MAX_TOKENS else 0


def _asked(lengths: np.ndarray, settings: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Compute what the settings ask for in examples of these lengths: the share of `tokens` to predict by the rate
    alone, the same under the cap, and how many examples the cap takes tokens from. Zeros if the settings do not say."""
    budget = MaskBudget.stored(settings)
    if budget is None:
        return {"expected_share": 0.0, "capped_share": 0.0, "capped_examples": 0}
    room = np.arange(len(lengths))
    wanted, left = budget.uncapped(room), budget.counts(room)
    return {
        "expected_share": float(wanted @ lengths) / max(tokens, 1),
        "capped_share": float(left @ lengths) / max(tokens, 1),
        "capped_examples": int(lengths[left < wanted].sum()),
    }


def _words(ids: np.ndarray, stamp: VocabularyStamp) -> dict[str, Any]:
    special = np.zeros(len(ids), bool)
    special[[stamp.cls, stamp.sep, stamp.mask, stamp.pad, stamp.unk]] = True
    words, text = int((~special).sum()), int(ids[~special].sum() + ids[stamp.unk])
    unseen = int((ids[~special] == 0).sum())
    return {
        "entries": len(ids),
        "never_seen": unseen,
        "never_seen_share": unseen / max(words, 1),
        "text_tokens": text,
        "unknown_tokens": int(ids[stamp.unk]),
        "unknown_share": int(ids[stamp.unk]) / max(text, 1),
    }


_TALLY = ("second_segments", "unmasked", "mask", "random_token", "kept")


@jit
def _count(columns, mask, lengths, ids, label_counts, tally, hashes):
    """Add a block to the counts, and write a hash of each example's tokens before masking."""
    tokens, offsets, first_lengths, labels, positions, masked_ids, masked_offsets = columns
    for i in range(len(labels)):
        start, stop = offsets[i], offsets[i + 1]
        lengths[stop - start] += 1
        label_counts[labels[i]] += 1  # -1, no label, is the last one
        tally[0] += np.int64(first_lengths[i]) < stop - start
        m, last = masked_offsets[i], masked_offsets[i + 1]
        tally[1] += m == last
        state = np.uint64(stop - start)
        for t in range(start, stop):
            token = tokens[t]
            if m < last and start + np.int64(positions[m]) == t:
                if token == mask:
                    tally[2] += 1
                elif token == masked_ids[m]:
                    tally[4] += 1
                else:
                    tally[3] += 1
                token = masked_ids[m]
                m += 1
            ids[token] += 1
            state = (state ^ (np.uint64(token) + np.uint64(1))) * MULTIPLIER
            state ^= state >> np.uint64(31)
        hashes[i] = finalize(state)  # the lowest bits choose a sample

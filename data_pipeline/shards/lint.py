"""Scan a folder of shards for facts about every example, verify all hashes, and derive warnings from the facts.

    verified blocks -> one compiled pass over their columns -> counts by split -> facts, and what they mean

Memory is bounded at any size: counts, one block, and at most KEPT hashes. show.py shows the facts.

Each rule takes the facts of one split, its name and all facts, and yields findings: what the problem is, and what to
do. They are warnings only: the shards can be read, and what is right for one study is a mistake in another.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import jit
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.records import REQUIRED, Examples, ShowProgress
from data_pipeline.rng import MULTIPLIER, finalize
from data_pipeline.sequences.registry import UNLABELLED, label_names, pair_task
from data_pipeline.settings import UNMASKED, setting_of
from data_pipeline.shards.index import INDEX, MAX_TOKENS, SPLITS, Index, Split, VocabularyStamp
from data_pipeline.shards.shard import BlockReader, tokenizer_problem, verified_blocks
from data_pipeline.shards.statistics import PaddingCounter, held_out_note, text_share

# Count repeated examples from 64-bit hashes, added in parts, in bounded memory.

KEPT = 1 << 24
"""Maximum hashes kept, 128 MB (twice that while they are sorted); beyond it, a sample is kept."""


class Repeats:
    """Counts repeats exactly up to KEPT examples; beyond, only among hashes that end in enough zero bits that at
    most KEPT remain. Equal examples have equal hashes, so the sample holds all copies of every example in it."""

    def __init__(self, most: int = KEPT) -> None:
        self.most, self.zeros = most, 0
        self._parts: list[NDArray[np.uint64]] = []
        self._kept = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of more examples."""
        self._parts.append(self._sampled(hashes))
        self._kept += len(self._parts[-1])
        while self._kept > self.most:
            self.zeros += 1
            self._parts = [self._sampled(part) for part in self._parts]
            self._kept = sum(map(len, self._parts))

    def result(self) -> dict[str, int | float]:
        """Return `examined` examples, one in `one_in` of all; the `share` of them that repeat an earlier one; and
        `most_copies`, the maximum copies of one example."""
        hashes = np.sort(np.concatenate([np.zeros(0, np.uint64), *self._parts]))
        firsts = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1])) if len(hashes) else hashes
        copies = np.diff(np.append(firsts, len(hashes)))
        return {
            "examined": len(hashes),
            "one_in": 2**self.zeros,
            "share": 1 - len(firsts) / len(hashes) if len(hashes) else 0.0,
            "most_copies": int(copies.max()) if len(hashes) else 0,
        }

    def _sampled(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        if not self.zeros:
            return hashes
        return hashes[hashes & np.uint64((1 << self.zeros) - 1) == 0]


# Derive findings from the facts.

SHORT = 0.3
"""Examples are short if they fill less than this share of the sequence length on average."""
UNKNOWN = 0.01
"""Maximum share of unknown tokens with a fitting vocabulary."""
UNSEEN = 0.5
"""Share of the vocabulary that may never occur."""
FEWER_LABEL = 0.2
"""Minimum share of the rarer label: below it, always predicting the other one is right too often."""
CAPPED = 0.01
"""Share of the tokens to predict that data.max_predictions may drop without a warning."""
RATE_OFF = 0.2
"""Relative tolerance of the mask rate against the settings."""
KIND_OFF = 0.02
"""Tolerance of the share of each mask kind against its setting, beyond four standard errors."""
MAX_UNMASKED_SHARE = 0.01
"""Maximum share of examples without a mask."""
INVALID = 1e-4
"""Invalid characters per byte of text that suggest a wrong encoding."""
SAME_MASKS = 10
"""Maximum times that training sees one example with the same masks; 4 in Liu et al. 2019 (RoBERTa, section 4.1)."""
JUDGED = 20
"""Minimum examples for shares to be checked."""

Facts = Mapping[str, Any]
Finding = tuple[str, str]


def findings(facts: Facts) -> list[dict[str, str]]:
    """Return every finding: its `split` (empty: all), `what` is wrong, and the `remedy`."""
    found = [
        {"split": "", "what": what, "remedy": remedy} for what, remedy in (*_source(facts), *_plan(facts))
    ]
    for name, split in facts["splits"].items():
        if split["examples"]:
            for rule in (_labels, _masks, _lengths, _words, _repeats, _recorded):
                found += [{"split": name, "what": w, "remedy": r} for w, r in rule(split, name, facts)]
    return found


def _source(facts: Facts) -> Iterator[Finding]:
    if not facts["splits"]["train"]["examples"]:
        yield "there is no training example", "prepare more text"
    if finding := one_document(facts["documents"], facts["settings"]):
        yield finding
    if few := held_out_note(facts["statistics"]):
        yield few, "raise data.held_out, or add text, and prepare again; part long texts into documents"
    reading = facts["statistics"].get("reading")
    if isinstance(reading, dict):
        invalid, size = (_number(reading.get(name)) for name in ("invalid_characters", "bytes"))
        if invalid > INVALID * size:
            became = "were dropped" if facts["settings"].get("mode") == "exact" else "became U+FFFD"
            yield (
                f"{invalid:,.0f} byte sequences were no UTF-8 and {became}: the text may be of another encoding",
                "convert the sources to UTF-8 (iconv) and prepare again",
            )


def one_document(documents: int | None, settings: Mapping[str, Any]) -> Finding | None:
    """Return the finding about shards of so many documents, if they are of one."""
    if documents != 1:
        return None
    pairs = (
        ", and the second segments of pairs that are labelled random are of it too, as in BERT's script"
        if settings.get("mode") == "exact"
        else ""
    )
    return (
        f"all examples come from one document, so that nothing is known of other text{pairs}",
        "part the text: data.documents=blank_line and a blank line between documents, or more files",
    )


def _plan(facts: Facts) -> Iterator[Finding]:
    plan = facts.get("plan")
    if plan and not plan["dynamic_masking"] and plan["epochs"] > SAME_MASKS:
        yield (
            f"the recipe takes {plan['epochs']:,.0f} epochs: it sees every example so often with the same masks",
            "data.dynamic_masking=true re-masks at each epoch, data.dupe_factor makes more examples of the text",
        )


def _labels(split: Facts, _name: str, facts: Facts) -> Iterator[Finding]:
    labels = split["labels"]
    task = pair_task(facts["settings"].get("sequences"))
    remedy = "check data.documents and data.sentences: documents of one sentence give random pairs only"
    if task and not task.random_next:
        remedy = "the shards are not what their settings say: prepare them again"
    *counts, none = labels.values()
    commonest = max(labels, key=lambda name: labels[name] if name != "none" else -1)
    pairs = sum(counts)
    if pairs and not split["second_segments"] and facts["settings"].get("segment_ids") is not False:
        yield (
            f"all segment ids are equal: {pairs:,} examples have a label, none has a second segment",
            "prepare with data.sequences=segment_pair and data.segment_ids=true, or train with objective.name=mlm",
        )
    if pairs >= JUDGED and max(counts) == pairs:
        yield f"all pairs have one label ({commonest}): there is nothing to tell apart", remedy
    elif pairs >= JUDGED and min(counts) < FEWER_LABEL * pairs:
        share = f"{max(counts) / pairs:.0%} of the pairs have one label ({commonest})"
        yield f"{share}: always giving that answer is nearly right", remedy
    if pairs and none:
        yield (
            f"{none:,} of {split['examples']:,} examples have no label, the others have one",
            "the shards are of two kinds: prepare them in one folder each",
        )


def _masks(split: Facts, _name: str, facts: Facts) -> Iterator[Finding]:
    masks, settings = split["masks"], facts["settings"]
    if settings.get("masking") == UNMASKED:
        if split["masked"]:
            yield (
                f"{split['masked']:,} tokens are to be predicted, where data.masking={UNMASKED}",
                "the shards are not what their settings say: prepare them again",
            )
        return
    if not split["masked"]:
        yield (
            "masks are missing: no token of any example is to be predicted",
            "train with data.dynamic_masking=true, or prepare with data.masked_lm_prob above 0",
        )
        return
    if masks["examples_without"] > MAX_UNMASKED_SHARE * split["examples"]:
        yield (
            f"{masks['examples_without']:,} examples have no token to predict",
            "they cost time and teach nothing: raise data.masked_lm_prob, or look for very short sentences",
        )
    asked, expected, share = masks["expected_share"], masks["capped_share"], masks["share_of_tokens"]
    if asked and expected / asked < 1 - CAPPED:
        yield (
            f"data.max_predictions={settings['max_predictions']} caps what is predicted in "
            f"{masks['capped_examples'] / split['examples']:.0%} of the examples: {share:.1%} of the tokens, where "
            f"data.masked_lm_prob={settings['masked_lm_prob']} asks for {asked:.1%}",
            "data.max_predictions=0 lifts the cap: prepare again; if it is meant, nothing",
        )
    if expected and abs(share / expected - 1) > RATE_OFF and split["examples"] >= JUDGED:
        cap = (
            f" and data.max_predictions={settings['max_predictions']} give" if expected < asked else " gives"
        )
        yield (
            f"{share:.1%} of the tokens are masked, where data.masked_lm_prob={settings['masked_lm_prob']}{cap} "
            f"{expected:.1%}",
            "long words or units may not fit into what is left: see data.masking, data.whole_word, data.max_span",
        )
    for kind, name in (("mask", "mask_prob"), ("random_token", "random_prob")):
        wanted = settings.get(name)
        if isinstance(wanted, int | float) and 0 <= wanted <= 1:
            # phrases are replaced together within an example, so examples are the independent samples
            error = KIND_OFF + 4 * sqrt(max(wanted * (1 - wanted), 0.01) / split["examples"])
            if abs(masks[kind] - wanted) > error:
                yield (
                    f"{masks[kind]:.1%} of the masked tokens are {'[MASK]' if kind == 'mask' else 'random ones'}, "
                    f"where {setting_of(name)}={wanted}",
                    "the shards are not what their settings say: prepare them again",
                )


def _lengths(split: Facts, _name: str, facts: Facts) -> Iterator[Finding]:
    lengths, sequences = split["lengths"], facts["settings"].get("sequences")
    if lengths["distinct"] == 1 and split["examples"] > 1 and sequences != "full_sentences":
        yield (
            f"every example has {lengths['longest']} tokens",
            "a model sees no other length: check data.sentences, and data.short_seq_prob above 0",
        )
    if lengths["mean"] < SHORT * lengths["room"]:
        yield (
            f"examples are short: {lengths['mean']:.0f} tokens on average, where {lengths['room']} fit",
            "check data.documents (lines taken for documents?), lower data.sequence_length, or use full_sentences",
        )


def _words(split: Facts, name: str, _facts: Facts) -> Iterator[Finding]:
    words = split["vocabulary"]
    if words["unknown_share"] > UNKNOWN:
        yield (
            f"{words['unknown_share']:.1%} of the text's tokens are unknown to the vocabulary",
            "train one on this text with `maskmill vocab`, and check its language and lower-casing",
        )
    # fewer tokens than entries cannot show all of them
    enough = words["text_tokens"] > 100 * words["entries"]
    if name == "train" and enough and words["never_seen_share"] > UNSEEN:
        yield (
            f"{words['never_seen_share']:.0%} of the vocabulary's entries never occur: their vectors learn nothing",
            "train a vocabulary on this text with `maskmill vocab`, with fewer entries (vocabulary.size)",
        )


def _repeats(split: Facts, _name: str, facts: Facts) -> Iterator[Finding]:
    repeats, passes = split["repeats"], facts["settings"].get("dupe_factor", 1)
    passes = passes if isinstance(passes, int) and passes > 0 else 1
    unique = 1 - repeats["share"]
    # without short sequences each pass may cut the same ones: that many copies are expected
    if repeats["examined"] >= JUDGED and unique * passes < 0.5:
        yield (
            f"{repeats['share']:.0%} of the examples repeat another one, masks aside; one occurs "
            f"{repeats['most_copies']:,} times",
            "drop repetitions with data.duplicates=both, or look for boilerplate in the sources",
        )


def _recorded(split: Facts, name: str, facts: Facts) -> Iterator[Finding]:
    recorded = facts["statistics"].get(name)
    if not isinstance(recorded, dict):
        return
    labels = split["labels"]
    sequences = facts["settings"].get("sequences")
    found = {
        "examples": split["examples"],
        "tokens": split["tokens"],
        "masked": split["masked"],
        "single_sequences": labels["none"] - (split["second_segments"] if sequences in UNLABELLED else 0),
    }
    if pair_task(sequences):
        found["pair_labels"] = {name: count for name, count in labels.items() if name != "none"}
    differing = [key for key, count in found.items() if recorded.get(key, count) != count]
    if differing:
        yield (
            f"the statistics in index.json are not those of the examples: {', '.join(differing)} differ",
            "another program wrote them: trust the figures above",
        )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


# Gather the facts of all splits.

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
            "vocabulary": _counted_words(self.ids, self.index.vocabulary),
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


def _counted_words(ids: np.ndarray, stamp: VocabularyStamp) -> dict[str, Any]:
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

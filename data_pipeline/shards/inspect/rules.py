"""Derive warnings from the facts that the linter gathered.

Each rule takes the facts of one split, its name and all facts, and yields findings: what the problem is, and what to
do. They are warnings only: the shards can be read, and what is right for one study is a mistake in another.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any

from data_pipeline.sequences.registry import UNLABELLED, pair_task
from data_pipeline.settings import UNMASKED
from data_pipeline.shards.statistics import held_out_note

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
    """Yield every finding: its `split` (empty: all), `what` is wrong, and the `remedy`."""
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
                    f"where data.{name}={wanted}",
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

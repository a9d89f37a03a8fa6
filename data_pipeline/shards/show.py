"""Show a folder of shards in a terminal: single examples, and the facts and findings that the linter gathered."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.records import NO_LABEL, Examples
from data_pipeline.sequences.registry import UNLABELLED, label_names, pair_task
from data_pipeline.shards.index import TOKENIZER, Index
from data_pipeline.shards.shard import BlockReader
from data_pipeline.shards.statistics import text_note

# Show single examples as text, or with the keys of google-research/bert's instances.


def label_meanings(sequences: object) -> dict[int, str]:
    """Return what each label means for these sequences, for people."""
    task = pair_task(sequences)
    meanings = task.meanings if task else [f"label {name}" for name in label_names(sequences)]
    unlabelled = "no label" if sequences in UNLABELLED else "one segment"
    return dict(enumerate(meanings)) | {NO_LABEL: unlabelled}


def printed_examples(index: Index, split: str, count: str, as_json: bool) -> Iterator[str]:
    """Yield the first `count` (a number, or `all`) examples of a split, each as text or a line of JSON. Raises
    UserError for an invalid count or split."""
    if split not in index.splits:
        raise UserError(f"no split {split!r}", where=index.folder, expected=", ".join(index.splits))
    if count != "all" and not (count.isascii() and count.isdecimal() and len(count) <= 18):
        raise UserError(f"got {count}", where="--examples", expected="a number, or all")
    left = index.splits[split].examples if count == "all" else int(count)
    words = [] if as_json else words_of(index)
    names = label_meanings(index.settings.get("sequences"))
    blocks = BlockReader(index, index.splits[split]).all_blocks()
    each = ((block, number) for block in blocks for number in range(len(block)))
    for block, number in islice(each, min(left, index.splits[split].examples)):
        yield json.dumps(as_instance(block, number)) if as_json else rendered(block, number, words, names)


def words_of(index: Index) -> list[str]:
    """Return the pieces of the shards' vocabulary, by id; a number for an id that tokenizer.json does not name."""
    words = [f"<{number}>" for number in range(index.vocabulary.size)]
    try:
        tokenizer = json.loads(read_bytes(index.path(TOKENIZER)))
        pieces = tokenizer["model"]["vocab"]
        if not isinstance(pieces, dict):  # a unigram model's: [piece, score] by id
            pieces = {piece: number for number, (piece, _) in enumerate(pieces)}
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens", ())}
        for piece, number in (pieces | added).items():
            if 0 <= number < len(words):
                words[number] = str(piece)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # written elsewhere: the hash matches, but the model's layout is unknown here
    return words


def rendered(examples: Examples, number: int, words: list[str], names: dict[int, str]) -> str:
    """Format one example as text: what the encoder sees, and what it has to predict."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    shown = " ".join(words[i] for i in examples.tokens[span])
    wanted = " ".join(words[i] for i in examples.masked_ids[masked])
    return f"one example ({names[int(examples.labels[number])]}):\n  {shown}\nto find:\n  {wanted}"


def as_instance(examples: Examples, number: int) -> dict[str, Any]:
    """Return one example with the keys of google-research/bert's instances."""
    span = slice(examples.offsets[number], examples.offsets[number + 1])
    masked = slice(examples.masked_offsets[number], examples.masked_offsets[number + 1])
    length, first = span.stop - span.start, int(examples.first_lengths[number])
    return {
        "input_ids": examples.tokens[span].tolist(),
        "segment_ids": [0] * first + [1] * int(length - first)
        if examples.segment_ids is None
        else examples.segment_ids[span].tolist(),
        "is_random_next": bool(examples.labels[number] == 1),
        "masked_lm_positions": examples.masked_positions[masked].tolist(),
        "masked_lm_ids": examples.masked_ids[masked].tolist(),
    }


# Format the linter's facts and findings.

BAR = 40
"""Characters of the longest bar of a histogram."""


def report(facts: Mapping[str, Any]) -> str:
    """Format the linter's facts and findings for people."""
    return "\n".join(_lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    count = facts["documents"]
    if count is not None:
        yield f"documents   {count:,}"
    for name, split in facts["splits"].items():
        if split["examples"]:
            yield from _split(name, split, facts)
    if plan := facts.get("plan"):
        yield (
            f"recipe      {plan['steps']:,} steps of {plan['global_batch']:,} examples: {plan['epochs']:,.2f} epochs"
        )
    yield f"identity    {facts['identity']}"
    yield f"hashes      {facts['hashes']}"
    for name in facts["not_sealed"]:
        yield f"not sealed  {name}, written before it had a sha256 of its own: a change of it would not show"
    yield ""
    if not facts["findings"]:
        yield "nothing to object to"
    for finding in facts["findings"]:
        where = f"{finding['split']}: " if finding["split"] else ""
        yield f"! {where}{finding['what']}"
        yield f"    what to do: {finding['remedy']}"


def _split(name: str, split: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    masks, words, repeats = split["masks"], split["vocabulary"], split["repeats"]
    padding, lengths = split["padding"], split["lengths"]
    yield f"{name:<11} {split['examples']:,} examples, {split['tokens']:,} tokens, {_shards(split['shards'])}"
    meanings = label_meanings(facts["settings"].get("sequences")).values()
    counts = zip(meanings, split["labels"].values(), strict=True)
    shares = [(text, count / split["examples"]) for text, count in counts]
    yield f"  labels    {', '.join(f'{text} {share:.1%}' for text, share in shares if share)}"
    recorded = facts["statistics"].get(name)
    yield f"  text      {text_note(recorded)}"
    for key, value in recorded.items() if isinstance(recorded, dict) else ():
        if "language" in key:
            yield f"  {key.replace('_', ' ')}: {_value(value)}"
    yield (
        f"  lengths   {lengths['mean']:.1f} tokens on average, {lengths['shortest']} to {lengths['longest']}; "
        f"{lengths['room']} fit"
    )
    yield from bars(lengths["histogram"], lengths["up_to"])
    yield (
        "  masks     none"
        if not split["masked"]
        else (
            f"  masks     {masks['share_of_tokens']:.2%} of tokens, {masks['an_example']:.1f} an example, at most "
            f"{masks['most']}: [MASK] {masks['mask']:.1%}, random {masks['random_token']:.1%}, kept {masks['kept']:.1%}"
        )
    )
    if masks["capped_examples"]:
        yield (
            f"            the cap data.max_predictions={facts['settings']['max_predictions']} binds in "
            f"{masks['capped_examples'] / split['examples']:.1%} of examples; without it the settings ask for "
            f"{masks['expected_share']:.2%}"
        )
    yield (
        f"  words     {words['never_seen_share']:.1%} of {words['entries']:,} entries never seen; "
        f"{words['unknown_share']:.3%} of tokens unknown"
    )
    sample = f" (of one example in {repeats['one_in']:,})" if repeats["one_in"] > 1 else ""
    yield f"  repeats   {repeats['share']:.2%} of examples repeat another one, masks aside{sample}"
    yield (
        f"  padding   of batches of {padding['batch']:,}, tokens fill {padding['padded_full']:.1%} padded to the "
        f"longest, {padding['binned_full']:.1%} from bins of {padding['bin_width']}, {padding['packed_full']:.1%} "
        f"packed by first fit"
    )


def bars(counts: list[int], up_to: list[int]) -> Iterator[str]:
    """Yield a histogram, one line per bin; `up_to`: the last value of each."""
    most, total = max(counts) or 1, sum(counts) or 1
    for count, edge in zip(counts, up_to, strict=True):
        yield f"    <={edge:>5} {'█' * round(BAR * count / most):<{BAR}} {count / total:6.1%}"


def _shards(count: int) -> str:
    return f"{count:,} shard{'' if count == 1 else 's'}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        parts = {k: f"({_value(v)})" if isinstance(v, dict) else _value(v) for k, v in value.items()}
        return ", ".join(f"{key} {part}" for key, part in parts.items())
    return f"{value:,}" if isinstance(value, int | float) else str(value)

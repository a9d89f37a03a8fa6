"""Print the facts that the linter gathered as lines for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from data_pipeline.shards.inspect.show_examples import label_meanings
from data_pipeline.shards.statistics import text_note

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

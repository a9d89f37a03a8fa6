"""Show what the new words of an extended vocabulary save."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

SHOWN = 15
"""Words in the table: those that save the most."""


def shown(facts: Mapping[str, Any]) -> Group:
    """Return a table of the words that save the most, and figures of all, from the content of new_words.json."""
    text, old = facts["text"], facts["extends"]
    words = [entry for entry in facts["entries"] if "word" in entry]
    before, after = (1000 * text[f"tokens_{when}"] / text["words"] for when in ("before", "after"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("new word")
    for name in ("occurrences", "old pieces", "tokens saved per 1,000 words"):
        table.add_column(name, justify="right")
    for entry in words[:SHOWN]:
        saved = f"{entry['saved_per_thousand_words']:.2f}"
        pieces = str(len(entry["old_ids"]) or "unknown")
        table.add_row(escape(entry["word"]), f"{entry['occurrences']:,}", pieces, saved)
    if len(words) > SHOWN:
        table.add_row(f"and {len(words) - SHOWN:,} more", "", "", "")
    table.add_section()
    table.add_row("all, measured", f"{text['words']:,} words", "", f"{before - after:.2f}")
    share = text["words_cut_otherwise"] / text["words"]
    parts = len(facts["entries"]) - len(words)
    between = f" and {parts:,} pieces that merges make on the way to them" if parts else ""
    unknown = sum(not entry["old_ids"] for entry in words)
    told = (
        f" {unknown:,} of the new words were unknown to the old vocabulary: chosen as if it cut them into their "
        "characters, and a model starts them with fresh vectors."
    )
    return Group(
        table,
        f"{len(words):,} new words{between} behind {old['size']:,} old entries. Tokens per 1,000 words: {before:,.1f} "
        f"before, {after:,.1f} after. {share:.2%} of the words hold no new word and are cut otherwise than before."
        + (told if unknown else ""),
    )

"""Say what of the sources is not read, and why: as lines for people, and as JSON for prepare.log.json.

Listing the sources finds the files that are left out; reading them adds `bad_records`, the records that
data.bad_records=skip left out, and `doubtful`, files with many invalid bytes or control characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NAMED = 5
"""Files that are named; the others are counted."""


@dataclass
class PassedOver:
    """What a listing of the sources leaves unread. Names are relative to the source's root."""

    other_kinds: list[str] = field(default_factory=list)
    """Files whose suffix or content names no format that is read."""
    special: list[str] = field(default_factory=list)
    """Devices, FIFOs and sockets."""
    saved: list[str] = field(default_factory=list)
    """Of each folder that Hugging Face `datasets` wrote: what is taken, and what is left."""
    unlisted: int = 0
    """Files in such folders that no description names."""
    has_splits: bool = False
    """Whether a source has splits, so that data.split means something."""

    def summary(self) -> dict[str, Any]:
        """Return counts and first names as JSON values."""
        return {
            "files": len(self.other_kinds),
            "first": self.other_kinds[:NAMED],
            "special": {"files": len(self.special), "first": self.special[:NAMED]},
            "saved": {"sets": len(self.saved), "first": self.saved[:NAMED], "unlisted_files": self.unlisted},
        }


def lines(summary: dict[str, Any]) -> list[str]:
    """Format a summary for people: a line for each reason. One of an older version has fewer entries."""
    found = []
    reasons = (
        (summary, "file of other kinds", "files of other kinds"),
        (summary.get("special") or {}, "device, FIFO or socket", "devices, FIFOs or sockets"),
    )
    for entry, one, many in reasons:
        if count := entry.get("files", 0):
            names = some(entry.get("first", []), count)
            found.append(f"skipped {count:,} {one if count == 1 else many}: {names}")
    for entry, what in (
        (summary.get("bad_records"), "record|s that could not be read:"),
        (summary.get("doubtful"), "file|s of another encoding, or of no text at all:"),
    ):
        if entry and (count := entry.get("files", 0)):
            one, many = what.partition("|")[0], what.partition("|")[2]
            verb = "skipped" if one == "record" else "read"
            found.append(f"{verb} {count:,} {one}{many if count > 1 else many[1:]}")
            first = entry.get("first", [])
            found += [f"  {line}" for line in (*first, *(["..."] if count > len(first) else []))]
    saved = summary.get("saved") or {}
    found += [f"data set {line}" for line in saved.get("first", [])]
    if (more := saved.get("sets", 0) - len(saved.get("first", []))) > 0:
        found.append(f"{more:,} more data sets that Hugging Face `datasets` saved: as their state.json says")
    return found


def is_summary(value: Any) -> bool:
    """Return whether a value of prepare.log.json, which others may write, is a summary."""
    kinds = ("special", "saved", "bad_records", "doubtful")
    parts = [value, *(value.get(kind, {}) for kind in kinds)] if isinstance(value, dict) else [None]
    return all(
        isinstance(part, dict)
        and all(isinstance(part.get(key, 0), int) for key in ("files", "sets", "unlisted_files"))
        and isinstance(names := part.get("first", []), list)
        and all(isinstance(name, str) for name in names)
        for part in parts
    )


def some(names: Sequence[str], count: int = 0) -> str:
    """Join the first names; `count` of all, where `names` are only the first."""
    first = ", ".join(names[:NAMED])
    return first + (", ..." if max(count, len(names)) > len(names[:NAMED]) else "")

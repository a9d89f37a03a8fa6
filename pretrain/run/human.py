"""Format seconds, bytes and tables for people."""

from collections.abc import Iterable, Sequence


def duration(seconds: float | None) -> str:
    """Format seconds: 42 s, 3 min 5 s, 2 h 10 min, 4 d 3 h; empty if they are unknown or negative."""
    if seconds is None or seconds < 0:
        return ""
    whole = round(seconds)
    for size, unit, next_size, next_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"


def in_bytes(count: float) -> str:
    """Format bytes: 12 kB, 136.7 MB, 66.5 GB, 1.2 TB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

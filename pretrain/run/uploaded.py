"""Record in wandb_uploaded.json how many lines of metrics.jsonl W&B was given.

A point that is handed to W&B is not yet on the server: a kill, or a server that goes away, loses those on the way. The
server says how many points of a run it has; what is missing at the end is sent again by the next attempt, or by
`maskmill sync`. Points of steps that were cut, which a resumed run does again, are on the server and stay there.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pretrain.run.atomic_write import replace
from pretrain.run.tolerant_json import is_count, table

UPLOADED = "wandb_uploaded.json"


@dataclass
class Uploaded:
    """Counts of one run."""

    lines: int = 0
    """Lines of metrics.jsonl that W&B was given."""
    points: int = 0
    """Points that it was given, those of lines that were cut since included."""
    cut: int = 0
    """Points whose lines were cut since the server last said how many it has."""
    settled: bool = True
    """Whether the server had all of them when the last attempt ended."""

    @classmethod
    def read(cls, folder: Path) -> "Uploaded | None":
        """What the folder says; None where W&B never had anything, or the file is torn."""
        values = table(folder / UPLOADED)
        counts = {name: values.get(name, 0) for name in ("lines", "points", "cut")}
        if not values or not all(map(is_count, counts.values())):
            return None
        return cls(**counts, settled=values.get("settled") is True)

    def write(self, folder: Path) -> None:
        """Keeps it. A folder that cannot be written now, or a torn file, does no harm: the server counts as well."""
        with suppress(OSError):
            replace(folder / UPLOADED, json.dumps(asdict(self)))


def agreed(known: Uploaded | None, on_server: int, lines: int) -> Uploaded:
    """What the server's own count makes of it; `lines`: those that metrics.jsonl has now."""
    if known is None:  # another folder's run, or sent by `wandb sync`: the server has the first ones
        return Uploaded(min(on_server, lines), on_server)
    behind = known.points - on_server
    given = known.lines - (max(0, behind - known.cut) if behind > 0 else behind)
    return Uploaded(max(0, min(given, lines)), on_server)


def lines_were_cut(folder: Path, kept: int) -> None:
    """metrics.jsonl now has `kept` lines."""
    known = Uploaded.read(folder)
    if known is not None and known.lines > kept:
        known.cut += known.lines - kept
        known.lines = kept
        known.write(folder)

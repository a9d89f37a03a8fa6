"""Record in wandb_uploaded.json how many lines of metrics.jsonl were passed to W&B.

A point passed to W&B is not yet on the server: a kill or a server failure loses points in transit. The server reports
how many points of a run it has; the next attempt or `maskmill sync` re-sends those missing at the end. Points of steps
that were cut, and that a resumed run repeats, stay on the server.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pretrain.run.atomic_write import replace
from pretrain.run.tolerant_json import is_count, table

UPLOADED = "wandb_uploaded.json"
WRITTEN = "tensorboard/written.json"
"""File that says how many lines of metrics.jsonl TensorBoard's event files beside it have."""


@dataclass
class Uploaded:
    """Counts of one run."""

    lines: int = 0
    """Lines of metrics.jsonl that were passed to W&B."""
    points: int = 0
    """Points passed to W&B, including those of lines that were cut since."""
    cut: int = 0
    """Points whose lines were cut since the server last reported its count."""
    settled: bool = True
    """Whether the server had all of them when the last attempt ended."""

    @classmethod
    def read(cls, folder: Path) -> "Uploaded | None":
        """Read the counts of a folder; None if W&B never had anything, or the file is torn."""
        values = table(folder / UPLOADED)
        counts = {name: values.get(name, 0) for name in ("lines", "points", "cut")}
        if not values or not all(map(is_count, counts.values())):
            return None
        return cls(**counts, settled=values.get("settled") is True)

    def write(self, folder: Path) -> None:
        """Write the counts. A folder that cannot be written now, or a torn file, does no harm: the server counts as
        well."""
        with suppress(OSError):
            replace(folder / UPLOADED, json.dumps(asdict(self)))


def reconciled(known: Uploaded | None, on_server: int, lines: int) -> Uploaded:
    """Return the counts corrected by the server's own; `lines`: those that metrics.jsonl has now."""
    if known is None:  # a run of another folder, or sent by `wandb sync`: the server has the first ones
        return Uploaded(min(on_server, lines), on_server)
    behind = known.points - on_server
    given = known.lines - (max(0, behind - known.cut) if behind > 0 else behind)
    return Uploaded(max(0, min(given, lines)), on_server)


def lines_were_cut(folder: Path, kept: int) -> None:
    """Record that metrics.jsonl now has `kept` lines."""
    if written(folder) > kept:
        note_written(folder, kept)
    known = Uploaded.read(folder)
    if known is not None and known.lines > kept:
        known.cut += known.lines - kept
        known.lines = kept
        known.write(folder)


def written(folder: Path) -> int:
    """Return how many lines of metrics.jsonl TensorBoard's event files have; 0 where nothing says so."""
    count = table(folder / WRITTEN).get("lines")
    return count if isinstance(count, int) and is_count(count) else 0


def note_written(folder: Path, lines: int) -> None:
    """Record that number. One that is too small does no harm: those lines are written again, and purged before."""
    with suppress(OSError):
        replace(folder / WRITTEN, json.dumps({"lines": lines}))

"""Append to, read and cut metrics.jsonl, and count which of its lines W&B and TensorBoard have.

metrics.jsonl is the run's only copy of the history: a resumed run cuts it at its checkpoint's step, and moves what is
behind to metrics.lost.jsonl. wandb_uploaded.json counts the lines that were passed to W&B, tensorboard/written.json
those that TensorBoard's event files have.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.errors import printable
from data_pipeline.io.files import write_whole, writing
from pretrain.run.files import append, is_count, is_number, object_of, replace_file, table

# Count the lines that W&B and TensorBoard have. A point passed to W&B is not yet on the server: a kill or a server
# failure loses points in transit. The server reports how many points of a run it has; the next attempt or
# `maskmill sync` re-sends those missing at the end. Points of steps that were cut, and that a resumed run repeats, stay
# on the server.


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
            replace_file(folder / UPLOADED, json.dumps(asdict(self)))


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
        replace_file(folder / WRITTEN, json.dumps({"lines": lines}))


# Append to, read and cut the lines themselves.


METRICS, LOST = "metrics.jsonl", "metrics.lost.jsonl"
FIGURES = re.compile(
    "step|steps|batch|loss|lr|seconds|ranks|tokens_per_s|parameters|held_out_pairs"
    "|.*_(loss|accuracy|perplexity|majority|top_share)"
)
"""Figures in a line of metrics.jsonl and in summary.json that commands compute with."""
TRUST, TRUST_PREFIX = "trust", "trust_ratio/"
"""Kind of a line that holds LAMB's trust ratio of each tensor, and the prefix of the tensors' names."""
EVAL, PROBE, PROBE_PREFIX, TRIVIAL = "eval", "probe", "probe/", "trivial"
"""Kinds of the lines that hold held-out figures, and those of train.probe; the prefix of the latter, in percent:
probe/TASK_METRIC, and probe/TASK_trivial of an answer that needs no input."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def in_json(line: Mapping[str, Any]) -> dict[str, Any]:
    """Drop unknown figures, and write null for those that are not finite: JSON has no infinity, and the previous figure
    must not remain as the newest."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
        if value is not None
    }


class JsonLines:
    """Append whole lines to metrics.jsonl, so that a killed run leaves at most one torn line. If the folder is full or
    gone for a while, warn and keep the lines until the next write."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / METRICS
        self._waiting: list[bytes] = []

    def log(self, line: dict[str, Any]) -> None:
        """Write `line` and flush it."""
        self._waiting.append(json.dumps(line).encode() + b"\n")
        self.close()

    def alert(self, cause: str, text: str) -> None:
        """Do nothing: events.jsonl has the event, and the terminal showed it."""

    def cut(self, step: int) -> None:
        """Move the lines after `step`, which a rolled-back run repeats, to metrics.lost.jsonl."""
        self.close()
        cut_metrics(self._folder, step)

    def close(self, status: str = "finished") -> None:
        """Write the lines still waiting."""
        if not self._waiting:
            return
        try:
            append(self._path, b"".join(self._waiting))
            self._waiting.clear()
        except OSError as error:
            waiting = f"{len(self._waiting)} lines wait for the next one"
            line = f"maskmill: WARNING: {self._path}: {error.strerror}; {waiting}"
            print(printable(line), file=sys.stderr)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl, without damaged ones."""
    return sorted_lines(folder)[0]


def sorted_lines(folder: Path) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the lines of metrics.jsonl in two lists: parsed, and as they are where they are damaged, that is no JSON
    objects or with figures that are no numbers. The last of them may be one that is still being written, or that a
    kill tore: `is_torn` tells."""
    path = folder / METRICS
    whole: list[dict[str, Any]] = []
    damaged: list[bytes] = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        values = object_of(line)
        if values is not None and is_number(values.get("step", 0)) and not wrong_figure(values):
            whole.append(values)
        elif line.strip():
            damaged.append(line)
    return whole, damaged


def is_torn(folder: Path) -> bool:
    """Return whether metrics.jsonl ends within a line."""
    path = folder / METRICS
    data = path.read_bytes() if path.is_file() else b""
    return bool(data) and not data.endswith(b"\n")


def layer_of(tensor: str) -> int | None:
    """Return the layer of a tensor by its name, counted from 1; 0: the embeddings; None: the heads."""
    if found := _LAYER.search(tensor):
        return int(found[1]) + 1
    return 0 if ".embeddings." in f".{tensor}" else None


def wrong_figure(values: Mapping[str, Any]) -> str:
    """Return the name of a figure of FIGURES that is not a number; empty if all are. NaN is a number, and so is
    infinity as a part of the training loss, which a diverging model reports; null is unknown."""
    for name, value in values.items():
        if value is None or not FIGURES.fullmatch(name) or is_number(value) or value != value:
            continue
        if value != math.inf or not name.endswith("_loss") or name.startswith("held_out_"):
            return name
    return ""


def cut_metrics(folder: Path, step: int) -> int:
    """Keep the lines up to `step` in metrics.jsonl and move later ones, which the checkpoint does not include, to
    metrics.lost.jsonl, and with them damaged ones wherever they are, with a warning. Returns how many whole lines were
    moved. Raises UserError if the disk is full: the history is then unchanged."""
    lines, damaged = sorted_lines(folder)
    kept = [line for line in lines if line.get("step", 0) <= step]
    lost = [line for line in lines if line.get("step", 0) > step]
    moved = [*damaged, *(json.dumps(line).encode() for line in lost)]
    if moved:
        with writing(folder / LOST):
            append(folder / LOST, b"".join(line + b"\n" for line in moved))
    if (folder / METRICS).is_file():
        write_whole(folder / METRICS, [f"{json.dumps(line)}\n".encode() for line in kept])
    if damaged:
        what = "a damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
        print(printable(f"maskmill: WARNING: {folder / METRICS}: {what} moved to {LOST}"), file=sys.stderr)
    lines_were_cut(folder, len(kept))
    return len(lost)

"""Append to, read and cut metrics.jsonl.

It is the run's only copy of the history: a resumed run cuts it at its checkpoint's step, and moves what is behind to an
event (events.py).
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import printable
from data_pipeline.io.files import sync, write_whole, writing
from pretrain.run.events import LINES_LOST, append_event
from pretrain.run.files import EVENTS, METRICS, append, is_number, object_of

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
        """Move the lines after `step`, which a rolled-back run repeats, to events.jsonl."""
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
    events.jsonl, and with them damaged ones wherever they are, with a warning. Returns how many whole lines were
    moved. Raises UserError if the disk is full: the history is then unchanged."""
    lines, damaged = sorted_lines(folder)
    kept = [line for line in lines if line.get("step", 0) <= step]
    lost = [line for line in lines if line.get("step", 0) > step]
    if lost or damaged:
        texts = [line.decode(errors="surrogateescape") for line in damaged]  # in JSON any bytes are kept
        with writing(folder / EVENTS):
            append_event(folder, LINES_LOST, step=step, kept=len(kept), lines=lost, damaged=texts)
            sync(folder / EVENTS)  # before they are gone from metrics.jsonl
    if (folder / METRICS).is_file():
        write_whole(folder / METRICS, [f"{json.dumps(line)}\n".encode() for line in kept])
    if damaged:
        what = "a damaged line was" if len(damaged) == 1 else f"{len(damaged)} damaged lines were"
        print(printable(f"maskmill: WARNING: {folder / METRICS}: {what} moved to {EVENTS}"), file=sys.stderr)
    return len(lost)

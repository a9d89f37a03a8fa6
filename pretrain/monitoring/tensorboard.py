"""Track metrics in metrics.jsonl first, then in TensorBoard's event files: the tracker of monitor.tracker=tensorboard.

The files in RUN/tensorboard have the points that W&B gets: the numbers of each line of metrics.jsonl, and its
histograms, over the same steps. metrics.jsonl is authoritative: an attempt begins by writing what the files lack of
it, and has readers forget what it does again (`purge_step`), so that no step of a resumed or rolled-back run is there
twice. A failure here never ends the training: after the first one this attempt goes on without, and the next one
writes the rest. The only import of tensorboardX.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.errors import first_line
from pretrain.monitoring.wandb_run import Bars, point_of, warn
from pretrain.run.events import Uploaded
from pretrain.run.files import TENSORBOARD
from pretrain.run.metrics_log import JsonLines, read_metrics

STEP = "step"
"""The x-axis of every point, and no curve."""


class TensorBoard:
    """Write to metrics.jsonl and to event files. Events are written by this process itself, line by line: the queue and
    the thread of the library's own SummaryWriter block a training whose disk is full."""

    def __init__(self, folder: Path) -> None:
        self._lines, self._folder = JsonLines(folder), folder
        self._events: Events | None = None
        self._uploaded = Uploaded()
        self._try(self._catch_up)

    def log(self, line: dict[str, Any]) -> None:
        """Write the line to metrics.jsonl first, then its point to the event file."""
        self._lines.log(line)
        self._try(lambda: self._write([line]))

    def alert(self, cause: str, text: str) -> None:
        """Do nothing: events.jsonl has the event, and the terminal showed it."""

    def cut(self, step: int) -> None:
        """Cut metrics.jsonl, and have readers of the event files forget the later steps."""
        self._uploaded.log(self._folder, TENSORBOARD)
        self._lines.cut(step)
        self._try(self._catch_up)

    def close(self, status: str = "finished") -> None:
        """Write what still waits, and end both."""
        self._lines.close()
        if self._events is not None:
            self._try(self._events.close)
            self._uploaded.log(self._folder, TENSORBOARD)
        self._events = None

    def _catch_up(self) -> None:
        """Begin a new event file: with the lines that those before lack, or behind the last one."""
        if self._events is not None:
            self._events.close()
        lines, start = read_metrics(self._folder), 0
        if any((self._folder / TENSORBOARD).glob("events*")):
            known = Uploaded.read(self._folder, TENSORBOARD) or Uploaded()
            start = min(known.lines, len(lines))
        if start < len(lines):  # a step is written as a whole, since one is purged as a whole
            step = _step(lines[start])
            start = next(number for number, line in enumerate(lines) if _step(line) >= step)
        following = _step(lines[start]) if start < len(lines) else _step(lines[-1]) + 1 if lines else 0
        self._events = Events(self._folder / TENSORBOARD, following)
        self._uploaded = Uploaded(start)
        self._write(lines[start:])
        self._uploaded.log(self._folder, TENSORBOARD)

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._events is None:
            return
        for line in lines:
            self._events.add(_step(line), point_of(line))
        self._events.flush()
        self._uploaded.add(self._folder, TENSORBOARD, len(lines))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if self._events is not None:
                self._events.give_up()
            self._events = None
            warn(
                f"{self._folder / TENSORBOARD} cannot be written, continuing without TensorBoard; the next start writes"
                f" the rest from metrics.jsonl: {first_line(error)}"
            )


class Events:
    """One event file."""

    count = 0
    """Of this process, which tells files of one second apart."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Begin a file whose reader forgets the points at `purge_step` and behind it that files before have."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        folder.mkdir(parents=True, exist_ok=True)
        Events.count += 1
        self._messages = event_pb2
        self._file = EventsWriter(str(folder / "events"), f".{os.getpid()}.{Events.count:04d}")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._file.write_event(event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start))
        self.flush()

    def add(self, step: int, point: dict[str, float | Bars]) -> None:
        """Add the figures of a step."""
        from tensorboardX import summary

        event = self._messages.Event(wall_time=time.time(), step=step)
        for name, value in point.items():
            if isinstance(value, Bars):
                one = summary.histogram_raw(name, *_moments(value), value.edges[1:], value.heights)
            elif name == STEP:
                continue
            else:
                one = summary.scalar(name, value)
            one.value[0].tag = name  # the library replaces characters that it does not like
            event.summary.value.extend(one.value)
        self._file.write_event(event)

    def flush(self) -> None:
        """Write to the disk what was added."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def give_up(self) -> None:
        """End a file that cannot be written."""
        with suppress(OSError, ValueError, AttributeError):
            self._file._py_recordio_writer.close()


def _moments(bars: Bars) -> tuple[float, float, float, float, float]:
    """Return the lowest and highest edge, the number of values, their sum and the sum of their squares, with each bin's
    values at its middle."""
    middles = [(low + high) / 2 for low, high in zip(bars.edges, bars.edges[1:], strict=False)]
    pairs = list(zip(bars.heights, middles, strict=True))
    total = math.fsum(height * middle for height, middle in pairs)
    squares = math.fsum(height * middle * middle for height, middle in pairs)
    return bars.edges[0], bars.edges[-1], math.fsum(bars.heights), total, squares


def _step(line: dict[str, Any]) -> int:
    return int(line.get(STEP, 0))

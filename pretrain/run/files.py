"""Name the files of a run folder, append to and replace them, and read those that may be missing, torn or malformed.

The state of a run is in seven files:

    config.yaml       every setting                              written by run/folder.py
    run.json          identity, id, number of attempts           run/folder.py
    summary.json      status and newest figures                  run/folder.py
    metrics.jsonl     a line per log step and evaluation         run/metrics_log.py
    events.jsonl      a line per start, save, skipped batch ...  run/events.py
    .heartbeat.json   the first rank's step and activity         run/folder.py
    .lock             held by the attempt that trains            run/folder.py

All else there is output: whatever continues or judges a run does without it, but for the checkpoints.

No reader sees half of what is written here. The readers are for observers of a run: it may be writing, or may have been
killed while it wrote. Of the readers only `read_json` raises. Where another machine wrote the files, its clock may date
them and a network folder may show them late; the functions for that are here as well.
"""

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import open_to_write, open_unlinked
from pretrain.config.settings import RunSettings

CONFIG, RUN, SUMMARY = "config.yaml", "run.json", "summary.json"
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
HEARTBEAT, LOCK = ".heartbeat.json", ".lock"
STATE = (CONFIG, RUN, SUMMARY, METRICS, EVENTS, HEARTBEAT, LOCK)
"""The files that hold the state of a run."""
CHECKPOINTS, LOGS, WANDB, TENSORBOARD = "checkpoints", "logs", "wandb", "tensorboard"
MARKER, LATEST = "checkpoint.json", "latest"
"""In CHECKPOINTS: the file that makes a folder a checkpoint, and the one that names the newest."""
REPORT, EXPORT, EVALUATION, SAMPLES = "report.html", "export", "evaluation", "samples.json"
"""What the verbs of these names write; the last: the blanks that `maskmill export` has filled."""
OUTPUTS = (CHECKPOINTS, f"{CHECKPOINTS}/{LATEST}", LOGS, WANDB, TENSORBOARD, REPORT)
"""What training writes besides the state."""

# Write without fsync, unlike data_pipeline/io/files.py: these writes happen every log step or more often. Losing them
# with the machine is acceptable; blocking a step on the disk is not. `append` and `replace_file` raise OSError if the
# folder is full or gone, and UserError for a name that is a symbolic link.


def append(path: Path, lines: bytes) -> None:
    """Append whole lines, or nothing. A torn line left by a killed process is ended first, so that it does not merge
    with these."""
    with open(path, "ab+", buffering=0, opener=open_unlinked) as file:
        before = file.seek(0, os.SEEK_END)
        if before:
            file.seek(before - 1)
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        written = 0
        try:
            written = file.write(lines) or 0
        finally:
            if written < len(lines):
                file.truncate(before)
        if written < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def replace_file(path: Path, text: str) -> None:
    """Replace the content of the file with `text` atomically."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open_to_write(partial, "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def time_in(folder: Path) -> float:
    """Return what time it is by the clock that dates the files of `folder`, in seconds since 1970: the date of a file
    that is created there and removed. On a network folder that is its server's clock, however far this machine's is
    from it. Where the folder takes no files: this machine's."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".time-", dir=folder)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):  # the folder is gone
            os.unlink(name)


# Wait for files that another machine wrote and that this one does not see yet: NFS keeps what it knows of a folder for
# up to a minute (nfs(5), acdirmax).


POLL_SECONDS = 0.5
"""How often a file that is not shown is looked for: each look is a question to the file server."""


def folder_wait(run: RunSettings) -> float:
    """Return run.folder_wait, and at most half of what a stage or step may take: the watchdog would end the wait."""
    return min([run.folder_wait, *(limit / 2 for limit in (run.stage_limit, run.step_timeout) if limit)])


def wait_until_shown(
    not_shown: Callable[[], Path | None], seconds: float, say: Callable[[str], None] | None = None
) -> bool:
    """Wait until `not_shown` returns None, for at most so many seconds; return whether it did. Until then it returns a
    path that lacks. `say` gets a line if there is something to wait for."""
    lacks = not_shown()
    if lacks is not None and seconds and say is not None:
        say(
            f"{lacks} is not shown here: waiting up to {seconds:.0f} s for it, in case the folder shows it late "
            "(run.folder_wait)"
        )
    give_up = time.monotonic() + seconds
    while lacks is not None and time.monotonic() < give_up:
        with suppress(OSError):
            os.listdir(lacks.parent)  # opening a folder makes a client of NFS ask the server for it
        time.sleep(min(POLL_SECONDS, seconds))
        lacks = not_shown()
    return lacks is None


# Read what an observer of a run needs: a file or value that is missing or damaged comes back as empty, None or the
# caller's fallback.


LARGEST = 2.0**62
"""Numbers at or above it are treated as damage: they overflow later computations."""


def text_of(path: Path, last: int | None = None, first: int = -1) -> str:
    """Read the text in `path`, or only its `last` or its `first` bytes; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            if last is not None:
                file.seek(max(0, file.seek(0, 2) - last))
            return file.read(first).decode(errors="replace")
    except OSError:
        return ""


def table(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; empty if there is none."""
    return object_of(text_of(path)) or {}


def tables(text: str) -> Iterator[dict[str, Any]]:
    """Parse the JSON objects of a text with one per line; other lines, including torn ones, are skipped."""
    for line in text.splitlines():
        if (values := object_of(line)) is not None:
            yield values


def object_of(text: str | bytes) -> dict[str, Any] | None:
    """Parse a text as a JSON object; None if it is something else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def objects(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects among the entries of a list; empty if it is not a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """Return `value` if it is a number below LARGEST, else None, as for NaN and infinity."""
    return float(value) if is_number(value) else None  # type: ignore[arg-type]


def is_number(value: object) -> bool:
    """Return whether `value` is a number that is neither NaN nor beyond LARGEST."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def is_count(value: object) -> bool:
    """Return whether `value` is an integer from 0 to LARGEST."""
    return type(value) is int and 0 <= value < LARGEST


def read_or(path: Path, reader: Callable[[Path], Any], fallback: Any, complaints: list[str]) -> Any:
    """Return the result of `reader` on the file; `fallback`, with a complaint, if it cannot be read."""
    if not path.is_file():
        complaints.append(f"{path.name} is missing.")
        return fallback
    try:
        value = reader(path)
    except UserError as error:
        complaints.append(f"{path.name} cannot be read: {error.what}.")
        return fallback
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:160]
        complaints.append(f"{path.name} cannot be read ({type(error).__name__}: {reason}).")
        return fallback
    if not isinstance(value, type(fallback)):
        complaints.append(f"{path.name} holds no table of names and values.")
        return fallback
    return value


def read_json(path: Path) -> Any:
    """Read the JSON in `path`. Raises what json raises: for `read_or`."""
    return json.loads(path.read_text(encoding="utf-8"))

"""Metrics of a step in; lines of metrics.jsonl and points on a dashboard out. The one door to wandb.

metrics.jsonl is the surviving history, written once: a resumed run cuts it at its checkpoint's step. W&B is
fed with the same lines under the run's own `step` axis, so that it never decides what is true.
"""

import errno
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from data_pipeline.errors import UserError
from data_pipeline.storage import write_whole
from pretrain.config import MonitorSettings

METRICS, LOST, UPLOADED = "metrics.jsonl", "metrics.lost.jsonl", "wandb_uploaded.json"
FIGURES = (
    *("step", "steps", "batch", "loss", "lr", "seconds", "ranks", "tokens_per_s", "parameters"),
    *("held_out_mlm_loss", "held_out_nsp_accuracy", "unigram_entropy"),
)
"""What verbs reckon with, of a line of metrics.jsonl and of summary.json."""
TRUST, TRUST_PREFIX = "trust", "trust_ratio/"
"""Kind of a line that holds LAMB's trust ratio of each tensor, and what is put before the tensors' names."""


class Tracker(Protocol):
    """Where a line of metrics goes."""

    def log(self, line: dict[str, Any]) -> None: ...

    def cut(self, step: int) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Keeps nothing: for ranks other than the first, and for `monitor.tracker=none`."""

    def log(self, line: dict[str, Any]) -> None:
        """Does nothing."""

    def cut(self, step: int) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class JsonLines:
    """Appends to metrics.jsonl, a whole line at a time, so that a killed run leaves at most one torn line. Where the
    folder is full or gone for a while, that is told, and the lines wait for the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / METRICS
        self._waiting: list[bytes] = []

    def log(self, line: dict[str, Any]) -> None:
        """Writes `line` and flushes it."""
        self._waiting.append(json.dumps(line).encode() + b"\n")
        self.close()

    def cut(self, step: int) -> None:
        """Moves the lines after `step`, which a rolled back run does again, to metrics.lost.jsonl."""
        self.close()
        cut_metrics(self._folder, step)

    def close(self) -> None:
        """Writes what waits."""
        if not self._waiting:
            return
        try:
            self._append(b"".join(self._waiting))
            self._waiting.clear()
        except OSError as error:
            waiting = f"{len(self._waiting)} lines wait for the next one"
            print(f"maskmill: WARNING: {self._path}: {error.strerror}; {waiting}", file=sys.stderr)

    def _append(self, data: bytes) -> None:
        with self._path.open("ab", buffering=0) as file:
            before = file.tell()
            written = 0
            try:
                written = file.write(data) or 0
            finally:
                if written < len(data):
                    file.truncate(before)  # no part of a line stays for the next one to stand behind
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Wandb:
    """metrics.jsonl and W&B: online where there is a key, else offline, to be sent by `maskmill sync`."""

    def __init__(self, folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any]) -> None:
        self._lines = JsonLines(folder)
        self._folder = folder
        self._online = _has_key()
        try:
            self._run = _start(
                folder, settings.project, run_id, config, "online" if self._online else "offline"
            )
        except (
            Exception
        ) as error:  # a firewall, a server that is down: the run goes on, `maskmill sync` sends it
            if not self._online:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"maskmill: W&B cannot be reached, going on offline: {reason}", file=sys.stderr)
            self._online = False
            self._run = _start(folder, settings.project, run_id, config, "offline")
        if self._online:  # what earlier lives logged offline comes first
            lines = read_metrics(folder)
            for line in lines[_uploaded(folder) :]:
                self._run.log(_point(line))
            _set_uploaded(folder, len(lines))

    def log(self, line: dict[str, Any]) -> None:
        """Writes the line to metrics.jsonl first, then hands its numbers to W&B."""
        self._lines.log(line)
        self._run.log(_point(line))
        if self._online:
            _set_uploaded(self._folder, _uploaded(self._folder) + 1)

    def cut(self, step: int) -> None:
        """The same for metrics.jsonl; W&B, which takes nothing back, shows the later lines beside the earlier."""
        self._lines.cut(step)

    def close(self) -> None:
        """Finishes both; an online run is then complete on the server."""
        self._lines.close()
        self._run.finish()


def open_tracker(
    folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any], first_rank: bool
) -> Tracker:
    """The tracker that `monitor.tracker` names; silent on all ranks but the first."""
    if not first_rank or settings.tracker == "none":
        return Silent()
    if settings.tracker == "wandb":
        return Wandb(folder, settings, run_id, config)
    return JsonLines(folder)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a torn last line, left by a kill, is not one, nor is one whose figures are none."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and is_number(line.get("step", 0)) and not wrong_figure(line):
            lines.append(line)
    return lines


def wrong_figure(values: Mapping[str, Any]) -> str:
    """The name of a figure that is no number, of those that are reckoned with; empty where all are. NaN is one, and
    what is unknown is null."""
    known = {name: values[name] for name in FIGURES if values.get(name) is not None}
    return next((name for name, value in known.items() if not is_number(value) and value == value), "")


def is_number(value: object) -> bool:
    """Whether it is one, and neither NaN nor as good as infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**62


def cut_metrics(folder: Path, step: int) -> int:
    """Keeps the lines up to `step` in metrics.jsonl; later ones, which the checkpoint does not know of, go to
    metrics.lost.jsonl. Returns how many went."""
    lines = read_metrics(folder)
    kept = [line for line in lines if line.get("step", 0) <= step]
    lost = [line for line in lines if line.get("step", 0) > step]
    if lost:
        with (folder / LOST).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lost)
    if (folder / METRICS).is_file():
        write_whole(folder / METRICS, [f"{json.dumps(line)}\n".encode() for line in kept])
    if _uploaded(folder) > len(kept):
        _set_uploaded(folder, len(kept))
    return len(lost)


def sync(folder: Path, run_id: str, project: str, config: dict[str, Any]) -> int:
    """Sends the lines of metrics.jsonl that W&B has not yet, as one run, whatever the number of its lives.

    The history comes from metrics.jsonl, not from the offline files of each life: those hold steps that a
    resumed run did again. Returns the number of lines sent. Raises UserError without a key."""
    if not _has_key():
        raise UserError("no W&B key", where=folder, remedy="run `wandb login`, or set WANDB_API_KEY")
    lines = read_metrics(folder)
    sent = _uploaded(folder)
    if sent < len(lines):
        run = _start(folder, project, run_id, config, "online")
        for line in lines[sent:]:
            run.log(_point(line))
        run.finish()
        _set_uploaded(folder, len(lines))
    return max(0, len(lines) - sent)


def _start(folder: Path, project: str, run_id: str, config: dict[str, Any], mode: str) -> Any:
    import wandb  # seconds to import: only who asks for it waits

    run = wandb.init(
        project=project,
        id=run_id,
        name=folder.name,
        dir=str(folder),
        config=config,
        mode=mode,  # type: ignore[arg-type]
        resume="allow" if mode == "online" else None,
        # no metadata: it holds the command line, and that whatever is in a URI of it
        settings=wandb.Settings(silent=True, console="off", init_timeout=60, x_disable_meta=True),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _point(line: dict[str, Any]) -> dict[str, Any]:
    """The line's numbers; with trust ratios also their histogram, which W&B draws as a heat map over the steps."""
    point: dict[str, Any] = {key: value for key, value in line.items() if isinstance(value, int | float)}
    if line.get("kind") == TRUST:
        import wandb

        ratios = [value for key, value in point.items() if key.startswith(TRUST_PREFIX)]
        point["trust_ratios"] = wandb.Histogram(ratios)
    return point


def _has_key() -> bool:
    if os.environ.get("WANDB_MODE", "online") in ("offline", "disabled"):
        return False
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    return netrc.is_file() and host in netrc.read_text(errors="replace")


def _uploaded(folder: Path) -> int:
    try:
        lines = json.loads((folder / UPLOADED).read_bytes())["lines"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0  # none, or damaged: a line that is sent twice is the same point
    return lines if type(lines) is int and lines > 0 else 0


def _set_uploaded(folder: Path, lines: int) -> None:
    (folder / UPLOADED).write_text(json.dumps({"lines": lines}))

"""Write metrics to metrics.jsonl, and from there to W&B or to TensorBoard's event files, and alert through W&B.

metrics.jsonl is authoritative: every tracker but `Silent` writes a line there first. W&B receives the same lines, on
the run's own `step` axis. No W&B failure ends the training: after the first failure an attempt continues without W&B,
and the next attempt or `maskmill sync` sends the rest. tensorboard.py writes the event files.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from data_pipeline.errors import EXIT_FAILED, EXIT_STOPPED, UserError, first_line, redact_settings
from pretrain.config.settings import MonitorSettings
from pretrain.monitoring import wandb_run
from pretrain.monitoring.wandb_run import (
    Connection,
    Stage,
    begin,
    has_key,
    is_refused_key,
    point_of,
    start,
    tell,
    warn,
    why,
    why_offline,
)
from pretrain.run.causes import HINTS, OUTLIER, SERIOUS
from pretrain.run.events import (
    ALERTED,
    Uploaded,
    append_event,
    read_events,
    reconciled,
    time_of,
)
from pretrain.run.files import RUN, WANDB
from pretrain.run.folder import read_run
from pretrain.run.metrics_log import JsonLines, read_metrics


class Tracker(Protocol):
    """A receiver of metrics lines and alerts."""

    def log(self, line: dict[str, Any]) -> None: ...

    def alert(self, cause: str, text: str) -> None: ...

    def cut(self, step: int) -> None: ...

    def close(self, status: str = "finished") -> None: ...


class Silent:
    """A tracker that does nothing: for ranks other than the first, and for `monitor.tracker=none`."""

    def log(self, line: dict[str, Any]) -> None:
        """Do nothing."""

    def alert(self, cause: str, text: str) -> None:
        """Do nothing."""

    def cut(self, step: int) -> None:
        """Do nothing."""

    def close(self, status: str = "finished") -> None:
        """Do nothing."""


def open_tracker(
    folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any], first_rank: bool
) -> Tracker:
    """Open the tracker that `monitor.tracker` names; silent on all ranks but the first."""
    if not first_rank or settings.tracker == "none":
        return Silent()
    if settings.tracker == "wandb":
        return Wandb(folder, settings, run_id, config)
    if settings.tracker == "tensorboard":
        from pretrain.monitoring.tensorboard import TensorBoard

        return TensorBoard(folder)
    return JsonLines(folder)


# Turn problems of a run into alerts: the cause, what to do, and whether one is due. Per cause, at most one alert is
# sent in `monitor.alert_every` seconds, over all attempts of a run: a run that crashes every minute sends only one.


CHECKPOINTS_OF_ROOM = 2
"""The disk counts as nearly full if fewer than this many checkpoints fit."""


class Alert(NamedTuple):
    """The message that a person gets."""

    title: str
    text: str
    serious: bool


class Alerts:
    """Decide which alerts of one run are due."""

    def __init__(self, folder: Path, name: str, every: float, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._name, self._clock = folder, name, clock
        self.every = every
        """Seconds between two alerts of one cause; 0: no alerts."""
        alerts = [event for event in read_events(folder) if event.get("event") == ALERTED]
        self._sent = {event.get("cause"): time_of(event).timestamp() for event in alerts}

    def due(self, cause: str, text: str) -> Alert | None:
        """Return the alert to send now; None for an unknown cause, a single slow step, one that was sent recently, or
        with alerts switched off."""
        now = self._clock()
        if not text or cause not in HINTS or cause == OUTLIER or not self.every:
            return None
        last = self._sent.get(cause)
        if last is not None and 0 <= now - last < self.every:  # negative: the clock was set back since
            return None
        self._sent[cause] = now
        with suppress(OSError):  # the full disk may be the cause
            append_event(self._folder, ALERTED, at=datetime.fromtimestamp(now, UTC), cause=cause)
        return Alert(f"{self._name}: {cause}", f"{text}\n{HINTS[cause]}", cause in SERIOUS)


def disk_nearly_full(folder: Path, checkpoint_bytes: float) -> str:
    """Return a warning about the disk of `folder`; empty if there is enough space."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # gone for a while: the checkpoint's own line reports it
        return ""
    if free >= CHECKPOINTS_OF_ROOM * checkpoint_bytes:
        return ""
    return f"{folder}: {free / 1e9:,.2f} GB free, and a checkpoint takes {checkpoint_bytes / 1e9:,.2f} GB"


# Track metrics on W&B: monitor.tracker=wandb.


EXIT_CODES = {"finished": 0, "stopped": EXIT_STOPPED, "failed": EXIT_FAILED}
"""The exit code passed to W&B for each end of an attempt."""


class Wandb:
    """Write to metrics.jsonl and W&B: online if there is a key, else offline, to be sent by `maskmill sync`."""

    def __init__(self, folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any]) -> None:
        self._lines, self._folder, self._id = JsonLines(folder), folder, run_id
        self._settings = wandb_run.settings_of(folder)
        self._alerts = Alerts(folder, folder.name, settings.alert_every)
        self._uploaded = Uploaded.read(folder, WANDB) or Uploaded()
        self._connection: Connection | None = None
        try:
            self._connection = begin(stage_of(folder, settings, run_id, config))
        except Exception as error:
            warn(f"W&B cannot write to {folder}, continuing without it: {first_line(error)}")
        self._try(self._tell_offline)
        self._try(self._catch_up)
        self._link(wandb_run.inputs_of_training)

    def log(self, line: dict[str, Any]) -> None:
        """Write the line to metrics.jsonl first, then hand its numbers to W&B."""
        self._lines.log(line)
        self._try(lambda connection: self._hand_over(connection, line))

    def alert(self, cause: str, text: str) -> None:
        """Alert those who watch the project, at most once per cause and interval."""
        if alert := self._alerts.due(cause, text):
            wait = self._alerts.every
            self._try(lambda connection: connection.alert(*alert, wait))

    def cut(self, step: int) -> None:
        """Cut metrics.jsonl; W&B, which deletes nothing, shows the later lines beside the earlier."""
        self._try(self._log_count)
        self._lines.cut(step)
        self._uploaded = Uploaded.read(self._folder, WANDB) or self._uploaded
        self._try(self._log_count)

    def close(self, status: str = "finished") -> None:
        """End both; an online run is then complete on the server, or a line says how to complete it."""
        self._lines.close()
        self._link(wandb_run.outputs_of_training, self._id)
        self._try(lambda connection: self._finish(connection, status))

    def _tell_offline(self, connection: Connection) -> None:
        if not connection.online:
            why = f" ({reason})" if (reason := why_offline()) else ""
            tell(
                f"W&B is offline{why}: this run is kept in {self._folder / WANDB}. `maskmill sync {self._folder}` "
                f"sends it, `wandb leet {self._folder / WANDB}` shows it here"
            )

    def _catch_up(self, connection: Connection) -> None:
        """Send what earlier attempts logged offline or lost in transit."""
        if not connection.online:
            return
        lines = read_metrics(self._folder)
        self._uploaded = reconciled(Uploaded.read(self._folder, WANDB), connection.points, len(lines))
        self._uploaded.settled = False
        self._log_count(connection)
        for line in lines[self._uploaded.lines :]:
            self._hand_over(connection, line)

    def _hand_over(self, connection: Connection, line: dict[str, Any]) -> None:
        connection.log(point_of(line))
        if connection.online:
            self._uploaded.add(self._folder, WANDB)

    def _finish(self, connection: Connection, status: str) -> None:
        settled = connection.finish(EXIT_CODES.get(status, EXIT_FAILED), preempted=status == "stopped")
        if not connection.online:
            tell(f"W&B has not seen this run: `maskmill sync {self._folder}` sends it")
        if connection.online:
            self._uploaded.settled = settled
            self._log_count(connection)
            if not settled:
                warn(
                    f"W&B did not take all of the run in time: `maskmill sync {self._folder}` sends the rest"
                )

    def _log_count(self, connection: Connection) -> None:
        if connection.online:
            self._uploaded.log(self._folder, WANDB)

    def _link(self, call: Callable[..., None], *others: str) -> None:
        if self._connection is not None and self._settings is not None:
            wandb_run.as_far_as_it_goes(call, self._connection, self._settings, *others)

    def _try(self, call: Callable[[Connection], None]) -> None:
        if self._connection is None:
            return
        try:
            call(self._connection)
        except Exception as error:
            self._connection = None
            warn(f"W&B failed, continuing without it; `maskmill sync` sends the rest: {why(error)}")


def stage_of(folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any]) -> Stage:
    """Return the W&B stage of the training in `folder`."""
    known = read_run(folder)
    identity = known["identity"] if known else {}
    hashes = {
        key: value for key, value in identity.items() if key.rpartition(".")[2] == "data"
    }  # of each phase
    facts = {"data_index": hashes, "vocabulary_sha256": identity.get("vocabulary")}
    return wandb_run.stage("train", folder, settings, config, run_id, folder.name, facts)


# Send the part of a run's history that W&B lacks, as one run. The history comes from metrics.jsonl, not from the
# offline files of each attempt, which hold steps that a resumed run repeated.


def sync_run(folder: Path) -> int:
    """Send the lines of metrics.jsonl that W&B lacks, over any number of attempts, and the artifacts if
    monitor.artifacts is set; return the number of lines. Raises UserError without a key or a server."""
    known, config = read_run(folder), wandb_run.settings_of(folder)
    if known is None or config is None:
        raise UserError("not a run folder", where=folder, expected=f"a folder with {RUN}")
    if not has_key():
        raise UserError(
            "no W&B key, or WANDB_MODE forbids to send", where=folder, remedy="wandb login; unset WANDB_MODE"
        )
    lines, before = read_metrics(folder), Uploaded.read(folder, WANDB)
    if before is not None and before.settled and before.lines == len(lines):
        return 0
    try:
        connection = start(
            stage_of(folder, config.monitor, known["id"], redact_settings(asdict(config))), online=True
        )
        uploaded = reconciled(before, connection.points, len(lines))
        missing = lines[uploaded.lines :]
        for line in missing:
            connection.log(point_of(line))
        config.run.dir = str(folder)  # it may have been moved
        wandb_run.as_far_as_it_goes(wandb_run.inputs_of_training, connection, config)
        wandb_run.as_far_as_it_goes(wandb_run.outputs_of_training, connection, config, known["id"])
        settled = connection.finish()
    except UserError:
        raise
    except Exception as error:
        if is_refused_key(error):
            raise UserError(why(error), where=folder, remedy="nothing is lost") from None
        raise UserError(
            f"W&B cannot be reached: {why(error)}",
            where=folder,
            remedy="try again later: nothing is lost",
        ) from None
    Uploaded(len(lines), uploaded.points + len(missing), settled=settled).log(folder, WANDB)
    if not settled:
        raise UserError("W&B did not take all in time", where=folder, remedy="run `maskmill sync` again")
    return len(missing)

"""Track metrics in metrics.jsonl first, then on W&B: the tracker of `monitor.tracker=wandb`.

W&B receives the lines of metrics.jsonl, on the run's own `step` axis; metrics.jsonl is authoritative. No W&B failure
ends the training: after the first failure this attempt continues without W&B, and the next attempt or `maskmill sync`
sends the rest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_pipeline.errors import first_line
from pretrain.config.settings import MonitorSettings
from pretrain.monitoring.wandb import artifacts
from pretrain.monitoring.wandb.alerts import Alerts
from pretrain.monitoring.wandb.connection import Connection, begin, tell, warn, why, why_offline
from pretrain.monitoring.wandb.points import point_of
from pretrain.monitoring.wandb.run_identity import Stage, train_stage
from pretrain.run.folder import read_run
from pretrain.run.metrics_log import JsonLines, read_metrics
from pretrain.run.metrics_log import Uploaded, reconciled

EXIT_CODES = {"finished": 0, "stopped": 3, "failed": 1}
"""The exit code passed to W&B for each end of an attempt."""


class Wandb:
    """Write to metrics.jsonl and W&B: online if there is a key, else offline, to be sent by `maskmill sync`."""

    def __init__(self, folder: Path, settings: MonitorSettings, run_id: str, config: dict[str, Any]) -> None:
        self._lines, self._folder, self._id = JsonLines(folder), folder, run_id
        self._settings = artifacts.settings_of(folder)
        self._alerts = Alerts(folder, folder.name, settings.alert_every)
        self._uploaded = Uploaded.read(folder) or Uploaded()
        self._connection: Connection | None = None
        try:
            self._connection = begin(stage_of(folder, settings, run_id, config))
        except Exception as error:
            warn(f"W&B cannot write to {folder}, continuing without it: {first_line(error)}")
        self._try(self._tell_offline)
        self._try(self._catch_up)
        self._link(artifacts.inputs_of_training)

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
        self._lines.cut(step)
        self._uploaded = Uploaded.read(self._folder) or self._uploaded

    def close(self, status: str = "finished") -> None:
        """End both; an online run is then complete on the server, or a line says how to complete it."""
        self._lines.close()
        self._link(artifacts.outputs_of_training, self._id)
        self._try(lambda connection: self._finish(connection, status))

    def _tell_offline(self, connection: Connection) -> None:
        if not connection.online:
            why = f" ({reason})" if (reason := why_offline()) else ""
            tell(
                f"W&B is offline{why}: this run is kept in {self._folder / 'wandb'}. `maskmill sync {self._folder}` "
                f"sends it, `wandb leet {self._folder / 'wandb'}` shows it here"
            )

    def _catch_up(self, connection: Connection) -> None:
        """Send what earlier attempts logged offline or lost in transit."""
        if not connection.online:
            return
        lines = read_metrics(self._folder)
        self._uploaded = reconciled(Uploaded.read(self._folder), connection.points, len(lines))
        self._uploaded.settled = False
        for line in lines[self._uploaded.lines :]:
            self._hand_over(connection, line)

    def _hand_over(self, connection: Connection, line: dict[str, Any]) -> None:
        connection.log(point_of(line))
        if connection.online:
            self._uploaded.lines += 1
            self._uploaded.points += 1
            self._uploaded.write(self._folder)

    def _finish(self, connection: Connection, status: str) -> None:
        settled = connection.finish(EXIT_CODES.get(status, 1), preempted=status == "stopped")
        if not connection.online:
            tell(f"W&B has not seen this run: `maskmill sync {self._folder}` sends it")
        if connection.online:
            self._uploaded.settled = settled
            self._uploaded.write(self._folder)
            if not settled:
                warn(
                    f"W&B did not take all of the run in time: `maskmill sync {self._folder}` sends the rest"
                )

    def _link(self, call: Callable[..., None], *others: str) -> None:
        if self._connection is not None and self._settings is not None:
            artifacts.as_far_as_it_goes(call, self._connection, self._settings, *others)

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
    return train_stage(folder, settings, run_id, config, known["identity"] if known else {})

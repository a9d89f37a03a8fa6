"""Write metrics to metrics.jsonl, and through wandb/ to W&B, or through tensorboard.py to event files."""

from pathlib import Path
from typing import Any, Protocol

from pretrain.config.settings import MonitorSettings
from pretrain.run.metrics_log import JsonLines


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
        from pretrain.monitoring.wandb.tracker import Wandb  # wandb takes seconds to import

        return Wandb(folder, settings, run_id, config)
    if settings.tracker == "tensorboard":
        from pretrain.monitoring.tensorboard import TensorBoard

        return TensorBoard(folder)
    return JsonLines(folder)

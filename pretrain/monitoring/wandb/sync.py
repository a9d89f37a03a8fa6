"""Send the part of a run's history that W&B lacks, as one run.

The history comes from metrics.jsonl, not from the offline files of each attempt, which hold steps that a resumed run
repeated.
"""

from dataclasses import asdict
from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.errors import redact_settings
from pretrain.monitoring.wandb import artifacts
from pretrain.monitoring.wandb.connection import has_key, is_refused_key, start, why
from pretrain.monitoring.wandb.points import point_of
from pretrain.monitoring.wandb.tracker import stage_of
from pretrain.run.folder import RUN, read_run
from pretrain.run.metrics_log import read_metrics
from pretrain.run.metrics_log import Uploaded, reconciled


def sync_run(folder: Path) -> int:
    """Send the lines of metrics.jsonl that W&B lacks, over any number of attempts, and the artifacts if
    monitor.artifacts is set; return the number of lines. Raises UserError without a key or a server."""
    known, config = read_run(folder), artifacts.settings_of(folder)
    if known is None or config is None:
        raise UserError("not a run folder", where=folder, expected=f"a folder with {RUN}")
    if not has_key():
        raise UserError(
            "no W&B key, or WANDB_MODE forbids to send", where=folder, remedy="wandb login; unset WANDB_MODE"
        )
    lines, before = read_metrics(folder), Uploaded.read(folder)
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
        artifacts.as_far_as_it_goes(artifacts.inputs_of_training, connection, config)
        artifacts.as_far_as_it_goes(artifacts.outputs_of_training, connection, config, known["id"])
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
    Uploaded(len(lines), uploaded.points + len(missing), settled=settled).write(folder)
    if not settled:
        raise UserError("W&B did not take all in time", where=folder, remedy="run `maskmill sync` again")
    return len(missing)

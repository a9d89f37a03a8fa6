"""Log run folders, shards and exported models as W&B artifacts with their lineage.

    prepare ─► index (index.json, tokenizer.json) ─► train ─► checkpoint (its marker: hashes) ─► export ─► model

`monitor.artifacts=index` sends the first two: no text and no weights, but hashes, counts and the vocabulary.
`monitor.artifacts=all` also sends the exported model. An artifact's version is its content: equal shards are one
version, whoever logs them, and the stages link up automatically.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.shards.index import INDEX, Index, TOKENIZER
from pretrain.checkpoint.store import Checkpoint, MARKER, checkpoints, open_checkpoint
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.monitoring.wandb.connection import Connection, begin, warn, why
from pretrain.monitoring.wandb.run_identity import Stage, evaluate_stage, export_stage, folder_name, prepare_stage
from pretrain.run.folder import read_run
from pretrain.run.task_scores import read_task_scores

NONE, INDEX_ONLY, ALL = "none", "index", "all"
"""Values of monitor.artifacts."""
ArtifactOf = tuple[str, str, Mapping[str, bytes | Path], dict[str, Any]]
"""Name, type, files and metadata."""


def index_artifact(index: Index) -> ArtifactOf:
    """Describe a folder of shards as an artifact."""
    files = {INDEX: read_bytes(index.path(INDEX)), TOKENIZER: index.tokenizer_json()}
    facts = {
        "sha256": index.identity,
        "examples": index.train.examples,
        "tokens": index.train.tokens,
        "held_out_examples": index.held_out.examples,
        "shards": len(index.train.shards),
        "vocabulary_sha256": index.vocabulary.sha256,
    }
    return f"index-{folder_name(index.folder)}", "dataset", files, facts


def checkpoint_artifact(checkpoint: Checkpoint, run_id: str) -> ArtifactOf:
    """Describe a checkpoint as an artifact: its marker alone, which names every file with its SHA-256."""
    files = {MARKER: checkpoint.folder / MARKER}
    return f"checkpoint-{run_id}", "checkpoint", files, {"step": checkpoint.step, "run": run_id}


def inputs_of_training(connection: Connection, config: RunConfig) -> None:
    """Link the index of each phase as an input of the run."""
    if config.monitor.artifacts == NONE or not connection.online:
        return
    for phase in phases_of(config):
        index = Index.load(phase.config.train.shards or phase.config.data.out)
        connection.uses(*index_artifact(index))


def outputs_of_training(connection: Connection, config: RunConfig, run_id: str) -> None:
    """Send the marker of the newest checkpoint as an output of the run."""
    whole = checkpoints(Path(config.run.dir))
    if config.monitor.artifacts != NONE and connection.online and whole:
        checkpoint = open_checkpoint(whole[-1])
        connection.makes(*checkpoint_artifact(checkpoint, run_id), alias=f"step-{checkpoint.step}")


def as_far_as_it_goes(call: Callable[..., None], connection: Connection, *others: Any) -> None:
    """Link or send artifacts; errors are only warnings, since shards may be on another machine."""
    try:
        call(connection, *others)
    except Exception as error:
        warn(f"no artifact on W&B: {why(error)}")


def record_prepare(config: RunConfig, index: Index) -> None:
    """Log a W&B run of job type `prepare` for new shards, if monitor.tracker is wandb."""
    if config.monitor.tracker != "wandb":
        return

    def record(connection: Connection) -> None:
        name, kind, files, facts = index_artifact(index)
        connection.summarize(facts)
        if config.monitor.artifacts != NONE:
            connection.makes(name, kind, files, facts, alias=index.identity[:12])

    _recorded(prepare_stage(config, index), record)


def record_export(run: Path, checkpoint: Checkpoint, model: Path) -> None:
    """Log a W&B run of job type `export` for a model exported from a checkpoint of `run`, if its monitor.tracker is
    wandb."""
    known, config = read_run(run), settings_of(run)
    if known is None or config is None or config.monitor.tracker != "wandb":
        return
    artifacts, run_id = config.monitor.artifacts, known["id"]

    def record(connection: Connection) -> None:
        files = {str(path.relative_to(model)): path for path in sorted(model.rglob("*")) if path.is_file()}
        facts = {"step": checkpoint.step, "bytes": sum(path.stat().st_size for path in files.values())}
        connection.summarize(facts)
        if artifacts != NONE:
            connection.uses(*checkpoint_artifact(checkpoint, run_id))
        if artifacts == ALL:
            connection.makes(
                f"model-{run_id}", "model", files, {**facts, "run": run_id}, f"step-{checkpoint.step}"
            )

    _recorded(export_stage(run, config, run_id, checkpoint.step), record)


def record_scores(run: Path) -> None:
    """Log a W&B run of job type `evaluate` with the scores on tasks in the folder of a run, if its monitor.tracker is
    wandb."""
    known, config = read_run(run), settings_of(run)
    if known is None or config is None or config.monitor.tracker != "wandb":
        return
    found: dict[str, Any] = {}
    for score in read_task_scores(run):
        name = "/".join(part for part in ("evaluation", score.task, score.split, score.metric) if part)
        found[name] = score.median
        if score.floor:
            found[f"{name}_not_pretrained"] = score.floor.median
    _recorded(evaluate_stage(run, config, known["id"]), lambda connection: connection.summarize(found))


def _recorded(stage: Stage, record: Callable[[Connection], None]) -> None:
    """Log a whole run on W&B; errors are reported and do not affect the shards or the model."""
    try:
        connection = begin(stage)
        record(connection)
        if not connection.finish() and connection.online:
            warn(f"W&B did not take all of {stage.name} in time")
    except Exception as error:
        warn(f"{stage.name} is not on W&B: {why(error)}")


def settings_of(run: Path) -> RunConfig | None:
    """Return the settings of a run folder; None if they cannot be read."""
    from pretrain.run.folder import read_config

    try:
        return read_config(run)
    except UserError:
        return None

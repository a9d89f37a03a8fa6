"""Connect to a run on W&B, online or offline, and send points and artifacts to it. The only import of wandb.

There is one group per training, named after its run folder, with a W&B run per stage (the job type): prepare, train,
export, evaluate. The run of `train` has one id for all its attempts and phases, kept in run.json. Artifacts link the
stages by what they make and use:

    prepare ─► index (index.json, tokenizer.json) ─► train ─► checkpoint (its marker: hashes) ─► export ─► model

Nothing here blocks forever, and no W&B failure ends a training: each is reported in one line.
"""

import math
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any, NamedTuple

import numpy as np

from data_pipeline.errors import UserError, first_line, printable, redact_settings
from data_pipeline.io.files import read_bytes
from data_pipeline.shards.index import INDEX, TOKENIZER, Index
from pretrain.checkpoint.store import Checkpoint, checkpoints, open_checkpoint
from pretrain.config.phases import phases_of
from pretrain.config.settings import MonitorSettings, RunConfig
from pretrain.run.files import MARKER
from pretrain.run.folder import read_config, read_run
from pretrain.run.metrics_log import TRUST, TRUST_PREFIX, layer_of
from pretrain.run.task_scores import read_task_scores

# Convert a line of metrics.jsonl to a W&B point: numbers and histograms. W&B draws a histogram that is logged at every
# step as a heat map: steps on the x-axis, bins on the y-axis, counts as colour. Histograms whose bins are layers or
# ranks therefore show "layer by step" or "rank by step".


TRUST_SPREAD, TRUST_BY_LAYER = "trust_ratios", "trust_ratio_by_layer"
BY_RANK = {"step_ms_by_rank": "step_ms/rank_", "forward_ms_by_rank": "forward_ms/rank_"}
"""Fields with one number per rank, and the name of the curve of one rank."""
MOST_CURVES = 16
"""Maximum number of ranks with a curve each, beside the heat map."""
MOST_BINS = 512
"""Maximum number of bins in a W&B histogram."""


class Bars(NamedTuple):
    """A given histogram: the height of each bin, and the edges, one more than bins."""

    heights: list[float]
    edges: list[float]


def point_of(line: dict[str, Any]) -> dict[str, float | Bars]:
    """Convert a line to its W&B point: its numbers, and histograms of numbers by rank or by layer."""
    point: dict[str, float | Bars] = {k: v for k, v in line.items() if isinstance(v, int | float)}
    for field, curve in BY_RANK.items():
        if values := line.get(field):
            point[field] = by_rank(values)
            if len(values) <= MOST_CURVES:
                point |= {f"{curve}{rank}": value for rank, value in enumerate(values)}
    if line.get("kind") == TRUST:
        ratios = {
            key: float(value)
            for key, value in line.items()
            if key.startswith(TRUST_PREFIX) and isinstance(value, int | float)
        }
        point[TRUST_SPREAD] = _spread(list(ratios.values()))
        point[TRUST_BY_LAYER] = by_layer(ratios)
    return point


def by_rank(values: list[float]) -> Bars:
    """Return a histogram whose bin r is rank r; with more ranks than bins, a bin is the slowest of several
    neighbours."""
    together = -(-len(values) // MOST_BINS)
    heights = [max(values[start : start + together]) for start in range(0, len(values), together)]
    return Bars(heights, [float(bin * together) for bin in range(len(heights) + 1)])


def by_layer(ratios: dict[str, float]) -> Bars:
    """Return the geometric mean, since ratios are factors, over the tensors of each layer: bin 0 is the embeddings, bin
    i the ith layer, the last the heads."""
    logs: dict[int | None, list[float]] = {}
    for name, ratio in ratios.items():
        if ratio > 0:
            logs.setdefault(layer_of(name), []).append(math.log(ratio))
    last = max((row for row in map(layer_of, ratios) if row is not None), default=0)
    rows: list[int | None] = [*range(last + 1), None]
    heights = [math.exp(fmean(logs[row])) if row in logs else 0.0 for row in rows]
    return Bars(heights, [float(edge) for edge in range(len(rows) + 1)])


def _spread(values: list[float]) -> Bars:
    heights, edges = np.histogram(values, bins=64)
    return Bars(heights.tolist(), edges.tolist())


# Choose the name, group and configuration of each stage's run from settings and folder.


ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """What W&B gets at the start of a run."""

    folder: Path
    """Parent of W&B's own folder `wandb`."""
    project: str
    id: str
    name: str
    group: str
    job: str
    """prepare, train, export or evaluate."""
    config: dict[str, Any]
    """The resolved recipe, without credentials, and `code` and `data_index`."""


def stage(
    job: str,
    run: Path,
    monitor: MonitorSettings,
    settings: dict[str, Any],
    run_id: str,
    name: str,
    facts: dict[str, Any],
    folder: Path | None = None,
) -> Stage:
    """Return the stage `job` of the training in `run`. `facts`: what its configuration states beside the settings;
    `folder`: where W&B's own folder is to be, if not in `run`."""
    config = {**redact_settings(settings), "code": code_version(), **facts}
    return Stage(folder or run, monitor.project, run_id, name, group_of(run, monitor.group), job, config)


def group_of(folder: Path, requested: str = "") -> str:
    """Return the W&B group of all stages of a training."""
    return requested or folder.resolve().name


def folder_name(folder: str) -> str:
    """Return the last part of a path or URI, in the form of an artifact name."""
    return re.sub(r"[^\w.-]+", "-", folder.rstrip("/").rpartition("/")[2]) or "shards"


@cache
def code_version() -> dict[str, Any]:
    """Return the installed version; in a working tree also its commit, and whether files differ from it."""
    try:
        code: dict[str, Any] = {"version": version("maskmill")}
    except PackageNotFoundError:
        code = {}
    if commit := _git("rev-parse", "HEAD"):
        code |= {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    return code


def _git(*arguments: str) -> str:
    if not (ROOT / ".git").exists():  # an installed package, perhaps inside another repository
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# Start a run on W&B, send to it, end it, and say in a line what went wrong.


TO_START, TO_FINISH, TO_LINK = 60.0, 120.0, 60.0
"""Time limit in seconds for the start, the end and one artifact; WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT override
it."""
HOST = "https://api.wandb.ai"
_WRONG_KEY = re.compile(
    r"(?i:(?:error|status|code)\W{1,3}401\b|\b401 (?:unauthori[sz]ed|client error)|AuthenticationError|not logged in"
    r"|invalid api key)"
)
_FORBIDDEN = re.compile(
    r"(?i:(?:error|status|code)\W{1,3}403\b|\b403 (?:forbidden|client error)|permission denied)"
)
_REFUSED = re.compile(r"(?i:connection refused|actively refused|\[Errno 111\])")
Point = Mapping[str, float | Bars]


class Connection:
    """One attempt of a run on W&B."""

    def __init__(self, run: Any, online: bool) -> None:
        self._run, self.online = run, online

    @property
    def points(self) -> int:
        """Number of points of this run on the server when this attempt began."""
        return int(self._run.starting_step)

    @property
    def url(self) -> str:
        """The run's web page; empty offline."""
        return str(self._run.url or "")

    def log(self, point: Point) -> None:
        """Send a point in the background."""
        wandb = _wandb()

        def drawn(value: float | Bars) -> Any:
            if not isinstance(value, Bars):
                return value
            return wandb.Histogram(np_histogram=(np.array(value.heights), np.array(value.edges)))

        self._run.log({key: drawn(value) for key, value in point.items()})

    def summarize(self, values: dict[str, Any]) -> None:
        """Set the figures of the whole run, beside its newest point."""
        self._run.summary.update(values)

    def alert(self, title: str, text: str, error: bool, wait: float) -> None:
        """Send a message to those who watch the project; the server passes on one per title in `wait` seconds."""
        self._run.alert(title=title, text=text, level="ERROR" if error else "WARN", wait_duration=wait)

    def uses(self, name: str, kind: str, files: Mapping[str, bytes | Path], facts: dict[str, Any]) -> None:
        """Declare these files an input of the run: the version of the artifact that has them, or a new one. Offline it
        does nothing: W&B cannot link then, and `maskmill sync` does it later."""
        if self.online:
            artifact = _artifact(name, kind, files, facts)
            within(TO_LINK, lambda: self._run.use_artifact(artifact), f"the artifact {name} was not linked")

    def makes(
        self, name: str, kind: str, files: Mapping[str, bytes | Path], facts: dict[str, Any], alias: str
    ) -> None:
        """Upload these files as an output of the run."""
        self._run.log_artifact(_artifact(name, kind, files, facts), aliases=["latest", alias])

    def finish(self, exit_code: int = 0, preempted: bool = False) -> bool:
        """End this attempt; return whether the server has all of it. False offline."""
        if preempted:
            self._run.mark_preempting()
        try:
            self._run.finish(exit_code=exit_code)
        except TimeoutError:
            return False
        return self.online


def has_key() -> bool:
    """Return whether W&B should be contacted: there is a key, and WANDB_MODE does not forbid it."""
    return not why_offline()


def why_offline() -> str:
    """Return why W&B cannot be contacted, with what to do; empty if it can."""
    mode = os.environ.get("WANDB_MODE", "online")
    if mode in ("offline", "disabled"):
        return f"WANDB_MODE={mode}"
    if os.environ.get("WANDB_API_KEY"):
        return ""
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    host = os.environ.get("WANDB_BASE_URL", HOST).split("//")[-1].split("/")[0]
    known = netrc.is_file() and host in netrc.read_text(errors="replace")
    return "" if known else "no key: `wandb login`, or WANDB_API_KEY"


def begin(stage: Stage) -> Connection:
    """Start online if there is a key and a server, else offline, in the folder of the stage."""
    if not has_key():
        return start(stage, online=False)
    try:
        return start(stage, online=True)
    except (
        Exception
    ) as error:  # a firewall or a server that is down: the run continues, `maskmill sync` sends it
        what = "W&B was reached and refused" if is_refused_key(error) else "W&B cannot be reached"
        warn(f"{what}, continuing offline: {why(error)}")
        _wandb().teardown()  # W&B's own process still holds the run's id for the failed attempt
        return start(stage, online=False)


def why(error: BaseException) -> str:
    """Return in one line why W&B did not take something: a key that the server refuses is called that, and so is a
    server that refuses connections; else the first line of the error."""
    message = str(error)
    host = os.environ.get("WANDB_BASE_URL", HOST)
    if _FORBIDDEN.search(message):
        return f"{host} forbids this to the key (403): WANDB_ENTITY, monitor.project, or another key"
    if _WRONG_KEY.search(message):
        return f"{host} refuses the key (401, wrong or missing): `wandb login --relogin`, or WANDB_API_KEY"
    if _REFUSED.search(message):
        return f"{host} refuses connections: is the server running, and WANDB_BASE_URL right?"
    return first_line(error)


def is_refused_key(error: BaseException) -> bool:
    """Return whether the server was reached, and refused the key."""
    return bool(_WRONG_KEY.search(str(error)) or _FORBIDDEN.search(str(error)))


def start(stage: Stage, online: bool) -> Connection:
    """Start another attempt of the stage's run. Raises what wandb raises if it cannot be reached."""
    wandb = _wandb()
    run = wandb.init(
        project=stage.project,
        id=stage.id,
        name=stage.name,
        group=stage.group,
        job_type=stage.job,
        dir=str(stage.folder),
        config=stage.config,
        mode="online" if online else "offline",
        resume="allow" if online else None,
        reinit="finish_previous",
        settings=wandb.Settings(
            silent=True,
            console="off",
            # no metadata: it holds the command line, including credentials in its URIs
            x_disable_meta=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", TO_START)),
            finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", TO_FINISH)),
            finish_timeout_raises=True,
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return Connection(run, online)


def default_entity() -> str:
    """Return the user or team of the key."""
    return str(_wandb().Api().default_entity)


def make_project(entity: str, project: str) -> None:
    """Create the project if it does not exist."""
    api = _wandb().Api()
    if project not in {known.name for known in api.projects(entity)}:
        api.create_project(project, entity)


def within(seconds: float, call: Callable[[], object], otherwise: str) -> None:
    """Call, with a time limit in seconds; on an error or timeout warn, with `otherwise`, and continue."""
    wrong: list[Exception] = []

    def tried() -> None:
        try:
            call()
        except Exception as error:
            wrong.append(error)

    thread = Thread(target=tried, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive() or wrong:
        what = why(wrong[0]) if wrong else f"W&B has not answered for {seconds:g} s"
        warn(f"{otherwise}: {what}")


def tell(text: str) -> None:
    """Print a line for the user; of a rank, only stdout is shown."""
    print(printable(f"maskmill: {text}"), flush=True)


def warn(text: str) -> None:
    """Print a warning for the user; of a rank, only stdout is shown."""
    print(printable(f"maskmill: WARNING: {text}"), flush=True)


def _wandb() -> Any:
    import wandb  # takes seconds to import, so only if needed

    wandb.setup(wandb.Settings(silent=True))
    return wandb


def _artifact(name: str, kind: str, files: Mapping[str, bytes | Path], facts: dict[str, Any]) -> Any:
    artifact = _wandb().Artifact(name, type=kind, metadata=facts)
    for file, content in files.items():
        if isinstance(content, Path):
            artifact.add_file(str(content), name=file)
        else:
            with artifact.new_file(file, mode="wb") as out:
                out.write(content)
    return artifact


# Log shards, checkpoints and exported models as artifacts with their lineage. `monitor.artifacts=index` sends index and
# checkpoint: no text and no weights, but hashes, counts and the vocabulary. `monitor.artifacts=all` also sends the
# exported model. An artifact's version is its content: equal shards are one version, whoever logs them, and the stages
# link up automatically.


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
    complete = checkpoints(Path(config.run.dir))
    if config.monitor.artifacts != NONE and connection.online and complete:
        checkpoint = open_checkpoint(complete[-1])
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

    # W&B's files go to its default, WANDB_DIR or the working directory: the folder of the shards holds only shards
    folder, facts = Path(os.environ.get("WANDB_DIR", ".")), {"data_index": {"data": index.identity}}
    run_id, name = f"prepare-{index.identity[:12]}", f"prepare {folder_name(index.folder)}"
    run, settings = Path(config.run.dir), asdict(config)
    _recorded(stage("prepare", run, config.monitor, settings, run_id, name, facts, folder), record)


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

    step = checkpoint.step
    export_id, name = f"{run_id}-export-{step}", f"export {run.name} step {step}"
    facts = {"exported_from": {"run": run_id, "step": step}}
    _recorded(stage("export", run, config.monitor, asdict(config), export_id, name, facts), record)


def record_scores(run: Path) -> None:
    """Log a W&B run of job type `evaluate` with the scores on tasks in the folder of a run, if its monitor.tracker is
    wandb."""
    known, config = read_run(run), settings_of(run)
    if known is None or config is None or config.monitor.tracker != "wandb":
        return
    scores: dict[str, Any] = {}
    for score in read_task_scores(run):
        name = "/".join(part for part in ("evaluation", score.task, score.split, score.metric) if part)
        scores[name] = score.median
        if score.random_init:
            scores[f"{name}_not_pretrained"] = score.random_init.median
    run_id, name, facts = f"{known['id']}-evaluate", f"evaluate {run.name}", {"scored": {"run": known["id"]}}
    evaluated = stage("evaluate", run, config.monitor, asdict(config), run_id, name, facts)
    _recorded(evaluated, lambda connection: connection.summarize(scores))


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
    try:
        return read_config(run)
    except UserError:
        return None

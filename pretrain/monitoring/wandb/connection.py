"""Connect to a run on W&B, online or offline, and send points to it. The only import of wandb.

Nothing here blocks forever, and no W&B failure ends a training: each is reported in one line.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from data_pipeline.errors import first_line
from data_pipeline.errors import printable
from pretrain.monitoring.wandb.points import Bars
from pretrain.monitoring.wandb.run_identity import Stage

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
    said = str(error)
    host = os.environ.get("WANDB_BASE_URL", HOST)
    if _FORBIDDEN.search(said):
        return f"{host} forbids this to the key (403): WANDB_ENTITY, monitor.project, or another key"
    if _WRONG_KEY.search(said):
        return f"{host} refuses the key (401, wrong or missing): `wandb login --relogin`, or WANDB_API_KEY"
    if _REFUSED.search(said):
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

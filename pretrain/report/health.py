"""Judge from a run's files whether it is starting, running, stalled, stopped, finished or crashed."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.distributed.watchdog import stage_in
from pretrain.run.files import is_count, text_of
from pretrain.run.folder import HEARTBEAT, RUN, SUMMARY, TRAINING, age_here, is_dead
from pretrain.run.metrics_log import METRICS

if TYPE_CHECKING:
    from pretrain.report.status import Status

NOT_STARTED, STARTING, RUNNING, STALLED = "not started", "starting", "running", "stalled"
STOPPED, FINISHED, CRASHED = "saved and stopped", "finished", "crashed"
REQUEUED = "requeued"
FIRST_STAGES = (
    "importing torch",
    "connecting",
    "checking settings and shards",
    "opening the run folder, from the mirror if it is empty",
)
"""Stages of a start before it writes anything of its own into the run folder but its ranks' logs."""
ASKS = "asks to be requeued"
"""How a line begins that slurm/train.sbatch leaves behind srun's messages, where its job is to be started again."""

SUBMITTED = "logs/slurm.json"
"""File in a run folder with the jobs that `maskmill slurm` submitted for it."""
TAIL = 1 << 18
"""Bytes read at the end of metrics.jsonl, and of each log."""
STEPS_OF_SILENCE, LEAST_SILENCE = 20, 120.0
"""A training run is stalled if it writes nothing for this many of its usual steps, and for this many seconds."""
MOMENT = 30.0
"""Maximum seconds that a failing rank takes to end the others."""
UNKNOWN_SILENCE = 1800.0
"""Seconds allowed for what has no usual time: a stage of a start, evaluating, saving, the first steps. The default of
run.step_limit and run.stage_limit."""

_ERROR = re.compile(
    r"(maskmill: (?!WARNING|restarting)|(\[rank\d+\]: ?)?([A-Za-z_]+\.)*[A-Za-z_]*(Error|Exception|OutOfMemory)\b"
    r"|Fatal Python error|(srun|slurmstepd): error:|.*\b(CUDA error|NCCL error|oom[-_]kill))"
)


def judge(status: "Status", summary: dict[str, Any], heartbeat: dict[str, Any], now: float) -> None:
    """Fill in the health of a run, its grounds and the error of a crash; `now`: by the clock that dates its files."""
    folder = status.folder
    begun = _changed(folder / RUN)
    written = max((at for name in (SUMMARY, RUN, SUBMITTED) if (at := _changed(folder / name))), default=0.0)
    if summary.get("status") != "finished":
        if (job := _requeued(folder, written)) is not None:
            status.health, status.why = REQUEUED, f"Slurm starts job {job} again when its turn comes"
            return
        if (first := _first_stage(folder, written)) is not None:
            stage, at = first
            _judge(status, STARTING, at, UNKNOWN_SILENCE, f"{stage} began", {}, now, since=at)
            return
    if begun is None and not summary:
        status.why = "nothing was trained here yet"
        if (at := _changed(folder / SUBMITTED)) is not None and _find_error(status, at):
            status.health, status.why = CRASHED, "a job before the training failed"
        return
    begun = begun or 0.0
    dates = [at for name in (SUMMARY, METRICS, HEARTBEAT) if (at := _changed(folder / name)) is not None]
    told = summary.get("status")
    if told == "finished":  # no attempt will start any more, even if copying changed the files' times
        status.health, status.why = FINISHED, "all steps are done"
    elif _has_only_begun(status, begun, dates, heartbeat):
        stage, at = _stage(folder, begun or now)
        _judge(status, STARTING, at, UNKNOWN_SILENCE, f"{stage} began", {}, now, since=begun)
    elif told == "stopped":
        status.health, status.why = STOPPED, "it was asked to stop, or came to run.stop_after"
    elif told == "failed":
        status.health, status.why = CRASHED, "it ended with an error"
        status.error = str(summary.get("error") or "")
        if not status.error:
            _find_error(status, begun)
    else:
        status.doing, status.host = str(heartbeat.get("doing", "")), str(heartbeat.get("host", ""))
        status.job = str(heartbeat.get("job", ""))
        # not the newest: one that was dated before a clock was set back stays ahead of those written since
        at = min(dates, key=lambda date: abs(now - date), default=0.0)
        _judge(status, RUNNING, at, _patience(status), "it wrote", heartbeat, now)


def _has_only_begun(status: "Status", begun: float, dates: list[float], heartbeat: dict[str, Any]) -> bool:
    """Return whether the newest attempt has not reached training: by the number of the one that wrote the heartbeat, or
    by dates in a run of an older version, which has no numbers."""
    if begun and is_count(heartbeat.get("attempt")):
        return bool(heartbeat["attempt"] < status.attempts)
    return max(dates, default=0.0) < begun


def _patience(status: "Status") -> float:
    if status.doing not in ("", TRAINING) or status.step_seconds is None:
        return UNKNOWN_SILENCE
    return max(LEAST_SILENCE, STEPS_OF_SILENCE * status.step_seconds)


def _judge(
    status: "Status",
    alive: str,
    at: float,
    patience: float,
    what: str,
    heartbeat: dict[str, Any],
    now: float,
    since: float | None = None,
) -> None:
    """Judge a run that has not logged its end: it is running, stalled, or dead. `at`: the date of what it wrote.
    `since`: an older error is of an attempt before; None: that is `at`."""
    age = now - at if (known := age_here(heartbeat)) is None else known
    silence = abs(age)  # a date far ahead says as little about what goes on as one long ago
    status.quiet = age if age > 0 else 0.0 if silence <= patience else None
    if heartbeat and is_dead(heartbeat):
        status.health, status.why = CRASHED, "its process is gone and said nothing: it was killed"
        _find_error(status, at - 60)
        return
    last = _find_error(status, (at if since is None else since) - 1)
    if status.error and silence > (MOMENT if last else patience):
        status.health, status.why = CRASHED, "a log has an error, and nothing was written since"
    elif silence > patience:
        status.health, status.error, status.log = STALLED, "", ""
        status.why = f"nothing was written for {age:,.0f} s, where {patience:,.0f} s would be long"
        if status.quiet is None:
            status.why = (
                f"its newest file is dated {silence:,.0f} s ahead: a clock was set back and nothing written since, "
                "or this machine's is behind"
            )
    else:
        status.health, status.error, status.log = alive, "", ""
        status.why = f"{what} {status.quiet:,.0f} s ago"


def _first_stage(folder: Path, written: float) -> tuple[str, float] | None:
    """Return the stage of a start which is still among FIRST_STAGES, and since when, by the first rank's log; None
    where there is none since the run folder's own files were `written`."""
    log = folder / "logs" / "rank-0.log"
    at = _changed(log)
    if at is None or at < written:
        return None
    stages = [stage for line in text_of(log, TAIL).splitlines() if (stage := stage_in(line))]
    return (stages[-1][0], at) if stages and stages[-1][0] in FIRST_STAGES else None


def _requeued(folder: Path, written: float) -> str | None:
    """Return the Slurm job that has asked to be started again since, and was not yet; None where none waits."""
    found = []
    for path in (folder / "logs").glob("srun-*-*.log"):
        if (name := re.fullmatch(r"srun-(\w+)-(\d+)\.log", path.name)) and (at := _changed(path)) is not None:
            found.append((at, int(name[2]), name[1], path))
    if not found:
        return None
    at, _, job, path = max(found)
    asks = any(line.startswith(ASKS) for line in text_of(path, TAIL).splitlines())
    return job if asks and at >= written - MOMENT else None


def _stage(folder: Path, begun: float) -> tuple[str, float]:
    """Return what an attempt since `begun` does before its first step, and since when, by the first rank's log."""
    log = folder / "logs" / "rank-0.log"
    at = _changed(log) or 0.0
    stages = [stage for line in text_of(log, TAIL).splitlines() if (stage := stage_in(line))]
    return (stages[-1][0], at) if stages and at >= begun else ("an attempt of the run", max(at, begun))


def _find_error(status: "Status", since: float) -> bool:
    """Find the last line with an error in the logs written since then; of several logs, in the one written first. Also
    returns whether it is the log's last line: an earlier one may be from a previous attempt."""
    logs = [
        (at, path) for path in (status.folder / "logs").glob("*.log") if (at := _changed(path)) is not None
    ]
    for _, path in sorted((at, path) for at, path in logs if at >= since):
        lines = _of_newest_attempt(
            [line.strip() for line in text_of(path, TAIL).splitlines() if line.strip()]
        )
        for line in reversed(lines):
            if _ERROR.match(line):
                status.error, status.log = line[:500], str(path)
                return line is lines[-1]
    return False


def _of_newest_attempt(lines: list[str]) -> list[str]:
    """Return the lines of a rank's log since its newest start: attempts append to one log, and an error of an earlier
    one is not the newest."""
    starts = [
        number
        for number, line in enumerate(lines)
        if (found := stage_in(line)) and found[0] in FIRST_STAGES[:1]
    ]
    return lines[starts[-1] :] if starts else lines


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None

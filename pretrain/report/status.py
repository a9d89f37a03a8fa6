"""Read a run's progress, health and learning from its files, and say in words how it is and what to do next.

Uses files alone and no torch, so that it is fast on a login node. Half-written files, of a running or killed process,
are tolerated.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from data_pipeline.io.model_folder import NOTE
from pretrain.distributed.watchdog import stage_in
from pretrain.run.events import Uploaded, read_disturbances, why_not_saved
from pretrain.run.files import (
    CHECKPOINTS,
    CONFIG,
    EXPORT,
    HEARTBEAT,
    LOGS,
    MARKER,
    METRICS,
    RUN,
    SUMMARY,
    WANDB,
    is_count,
    number,
    objects,
    read_or,
    table,
    tables,
    text_of,
    time_in,
)
from pretrain.run.folder import (
    TRAINING,
    age_here,
    is_dead,
    model_folders,
    read_heartbeat,
    read_settings,
    refuse_other_format,
    shown_table,
)
from pretrain.run.human import duration
from pretrain.run.learning import learning_of
from pretrain.run.metrics import (
    HEADLINE,
    HELD_OUT,
    headline_of,
    leading,
    leading_prediction,
    metric,
    nats,
    sum_of,
)
from pretrain.run.metrics_log import PROBE
from pretrain.run.task_scores import probe_words
from pretrain.run.time_budget import SHARE, phase_at, phases_in, seconds_left

# Judge whether a run is starting, running, stalled, stopped, finished, crashed or requeued.


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

SUBMITTED = f"{LOGS}/slurm.json"
"""File in a run folder with the jobs that `maskmill slurm` submitted for it."""
TAIL = 1 << 18
"""Bytes read at the end of metrics.jsonl, and of each log."""
HEAD = 1 << 16
"""Bytes at the beginning of metrics.jsonl that are read for the first loss."""
STEPS_OF_SILENCE, LEAST_SILENCE = 20, 120.0
"""A training run is stalled if it writes nothing for this many of its usual steps, and for this many seconds."""
MOMENT = 30.0
"""Maximum seconds that a failing rank takes to end the others."""
UNKNOWN_SILENCE = 1800.0
"""Seconds allowed for what has no usual time: a stage of a start, evaluating, saving, the first steps. The default of
run.step_timeout and run.stage_limit."""

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
    log = folder / LOGS / "rank-0.log"
    at = _changed(log)
    if at is None or at < written:
        return None
    stages = [stage for line in text_of(log, TAIL).splitlines() if (stage := stage_in(line))]
    return (stages[-1][0], at) if stages and stages[-1][0] in FIRST_STAGES else None


def _requeued(folder: Path, written: float) -> str | None:
    """Return the Slurm job that has asked to be started again since, and was not yet; None where none waits."""
    found = []
    for path in (folder / LOGS).glob("srun-*-*.log"):
        if (name := re.fullmatch(r"srun-(\w+)-(\d+)\.log", path.name)) and (at := _changed(path)) is not None:
            found.append((at, int(name[2]), name[1], path))
    if not found:
        return None
    at, _, job, path = max(found)
    asks = any(line.startswith(ASKS) for line in text_of(path, TAIL).splitlines())
    return job if asks and at >= written - MOMENT else None


def _stage(folder: Path, begun: float) -> tuple[str, float]:
    """Return what an attempt since `begun` does before its first step, and since when, by the first rank's log."""
    log = folder / LOGS / "rank-0.log"
    at = _changed(log) or 0.0
    stages = [stage for line in text_of(log, TAIL).splitlines() if (stage := stage_in(line))]
    return (stages[-1][0], at) if stages and at >= begun else ("an attempt of the run", max(at, begun))


def _find_error(status: "Status", since: float) -> bool:
    """Find the last line with an error in the logs written since then; of several logs, in the one written first. Also
    returns whether it is the log's last line: an earlier one may be from a previous attempt."""
    logs = [(at, path) for path in (status.folder / LOGS).glob("*.log") if (at := _changed(path)) is not None]
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


# Read the state of a run: its progress, figures, speed, newest checkpoint, events and jobs.


RECENT = 50
"""Log lines from which speed and the remaining time are estimated."""


@dataclass
class Status:
    """The state of a run according to its files. Unknown figures are None; times are seconds."""

    folder: Path
    health: str = NOT_STARTED
    why: str = ""
    """The grounds for the health, in words."""
    error: str = ""
    """Of a crashed run: the last line of an error."""
    log: str = ""
    """The log with the error."""
    doing: str = ""
    step: int = 0
    steps: int | None = None
    """Steps of the whole run; unknown until the end of a run with train.minutes."""
    minutes: float | None = None
    """train.minutes of the run or of its newest phase, and the share of them that is used."""
    share: float | None = None
    phase: str = ""
    loss: float | None = None
    held_out_loss: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    """Training and newest evaluation figures, by their names in metrics.jsonl."""
    headline: str = HEADLINE
    """The objective's headline metric."""
    probe: str = ""
    """The newest score of train.probe, in words."""
    findings: list[str] = field(default_factory=list)
    """Problems with what it has learnt, and what usually helps."""
    tokens_per_s: float | None = None
    step_seconds: float | None = None
    seconds_left: float | None = None
    checkpoint: str = ""
    """Name of the newest complete checkpoint."""
    checkpoint_step: int | None = None
    checkpoint_age: float | None = None
    save_error: str = ""
    """Why the newest save failed; empty if it did not."""
    attempts: int = 0
    events: int = 0
    last_event: str = ""
    quiet: float | None = None
    """Seconds since the run last wrote anything; unknown if its files are dated in the future."""
    host: str = ""
    job: str = ""
    """Slurm job of the newest attempt."""
    started: str = ""
    command: str = ""
    wandb: str = ""
    """What W&B lacks of the run, with the command that sends it; empty where it lacks nothing, or has no part in it."""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    """Jobs that `maskmill slurm` submitted."""
    warnings: list[str] = field(default_factory=list)
    """Files of the run that were changed since they were written."""


def read_status(folder: Path, now: float | None = None) -> Status:
    """Return the status of the run in `folder`, which need not exist yet; `now`: seconds since 1970, by the clock that
    dates its files."""
    now = time_in(folder) if now is None else now
    status = Status(folder)
    summary, run = (shown_table(folder / name, status.warnings) for name in (SUMMARY, RUN))
    if (folder / CONFIG).is_file():
        read_or(folder / CONFIG, lambda path: read_settings(path.parent), {}, status.warnings)
    heartbeat = read_heartbeat(folder)
    refuse_other_format(run, folder)
    lines = list(tables(text_of(folder / METRICS, TAIL)))
    _figures(status, summary, lines, heartbeat)
    status.headline = headline_of(summary)
    learning = learning_of(summary, lines, tables(text_of(folder / METRICS, first=HEAD)))
    status.figures, status.findings = learning.metrics, [str(finding) for finding in learning.findings]
    _checkpoint(status, now)
    status.save_error = why_not_saved(folder)
    events = read_disturbances(folder)
    status.events = len(events)
    if events:
        newest = events[-1]
        step, kind, words = newest.get("step", "?"), newest.get("event", ""), newest.get("text", "")
        status.last_event = f"step {step}: {kind}: {words}"
    status.attempts = int(number(run.get("attempts")) or 0)
    submitted = table(folder / SUBMITTED)
    status.jobs = objects(submitted.get("jobs"))
    status.command = str(submitted.get("command") or "") or status.command
    judge(status, summary, heartbeat, now)
    status.wandb = _wandb(status)
    return status


def _wandb(status: Status) -> str:
    """Return whether the newest attempt's W&B run is kept here alone, or its server may lack the end of an attempt that
    has ended; nothing is asked of a server."""
    runs = [path for path in (status.folder / WANDB).glob("*run-*") if path.is_dir()]
    sent = Uploaded.read(status.folder, WANDB)
    sends = f"{shlex.join(['maskmill', 'sync', str(status.folder)])} sends it"
    # run-DATE_TIME-ID and offline-run-DATE_TIME-ID: the newest by its date
    if runs and max(runs, key=lambda path: path.name.removeprefix("offline-")).name.startswith("offline-"):
        known, is_known = (sent.lines, sent.settled) if sent else (0, True)
        what = f"all after line {known:,} of {METRICS}" if known else "all of it"
        return f"offline: {what} {'is' if is_known else 'may be'} here alone; {sends}"
    if sent and not sent.settled and status.health not in (RUNNING, STARTING):
        return f"the server may lack the end of it; {sends}"
    return ""


def _figures(
    status: Status, summary: dict[str, Any], lines: list[dict[str, Any]], heartbeat: dict[str, Any]
) -> None:
    trained = [line for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    newest = summary | (trained[-1] if trained else {})
    status.step = int(number(newest.get("step")) or 0)
    status.steps = _whole(summary.get("steps"))
    status.phase, status.started = str(newest.get("phase") or ""), str(summary.get("started") or "")
    status.command = str(summary.get("command") or "")
    status.loss, status.tokens_per_s = number(newest.get("loss")), number(newest.get("tokens_per_s"))
    for line in [summary, *(line for line in lines if line.get("kind") == "eval")]:
        if "held_out_loss" in line:  # null: it was not a number
            status.held_out_loss = number(line["held_out_loss"])
    status.probe = probe_words(summary)
    for line in (line for line in lines if line.get("kind") == PROBE):
        status.probe = f"{probe_words(line)} at step {line.get('step')}"
    pace = [line for line in trained if line.get("phase", "") == (status.phase or line.get("phase", ""))]
    pace = pace[-RECENT:]
    speeds = [speed for line in pace if (speed := number(line.get("tokens_per_s")))]
    if speeds:
        status.tokens_per_s = median(speeds)
    status.step_seconds = _step_seconds(pace, summary)
    measured, reached = status.step, heartbeat.get("step", 0)
    if summary.get("status") == "running" and reached > status.step:  # between two log lines
        status.step = reached
    phases = phases_in(summary)
    if here := phase_at(status.step, phases):
        status.minutes, status.share = number(here.get("minutes")), number(newest.get(SHARE))
    if phases and status.step_seconds is not None:
        status.seconds_left = seconds_left(status.step, status.step_seconds, phases, measured, newest)


def _step_seconds(pace: list[dict[str, Any]], summary: dict[str, Any]) -> float | None:
    """Return the seconds per step, evaluations and saves included: `seconds` of a line is the time that its run has
    trained."""
    points = [(number(line.get("step")), number(line.get("seconds"))) for line in pace]
    known = [(step, seconds) for step, seconds in points if step is not None and seconds is not None]
    gaps = [
        (seconds - before, step - last)
        for (last, before), (step, seconds) in pairwise(known)
        if step > last and seconds > before
    ]
    if gaps:
        return sum(seconds for seconds, _ in gaps) / sum(steps for _, steps in gaps)
    milliseconds = number(summary.get("step_ms"))
    return None if milliseconds is None else milliseconds / 1e3


def _checkpoint(status: Status, now: float) -> None:
    found = []
    for marker in (status.folder / CHECKPOINTS).glob(f"step-*/{MARKER}"):
        if digits := re.fullmatch(r"step-(\d{8,})", marker.parent.name):
            try:
                found.append((int(digits[1]), marker.stat().st_mtime))
            except OSError:
                continue  # retention has just dropped it
    if found:
        step, at = max(found)
        status.checkpoint, status.checkpoint_step = f"step-{step:08d}", step
        status.checkpoint_age = max(0.0, now - at)


def _whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


# Format a Status for people, with what to do next.


def in_words(status: Status, again: str) -> str:
    """Return the status in a few lines; `again`: the command that starts the run, as far as it is known."""
    where = f"step {status.step:,}"
    if status.steps:
        where += f" of {status.steps:,} ({status.step / status.steps:.1%})"
    elif status.minutes:
        where += f", {status.share or 0.0:.1%} of {status.minutes:g} min of training"
    phase = f", phase {status.phase}" if status.phase else ""
    head = f"{status.folder}: {status.health}" + ("" if status.health == NOT_STARTED else f", {where}{phase}")
    rows = [
        ("", status.why),
        *(("WARNING", warning) for warning in status.warnings),
        ("error", f"{status.error}{f' ({status.log})' if status.log else ''}" if status.error else ""),
        (_leads(status), _scores(status)),
        ("loss", _losses(status)),
        ("probe", status.probe),
        *(("look at", finding) for finding in status.findings),
        ("speed", _speed(status)),
        ("time left", _time_left(status)),
        ("checkpoint", _checkpoint_text(status)),
        ("attempts", _attempts(status)),
        ("events", f"{status.events:,}, the last one {status.last_event}" if status.events else ""),
        ("W&B", status.wandb),
        ("jobs", ", ".join(f"{job.get('name')} {job.get('job')}" for job in status.jobs)),
        ("to do", what_to_do(status)),
        ("next", what_next(status, again)),
    ]
    return "\n".join([head, *(f"  {name:<11} {text}" for name, text in rows if text)])


def what_next(status: Status, again: str) -> str:
    """Return the command that brings the run further, as it can be pasted; empty where there is nothing to do."""
    if status.health in (STARTING, RUNNING, REQUEUED):
        return ""
    if status.health == FINISHED:
        verb = "report" if exported_model(status) else "export"
        return shlex.join(["maskmill", verb, str(status.folder)])
    return again


def what_to_do(status: Status) -> str:
    """Return in words what the user should do, or know before the command of `what_next`."""
    logs, numbers = status.folder / LOGS, ",".join(str(job.get("job")) for job in status.jobs)
    waits = f"squeue --jobs={numbers} says" if numbers else ""
    if status.health == NOT_STARTED:
        return f"{waits} what the jobs wait for" if numbers else "start it"
    if status.health in (STARTING, RUNNING):
        return f"nothing to do; its logs are in {logs}"
    if status.health == REQUEUED:
        return f"nothing to do; squeue says when Slurm starts it; its logs are in {logs}"
    if status.health == FINISHED:
        model = exported_model(status)
        return f"the model is in {model}" if model else "export the model"
    # a Slurm job that hit its time limit, or failed, may be about to resume by itself
    first = f"{waits} whether Slurm restarts it; if not, " if numbers else ""
    if status.health == STOPPED:
        return f"{first}rerun to resume"
    if status.health == STALLED:
        job = f"squeue --jobs={status.job}; " if status.job else ""
        return (
            f"{job}look at the end of the logs in {logs}; a rank that hangs is ended after run.step_timeout, or "
            "run.stage_limit, seconds and restarted; if no process is left, rerun to resume from the newest checkpoint"
        )
    assert status.health == CRASHED
    place = f"resume from step {status.checkpoint_step:,}" if status.checkpoint else "start over"
    return f"{first}fix what the error says (logs in {logs}), then rerun to {place}"


def exported_model(status: Status) -> Path | None:
    """Return the run's own export, if there is one of its newest checkpoint."""
    steps = [table(folder / NOTE).get("step") for folder in model_folders(status.folder / EXPORT)]
    step = steps[0] if steps else None
    there = step is not None and status.checkpoint_step in (None, step)
    return status.folder / EXPORT if there else None


def _leads(status: Status) -> str:
    """Return where the headline figures are predicted; `learnt` if that is not stated, or if there are none."""
    at = leading_prediction(status.headline).at
    known = any(f"{prefix}{status.headline}" in status.figures for prefix in ("", HELD_OUT))
    return at if at and known else "learnt"


def _scores(status: Status) -> str:
    """Return the headline figures, on held-out text beside their baselines; in training if nothing was held out."""
    held_out = ", ".join(map(str, leading(status.figures, headline=status.headline)))
    trained = leading(status.figures, prefix="", headline=status.headline)
    words = f"{held_out}, held out" if held_out else ""
    in_training = ", ".join(map(str, trained if not held_out else trained[:1]))
    return "; ".join(part for part in (words, f"{in_training} in training" if in_training else "") if part)


def _losses(status: Status) -> str:
    """Return the total loss, named by its terms."""
    parts = [f"{nats(status.loss)} in training" if status.loss is not None else ""]
    if status.held_out_loss is not None:
        parts.append(f"{nats(status.held_out_loss)} held out")
    words = ", ".join(part for part in parts if part)
    what = sum_of(status.figures)
    return f"{words} ({what})" if words and what != "total" else words


def _speed(status: Status) -> str:
    parts = [metric("tokens_per_s").worded(status.tokens_per_s)]
    if status.step_seconds is not None:
        parts.append(f"{status.step_seconds:,.3g} s a step")
    return ", ".join(part for part in parts if part)


def _time_left(status: Status) -> str:
    if status.seconds_left is None or status.health == FINISHED:
        return ""
    left = duration(status.seconds_left)
    if status.health != RUNNING:
        return f"{left} once resumed"
    if status.seconds_left > 86_400 * 3650:
        return f"{left}"
    return f"{left}, until {datetime.now() + timedelta(seconds=status.seconds_left):%Y-%m-%d %H:%M}"


def _checkpoint_text(status: Status) -> str:
    fails = f"saves fail: {status.save_error}" if status.save_error else ""
    if status.checkpoint_step is None:
        return f"none yet{f', {fails}' if fails else ''}" if status.health != NOT_STARTED else ""
    behind = status.step - status.checkpoint_step
    if fails:
        return f"last good checkpoint {behind:,} steps ago (step {status.checkpoint_step:,}), {fails}"
    steps = f", {behind:,} steps behind" if behind > 0 else ""
    return f"step {status.checkpoint_step:,}, {duration(status.checkpoint_age)} old{steps}"


def _attempts(status: Status) -> str:
    if not status.attempts:
        return ""
    again = status.attempts - 1
    restarts = (
        "never restarted" if not again else "restarted once" if again == 1 else f"restarted {again} times"
    )
    here = f"; on {status.host}" + (f", Slurm job {status.job}" if status.job else "") if status.host else ""
    return f"{restarts}{here}"


def command_again(status: Status, source: str, overrides: Sequence[str] = ()) -> str:
    """Return the command that goes on with the run, to be pasted: the one that it recorded, else the one that starts
    the recipe `source`, without run.stop_after, where it would stop at once, and with the folder where it is now."""
    given = ["maskmill", "train", *([source, *overrides] if not Path(source).is_dir() else ["RECIPE"])]
    with suppress(ValueError):  # a quote that is not closed
        given = shlex.split(status.command) or given
    kept = [word for word in given if not word.startswith("run.stop_after=")]
    place = f"run.dir={status.folder.resolve() if status.command else status.folder}"
    named = [word for word in kept if word.startswith("run.dir=")]
    if any(Path(word.removeprefix("run.dir=")).resolve() != status.folder.resolve() for word in named):
        kept = [place if word in named else word for word in kept]
    elif not named and status.command:
        kept.append(place)
    return shlex.join(kept)

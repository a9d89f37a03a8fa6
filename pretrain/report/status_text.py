"""Format a Status for people, with what to do next."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from data_pipeline.io.model_folder import NOTE
from pretrain.report.health import (
    CRASHED,
    FINISHED,
    NOT_STARTED,
    REQUEUED,
    RUNNING,
    STALLED,
    STARTING,
    STOPPED,
)
from pretrain.report.status import Status
from pretrain.run.files import table
from pretrain.run.folder import EXPORT, model_folders
from pretrain.run.human import duration
from pretrain.run.metrics import HELD_OUT, leading, leading_kind, sum_of


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
        ("checkpoint", _checkpoint(status)),
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
    logs, numbers = status.folder / "logs", ",".join(str(job.get("job")) for job in status.jobs)
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
            f"{job}look at the end of the logs in {logs}; a rank that hangs is ended after run.step_limit, or "
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
    at = leading_kind(status.headline).at
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
    parts = [f"{status.loss:.3f} in training" if status.loss is not None else ""]
    if status.held_out_loss is not None:
        parts.append(f"{status.held_out_loss:.3f} held out")
    words = ", ".join(part for part in parts if part)
    what = sum_of(status.figures)
    return f"{words} ({what})" if words and what != "total" else words


def _speed(status: Status) -> str:
    parts = [f"{status.tokens_per_s:,.0f} tokens/s" if status.tokens_per_s is not None else ""]
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


def _checkpoint(status: Status) -> str:
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

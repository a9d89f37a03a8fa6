"""List problems of a run and what to do about them."""

from dataclasses import dataclass
from html import escape

import numpy as np

from data_pipeline.errors import redact
from pretrain.report.html.charts.scales import text
from pretrain.report.html.record import Points, RunRecord
from pretrain.run.folder import HANG
from pretrain.run.metrics import HELD_OUT, PLATEAU, RISEN, kinds_in, said

MANY = 0.05
"""Share of batches from which skipped ones are serious."""
SLOWDOWN_SHARES, MIN_SLOW_LINES = {"waiting for data": 0.05, "rank": 0.1, "an outlier": 0.1}, 5
"""Share and number of log lines from which slowdowns are reported: ranks always jitter a little."""
WORSE = 0.02
"""Rise of the held-out loss above its minimum, as a share, from which overfitting is reported."""


@dataclass(frozen=True)
class Advice:
    """What is wrong, what to do, and whether it is serious."""

    what: str
    remedy: str
    grave: bool = False


def advice_section(run: RunRecord) -> str:
    """Return the warnings as a list, serious ones first; empty if there are none."""
    found = sorted(advice(run), key=lambda one: not one.grave)
    items = "".join(
        f'<li class="{"grave" if one.grave else "mild"}"><b>{escape(one.what)}</b> {escape(one.remedy)}</li>'
        for one in found
    )
    return (
        f'<section id="look-at" aria-label="What to look at"><ul class="advice">{items}</ul></section>'
        * bool(found)
    )


def advice(run: RunRecord) -> list[Advice]:
    """Return all advice, in the order of the page."""
    return [*_ends(run), *_broken(run), *_batches(run), *_learning(run), *_speed(run), *_files(run)]


def _ends(run: RunRecord) -> list[Advice]:
    found = []
    if run.status == "failed":
        error = redact(str(run.summary.get("error") or "It left no message."))
        back = (
            f"Fix the cause, then rerun the same command to resume from step {text(run.checkpoints[-1].step)}."
            if run.checkpoints
            else "There is no checkpoint: the same command starts from the beginning."
        )
        found.append(Advice(f"The run failed: {error}", f"Look at logs/rank-N.log. {back}", grave=True))
    if run.not_saved:
        found.append(
            Advice(
                f"The newest checkpoint could not be saved: {redact(run.not_saved)}.",
                "Make room, or look at the disk. Until a save succeeds, a crash loses the steps since the newest one.",
                grave=True,
            )
        )
    if hangs := [event for event in run.events if event.get("event") == HANG]:
        count = "once" if len(hangs) == 1 else f"{len(hangs):,} times"
        found.append(
            Advice(
                f"The run hung {count} and was ended: {redact(str(hangs[-1].get('text') or ''))}.",
                "Every rank's stack is in logs/rank-N.log; the rank that waits for no other is the cause.",
            )
        )
    if len(run.lost) > 0:
        count = "One attempt" if len(run.lost) == 1 else f"{len(run.lost)} attempts"
        found.append(
            Advice(
                f"{count} of the run ended without a word.",
                "Killed, out of memory, or a machine that is gone: logs/rank-N.log and the job's own log may say.",
            )
        )
    return found


def _broken(run: RunRecord) -> list[Advice]:
    losses = [
        f"{kind.name}_loss" for kind in (run.kind, *kinds_in(run.train)) if kind == run.kind or not kind.part
    ]
    trained = {"loss": "the loss", **{name: f"the {said(name)}" for name in losses}}
    held_out = {f"{HELD_OUT}{name}": f"the held-out {said(name)}" for name in (*losses, "loss")}
    found = _not_finite(run.train, {**trained, "grad_norm": "the gradient norm"}, "log lines")
    return [*found, *_not_finite(run.held_out, held_out, "evaluations")]


def _not_finite(metrics: dict[str, Points], names: dict[str, str], lines: str) -> list[Advice]:
    """Warn of the first of these metrics with a value that is not finite."""
    for name, words in names.items():
        points = metrics.get(name)
        if points is not None and (wrong := points.steps[~np.isfinite(points.values)]).size:
            return [
                Advice(
                    f"From step {text(float(wrong[0]))} on, {words} is not finite in {wrong.size:,} {lines}.",
                    "Lower optim.lr, lengthen schedule.warmup, or use train.precision=bf16 or fp32; "
                    "train.on_nan=rollback goes back to the newest checkpoint.",
                    grave=True,
                )
            ]
    return []


def _batches(run: RunRecord) -> list[Advice]:
    skipped, damaged = run.final("skipped_batches") or 0.0, run.final("damaged_examples") or 0.0
    batches = run.final("batch") or 0.0
    found = []
    if skipped:
        share = skipped / max(batches, 1.0)
        found.append(
            Advice(
                f"{text(skipped)} of {text(batches)} batches were skipped ({text(share, share=True)}).",
                "The table of disturbances says why. A few do no harm; many want a lower optim.lr, or other data.",
                grave=share > MANY,
            )
        )
    if damaged:
        found.append(
            Advice(
                f"{text(damaged)} examples could not be read and were left out.",
                "maskmill inspect on the shards names the damaged ones; prepare them again.",
                grave=True,
            )
        )
    return found


def _learning(run: RunRecord) -> list[Advice]:
    found = [
        Advice(
            finding.what,
            finding.remedy,
            grave=finding.kind == RISEN or (finding.kind == PLATEAU and run.ended),
        )
        for finding in run.findings
    ]
    held_out = run.held_out.get(f"{HELD_OUT}{run.kind.name}_loss", run.held_out.get(f"{HELD_OUT}loss"))
    if held_out is not None and (rise := _risen(held_out)):
        found.append(
            Advice(
                f"The held-out loss was lowest at step {text(rise)} and has risen since: the model overfits.",
                "Take the checkpoint of its best step (checkpoint.keep_best keeps it), prepare more text, "
                "or set data.dynamic_masking=true.",
            )
        )
    if run.status == "finished" and not run.held_out:
        found.append(
            Advice(
                "Nothing was held out, so nothing says how well the model does on text it has not seen.",
                "data.held_out=0.01 at preparing, and train.eval_every.",
            )
        )
    return found


def _risen(points: Points) -> float | None:
    """Return the step of the minimum, if the newest value is clearly above it."""
    finite = np.isfinite(points.values)
    values, steps = points.values[finite], points.steps[finite]
    if len(values) < 3:
        return None
    best = int(values.argmin())
    return float(steps[best]) if values[-1] > values[best] * (1 + WORSE) and best < len(values) - 2 else None


def _speed(run: RunRecord) -> list[Advice]:
    lines = max((len(points.steps) for points in run.train.values()), default=0)
    remedies = {
        "waiting for data": ("Ranks waited for data", "More CPU cores a rank, or shards on a faster disk."),
        "rank": ("One rank was slower than the others", "See which one below, and look at its machine."),
        "an outlier": (
            "Single steps took much longer than the others",
            "A shared machine, a slow disk, the network.",
        ),
    }
    found = []
    for start, (what, remedy) in remedies.items():
        steps = {step for step, words in run.slowdowns if words.startswith(start)}
        if lines and len(steps) >= max(MIN_SLOW_LINES, SLOWDOWN_SHARES[start] * lines):
            last = next(words for _, words in reversed(run.slowdowns) if words.startswith(start))
            found.append(
                Advice(f"{what} in {len(steps):,} of {lines:,} log lines.", f"{remedy} Newest: {last}.")
            )
    return found


def _files(run: RunRecord) -> list[Advice]:
    found = [
        Advice(complaint, "The rest of the page is from the other files.") for complaint in run.complaints
    ]
    if run.status == "stopped":
        found.append(Advice("The run was stopped before its end.", "Rerun the same command to resume."))
    return found

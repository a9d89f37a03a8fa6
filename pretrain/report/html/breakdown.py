"""Show where a run's time went: within a step, over the whole run, and by rank."""

from collections import Counter
from html import escape

import numpy as np

from pretrain.report.html.charts.scales import middle, text
from pretrain.report.html.record import RunRecord
from pretrain.run.files import number
from pretrain.run.human import duration

MOST_RANKS = 12


def time_figures(run: RunRecord) -> list[str]:
    """Return the measured times as HTML figures; those not measured are left out."""
    return [figure for figure in (_of_a_step(run), _of_the_run(run), _by_rank(run)) if figure]


def _of_a_step(run: RunRecord) -> str:
    step, forward, waited = (
        middle(run.train.get(name)) for name in ("step_ms", "forward_ms", "data_wait_share")
    )
    if not step or forward is None or waited is None:
        return ""
    waiting = waited * step
    rest = max(0.0, step - forward - waiting)
    parts = {
        "waiting for data": (waiting, 2),
        "forward passes": (forward, 3),
        "backward, communication, update": (rest, 1),
    }
    about = (
        f"The median step takes {text(step)} ms. Ranks meet in the backward pass: their waits are part of it."
    )
    return _stack("step-parts", "Where a step's time goes", about, parts, "ms")


def _of_the_run(run: RunRecord) -> str:
    """Return the seconds of this run: evaluations and checkpoint copies beside everything else."""
    seconds = number(run.summary.get("seconds"))
    spent = [
        points for points in (run.held_out.get("eval_seconds"), run.probe.get("probe_seconds")) if points
    ]
    blocked = sum(save.blocked for attempt in run.history for save in attempt.saves)
    evaluating = sum(float(np.nansum(points.values)) for points in spent)
    if not seconds or (not evaluating and not blocked):
        return ""
    parts = {
        "training": (max(0.0, seconds - evaluating - blocked), 1),
        "evaluating": (evaluating, 3),
        "waiting for checkpoints": (blocked, 2),
    }
    about = (
        f"{duration(seconds)} in all attempts together, without what kills undid. Checkpoints are written in the "
        "background; what counts is the copy that training waits for."
    )
    return _stack("run-parts", "Where the run's time went", about, parts, "s")


def _stack(id_: str, title: str, about: str, parts: dict[str, tuple[float, int]], unit: str) -> str:
    """Return a bar in parts, each with its value and share beside it, as the table of the picture."""
    total = sum(value for value, _ in parts.values()) or 1.0
    at, bars = 0.0, ""
    for value, colour in parts.values():
        width = 1000 * value / total
        bars += f'<rect class="f{colour}" x="{at:.1f}" width="{max(0.0, width - 2):.1f}" height="100"/>'
        at += width
    rows = "".join(
        f'<li><i class="b{colour}"></i><span>{escape(name)}</span><b>{text(value)} {unit}</b>'
        f"<em>{text(value / total, share=True)}</em></li>"
        for name, (value, colour) in parts.items()
    )
    words = ", ".join(f"{name} {text(value / total, share=True)}" for name, (value, _) in parts.items())
    return (
        f'<figure class="chart" id="{id_}"><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>'
        f'<svg class="stack" viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{id_}-t {id_}-d"><title id="{id_}-t">{escape(title)}</title>'
        f'<desc id="{id_}-d">{escape(words)}</desc>{bars}</svg><ul class="parts">{rows}</ul></figure>'
    )


def _by_rank(run: RunRecord) -> str:
    """Show how often each rank was the slowest, and by how much: random is fine, always the same rank is not."""
    ranks, ratios = run.train.get("slowest_rank"), run.train.get("slowest_rank_ratio")
    if ranks is None or ratios is None:
        return ""
    by_step = dict(zip(ratios.steps.tolist(), ratios.values.tolist(), strict=True))
    found = [
        (int(rank), by_step[step])
        for step, rank in zip(ranks.steps.tolist(), ranks.values.tolist(), strict=True)
        if np.isfinite(rank) and np.isfinite(by_step.get(step, np.nan))
    ]
    counts = Counter(rank for rank, _ in found)
    rows = "".join(
        f'<tr><th scope="row">rank {rank}</th><td>{text(count)}</td><td>{text(count / len(found), share=True)}</td>'
        f"<td>{text(float(np.median([ratio for r, ratio in found if r == rank])))}</td></tr>"
        for rank, count in counts.most_common(MOST_RANKS)
    )
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("", "log lines", "share", "times the others' median")
    )
    more = len(counts) - MOST_RANKS
    rest = f'<p class="aside">And {more:,} more ranks.</p>' if more > 0 else ""
    return (
        '<figure class="chart" id="ranks"><figcaption><h3>Which rank was the slowest</h3>'
        "<p>Spread over the ranks is chance; one rank in most lines is a slow machine.</p></figcaption>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{rest}</figure>'
    )

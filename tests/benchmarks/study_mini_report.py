"""Draws what the study of the mini model measured: tables as Markdown and a picture."""

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.report.charts import Line, Panel, svg
from tests.benchmarks.studies import markdown


def best(result: dict[str, Any], contender: str) -> list[dict[str, Any]]:
    """The runs of a contender, seed by seed, at the rate with the lowest last loss of the first seed."""
    runs = [found for found in list(result["measured"].values()) if found["contender"] == contender]
    rate = min((found for found in runs if found["seed"] == 1), key=final)["rate"]
    return sorted((found for found in runs if found["rate"] == rate), key=lambda found: found["seed"])


def final(found: dict[str, Any]) -> float:
    return found["points"][-1]["mask_loss"]


def report(result: dict[str, Any], picture: Path) -> None:
    """Prints the tables and draws the picture of what has been measured so far."""
    run = {found["contender"] for found in result["measured"].values()}
    names = [name for name in result["speeds"] if name in run]
    shown = {name: best(result, name) for name in names}
    labels = [runs[0]["label"] for runs in shown.values()]
    print(markdown(["learning rate", *labels], by_rate(result, names)) + "\n")
    head = ["", "rate", "runs", "s to start", "s a step", "steps", "held-out loss at [MASK]"]
    head += ["accuracy at [MASK]", "NSP accuracy"]
    print(markdown(head, [summary(runs, result["speeds"][name]) for name, runs in shown.items()]) + "\n")
    print(markdown(["held-out loss at [MASK] after", *labels], by_time(result, shown)))
    for line in sooner(shown):
        print(line)
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(drawn(result, shown), encoding="utf-8")
    print(f"\npicture: {picture}")


def by_rate(result: dict[str, Any], names: list[str]) -> list[list[str]]:
    """The last losses of the first seed."""
    losses = {
        (found["rate"], found["contender"]): final(found)
        for found in result["measured"].values()
        if found["seed"] == 1
    }
    rates = sorted({rate for rate, _ in losses})
    return [
        [f"{rate:g}", *(f"{losses[rate, n]:.3f}" if (rate, n) in losses else "not run" for n in names)]
        for rate in rates
    ]


def summary(runs: list[dict[str, Any]], speed: dict[str, float]) -> list[str]:
    """A contender at its best rate: means, and the range of the losses."""
    lasts = [found["points"][-1] for found in runs]
    losses = [last["mask_loss"] for last in lasts]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(runs) > 1 else ""
    return [
        runs[0]["label"],
        f"{runs[0]['rate']:g}",
        str(len(runs)),
        f"{speed['start']:.1f}",
        f"{speed['step']:.2f}",
        f"{runs[0]['steps']:,}",
        f"{statistics.fmean(losses):.3f}{spread}",
        accuracy(lasts, "mask_accuracy"),
        accuracy(lasts, "nsp_accuracy"),
    ]


def accuracy(lasts: list[dict[str, Any]], name: str) -> str:
    """Their mean."""
    found = [last[name] for last in lasts if name in last]
    return f"{statistics.fmean(found):.1%}" if found else "none"


def drawn(result: dict[str, Any], shown: dict[str, list[dict[str, Any]]]) -> str:
    """The curves of each contender's runs at its best rate: the first seed's with a name, the others' faint."""
    lines = [
        Line(
            f"{found['label']} ({found['steps']:,} steps, rate {found['rate']:g})",
            [(p["seconds"] / 60, p["mask_loss"]) for p in found["points"]],
            colour,
            faint=bool(number),
        )
        for colour, runs in enumerate(shown.values())
        for number, found in enumerate(runs)
    ]
    entropy = next(iter(shown.values()))[0]["points"][-1]["mask_unigram_loss"]
    title = f"{result['setup']['minutes']:g} minutes of the mini model"
    axes = ("minutes since the start of the process", "held-out loss at [MASK] (nats)")
    panel = Panel(title, *axes, lines, {"frequencies of words alone": entropy})
    words = "; ".join(f"{runs[0]['label']}: {final(runs[0]):.3f}" for runs in shown.values())
    return svg([panel], f"Held-out loss at [MASK] over wall time. At the end: {words}.")


def by_time(result: dict[str, Any], shown: dict[str, list[dict[str, Any]]], rows: int = 8) -> list[list[str]]:
    """The first seeds' curves at equal times, between checkpoints by straight lines; nothing before the first one."""
    limit = 60 * result["setup"]["minutes"]
    table = []
    for seconds in np.linspace(limit / rows, limit, rows).tolist():
        cells = []
        for runs in shown.values():
            at, losses = curve(runs[0])
            cells.append(f"{np.interp(seconds, at, losses):.3f}" if seconds >= at[0] else "no checkpoint yet")
        table.append([f"{seconds / 60:g} min", *cells])
    return table


def curve(found: dict[str, Any]) -> tuple[list[float], list[float]]:
    points = found["points"]
    return [p["seconds"] for p in points], [p["mask_loss"] for p in points]


def sooner(shown: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """When ours had reached what each other ended with, by the first seeds."""
    if "ours" not in shown:
        return
    at, losses = curve(shown["ours"][0])
    for name, runs in shown.items():
        ended, goal = (values[-1] for values in curve(runs[0]))
        if name != "ours" and losses[-1] <= goal:
            place = next(i for i, loss in enumerate(losses) if loss <= goal)
            yield (
                f"\nMaskmill was at or below the last loss of {runs[0]['label']} ({goal:.3f} after {ended:.0f} s) at "
                f"its checkpoint of {at[place]:.0f} s"
            )

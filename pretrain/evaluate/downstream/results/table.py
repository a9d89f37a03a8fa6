"""Show results in a terminal or as Markdown: a row per task and split, what was measured beside what needs no
pretraining, and beside other encoders."""

from collections.abc import Iterator, Sequence
from typing import Any

from pretrain.evaluate.downstream.results.against import FURTHER, MARK, Other, apart, by_chance
from pretrain.run.human import markdown
from pretrain.run.task_scores import HEADS, TaskScore, shown, task_scores


def result_lines(
    notes: Sequence[dict[str, Any]], others: Sequence[Other] = (), as_markdown: bool = False
) -> list[str]:
    """Return a table of the headline metrics in percent: medians over the seeds, where there are several; aligned, or
    in Markdown. A column for each other encoder has the scores that can be compared, with a mark where no seed of the
    one reaches the other. Then the other metrics and notes of each task, a line each."""
    heads = [*HEADS, *(other.name for other in others)]
    rows, chances = [], []
    found = [(note, score) for note in notes for score in _scores(note, further=bool(others))]
    for note, score in found:
        beside = [other.score(note, score) for other in others]
        marked = [one for one in beside if one and apart(score, one)]
        chances += [(by_chance(score, one), score.seeds, one.seeds) for one in marked]
        rows.append([*score.cells, *(_cell(one, one in marked) for one in beside)])
    lines = markdown(heads, rows).splitlines() if as_markdown else _aligned([heads, *rows])
    if chances:
        chance, *seeds = max(chances)
        lines += [""] if as_markdown else []
        lines.append(
            f"{MARK} no seed of the one reaches the other; of equal encoders with {seeds[0]} and {seeds[1]} seeds"
            f" in 1 of {1 / chance:.0f} cases"
        )
    return [*lines, *(line for note in notes for line in _remarks(note))]


def _scores(note: dict[str, Any], *, further: bool) -> Iterator[TaskScore]:
    """Yield what has a row: the scores by the metric that a task is known by, and with `further` those by FURTHER."""
    yield from task_scores(note)
    if further:
        for metric in FURTHER.get(note["task"], ()):
            yield from task_scores(note, metric)


def _cell(score: TaskScore | None, is_marked: bool) -> str:
    return f"{score.whole}{MARK if is_marked else ''}" if score else ""


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _remarks(note: dict[str, Any]) -> Iterator[str]:
    name = note["task"]
    for split, scores in note["scores"].items():
        others = [f"{m} {shown(m, found['median'])}" for m, found in scores.items() if m != note["headline"]]
        if others:
            yield f"{name} {split}: {', '.join(others)}"
    if groups := note["details"].get("groups"):
        yield f"{name}: {', '.join(f'{group} {value:.1f}' for group, value in groups.items())}"
    if note["details"].get("unknown_share"):
        yield f"{name}: {note['details']['unknown_share']:.2f} % of the tokens are unknown to the vocabulary"
    for remark in note["notes"]:
        yield f"{name}: {remark}"

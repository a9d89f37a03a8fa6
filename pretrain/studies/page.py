"""Write what a study found: result.json, tables and a page in Markdown, and pictures.

All of it is written again from what was measured, whenever a run has ended: a study that was cut short shows what is
missing.
"""

import itertools
import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.io.files import write_whole
from pretrain.report.charts import Line, Panel, Strip, strip_svg, svg
from pretrain.run.files import table as read_table
from pretrain.run.human import duration, markdown
from pretrain.run.metrics import title_of
from pretrain.run.task_scores import study_metric
from pretrain.studies.compare import (
    Contrast,
    Row,
    cells_of_row,
    cells_of_trivial,
    contrasts_of,
    figures_of,
    rows_of,
    runs_of,
    shown,
    unigram_of,
)
from pretrain.studies.design import Design
from pretrain.studies.measured import Cell, Measured, best_values, by_arms

# Show how the scores of tasks rise with the epochs of fine-tuning, where a task's settings say by_epoch.


PANELS = 2
"""Panels of the picture: the first figures that have curves."""


def epoch_figures(measured: Mapping[Cell, Measured]) -> list[str]:
    """Return the figures that were measured after each epoch."""
    return list(dict.fromkeys(name for one in measured.values() for name in one.by_epoch))


def seeds_of(design: Design, measured: Mapping[Cell, Measured], figure: str) -> dict[str, list[list[float]]]:
    """Return arm -> the figure after each epoch, of each seed that has it."""
    curves = {
        arm: [one.by_epoch[figure] for one in seeds.values() if figure in one.by_epoch]
        for arm, seeds in runs_of(design, measured).items()
    }
    return {arm: of_seeds for arm, of_seeds in curves.items() if of_seeds}


def epoch_rows(
    design: Design, measured: Mapping[Cell, Measured], figure: str
) -> tuple[list[str], list[list[str]]]:
    """Return the head of a table of one figure and its rows, an epoch each: means over the seeds, with their range, as
    far as all of them were fine-tuned."""
    curves = seeds_of(design, measured, figure)
    columns = [[_cell(figure, values) for values in zip(*seeds, strict=False)] for seeds in curves.values()]
    rows = [
        [str(epoch), *cells] for epoch, cells in enumerate(itertools.zip_longest(*columns, fillvalue=""), 1)
    ]
    head = [f"{design.label(arm)} (seeds: {_count(design, len(seeds))})" for arm, seeds in curves.items()]
    return ["epoch", *head], rows


def _count(design: Design, seeds: int) -> str:
    return f"{seeds}" if seeds == len(design.seeds) else f"{seeds} of {len(design.seeds)}"


def _cell(figure: str, values: Sequence[float]) -> str:
    ends = f" ({shown(figure, min(values))} to {shown(figure, max(values))})" if len(values) > 1 else ""
    return f"{shown(figure, statistics.fmean(values))}{ends}"


def epoch_picture(design: Design, measured: Mapping[Cell, Measured]) -> str:
    """Return a picture of the first figures with curves, a panel each; empty without any."""
    panels = [_panel(design, measured, figure) for figure in epoch_figures(measured)[:PANELS]]
    if not panels:
        return ""
    means = [line for line in panels[0].lines if not line.faint]
    words = "; ".join(f"{line.name}: {line.points[-1][1]:.4g}" for line in means)
    return svg(panels, f"{panels[0].y_label} by epoch of fine-tuning, at the end: {words}.")


def _panel(design: Design, measured: Mapping[Cell, Measured], figure: str) -> Panel:
    lines: list[Line] = []
    for colour, (arm, seeds) in enumerate(seeds_of(design, measured, figure).items()):
        means = [statistics.fmean(values) for values in zip(*seeds, strict=False)]
        lines.append(Line(design.label(arm), _points(means), colour))
        if len(seeds) > 1:
            lines += [Line(arm, _points(curve), colour, faint=True) for curve in seeds]
    return Panel(study_metric(figure).label, "epochs of fine-tuning", study_metric(figure).label, lines)


def _points(curve: Sequence[float]) -> list[tuple[float, float]]:
    return [(epoch, value) for epoch, value in enumerate(curve, 1)]


# Draw the picture of a study: what its arms have in the figure that leads.


FOLLOWS_FROM = {"context_gain": "held_out_mask_loss", "tokens_to_context": "held_out_mask_loss"}
"""Figure that is measured at the end -> the curve that it is read from."""


def figure_to_draw(rows: Sequence[Row]) -> str:
    """Return the first figure that an arm has, which is the one that leads wherever that was measured; empty without
    any."""
    return next((row.figure for row in rows if row.values), "")


def picture_of(design: Design, figure: str, rows: Sequence[Row], measured: Mapping[Cell, Measured]) -> str:
    """Return a picture of a figure: curves over tokens where the runs have them, else the values of each arm."""
    own = [row for row in rows if row.figure == figure]
    words = "; ".join(
        f"{design.label(r.arm)}: {shown(figure, statistics.fmean(r.values.values()))}"
        for r in own
        if r.values
    )
    curves = _curve_figure(design, figure, measured)
    lines = list(_lines(design, curves, measured))
    if lines:
        level = unigram_of(measured)
        levels = {} if level is None else {"word frequencies alone": level}
        panel = Panel(
            design.title,
            "tokens",
            study_metric(curves).label,
            lines,
            levels,
            ceiling=(level or math.inf) + 1.0,
        )
        return svg(
            [panel], f"{study_metric(curves).label} over tokens. {study_metric(figure).label}: {words}."
        )
    strips = {design.label(row.arm): list(row.values.values()) for row in own if row.values}
    return strip_svg(Strip(design.title, study_metric(figure).label, strips), words)


def _curve_figure(design: Design, figure: str, measured: Mapping[Cell, Measured]) -> str:
    """Return what the curves of a figure show: itself, or what it follows from; empty for tasks."""
    if "." in figure:
        return ""
    in_curves = {name for one in measured.values() for point in one.curve for name in point}
    candidates = (figure, FOLLOWS_FROM.get(figure, ""), *design.figures)
    return next((name for name in candidates if name in in_curves), "held_out_mask_loss")


def _lines(design: Design, figure: str, measured: Mapping[Cell, Measured]) -> Iterable[Line]:
    """Yield for each arm the mean of its curves with a name, and each seed's, faint."""
    best = best_values(measured.values(), design.figure)
    for colour, (arm, seeds) in enumerate(runs_of(design, measured).items()):
        curves = [
            [(p["tokens"], p[figure]) for p in one.curve if figure in p and p["tokens"]]
            for one in seeds.values()
        ]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        if len({len(curve) for curve in curves}) == 1:
            ys = zip(*([y for _, y in curve] for curve in curves), strict=True)
            mean = list(zip([x for x, _ in curves[0]], map(statistics.fmean, ys), strict=True))
        else:
            mean = curves[0]
        values = "".join(f", {key.rpartition('.')[2]} {value:g}" for key, value in best.get(arm, ()))
        yield Line(f"{design.label(arm)}{values}", mean, colour)
        if len(curves) > 1:
            yield from (Line(arm, curve, colour, faint=True) for curve in curves)


# Write the files of a study: the result, its tables and pictures, and the page.


RESULT, TABLE, PICTURE, EPOCHS, PAGE = "result.json", "table.md", "picture.svg", "epochs.svg", "README.md"
CONTRAST_HEAD = ["contrast", "seeds", "difference (95 %)", "reading"]
HEAD = ["arm", "seeds", "mean ± sd", "range", "minus reference (95 %)", "reading", "published"]


@dataclass(frozen=True)
class Facts:
    """What is known of how a study was run."""

    command: str
    budget: str
    equal: dict[str, dict[str, str]]
    """Seed -> kind -> the hash that the arms of Design.equal have."""
    failed: dict[str, str]
    """Run -> why it has no result."""
    unscored: list[str]
    """Tasks that were left out, with why."""
    steps: str = ""
    """How many steps each arm has, where arms are compared at equal time."""


def read_facts(folder: Path, form: str) -> Facts | None:
    """Return the facts of the page that is in the folder; None where it has none of this form."""
    result = read_table(folder / RESULT)
    try:
        return Facts(**result["facts"]) if result["form"] == form else None
    except (KeyError, TypeError):
        return None


def write_study(
    folder: Path, design: Design, cells: Sequence[Cell], measured: Mapping[Cell, Measured], facts: Facts
) -> None:
    """Write result.json, table.md, README.md, picture.svg where something has been measured and, of tasks that are
    scored by epoch, epochs.svg into the folder."""
    rows = rows_of(design, measured)
    missing = [cell.name for cell in cells if cell not in measured]
    result = {
        "study": design.name,
        "form": design.form,
        "design": asdict(design),
        "facts": asdict(facts),
        "missing": missing,
        "rows": [row.as_values for row in rows],
        "measured": [asdict(one) for one in measured.values()],
    }
    contrasts = contrasts_of(design, rows)
    result["contrasts"] = [one.as_values for one in contrasts]
    tables = tables_of(design, rows, contrasts, measured)
    write_whole(folder / RESULT, json.dumps(result, indent=1, default=str).encode())
    write_whole(folder / TABLE, f"{tables}\n".encode())
    shows = figure_to_draw(rows)
    if picture := picture_of(design, shows, rows, measured) if shows else "":
        write_whole(folder / PICTURE, picture.encode())
    if epochs := epoch_picture(design, measured):
        write_whole(folder / EPOCHS, epochs.encode())
    pictures = {study_metric(shows).label: PICTURE if picture else "", "By epoch": EPOCHS if epochs else ""}
    page = page_of(design, tables, missing, measured, facts, pictures)
    write_whole(folder / PAGE, page.encode())


def tables_of(
    design: Design, rows: Sequence[Row], contrasts: Sequence[Contrast], measured: Mapping[Cell, Measured]
) -> str:
    """Return a table for each figure, with its contrasts below, one of the grid where a setting is tuned, and one for
    each figure that was measured after each epoch."""
    parts = [_grid(design, measured)] if design.tune else []
    for figure in figures_of(design, measured):
        lines = [cells_of_row(design, row) for row in rows if row.figure == figure]
        lines += [trivial] if (trivial := cells_of_trivial(figure, measured)) else []
        used = [n for n in range(len(HEAD)) if n < len(HEAD) - 1 or any(line[n] for line in lines)]
        table = markdown([HEAD[n] for n in used], [[line[n] for n in used] for line in lines])
        parts.append(f"**{title_of(study_metric(figure).label)}**\n\n{table}")
        if sums := [one.cells for one in contrasts if one.figure == figure]:
            parts.append(markdown(CONTRAST_HEAD, sums))
    for figure in epoch_figures(measured):
        table = markdown(*epoch_rows(design, measured, figure))
        parts.append(
            f"**{title_of(study_metric(figure).label)} by epoch, means and ranges over seeds**\n\n{table}"
        )
    return "\n\n".join(part for part in parts if part) or "Nothing has been measured yet."


def _grid(design: Design, measured: Mapping[Cell, Measured]) -> str:
    """Return the figure of the first seed by arm and tuned values; the best of each arm is bold, and marked at an end
    of the grid, where a better one may be beyond it."""
    best = best_values(measured.values(), design.figure)
    first = {(one.arm, one.cell.tuned): one for one in measured.values() if one.seed == design.seeds[0]}
    points = sorted({tuned for _, tuned in first}, key=lambda tuned: [value for _, value in tuned])
    lines = []
    for tuned in points:
        line = [", ".join(f"{value:g}" for _, value in tuned)]
        for arm in design.arms:
            one = first.get((arm, tuned))
            text = shown(design.figure, one.figures.get(design.figure, math.inf)) if one else "not run"
            edge = " (an end of the grid)" if tuned in (points[0], points[-1]) and len(points) > 2 else ""
            line.append(f"**{text}**{edge}" if best.get(arm) == tuned and one else text)
        lines.append(line)
    names = " and ".join(design.tune)
    head = [names, *(design.label(arm) for arm in design.arms)]
    return f"**{title_of(study_metric(design.figure).label)} by {names}, first seed**\n\n" + markdown(
        head, lines
    )


def page_of(
    design: Design,
    tables: str,
    missing: Sequence[str],
    measured: Mapping[Cell, Measured],
    facts: Facts,
    pictures: Mapping[str, str],
) -> str:
    """Return the page of a study. `pictures`: what each shows -> its file, if there is one."""
    parts = [f"# {design.title}", design.question, f"Form: {design.form}. {facts.budget}"]
    parts.append("## Set-up\n\n" + _setup(design))
    if facts.steps:
        parts.append(facts.steps)
    parts += _equal(design, facts)
    parts.append(f"## Result\n\n{_when_and_where(measured.values())}`{facts.command}`.\n\n{tables}")
    parts += [f"![{shows}]({file})" for shows, file in pictures.items() if file]
    if missing or facts.failed or facts.unscored:
        lines = [f"- not measured: {name}{_because(facts, name)}" for name in missing]
        lines += [f"- not scored: {task}" for task in facts.unscored]
        parts.append("## What is missing\n\n" + "\n".join(lines))
    notes = sorted({note for one in measured.values() for note in one.notes})
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(
        "Differences are arm minus reference, run by run of the same seed; p is of a paired t-test over seeds, "
        "corrected for the number of arms (Holm). With so few seeds the test sees large differences only."
    )
    if design.reading:
        parts.append(f"## What it shows and what it does not\n\n{design.reading}")
    seconds = sum(one.seconds for one in measured.values())
    parts.append(f"{len(measured)} runs took {duration(seconds)} of run time in all.")
    return "\n\n".join(parts) + "\n"


def _when_and_where(measured: Collection[Measured]) -> str:
    """Return the days and the machines of what was measured, not those of drawing it."""
    days = sorted({one.date for one in measured if one.date})
    parts = [" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else []
    parts += sorted({one.machine for one in measured if one.machine})
    return f"{'; '.join(parts)}; " if parts else ""


def _because(facts: Facts, name: str) -> str:
    return f" ({facts.failed[name]})" if name in facts.failed else ""


def _setup(design: Design) -> str:
    rows = [["all arms", f"recipe `{design.recipe}`", _settings(design.settings)]]
    for name, arm in design.arms.items():
        kind = (
            f"the model of {design.label(arm.model_of)}"
            if arm.model_of
            else f"recipe `{arm.recipe or design.recipe}`"
        )
        differs = arm.settings | arm.evaluation | ({"segments": arm.segments} if arm.segments else {})
        rows.append([design.label(name), kind, _settings(differs)])
    if design.tune:
        grids = "; ".join(f"`{key}` of {', '.join(map(str, grid))}" for key, grid in design.tune.items())
        rows.append(["tuned for each arm", grids, "by the first seed"])
    return markdown(["", "from", "settings"], rows)


def _equal(design: Design, facts: Facts) -> Iterable[str]:
    """Yield a sentence for each group of arms in which something was checked to be equal."""
    checked = dict.fromkeys(kind for hashes in facts.equal.values() for kind in hashes)
    for arms, kinds in by_arms({kind: design.equal.get(kind, design.trained) for kind in checked}).items():
        sentence = "; ".join(
            f"seed {seed}: {_pairs({kind: hashes[kind] for kind in kinds if kind in hashes})}"
            for seed, hashes in facts.equal.items()
        )
        labels = ", ".join(f"*{design.label(arm)}*" for arm in arms)
        where = "all arms" if arms == design.trained else labels
        yield f"Checked by hash to be equal in {where}: {sentence}."


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items()) or "none"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())

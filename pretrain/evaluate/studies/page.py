"""Write what a study found: result.json, a table and a page in Markdown, and a picture.

All of it is written again from what was measured, whenever a run has ended: a study that was cut short shows what is
missing.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data_pipeline.io.files import write_whole
from pretrain.evaluate.studies.by_epoch import epoch_figures, epoch_picture, epoch_rows
from pretrain.evaluate.studies.compare import (
    Row,
    cells_of_row,
    cells_of_trivial,
    figures_of,
    named,
    rows_of,
    shown,
)
from pretrain.evaluate.studies.contrasts import Contrast, contrasts_of
from pretrain.evaluate.studies.design import Design
from pretrain.evaluate.studies.equality import by_arms
from pretrain.evaluate.studies.measured import Cell, Measured, best_values
from pretrain.evaluate.studies.picture import figure_to_draw, picture_of
from pretrain.run.files import table as read_table
from pretrain.run.human import duration, markdown

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
    folder: Path, design: Design, cells: Sequence[Cell], found: Mapping[Cell, Measured], facts: Facts
) -> None:
    """Write result.json, table.md, README.md, picture.svg where something has been measured and, of tasks that are
    scored by epoch, epochs.svg into the folder."""
    rows = rows_of(design, found)
    missing = [cell.name for cell in cells if cell not in found]
    result = {
        "study": design.name,
        "form": design.form,
        "design": asdict(design),
        "facts": asdict(facts),
        "missing": missing,
        "rows": [row.as_values for row in rows],
        "measured": [asdict(one) for one in found.values()],
    }
    contrasts = contrasts_of(design, rows)
    result["contrasts"] = [one.as_values for one in contrasts]
    tables = tables_of(design, rows, contrasts, found)
    write_whole(folder / RESULT, json.dumps(result, indent=1, default=str).encode())
    write_whole(folder / TABLE, f"{tables}\n".encode())
    shows = figure_to_draw(rows)
    if picture := picture_of(design, shows, rows, found) if shows else "":
        write_whole(folder / PICTURE, picture.encode())
    if epochs := epoch_picture(design, found):
        write_whole(folder / EPOCHS, epochs.encode())
    pictures = {named(shows): PICTURE if picture else "", "By epoch": EPOCHS if epochs else ""}
    page = page_of(design, tables, missing, found, facts, pictures)
    write_whole(folder / PAGE, page.encode())


def tables_of(
    design: Design, rows: Sequence[Row], contrasts: Sequence[Contrast], found: Mapping[Cell, Measured]
) -> str:
    """Return a table for each figure, with its contrasts below, one of the grid where a setting is tuned, and one for
    each figure that was measured after each epoch."""
    parts = [_grid(design, found)] if design.tune else []
    for figure in figures_of(design, found):
        lines = [cells_of_row(design, row) for row in rows if row.figure == figure]
        lines += [trivial] if (trivial := cells_of_trivial(figure, found)) else []
        used = [n for n in range(len(HEAD)) if n < len(HEAD) - 1 or any(line[n] for line in lines)]
        table = markdown([HEAD[n] for n in used], [[line[n] for n in used] for line in lines])
        parts.append(f"**{_capital(named(figure))}**\n\n{table}")
        if sums := [one.cells for one in contrasts if one.figure == figure]:
            parts.append(markdown(CONTRAST_HEAD, sums))
    for figure in epoch_figures(found):
        table = markdown(*epoch_rows(design, found, figure))
        parts.append(f"**{_capital(named(figure))} by epoch, means and ranges over seeds**\n\n{table}")
    return "\n\n".join(part for part in parts if part) or "Nothing has been measured yet."


def _grid(design: Design, found: Mapping[Cell, Measured]) -> str:
    """Return the figure of the first seed by arm and tuned values; the best of each arm is bold, and marked at an end
    of the grid, where a better one may be beyond it."""
    best = best_values(found.values(), design.figure)
    first = {(one.arm, one.cell.tuned): one for one in found.values() if one.seed == design.seeds[0]}
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
    return f"**{_capital(named(design.figure))} by {names}, first seed**\n\n" + markdown(head, lines)


def page_of(
    design: Design,
    tables: str,
    missing: Sequence[str],
    found: Mapping[Cell, Measured],
    facts: Facts,
    pictures: Mapping[str, str],
) -> str:
    """Return the page of a study. `pictures`: what each shows -> its file, if there is one."""
    parts = [f"# {design.title}", design.question, f"Form: {design.form}. {facts.budget}"]
    parts.append("## Set-up\n\n" + _setup(design))
    if facts.steps:
        parts.append(facts.steps)
    parts += _equal(design, facts)
    parts.append(f"## Result\n\n{_when_and_where(found.values())}`{facts.command}`.\n\n{tables}")
    parts += [f"![{shows}]({file})" for shows, file in pictures.items() if file]
    if missing or facts.failed or facts.unscored:
        lines = [f"- not measured: {name}{_because(facts, name)}" for name in missing]
        lines += [f"- not scored: {task}" for task in facts.unscored]
        parts.append("## What is missing\n\n" + "\n".join(lines))
    notes = sorted({note for one in found.values() for note in one.notes})
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(
        "Differences are arm minus reference, run by run of the same seed; p is of a paired t-test over seeds, "
        "corrected for the number of arms (Holm). With so few seeds the test sees large differences only."
    )
    if design.reading:
        parts.append(f"## What it shows and what it does not\n\n{design.reading}")
    seconds = sum(one.seconds for one in found.values())
    parts.append(f"{len(found)} runs took {duration(seconds)} of run time in all.")
    return "\n\n".join(parts) + "\n"


def _when_and_where(found: Collection[Measured]) -> str:
    """Return the days and the machines of what was measured, not those of drawing it."""
    days = sorted({one.date for one in found if one.date})
    said = [" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else []
    said += sorted({one.machine for one in found if one.machine})
    return f"{'; '.join(said)}; " if said else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


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
        found = "; ".join(
            f"seed {seed}: {_pairs({kind: hashes[kind] for kind in kinds if kind in hashes})}"
            for seed, hashes in facts.equal.items()
        )
        labels = ", ".join(f"*{design.label(arm)}*" for arm in arms)
        where = "all arms" if arms == design.trained else labels
        yield f"Checked by hash to be equal in {where}: {found}."


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"`{key}={value}`" for key, value in settings.items()) or "none"


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())

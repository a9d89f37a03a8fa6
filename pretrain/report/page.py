"""Write report.html of a run folder: one self-contained file without requests, for a phone or a desktop.

A content security policy forbids every request, and every script except the one with the stated hash, so that a hostile
name in a run's settings stays text even if escaping fails. Reports are shared: credentials inside URIs are redacted.

The sections on tasks, blanks, re-running and settings are made here, the others by the other modules of the folder.
"""

import base64
import hashlib
import json
import re
import shlex
import sys
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import printable, redact
from data_pipeline.io.files import write_whole
from pretrain.report.charts import table, text
from pretrain.report.curves import charts, trust_picture
from pretrain.report.history import history_section, time_figures
from pretrain.report.record import RunRecord, read_run
from pretrain.report.statistics import data_section
from pretrain.report.summary import advice_section, headline, moment
from pretrain.run.files import REPORT, SAMPLES, number, objects
from pretrain.run.metrics import OPTIMIZER, SPEED
from pretrain.run.task_scores import ABOUT_SCORES, HEADS

if TYPE_CHECKING:
    from pretrain.export.fill import Sample


# Show the blanks that the exported model filled, with the true words.


MAX_ROWS = 16


def blanks_section(run: RunRecord) -> str:
    """Return the section; empty for a run that is not exported yet."""
    rows = [_blank_row(sample) for sample in objects(run.samples.get("samples"))[:MAX_ROWS]]
    if not rows:
        return ""
    whose = "of held-out text" if run.samples.get("held_out") else "of the text that it was trained on"
    return (
        '<section id="blanks"><h2>Blanks</h2><div class="card">'
        f"<p>Examples {whose}, evenly spaced, each with its middle word blank; nobody chose them. Filled by the model "
        f"that was exported at step {text(number(run.samples.get('step')))}.</p>"
        f"{table(['text', 'true word', 'its answers'], rows)}</div></section>"
    )


def _blank_row(sample: dict[str, Any]) -> tuple[str, str, str]:
    word = str(sample.get("word") or "")
    guesses = sample.get("guesses")
    answers = [
        f"{_marked(str(guess[0]), word)} {text(number(guess[1]), in_percent=True)}"
        for guess in (guesses if isinstance(guesses, list) else [])
        if isinstance(guess, list) and len(guess) == 2
    ]
    before, after = escape(str(sample.get("before") or "")), escape(str(sample.get("after") or ""))
    return f"{before} <b>[MASK]</b> {after}", escape(word), "<br>".join(answers) or "—"


def _marked(guess: str, word: str) -> str:
    return f"<strong>{escape(guess)}</strong>" if guess == word else escape(guess)


# Show how to re-run the run, and every setting.


SHOWN_ELSEWHERE = {"data", "versions", "command", "status", "slowdowns", "phases"}
_SECRET_NAME = re.compile(r"(?i)(password|secret|token|api_?key|credential)s?$")


def reproduce_section(run: RunRecord) -> str:
    """Return the commands, what must be equal to get the same weights, and the versions it ran with."""
    lines = commands(run)
    shown = "\n".join(lines)
    block = (
        f'<pre tabindex="0"><code>{escape(shown)}</code></pre>'
        if lines
        else "<p>The run did not record its command.</p>"
    )
    seeds = {path: run.setting(path) for path in ("run.seed", "data.seed") if run.setting(path) is not None}
    hashes = {
        f"SHA-256 of the {words}": run.identity[key]
        for key, words in (("data", "data's identity"), ("vocabulary", "vocabulary"))
        if run.identity.get(key)
    }
    versions = run.summary.get("versions")
    versions = {str(k): v for k, v in versions.items()} if isinstance(versions, dict) else {}
    hosts = run.summary.get("hosts")
    where = {
        "device": run.summary.get("device"),
        "hosts": hosts,
        "ranks": run.summary.get("ranks"),
        "threads a rank": run.summary.get("threads"),
    }
    conditions = run.checkpoints[-1].conditions if run.checkpoints else {}
    tables = {
        "Seeds and hashes": {**seeds, **hashes},
        "Where": {name: value for name, value in where.items() if value},
        "Versions": versions,
        "A resumed run is bit-equal with these as they are": conditions,
    }
    cards = "".join(
        f'<div class="card"><h3>{name}</h3>{_table(values)}</div>'
        for name, values in tables.items()
        if values
    )
    return (
        f'<section id="reproduce"><h2>How to run it again</h2><div class="card">{block}'
        "<p>Same build, device kind, number of ranks and threads, and train.deterministic=true: the same weights, "
        "bit for bit. Otherwise the same up to rounding, and other draws of dropout. config.yaml in the run folder, "
        f"shown below as Settings, is a recipe: every setting of this run in one file.</p></div>"
        f'<div class="groups">{cards}</div></section>'
    )


def commands(run: RunRecord) -> list[str]:
    """Return the command lines from text to model; for a run not started by `train`, only its own."""
    words = redact(str(run.summary.get("command") or ""))
    verb = "maskmill train "
    if not words.startswith(verb):
        return [words] if words else []
    rest = words.removeprefix(verb)
    folder = shlex.quote(redact(str(run.setting("run.dir") or run.name)))
    return [
        f"maskmill vocab {rest}",
        f"maskmill prepare {rest}",
        words,
        f"maskmill export {folder}",
    ]


def settings_section(run: RunRecord) -> str:
    """Return the resolved config, one table per group, and what else the run recorded."""
    plain = {name: value for name, value in run.config.items() if not isinstance(value, dict)}
    groups = {str(name): value for name, value in run.config.items() if isinstance(value, dict)}
    if plain:
        groups["everything else"] = plain
    recorded = {
        name: moment(value) or value if name in ("started", "finished") else value
        for name, value in run.summary.items()
        if name not in SHOWN_ELSEWHERE
    }
    tables = [
        f'<div class="card"><h3>{escape(name)}</h3>{_table(group)}</div>' for name, group in groups.items()
    ]
    body = (
        f'<div class="groups">{"".join(tables)}</div>'
        if tables
        else '<div class="card"><p>None recorded.</p></div>'
    )
    final = (
        f'<details class="card"><summary>Final numbers, as recorded</summary>{_table(recorded)}</details>'
        if recorded
        else ""
    )
    return f'<section id="settings"><h2>Settings</h2>{body}{final}</section>'


def _table(values: dict[str, Any]) -> str:
    rows = [(escape(str(name)), escape(_shown(str(name), value))) for name, value in values.items()]
    return table((), rows, kind="facts") if rows else ""


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "—"
    figure = number(value)
    if figure is not None:
        return repr(value) if isinstance(value, int) or abs(figure) < 1e6 else text(figure)
    if _SECRET_NAME.search(name):
        return "***"
    if isinstance(value, list) and not any(isinstance(part, dict | list) for part in value):
        return redact(", ".join(map(str, value))) or "—"
    return redact(
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    )


# Show what the exported model scored on tasks, beside what needs no pretraining.


def tasks_section(run: RunRecord) -> str:
    """Return the section; empty for a run that was not evaluated."""
    if not run.tasks:
        return ""
    rows = ([escape(cell) or "—" for cell in score.cells] for score in run.tasks)
    return (
        '<section id="tasks"><h2>Tasks</h2><div class="card">'
        f"<p>Scores of the exported model, medians over the seeds. {ABOUT_SCORES} A score means something where it is "
        f"above both by more than the seeds differ.</p>{table(HEADS, rows)}</div></section>"
    )


# Put the sections together, with page.css and page.js inside.


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{script_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<div id="bar"><div>{menu}<button id="theme" type="button" hidden>Theme</button></div></div>
<main>
{body}
</main>
<footer>Written by Maskmill from the files of the run folder.</footer>
<script>{script}</script>
</body>
</html>
"""


def render(run_folder: str | Path) -> Path:
    """Write RUN/report.html from the run's own files and return its path.

    Works at any time during a run; the same files give the same page. Raises UserError for a folder that is not a run,
    OSError if the page cannot be written."""
    folder = Path(run_folder)
    page = page_of(read_run(folder))
    write_whole(folder / REPORT, [page.encode(errors="replace")])
    return folder / REPORT


def page_of(run: RunRecord) -> str:
    """Return the page as text."""
    script = _asset("page.js")
    sections = [part for part in _sections(run) if part]
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return PAGE.format(
        title=escape(f"{run.name} · Maskmill report"),
        style=_asset("page.css"),
        script=script,
        script_hash=script_hash,
        menu=_menu(sections),
        body="\n".join(sections),
    )


def _sections(run: RunRecord) -> list[str]:
    pictures = charts(run)
    if heat := trust_picture(run):
        pictures.setdefault(OPTIMIZER, []).append(heat)
    if times := time_figures(run):
        pictures.setdefault(SPEED, []).extend(times)
    curves = [
        f'<section id="{title.lower()}"><h2>{title}</h2><div class="charts">{"".join(figures)}</div></section>'
        for title, figures in pictures.items()
    ]
    if not curves:
        curves = [
            '<section id="learning"><h2>Learning</h2><div class="card"><p>No metrics were logged: '
            "there is nothing to draw.</p></div></section>"
        ]
    return [
        headline(run, advice_section(run)),
        tasks_section(run),
        blanks_section(run),
        *curves,
        data_section(run),
        history_section(run),
        reproduce_section(run),
        settings_section(run),
    ]


def _menu(sections: list[str]) -> str:
    """Return links to the sections on the page."""
    anchors = re.findall(r'<section id="([a-z-]+)"><h2>([^<]+)</h2>', "\n".join(sections))
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in anchors)
    return f'<nav aria-label="Sections">{links}</nav>'


def _asset(name: str) -> str:
    return (files("pretrain.report") / name).read_text(encoding="utf-8")


def show_samples(run: Path, step: int, samples: "list[Sample]", held_out: bool) -> None:
    """Save the filled blanks in the run folder, and re-write its report with them, if it has one. The export is done by
    then: a run folder that cannot be written is left as it is."""
    from pretrain.export.fill import write_samples  # imports torch, which a report does without

    try:
        write_samples(run, step, samples, held_out)
        if (run / REPORT).is_file():
            render(run)
    except OSError as error:
        print(printable(f"maskmill: WARNING: {run / SAMPLES}: {error.strerror}"), file=sys.stderr)

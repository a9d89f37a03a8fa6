"""Write report.html of a run folder: one self-contained file without requests.

A content security policy forbids every request, and every script except the one with the stated hash, so that a hostile
name in a run's settings stays text even if escaping fails.
"""

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from pathlib import Path

from data_pipeline.io.files import write_whole
from pretrain.report.html.advice import advice_section
from pretrain.report.html.blanks import blanks_section
from pretrain.report.html.breakdown import time_figures
from pretrain.report.html.charts.curves import charts
from pretrain.report.html.charts.heat import trust_picture
from pretrain.report.html.charts.pictures import OPTIMIZER, SPEED
from pretrain.report.html.headline import headline
from pretrain.report.html.history import history_section
from pretrain.report.html.provenance import reproduce_section, settings_section
from pretrain.report.html.record import RunRecord, read_run
from pretrain.report.html.statistics import data_section
from pretrain.report.html.tasks import tasks_section

REPORT = "report.html"

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
    found = re.findall(r'<section id="([a-z-]+)"><h2>([^<]+)</h2>', "\n".join(sections))
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in found)
    return f'<nav aria-label="Sections">{links}</nav>'


def _asset(name: str) -> str:
    return (files("pretrain.report.html") / name).read_text(encoding="utf-8")

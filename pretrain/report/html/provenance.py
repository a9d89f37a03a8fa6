"""Write the end of the page: how to re-run it, and every setting.

Reports are shared: credentials inside URIs are redacted.
"""

import json
import re
import shlex
from html import escape
from typing import Any

from data_pipeline.errors import redact
from pretrain.report.html.charts.scales import text
from pretrain.report.html.headline import moment
from pretrain.report.html.record import RunRecord
from pretrain.run.files import number

TOLD_ELSEWHERE = {"data", "versions", "command", "status", "slowdowns", "phases"}
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
    told = {
        name: moment(value) or value if name in ("started", "finished") else value
        for name, value in run.summary.items()
        if name not in TOLD_ELSEWHERE
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
        f'<details class="card"><summary>Final numbers, as recorded</summary>{_table(told)}</details>'
        if told
        else ""
    )
    return f'<section id="settings"><h2>Settings</h2>{body}{final}</section>'


def _table(values: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(_shown(str(name), value))}</td></tr>'
        for name, value in values.items()
    )
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>' if rows else ""


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

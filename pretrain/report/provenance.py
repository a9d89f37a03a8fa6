"""A RunRecord in, the lower half of the page out: checkpoints, how to run it again, every setting.

A report is made to be passed on: credentials inside URIs are blotted out.
"""

import json
import re
import shlex
from html import escape
from typing import Any

from data_pipeline.blotting import blot
from pretrain.report.headline import moment
from pretrain.report.record import RunRecord, number
from pretrain.report.scales import text

TOLD_ELSEWHERE = {"data", "versions", "command", "status"}
_SECRET_NAME = re.compile(r"(?i)(password|secret|token|api_?key|credential)s?$")


def checkpoints_section(run: RunRecord) -> str:
    """The whole checkpoints that are in the run folder."""
    if not run.checkpoints:
        return (
            '<section id="checkpoints"><h2>Checkpoints</h2><div class="card">'
            "<p>There is no whole checkpoint in the run folder.</p></div></section>"
        )
    rows = "".join(
        f'<tr><th scope="row">{escape(c.name)}</th><td>{text(c.step)}</td><td>{size(c.bytes)}</td>'
        f"<td>{text(c.files)}</td></tr>"
        for c in reversed(run.checkpoints)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("checkpoint", "step", "size", "files"))
    return (
        '<section id="checkpoints"><h2>Checkpoints</h2><div class="card scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def reproduce_section(run: RunRecord) -> str:
    """The command, the seeds, and the versions it ran with."""
    command = run.summary.get("command")
    words = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    line = (
        f'<pre tabindex="0"><code>{escape(blot(words))}</code></pre>'
        if words
        else "<p>The run did not record its command.</p>"
    )
    versions = run.summary.get("versions")
    shown = {str(name): value for name, value in versions.items()} if isinstance(versions, dict) else {}
    seeds = {path: run.setting(path) for path in ("run.seed", "data.seed") if run.setting(path) is not None}
    same = (
        "<p>Same build, device kind, number of ranks and threads, and train.deterministic=true: the same weights, "
        "bit for bit. Otherwise the same up to rounding, and other draws of dropout.</p>"
    )
    return (
        f'<section id="reproduce"><h2>How to run it again</h2><div class="card">{line}{same}'
        f"{_table({**seeds, **shown})}</div></section>"
    )


def settings_section(run: RunRecord) -> str:
    """The resolved config, a table for each group, and whatever else the run recorded."""
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


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"


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
        return blot(", ".join(map(str, value))) or "—"
    return blot(
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    )

"""Show the blanks that the exported model filled, with the true words."""

from html import escape
from typing import Any

from pretrain.report.html.charts.scales import text
from pretrain.report.html.record import RunRecord
from pretrain.run.files import number, objects

MAX_ROWS = 16


def blanks_section(run: RunRecord) -> str:
    """Return the section; empty for a run that is not exported yet."""
    rows = "".join(_row(sample) for sample in objects(run.samples.get("samples"))[:MAX_ROWS])
    if not rows:
        return ""
    whose = "of held-out text" if run.samples.get("held_out") else "of the text that it was trained on"
    head = "".join(f'<th scope="col">{name}</th>' for name in ("text", "true word", "its answers"))
    return (
        '<section id="blanks"><h2>Blanks</h2><div class="card">'
        f"<p>Examples {whose}, evenly spaced, each with its middle word blank; nobody chose them. Filled by the model "
        f"that was exported at step {text(number(run.samples.get('step')))}.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div></section>'
    )


def _row(sample: dict[str, Any]) -> str:
    word = str(sample.get("word") or "")
    guesses = sample.get("guesses")
    answers = [
        f"{_marked(str(guess[0]), word)} {text(number(guess[1]), share=True)}"
        for guess in (guesses if isinstance(guesses, list) else [])
        if isinstance(guess, list) and len(guess) == 2
    ]
    before, after = escape(str(sample.get("before") or "")), escape(str(sample.get("after") or ""))
    return (
        f'<tr><th scope="row">{before} <b>[MASK]</b> {after}</th><td>{escape(word)}</td>'
        f"<td>{'<br>'.join(answers) or '—'}</td></tr>"
    )


def _marked(guess: str, word: str) -> str:
    return f"<strong>{escape(guess)}</strong>" if guess == word else escape(guess)

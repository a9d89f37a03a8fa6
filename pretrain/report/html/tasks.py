"""Show what the exported model scored on tasks, beside what needs no pretraining."""

from html import escape

from pretrain.report.html.record import RunRecord
from pretrain.run.task_scores import HEADS, TaskScore


def tasks_section(run: RunRecord) -> str:
    """Return the section; empty for a run that was not evaluated."""
    if not run.tasks:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    rows = "".join(_row(score) for score in run.tasks)
    return (
        '<section id="tasks"><h2>Tasks</h2><div class="card">'
        "<p>Scores of the exported model, medians over the seeds. Not pretrained is the same encoder with weights "
        "drawn at random and trained on the task in the same way; trivial is the best answer that needs no input. A "
        "score means something where it is above both by more than the seeds differ.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></div></section>'
    )


def _row(score: TaskScore) -> str:
    name, *cells = score.cells
    others = "".join(f"<td>{escape(cell) or '—'}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{others}</tr>'

"""Print what happens in a run as console lines, for batch logs and above a live panel.

`Lines` is plain. pretrain/monitoring/live_panel.py has the terminal view, with the same methods;
pretrain/monitoring/view.py chooses.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console

from pretrain.config.phases import Phase
from pretrain.run.files import number
from pretrain.run.metrics import HEADLINE, HELD_OUT, Losses, findings, leading, leading_kind, sum_of
from pretrain.run.metrics_log import PROBE, probe_words
from pretrain.run.time_budget import SHARE


class Lines:
    """One line per log step, evaluation, phase and disturbance."""

    def __init__(self, console: Console, last: int | None, headline: str = HEADLINE) -> None:
        self._console, self._last, self._headline = console, last, headline
        self._losses_seen = Losses()
        self._newest: Mapping[str, Any] = {}
        """Figures of the newest evaluation, except one at step 0: nothing has been learnt there."""
        self._told: set[str] = set()
        self._minutes, self._share = 0.0, 0.0
        """Budget of time of the current phase, and the share that was used when the newest update began."""

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print warnings that are only known at the end; there is nothing to clean up."""
        if kind is None:
            self._warn_of_learning()

    def begin(self, step: int, lines: list[dict[str, Any]]) -> None:
        """Start at `step`; `lines`: those that metrics.jsonl has from earlier attempts."""
        for line in lines:
            self._note(line)

    def enter(self, phase: Phase) -> None:
        """Start this phase."""
        self._minutes, self._share = phase.config.train.minutes, 0.0
        if phase.name:
            words = f"phase {phase.name}: {phase.in_words}"
            self._console.print(words, soft_wrap=True, highlight=False)

    def ends_at(self, step: int) -> None:
        """Record the last step of the run."""
        self._last = step

    def step(self, step: int, share: float = 0.0) -> None:
        """Record a finished step; `share`: of the phase's budget of time."""
        self._share = share

    def rolled_back(self, step: int) -> None:
        """Return to this earlier step."""

    def figures(self, line: dict[str, Any]) -> None:
        """Show a line that was written to metrics.jsonl."""
        self._note(line)
        words = f"step {self._place(line)}  {in_short(line, self._headline)}"
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def held_out(self, step: int, figures: Mapping[str, Any]) -> None:
        """Show an evaluation; problems that it shows are reported once, and again at the end."""
        self._note({**figures, "kind": "eval", "step": step})
        words = f"step {step:,}  {held_out_words(figures, self._headline)}"
        self._console.print(words, soft_wrap=True, markup=False)
        if step == self._last:
            self._told.clear()
        if step > 0:
            self._warn_of_learning()

    def probed(self, step: int, figures: Mapping[str, Any]) -> None:
        """Show the score of train.probe."""
        self._note({**figures, "kind": PROBE, "step": step})
        words = f"step {step:,}  probe: {probe_words(figures)}"
        self._console.print(words, soft_wrap=True, highlight=False, markup=False)

    def slowdown(self, step: int, words: str) -> None:
        """Report a slowdown of the run."""
        self._console.print(f"step {step:,}  {words}", soft_wrap=True, highlight=False)

    def disturbed(self, kind: str, words: str) -> None:
        """Report a batch that was skipped, undone, or lacked examples."""
        self._console.print(f"{kind}: {words}", soft_wrap=True, style="yellow", markup=False)

    def warn(self, words: str) -> None:
        """Report an error that does not end the run."""
        self._console.print(f"maskmill: WARNING: {words}", soft_wrap=True, markup=False, style="bold red")

    def saved(self, step: int, seconds: float, size: int) -> None:
        """Report a completed checkpoint."""

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Mark a time in which the run does something other than training steps."""
        yield

    def _place(self, line: Mapping[str, Any]) -> str:
        """Return the step of a line, with how much of the run, or of the phase's time, is done."""
        if self._last is not None:
            return f"{line['step']:,}/{self._last:,}"
        share = number(line.get(SHARE))
        return f"{line['step']:,}" + (f" ({share:.1%} of {self._minutes:g} min)" if share is not None else "")

    def _note(self, line: Mapping[str, Any]) -> None:
        """Keep the figures that the run is judged by."""
        self._losses_seen.add(line)
        if line.get("kind") == "eval" and line.get("step") != 0:
            self._newest = line

    def _warn_of_learning(self) -> None:
        """Warn of learning problems in the newest figures that were not reported before."""
        for finding in findings(self._newest, self._losses_seen.ends, self._headline):
            if finding.kind not in self._told:
                self._told.add(finding.kind)
                self._console.print(str(finding), soft_wrap=True, style="yellow", markup=False)


def in_short(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the figures of a log step in a line: the headline metric first, then the total loss, named by its
    terms."""
    led = led_by(line, headline)
    total = f"{sum_of(line)} loss {_said(line, 'loss')}"
    return f"{led}{'  ' * bool(led)}{total}  lr {line['lr']:.2e}  {line['tokens_per_s']:,.0f} tokens/s"


def led_by(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the headline figures of a training line, with where they are predicted; empty if there are none, or only
    the total loss."""
    scores = [score for score in leading(line, prefix="", headline=headline) if not score.pairs]
    return f"{leading_kind(headline).tag} {'  '.join(map(str, scores))}".strip() if scores else ""


def held_out_words(figures: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the figures of an evaluation, each beside its baseline without context."""
    scores = "  ".join(map(str, leading(figures, headline=headline)))
    if number(figures.get(f"{HELD_OUT}{headline}")) is not None:
        return f"held-out {leading_kind(headline).at}".rstrip() + f": {scores}"
    return f"held-out: {sum_of(figures)} loss {_said(figures, 'held_out_loss')}  {scores}".rstrip()


def held_out_rows(step: int, figures: Mapping[str, Any], headline: str = HEADLINE) -> list[str]:
    """Format the same in up to two rows, for narrow terminals."""
    scores = leading(figures, headline=headline)
    losses = [str(score) for score in scores if not score.is_share]
    shares = [str(score) for score in scores if score.is_share]
    if not losses and shares:
        losses = [shares.pop(0)]
    return [
        row for row in ("   ".join([*losses, f"step {step:,}"]) if losses else "", "   ".join(shares)) if row
    ]


def _said(figures: Mapping[str, Any], name: str) -> str:
    value = number(figures.get(name))
    return f"{value:.3f}" if value is not None else "not a number"

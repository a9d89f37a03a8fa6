"""Print what happens in a run as lines on a console: those of a batch log, and those above a live panel.

`Lines` is plain. pretrain/monitoring/live_panel.py has the view for a terminal, with the same methods;
pretrain/monitoring/run_log.py chooses.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console

from pretrain.config.phases import Phase
from pretrain.evaluate.scores import leading, sum_of
from pretrain.evaluate.verdict import Losses, findings
from pretrain.objectives.metrics import HEADLINE, HELD_OUT, leading_kind
from pretrain.run.tolerant_json import number


class Lines:
    """A line for each log step, evaluation, phase and disturbance."""

    def __init__(self, console: Console, last: int, headline: str = HEADLINE) -> None:
        self._console, self._last, self._headline = console, last, headline
        self._losses_seen = Losses()
        self._newest: Mapping[str, Any] = {}
        """Figures of the newest evaluation, but of none at step 0: nothing has been learnt there."""
        self._told: set[str] = set()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Warn of what only the end shows; nothing is left to put away."""
        if kind is None:
            self._warn_of_learning()

    def begin(self, step: int, lines: list[dict[str, Any]]) -> None:
        """This attempt resumes from `step`; `lines`: what metrics.jsonl has of the attempts before."""
        for line in lines:
            self._note(line)

    def enter(self, phase: Phase) -> None:
        """Steps of this phase follow."""
        if phase.name:
            words = f"phase {phase.name}: steps {phase.first + 1:,} to {phase.last:,}"
            self._console.print(words, soft_wrap=True, highlight=False)

    def step(self, step: int) -> None:
        """A step is done."""

    def rolled_back(self, step: int) -> None:
        """The run is at this earlier step again."""

    def figures(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl was written."""
        self._note(line)
        words = f"step {line['step']:,}/{self._last:,}  {in_short(line, self._headline)}"
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def held_out(self, step: int, figures: Mapping[str, Any]) -> None:
        """The model was evaluated; what it shows to be wrong is said once, and again at the end."""
        self._note({**figures, "kind": "eval", "step": step})
        words = f"step {step:,}  {held_out_words(figures, self._headline)}"
        self._console.print(words, soft_wrap=True, markup=False)
        if step == self._last:
            self._told.clear()
        if step > 0:
            self._warn_of_learning()

    def slowdown(self, step: int, words: str) -> None:
        """Something slows the run down."""
        self._console.print(f"step {step:,}  {words}", soft_wrap=True, highlight=False)

    def disturbed(self, kind: str, words: str) -> None:
        """A batch was skipped, taken back, or lacked examples."""
        self._console.print(f"{kind}: {words}", soft_wrap=True, style="yellow", markup=False)

    def warn(self, words: str) -> None:
        """Something went wrong that does not end the run."""
        self._console.print(f"maskmill: WARNING: {words}", soft_wrap=True, markup=False, style="bold red")

    def saved(self, step: int, seconds: float, size: int) -> None:
        """A checkpoint became whole."""

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """While something other than steps goes on."""
        yield

    def _note(self, line: Mapping[str, Any]) -> None:
        """Keep what the verdict on the run is given by."""
        self._losses_seen.add(line)
        if line.get("kind") == "eval" and line.get("step") != 0:
            self._newest = line

    def _warn_of_learning(self) -> None:
        """Say what the newest figures show to be wrong with what is learnt, as far as it was not said before."""
        for finding in findings(self._newest, self._losses_seen.ends, self._headline):
            if finding.kind not in self._told:
                self._told.add(finding.kind)
                self._console.print(str(finding), soft_wrap=True, style="yellow", markup=False)


def shows_panels(console: Console, environment: Mapping[str, str]) -> bool:
    """Whether `console` is a terminal in front of a person: not a file or a pipe (whatever FORCE_COLOR says), not a
    dumb terminal, not that of a CI job."""
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and console.file.isatty() and not console.is_dumb_terminal and not in_ci


def in_short(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """The figures of a log step in a line: what leads first, then what is minimised, named for what it adds up."""
    led = led_by(line, headline)
    total = f"{sum_of(line)} loss {_said(line, 'loss')}"
    return f"{led}{'  ' * bool(led)}{total}  lr {line['lr']:.2e}  {line['tokens_per_s']:,.0f} tokens/s"


def led_by(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Say what leads of a training line, after where it is predicted; empty where it has none, or no more than the loss
    that is minimised."""
    scores = [score for score in leading(line, prefix="", headline=headline) if not score.pairs]
    return f"{leading_kind(headline).tag} {'  '.join(map(str, scores))}".strip() if scores else ""


def held_out_words(figures: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Return the figures of an evaluation, each beside what a model without context would have."""
    scores = "  ".join(map(str, leading(figures, headline=headline)))
    if number(figures.get(f"{HELD_OUT}{headline}")) is not None:
        return f"held-out {leading_kind(headline).at}".rstrip() + f": {scores}"
    return f"held-out: {sum_of(figures)} loss {_said(figures, 'held_out_loss')}  {scores}".rstrip()


def held_out_rows(step: int, figures: Mapping[str, Any], headline: str = HEADLINE) -> list[str]:
    """Put the same into up to two rows, for where there is little room to the right."""
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

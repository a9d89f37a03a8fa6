"""Show what happens in a run: as console lines, or as a panel at the bottom of the terminal.

`Lines` is plain, for batch logs. `Panel` has the same methods: it prints events as lines above the panel, which a
thread of rich repaints twice a second. `open_view` chooses. The metrics are those of the log steps: nothing here waits
for the device, and a step only records its number. At the end, the panel is replaced by a plain summary.
"""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pretrain.config.phases import Phase
from pretrain.run.files import number
from pretrain.run.human import duration
from pretrain.run.learning import Losses, findings
from pretrain.run.metrics import (
    DATA_ROW,
    HEADLINE,
    HELD_OUT,
    METRICS,
    SPEED_ROW,
    UPDATE_ROW,
    leading,
    leading_prediction,
    metric,
    total_loss,
)
from pretrain.run.metrics_log import PROBE
from pretrain.run.task_scores import probe_words
from pretrain.run.time_budget import SHARE, seconds_left

IN_LINE = ("lr", "tokens_per_s")
"""Metrics at the end of each line of a log step."""

# Print what happens as console lines.


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

    def logged(self, line: dict[str, Any]) -> None:
        """Show a line that was written to metrics.jsonl."""
        self._note(line)
        words = f"step {self._place(line)}  {in_short(line, self._headline)}"
        self._console.print(words, highlight=False, markup=False, soft_wrap=True)

    def held_out(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show an evaluation; problems that it shows are reported once, and again at the end."""
        self._note({**metrics, "kind": "eval", "step": step})
        words = f"step {step:,}  {held_out_words(metrics, self._headline)}"
        self._console.print(words, soft_wrap=True, markup=False)
        if step == self._last:
            self._told.clear()
        if step > 0:
            self._warn_of_learning()

    def probed(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show the score of train.probe."""
        self._note({**metrics, "kind": PROBE, "step": step})
        words = f"step {step:,}  probe: {probe_words(metrics)}"
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
        """Keep the metrics that the run is judged by."""
        self._losses_seen.add(line)
        if line.get("kind") == "eval" and line.get("step") != 0:
            self._newest = line

    def _warn_of_learning(self) -> None:
        """Warn of learning problems in the newest metrics that were not reported before."""
        for finding in findings(self._newest, self._losses_seen.ends, self._headline):
            if finding.kind not in self._told:
                self._told.add(finding.kind)
                self._console.print(str(finding), soft_wrap=True, style="yellow", markup=False)


def in_short(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the metrics of a log step in a line: the headline first, then the total loss, named by its terms."""
    led = training_scores(line, headline)
    parts = [
        f"{leading_prediction(headline).tag} {led}".strip() if led else "",
        total_loss(line),
        *(metric(key).worded(line[key]) for key in IN_LINE),
    ]
    return "  ".join(part for part in parts if part)


def training_scores(line: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the headline scores of a training line; empty if there are none, or only the total loss."""
    scores = leading(line, prefix="", headline=headline)
    return "  ".join(str(score) for score in scores if not score.of_pairs)


def held_out_words(metrics: Mapping[str, Any], headline: str = HEADLINE) -> str:
    """Format the scores of an evaluation, each with its baseline."""
    scores = "  ".join(map(str, leading(metrics, headline=headline)))
    if number(metrics.get(f"{HELD_OUT}{headline}")) is not None:
        return f"held-out {leading_prediction(headline).at}".rstrip() + f": {scores}"
    return f"held-out: {total_loss(metrics, 'held_out_loss')}  {scores}".rstrip()


def held_out_rows(step: int, metrics: Mapping[str, Any], headline: str = HEADLINE) -> list[str]:
    """Format the same in up to two rows, for narrow terminals."""
    scores = leading(metrics, headline=headline)
    first = [score for score in scores if score.metric.measure != "accuracy"] or scores[:1]
    second = [score for score in scores if score not in first]
    rows = ["   ".join([*map(str, first), f"step {step:,}"]) if first else "", "   ".join(map(str, second))]
    return [row for row in rows if row]


# Paint the panel, with the curve of the losses as a row of block characters.


BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*#%"
"""Eight levels, low to high; the second for terminals whose encoding lacks the first."""


def sparkline(values: list[float], width: int, levels: str = BLOCKS) -> str:
    """Return the values as a row of at most `width` blocks, each the mean of its share of them, low to high."""
    count = min(width, len(values))
    bins = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [sum(part) / len(part) for part in bins]
    low, high = min(means), max(means)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((mean - low) * scale)] for mean in means)


clock = time.monotonic
REPAINTS_PER_SECOND = 2

MAX_LOSSES = 512
"""Maximum number of losses kept for the chart; beyond it every other one is dropped."""
PACE_STEPS = 200
"""Newest steps from which the remaining time is estimated."""


class Panel(Lines):
    """Print events as lines above, and show metrics in place."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        last: int | None,
        phases: Sequence[Mapping[str, Any]] = (),
        headline: str = HEADLINE,
    ) -> None:
        super().__init__(console, last, headline)
        self._phases = phases or [{"first": 0, "last": last}]
        self._name = folder.resolve().name
        self._phase: Phase | None = None
        self._step = self._first = 0
        self._line: dict[str, Any] = {}
        self._held_out: tuple[int, Mapping[str, Any]] | None = None
        self._probe = ""
        self._save: tuple[int, float, int, float] | None = None
        self._saves, self._disturbed = 0, 0
        self._warning, self._doing = "", "starting"
        self._losses: list[float] = []
        self._every, self._skip = 1, 0
        self._started = clock()
        self._laps: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS)
        self._live = Live(
            console=console,
            get_renderable=self._painted,
            refresh_per_second=REPAINTS_PER_SECOND,
            transient=True,
            redirect_stderr=False,  # goes to the rank's log
        )

    def __enter__(self) -> "Panel":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._line:
            self._console.print(self._summary(), soft_wrap=True, highlight=False, markup=False)
        super().__exit__(kind, error, trace)

    def begin(self, step: int, lines: list[dict[str, Any]]) -> None:
        self._step = self._first = step
        self._laps.append((clock(), step))
        super().begin(step, lines)

    def enter(self, phase: Phase) -> None:
        super().enter(phase)
        self._phase, self._doing = phase, "training"
        self._laps.clear()  # other lengths, so another pace
        self._laps.append((clock(), self._step))

    def step(self, step: int, share: float = 0.0) -> None:
        super().step(step, share)
        self._step = step
        self._laps.append((clock(), step))

    def rolled_back(self, step: int) -> None:
        self._step = step
        self._laps.clear()
        self._laps.append((clock(), step))

    def logged(self, line: dict[str, Any]) -> None:
        self._note(line)
        if not line.get("slowdowns"):
            self._warning = self._warning if self._disturbed else ""

    def slowdown(self, step: int, words: str) -> None:
        super().slowdown(step, words)
        self._warning = words

    def disturbed(self, kind: str, words: str) -> None:
        super().disturbed(kind, words)
        self._disturbed += 1
        self._warning = f"{kind}: {words}"

    def warn(self, words: str) -> None:
        super().warn(words)
        self._warning = words

    def saved(self, step: int, seconds: float, size: int) -> None:
        self._saves += 1
        self._save = (step, seconds, size, clock())

    @contextmanager
    def busy(self, words: str) -> Iterator[None]:
        before, self._doing = self._doing, words
        try:
            yield
        finally:
            self._doing = before

    def _note(self, line: Mapping[str, Any]) -> None:
        super()._note(line)
        if line.get("kind") == "train":
            self._line = dict(line)
            self._remember(line.get(f"{leading_prediction(self._headline).name}_loss", line.get("loss")))
        elif line.get("kind") == "eval":
            self._held_out = (int(line["step"]), line)
        elif line.get("kind") == PROBE:
            self._probe = f"{probe_words(line)}   step {line['step']:,}"

    def _remember(self, loss: float | None) -> None:
        self._skip += 1
        if loss is None or self._skip < self._every:
            return
        self._skip = 0
        self._losses.append(loss)
        if len(self._losses) > MAX_LOSSES:
            self._losses, self._every = self._losses[::2], 2 * self._every

    def _painted(self) -> RenderableType:
        """Return the current panel; one line on a terminal that is too small for it."""
        if self._console.height < 14 or self._console.width < 44:
            return Text(self._position(), no_wrap=True, overflow="crop")
        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(style="dim", no_wrap=True)
        plain = self._console.options.ascii_only  # the terminal's encoding has no ellipsis
        rows.add_column(ratio=1, no_wrap=True, overflow="crop" if plain else "ellipsis")
        for name, value in self._rows():
            rows.add_row(name, value)
        bar = Table.grid(expand=True)
        bar.add_row(ProgressBar(total=1.0, completed=self._done()))
        title = f"[bold]{escape(self._name)}[/bold]  {escape(self._doing)}"
        clock_words = duration(clock() - self._started)
        body = Group(Text(self._position(), no_wrap=True, overflow="ellipsis"), bar, rows)
        return Frame(body, title=title, title_align="left", subtitle=clock_words, subtitle_align="right")

    def _position(self) -> str:
        of_run = f" of {self._last:,}  {self._done():.0%}" if self._last is not None else ""
        words = f"step {self._step:,}{of_run}"
        if self._phase is not None and self._phase.name:
            words += f"  phase {self._phase.name}"
            if self._phase.first is not None and not self._minutes:
                done = self._step - self._phase.first
                words += f", {done:,} of {self._phase.config.train.steps:,}"
        if self._minutes and self._last is None:
            words += f"  {self._share:.0%} of {self._minutes:g} min"
        left = self._seconds_left()
        return words + (f"  {duration(left)} left" if left is not None else "")

    def _done(self) -> float:
        """Return the share of the run that is done; of the phase's time where the run's steps are unknown."""
        return self._share if self._last is None else self._step / max(1, self._last)

    def _seconds_left(self) -> float | None:
        """Estimate the remaining seconds at the pace of the newest steps, including evaluations and checkpoints between
        them."""
        laps = list(self._laps)
        if len(laps) < 2 or laps[-1][1] == laps[0][1]:
            return None
        (then, first), (now, last) = laps[0], laps[-1]
        here = {"phase": self._phase.name if self._phase else "", SHARE: self._share}
        return seconds_left(self._step, (now - then) / (last - first), self._phases, newest=here)

    def _rows(self) -> list[tuple[str, RenderableType]]:
        line = self._line
        rows: list[tuple[str, RenderableType]] = [
            (self._leads() if self._led() else "loss", self._loss()),
            *self._held_out_rows(),
            *([("probe", Text(self._probe))] if self._probe else []),
        ]
        for row in (SPEED_ROW, UPDATE_ROW, DATA_ROW):
            parts = [one.worded(line.get(key)) for key, one in METRICS.items() if one.row == row]
            if row == UPDATE_ROW and self._led():
                parts.append(total_loss(line))
            rows.append((row, Text("   ".join(part for part in parts if part) or "-")))
        rows.append(("saved", Text(self._saved_words())))
        if self._warning:
            count = f"{self._disturbed} disturbances; " if self._disturbed > 1 else ""
            rows.append(("[yellow]look at[/yellow]", Text(f"{count}{self._warning}", style="yellow")))
        elif found := findings(self._newest, self._losses_seen.ends, self._headline):
            rows.append(("[yellow]look at[/yellow]", Text(found[0].what, style="yellow")))
        return rows

    def _held_out_rows(self) -> list[tuple[str, RenderableType]]:
        """Return the metrics of the newest evaluation, each beside its baseline."""
        if self._held_out is None:
            return []
        step, metrics = self._held_out
        return [
            (name, Text(row))
            for name, row in zip(("held out", ""), held_out_rows(step, metrics, self._headline), strict=False)
        ]

    def _loss(self) -> Text:
        words = Text(self._led() or (total_loss(self._line) if self._line else "not yet"))
        if self._held_out is not None and not leading(self._held_out[1], headline=self._headline):
            step, metrics = self._held_out
            words.append(f"   held-out: {total_loss(metrics, 'held_out_loss')} at step {step:,}")
        room = self._console.width - len(words) - 20
        if len(self._losses) > 1 and room >= 8:
            levels = ASCII_BLOCKS if self._console.options.ascii_only else BLOCKS
            words.append("   ")
            words.append(sparkline(list(self._losses), min(room, 48), levels), style="cyan")
        return words

    def _leads(self) -> str:
        prediction = leading_prediction(self._headline)
        return prediction.at or prediction.subject

    def _led(self) -> str:
        return training_scores(self._line, self._headline)

    def _saved_words(self) -> str:
        if self._save is None:
            return "no checkpoint in this attempt yet"
        step, seconds, size, at = self._save
        ago = duration(clock() - at)
        return f"step {step:,}, {size / 1e6:,.1f} MB in {seconds:.1f} s, {ago} ago   {self._saves} in this attempt"

    def _summary(self) -> str:
        spent, line = duration(clock() - self._started), in_short(self._line, self._headline)
        of_run = f" of {self._last:,}" if self._last is not None else ""
        words = f"steps {self._first:,} to {self._step:,}{of_run} in {spent}: {line}"
        if self._held_out is not None:
            step, metrics = self._held_out
            words += f"  {held_out_words(metrics, self._headline)} (step {step:,})"
        words += f"  probe {self._probe}" if self._probe else ""
        if peak := metric("mfu").worded(self._line.get("mfu")):
            words += f"  {peak}"
        newest = f", newest of step {self._save[0]:,}" if self._save else ""
        words += f"  {self._saves} checkpoint{'' if self._saves == 1 else 's'}{newest}"
        return words + (f"  {self._disturbed} disturbances: events.jsonl" if self._disturbed else "")


def open_view(
    console: Console,
    live: bool,
    folder: Path,
    last: int | None,
    phases: Sequence[Mapping[str, Any]] = (),
    headline: str = HEADLINE,
) -> Lines:
    """Open the view of a run of `last` steps (None: unknown) in `phases` (run/time_budget.py) with the metric
    `headline` first: a live panel if `live` asks for one and `console` can show it."""
    if live and shows_panels(console, os.environ):
        return Panel(console, folder, last, phases, headline)
    return Lines(console, last, headline)


def shows_panels(console: Console, environment: Mapping[str, str]) -> bool:
    """Return whether `console` is an interactive terminal: not a file or a pipe (regardless of FORCE_COLOR), not a dumb
    terminal, not that of a CI job."""
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.is_terminal and console.file.isatty() and not console.is_dumb_terminal and not in_ci

"""Show what happens in a run as a panel at the bottom of the terminal, repainted twice a second.

The figures are those of the log steps: nothing here waits for the device, and a step only records its number. A thread
of rich paints. At the end, the panel is replaced by a plain summary.
"""

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
from pretrain.monitoring.console import Lines, held_out_rows, held_out_words, in_short, led_by
from pretrain.monitoring.sparkline import ASCII_BLOCKS, BLOCKS, sparkline
from pretrain.run.human import duration
from pretrain.run.metrics import HEADLINE, findings, leading, leading_kind, sum_of
from pretrain.run.metrics_log import PROBE, probe_words
from pretrain.run.time_budget import SHARE, seconds_left

clock = time.monotonic
REPAINTS_PER_SECOND = 2

MAX_LOSSES = 512
"""Maximum number of losses kept for the chart; beyond it every other one is dropped."""
PACE_STEPS = 200
"""Newest steps from which the remaining time is estimated."""


class Panel(Lines):
    """Print events as lines above, and show figures in place."""

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

    def figures(self, line: dict[str, Any]) -> None:
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
            self._remember(line.get(f"{leading_kind(self._headline).name}_loss", line.get("loss")))
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
        speed = [
            _said(line, "tokens_per_s", "{:,.0f} tokens/s"),
            _said(line, "mfu", "{:.1%} of the peak (MFU)"),
            _said(line, "step_ms", "{:,.0f} ms a step"),
        ]
        state = [
            _said(line, "lr", "rate {:.2e}"),
            _said(line, "grad_norm", "gradient {:.2f}"),
            _said(line, "trust_ratio", "trust ratio {:.3f}"),
            _said(line, "loss", f"{sum_of(line)} loss {{:.4f}}") if self._led() else "",
        ]
        room = [
            _said(line, "data_wait_share", "waited for {:.1%} of the time"),
            _said(line, "fill", "{:.0%} of the token budget used"),
            _said(line, "memory_gb", "{:.2f} GB on the fullest rank"),
        ]
        for name, parts in (("speed", speed), ("update", state), ("data", room)):
            rows.append((name, Text("   ".join(part for part in parts if part) or "-")))
        rows.append(("saved", Text(self._saved_words())))
        if self._warning:
            count = f"{self._disturbed} disturbances; " if self._disturbed > 1 else ""
            rows.append(("[yellow]look at[/yellow]", Text(f"{count}{self._warning}", style="yellow")))
        elif found := findings(self._newest, self._losses_seen.ends, self._headline):
            rows.append(("[yellow]look at[/yellow]", Text(found[0].what, style="yellow")))
        return rows

    def _held_out_rows(self) -> list[tuple[str, RenderableType]]:
        """Return the figures of the newest evaluation, each beside its baseline."""
        if self._held_out is None:
            return []
        step, figures = self._held_out
        return [
            (name, Text(row))
            for name, row in zip(("held out", ""), held_out_rows(step, figures, self._headline), strict=False)
        ]

    def _loss(self) -> Text:
        words = Text(self._led() or self._total())
        if self._held_out is not None and not leading(self._held_out[1], headline=self._headline):
            step, figures = self._held_out
            words.append(_said(figures, "held_out_loss", f"   held-out {{:.4f}} at step {step:,}"))
        room = self._console.width - len(words) - 20
        if len(self._losses) > 1 and room >= 8:
            levels = ASCII_BLOCKS if self._console.options.ascii_only else BLOCKS
            words.append("   ")
            words.append(sparkline(list(self._losses), min(room, 48), levels), style="cyan")
        return words

    def _leads(self) -> str:
        kind = leading_kind(self._headline)
        return kind.at or kind.subject

    def _led(self) -> str:
        """Return the headline training figures, without where they are predicted."""
        return led_by(self._line, self._headline).removeprefix(leading_kind(self._headline).tag).strip()

    def _total(self) -> str:
        value = _said(self._line, "loss", "{:.4f}")
        return f"{value} ({sum_of(self._line)})" if value else "not yet"

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
            step, figures = self._held_out
            words += f"  {held_out_words(figures, self._headline)} (step {step:,})"
        words += f"  probe {self._probe}" if self._probe else ""
        words += _said(self._line, "mfu", "  {:.1%} of the peak")
        newest = f", newest of step {self._save[0]:,}" if self._save else ""
        words += f"  {self._saves} checkpoint{'' if self._saves == 1 else 's'}{newest}"
        return words + (f"  {self._disturbed} disturbances: events.jsonl" if self._disturbed else "")


def _said(figures: Mapping[str, Any], name: str, form: str) -> str:
    value = figures.get(name)
    return form.format(value) if isinstance(value, int | float) else ""

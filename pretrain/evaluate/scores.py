"""Format a run's figures, each beside the baseline of a model without context.

The predictions of the objective's headline metric come first, then pairs. All others are shown separately: copying what
is visible scores well on kept words and shows no knowledge. Needs neither torch nor numpy.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pretrain.objectives.metrics import HEADLINE, HELD_OUT, Kind, kinds_in, leading_kind, leads_alone, metric
from pretrain.run.tolerant_json import number


class Score(NamedTuple):
    """A figure and its baseline."""

    what: str
    value: str
    baseline: str = ""
    """The baseline of a model without any context, in figures; empty if unknown."""
    than: str = ""
    """What that baseline predicts."""
    at: str = ""
    """Where it is predicted, as `at [MASK]`, for callers that have not stated it."""
    is_share: bool = False
    pairs: bool = False
    """Whether it is of a pair task."""

    def __str__(self) -> str:
        beside = f" ({' '.join((self.than, self.baseline)).strip()})" if self.baseline else ""
        return f"{self.what} {self.value}{beside}"


def leading(figures: Mapping[str, Any], prefix: str = HELD_OUT, headline: str = HEADLINE) -> list[Score]:
    """Return the known scores: loss, accuracy and perplexity of the headline predictions, then the pairs. `prefix`:
    empty for training figures, which have no baselines. `headline`: the objective's."""
    kind = leading_kind(headline)
    measures = ("loss", "accuracy", "perplexity") if kind.words else ("loss", "accuracy")
    named = [f"{kind.name}_{what}" for what in measures]
    if leads_alone(headline):
        named.insert(0, headline)
    named += [f"{pairs.name}_accuracy" for pairs in pair_kinds(figures, prefix) if pairs != kind]
    scores = (_score(name, figures, prefix) for name in named)
    return [score for score in scores if score is not None]


def pair_kinds(figures: Mapping[str, Any], prefix: str = HELD_OUT) -> list[Kind]:
    """List the pair tasks that have an accuracy in the figures."""
    pairs = [kind for kind in kinds_in(figures) if kind.labels]
    return [kind for kind in pairs if number(figures.get(f"{prefix}{kind.name}_accuracy")) is not None]


def _score(name: str, figures: Mapping[str, Any], prefix: str) -> Score | None:
    """Score one figure; None if it is unknown."""
    found = metric(name)
    if found is None:
        own = number(figures.get(f"{prefix}{name}"))
        return None if own is None else Score(name.replace("_", " "), f"{own:.3f}")
    source = f"{found.kind.name}_loss" if found.what == "perplexity" else name
    form = {"accuracy": share, "perplexity": perplexity}.get(found.what, nats)
    value, base = (number(figures.get(f"{prefix}{key}")) if key else None for key in (source, found.baseline))
    if value is None:
        return None
    if found.chance is not None and prefix:
        base = found.chance
    kind = found.kind
    what = found.what if kind.at else kind._replace(title=kind.abbreviation).said(found.what)
    return Score(
        what, form(value), form(base), found.than, kind.at, found.what == "accuracy", bool(kind.labels)
    )


def secondary(
    figures: Mapping[str, Any], prefix: str = HELD_OUT, headline: str = HEADLINE
) -> list[tuple[str, str]]:
    """Return (what, figures) of the positions that show a word, of all predicted ones, of other predictions, and of the
    total loss."""
    rows = []
    for kind in kinds_in(figures):
        if kind == leading_kind(headline) or kind.labels:
            continue
        loss, right = (number(figures.get(f"{prefix}{kind.name}_{what}")) for what in ("loss", "accuracy"))
        parts = [f"loss {nats(loss)}" if loss is not None else ""]
        parts.append(f"accuracy {share(right)}" if right is not None else "")
        if told := ", ".join(part for part in parts if part):
            rows.append((kind.beside or kind.subject, told))
    if (total := number(figures.get(f"{prefix}loss"))) is not None:
        rows.append((f"loss that is minimised, {sum_of(figures)}", nats(total)))
    return rows


def sum_of(figures: Iterable[str]) -> str:
    """Name the sum that `loss` is, by its terms."""
    known = sorted({name.removeprefix(HELD_OUT) for name in figures})
    terms = [kind for kind in kinds_in(known) if f"{kind.name}_loss" in known and not kind.part]
    return " + ".join(kind.abbreviation for kind in terms) or "total"


def nats(value: float | None) -> str:
    """Format a loss; empty if it is unknown."""
    return f"{value:.3f}" if value is not None else ""


def share(value: float | None) -> str:
    """Format an accuracy; empty if it is unknown."""
    return f"{value:.1%}" if value is not None else ""


def perplexity(loss: float | None) -> str:
    """Format exp(loss), the number of equally likely words the model chooses among; empty if the loss is unknown."""
    if loss is None:
        return ""
    among = math.exp(min(loss, 50.0))
    return f"{among:.1f}" if among < 100 else f"{among:,.0f}" if among < 1e6 else f"{among:.2g}"

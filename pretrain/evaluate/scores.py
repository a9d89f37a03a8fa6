"""Put a run's figures into words, each beside what a model reaches that has learnt no context.

The kind of predictions that the objective's headline is of leads, then pairs. All others are shown separately: copying
what is visible scores well on kept words and is no knowledge. Neither torch nor numpy is needed here.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pretrain.objectives.metrics import HEADLINE, HELD_OUT, Kind, kinds_in, leading_kind, leads_alone, metric
from pretrain.run.tolerant_json import number


class Score(NamedTuple):
    """A figure, and what to hold it against."""

    what: str
    value: str
    baseline: str = ""
    """What a model without any knowledge of context has there, in figures; empty where that is not known."""
    than: str = ""
    """What that model does."""
    at: str = ""
    """Where it is predicted, as `at [MASK]`, for whoever has not said so already."""
    is_share: bool = False
    pairs: bool = False
    """Of a pair task."""

    def __str__(self) -> str:
        beside = f" ({' '.join((self.than, self.baseline)).strip()})" if self.baseline else ""
        return f"{self.what} {self.value}{beside}"


def leading(figures: Mapping[str, Any], prefix: str = HELD_OUT, headline: str = HEADLINE) -> list[Score]:
    """Score loss, accuracy and perplexity of what the headline predicts, then the pairs, as far as they are known.
    `prefix`: empty for the figures of training, which have no baselines. `headline`: the objective's."""
    kind = leading_kind(headline)
    measures = ("loss", "accuracy", "perplexity") if kind.words else ("loss", "accuracy")
    named = [f"{kind.name}_{what}" for what in measures]
    if leads_alone(headline):
        named.insert(0, headline)
    named += [f"{pairs.name}_accuracy" for pairs in pair_kinds(figures, prefix) if pairs != kind]
    scores = (_score(name, figures, prefix) for name in named)
    return [score for score in scores if score is not None]


def pair_kinds(figures: Mapping[str, Any], prefix: str = HELD_OUT) -> list[Kind]:
    """List the pair tasks that the figures have an accuracy of."""
    pairs = [kind for kind in kinds_in(figures) if kind.labels]
    return [kind for kind in pairs if number(figures.get(f"{prefix}{kind.name}_accuracy")) is not None]


def _score(name: str, figures: Mapping[str, Any], prefix: str) -> Score | None:
    """Score one figure; None where it is not known."""
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
    """(what, figures) of the positions that show a word, of all predicted ones, of what else is predicted, and of the
    loss that is minimised."""
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
    """Name what `loss` adds up, by the terms beside it."""
    known = sorted({name.removeprefix(HELD_OUT) for name in figures})
    terms = [kind for kind in kinds_in(known) if f"{kind.name}_loss" in known and not kind.part]
    return " + ".join(kind.abbreviation for kind in terms) or "total"


def nats(value: float | None) -> str:
    """Return a loss, empty where it is not known."""
    return f"{value:.3f}" if value is not None else ""


def share(value: float | None) -> str:
    """Return an accuracy, empty where it is not known."""
    return f"{value:.1%}" if value is not None else ""


def perplexity(loss: float | None) -> str:
    """exp(loss): among how many equally likely words the model chooses; empty where the loss is not known."""
    if loss is None:
        return ""
    among = math.exp(min(loss, 50.0))
    return f"{among:.1f}" if among < 100 else f"{among:,.0f}" if among < 1e6 else f"{among:.2g}"

"""Describe the metrics that objectives report: their names, and the baseline of a model without context.

A figure's name says what is predicted (its kind), what is measured, and of pairs with which label: mask_loss,
nsp_accuracy, nsp_accuracy_is_next. Which figures a run has is in its own files, and which of them leads in
`Objective.headline`, which its summary.json keeps. A kind that KINDS does not know gets its words from its name.
Neither torch nor numpy is needed here.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from data_pipeline.sequences.registry import NEXT_SENTENCE, SENTENCE_ORDER

HELD_OUT = "held_out_"
HEADLINE = "mask_loss"
"""Main metric of a run whose files name none."""
LONGEST_NAME = 80
_NAME = re.compile(
    r"([a-z][a-z0-9]*(?:_[a-z0-9]+)*?)"
    r"_(unigram_loss|top_share|top_token|loss|accuracy|perplexity|majority|auc)(?:_([a-z0-9_]+))?"
)


class Kind(NamedTuple):
    """What is predicted: the first part of its figures' names."""

    name: str
    at: str = ""
    """Where, or of what, as in `loss at [MASK]`; empty: what is predicted comes first, as in `next-sentence loss`."""
    title: str = ""
    """That what, for people; empty: the name."""
    short: str = ""
    """The same in a line with little room."""
    tag: str = ""
    """In front of its figures in a line, and of `positions`."""
    words: bool = False
    """Entries of the vocabulary are predicted: perplexity and word frequencies mean something."""
    labels: tuple[str, ...] = ()
    """Of a pair task."""
    beside: str = ""
    """What it is called where it is shown beside what leads; empty: the title."""
    caveat: str = ""
    """Why its figures alone do not show that anything was learnt."""
    part: bool = False
    """Its loss is a part of another kind's, not a term of its own."""

    @property
    def subject(self) -> str:
        """What is predicted, in words."""
        return self.title or self.name.replace("_", " ")

    @property
    def abbreviation(self) -> str:
        """Short form, for narrow lines and sums of losses."""
        return self.short or self.subject

    def said(self, what: str) -> str:
        """Describe one of its measures, as `loss at [MASK]` or `next-sentence loss`."""
        what = "AUC" if what == "auc" else what
        return f"{what} {self.at}" if self.at else f"{self.subject} {what}"


_KINDS = (
    Kind("mask", at="at [MASK]", tag="[MASK]", words=True, part=True),
    Kind("causal", at="at the next token", short="LM", tag="next-token", words=True),
    Kind("plm", at="at the targets of the permutation", short="PLM", tag="target", words=True),
    Kind("rtd", title="replaced-token", short="RTD"),
    Kind("kept", at="where a word is kept", beside="positions that keep their word", part=True),
    Kind("random", at="where a random word is shown", beside="positions that show a random word", part=True),
    Kind("mlm", at="over all predicted tokens", short="MLM", beside="all predicted positions, visible words included",
         caveat="Some of these tokens stay visible; copying them does well and does not show that context was learnt."),
    Kind("nsp", title="next-sentence", short="NSP", labels=NEXT_SENTENCE.labels),
    Kind("sop", title="sentence-order", short="SOP", labels=SENTENCE_ORDER.labels),
    Kind("soft", at="against the teacher's predictions", short="soft targets",
         caveat="How alike two models are does not say how good either is."),
    Kind("cos", at="of the direction of hidden states", short="cosine"),
)  # fmt: skip
KINDS = {kind.name: kind for kind in _KINDS}
"""Kinds with words of their own, in the order to show them."""


class Metric(NamedTuple):
    """A figure by the parts of its name."""

    kind: Kind
    what: str
    """loss, accuracy, perplexity, auc; unigram_loss, majority, top_share, top_token: what a loss is held against."""
    label: str = ""
    """The pair label that it is of; empty: all."""

    @property
    def said(self) -> str:
        """Its words, as `loss at [MASK]`."""
        return self.kind.said(self.what)

    @property
    def baseline(self) -> str:
        """Name of the context-free baseline, without `held_out_`; empty if there is none."""
        if self.what == "accuracy" and not self.label:
            return f"{self.kind.name}_majority"
        return (
            f"{self.kind.name}_unigram_loss"
            if self.what in ("loss", "perplexity") and self.kind.words
            else ""
        )

    @property
    def chance(self) -> float | None:
        """Value of a random guess if it is the same for any text; else None."""
        return 0.5 if self.what == "auc" else None

    @property
    def than(self) -> str:
        """Short name of that baseline, in words."""
        if self.chance is not None:
            return "a guess"
        if self.what != "accuracy":
            return "unigram"
        kind = self.kind
        return (
            "most frequent token" if kind.words else "commoner label" if kind.labels else "commonest answer"
        )


def title_of(words: str) -> str:
    """Capitalise the first letter of `words`."""
    return words[:1].upper() + words[1:]


def label_title(label: str) -> str:
    """Write a pair label as papers do: IsNext."""
    return "".join(map(title_of, label.split("_")))


def said(name: str) -> str:
    """Describe the metric of this name, with or without `held_out_`, in words."""
    found = metric(name)
    if found is None:
        return name.removeprefix(HELD_OUT).replace("_", " ")
    return found.said


def metric(name: str) -> Metric | None:
    """Parse a metric's name, with or without `held_out_`; None if it does not measure a prediction."""
    found = _NAME.fullmatch(name.removeprefix(HELD_OUT))
    if not found or len(name) > LONGEST_NAME:
        return None
    kind, what, label = found.groups()
    return Metric(KINDS.get(kind, Kind(kind)), what, label or "")


def guess(name: str) -> str:
    """Describe, in a sentence, the value of a random guess for this metric; empty if it depends on the text."""
    found = metric(name)
    return f"A guess has {found.chance:.3f}." if found and found.chance is not None else ""


def is_shown(name: str, headline: str) -> bool:
    """Return whether a value of this name in metrics.jsonl or summary.json measures what a run has learnt."""
    own = name.removeprefix(HELD_OUT)
    return own in ("loss", "pairs", headline) or metric(own) is not None


def headline_of(summary: Mapping[str, Any]) -> str:
    """Return the main metric of a run, from its summary.json."""
    return str(summary.get("headline") or HEADLINE)


def leading_kind(headline: str) -> Kind:
    """Return what the headline metric predicts; for a metric with a name of its own, a kind of that name."""
    found = metric(headline)
    return found.kind if found else Kind(headline)


def leads_alone(headline: str) -> bool:
    """Return whether the main metric is none of the three shown for every kind of prediction."""
    found = metric(headline)
    return found is None or found.what not in ("loss", "accuracy", "perplexity")


def kinds_in(names: Iterable[str]) -> list[Kind]:
    """List the kinds of the metrics with these names: known kinds first, then the others in order."""
    found = {m.kind.name: m.kind for m in map(metric, names) if m and m.what in ("loss", "accuracy")}
    return [kind for kind in KINDS.values() if kind.name in found] + [
        kind for name, kind in found.items() if name not in KINDS
    ]

"""Describe the metrics of a run: their names, the baseline of a model without context, and whether the run learns.

A figure's name says what is predicted (its kind), what is measured, and of pairs with which label: mask_loss,
nsp_accuracy, nsp_accuracy_is_next. Which figures a run has is in its own files, and which of them leads in
`Objective.headline`, which its summary.json keeps. A kind that KINDS does not know gets its words from its name.

Only the baselines that are counted from arrays need numpy, and nothing needs torch: neither is imported with this
module.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from data_pipeline.sequences.registry import NEXT_SENTENCE, SENTENCE_ORDER
from pretrain.run.files import number, tables

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


# Compute the scores of baselines that know only label and word frequencies.


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]


def majority(held_out: Mapping[str, Any]) -> dict[str, float]:
    """Compute the accuracy of the majority label on the pairs, from the statistics of these examples, under the name of
    the matching pair task; empty without pairs."""
    counts = {str(label): int(count) for label, count in dict(held_out.get("pair_labels", {})).items()}
    tasks = [kind.name for kind in KINDS.values() if kind.labels and counts.keys() <= set(kind.labels)]
    if not tasks or not sum(counts.values()):
        return {}
    return {f"{HELD_OUT}{tasks[0]}_majority": max(counts.values()) / sum(counts.values())}


def with_majority(figures: Mapping[str, Any], held_out: object) -> dict[str, Any]:
    """Add the majority label's accuracy from the statistics of the held-out examples if a run did not log it."""
    try:
        known = majority(held_out) if isinstance(held_out, Mapping) else {}
    except (TypeError, ValueError):  # a damaged summary
        known = {}
    return {**figures, **{name: value for name, value in known.items() if figures.get(name) is None}}


def unigram(kind: str, counts: "Counts") -> dict[str, float]:
    """Compute loss and accuracy of the best constant prediction, from the counts of the targets: their entropy in nats,
    a lower bound for any fixed distribution of words, and the share of the most frequent word. Empty without
    positions."""
    from data_pipeline.shards.statistics import unigram_entropy

    if not counts.any():
        return {}
    return {
        f"{kind}_unigram_loss": unigram_entropy(counts),
        f"{kind}_majority": float(counts.max() / counts.sum()),
    }


def pair_majority(task: str, counts: "Counts") -> dict[str, float]:
    """Return the accuracy of the majority label, from the counts of two labels, and the number of pairs; empty without
    pairs."""
    if not counts.any():
        return {}
    return {f"{task}_majority": float(counts.max() / counts.sum()), "pairs": float(counts.sum())}


def answers_in_short(kind: str, counts: "Counts", words: Sequence[str]) -> dict[str, float | str]:
    """Return the model's most frequent answer, and its share of all answers: near 1 if it predicts the same word
    everywhere. `counts` (words,): how often each word was the answer."""
    top = int(counts.argmax())
    return {f"{kind}_top_share": float(counts[top] / counts.sum()), f"{kind}_top_token": words[top]}


# Format a run's figures, each beside its baseline. The predictions of the objective's headline metric come first, then
# pairs. All others are shown separately: copying what is visible scores well on kept words and shows no knowledge.


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


# Judge from a run's figures whether it learns, in plain sentences: the terminal, `maskmill status` and the report show
# the same ones.


PLATEAU, PAIRS, RISEN = "plateau", "pairs", "risen"
"""Kinds of findings."""
MAX_TOP_SHARE = 0.5
"""A model that gives one answer at more than this share of the [MASK] positions ignores the context."""
STANDARD_ERRORS = 2.0
"""An accuracy must exceed its baseline by this many standard errors to be clearly above it."""
UNKNOWN_MARGIN = 0.01
"""The margin if the number of pairs is unknown."""
RISE = 0.01
"""Share by which a loss must exceed its first value: below this it is noise."""
RECENT = 5
"""Newest log lines whose median loss is compared with the first."""


class Finding(NamedTuple):
    """A statement about what a run has learnt."""

    kind: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


class Losses:
    """Keep the first and the newest losses of a run; lines of metrics.jsonl are added one by one."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._untrained: float | None = None
        self._held_out: float | None = None

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of any kind; lines without a finite loss change nothing."""
        kind = line.get("kind", "train")
        loss = number(line.get("held_out_loss" if kind == "eval" else "loss"))
        if loss is None:
            return
        if kind == "train":
            self._first = loss if self._first is None else self._first
            self._recent.append(loss)
        elif kind == "eval" and line.get("step") == 0:
            self._untrained = loss
        elif kind == "eval":
            self._held_out = loss

    @property
    def ends(self) -> tuple[float, float] | None:
        """Return the first and the current loss: on held-out text if it was evaluated at step 0, else in training."""
        if self._untrained is not None and self._held_out is not None:
            return self._untrained, self._held_out
        if self._first is not None and len(self._recent) > 1:
            return self._first, median(self._recent)
        return None


def findings(
    figures: Mapping[str, Any], ends: tuple[float, float] | None = None, headline: str = HEADLINE
) -> list[Finding]:
    """Return what is wrong with what a run has learnt so far, most serious first; empty if nothing is.

    `figures`: the newest ones by their names in metrics.jsonl, any of which may be missing; those of an evaluation at
    step 0 are not judged. `ends`: first and newest loss. `headline`: the objective's."""
    pairs = (_pairs(kind, figures) for kind in KINDS.values() if kind.labels)
    found = (_risen(ends), _plateau(leading_kind(headline), figures), *pairs)
    return [one for one in found if one is not None]


def _plateau(kind: Kind, figures: Mapping[str, Any]) -> Finding | None:
    """Describe the plateau at which a model knows only word frequencies."""
    loss, unigram, share = (
        number(figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("loss", "unigram_loss", "top_share")
    )
    grounds = []
    if loss is not None and unigram is not None and loss >= unigram:
        grounds.append(
            f"{kind.at or f'of {kind.subject}'} the held-out loss is {loss:.3f}, not below the {unigram:.3f} that word "
            "frequencies alone give"
        )
    if share is not None and share > MAX_TOP_SHARE:
        token = figures.get(f"{HELD_OUT}{kind.name}_top_token")
        answer = f'"{token}"' if isinstance(token, str) else "the same word"
        grounds.append(
            f"the model answers {answer} at {share:.0%} of the {kind.tag or kind.subject} positions"
        )
    if not grounds:
        return None
    return Finding(
        PLATEAU,
        f"No context has been learnt yet: {', and '.join(grounds)}.",
        "Shorter examples (data.sequence_length), more steps or another optim.lr usually help.",
    )


def _pairs(kind: Kind, figures: Mapping[str, Any]) -> Finding | None:
    """Describe pair tasks that are no better than the majority label."""
    accuracy, majority = (
        number(figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("accuracy", "majority")
    )
    if accuracy is None or majority is None or accuracy > majority + margin(majority, figures):
        return None
    return Finding(
        PAIRS,
        f"The pair task has not been learnt yet: {accuracy:.1%} of the held-out pairs are judged right, and always "
        f"answering the commoner label gets {majority:.1%}.",
        "It is learnt after words are: more steps usually help. Objectives without pairs train on single sequences.",
    )


def margin(share: float, figures: Mapping[str, Any]) -> float:
    """Return how far an accuracy must exceed `share`: a multiple of the binomial standard error for this many pairs."""
    pairs = number(figures.get("held_out_pairs"))
    if not pairs or not 0 <= share <= 1:
        return UNKNOWN_MARGIN
    return STANDARD_ERRORS * math.sqrt(share * (1 - share) / pairs)


def _risen(ends: tuple[float, float] | None) -> Finding | None:
    if ends is None or ends[1] <= ends[0] * (1 + RISE):
        return None
    first, newest = ends
    return Finding(
        RISEN,
        f"The loss is higher than where the run began: {newest:.3f}, and {first:.3f} at the beginning.",
        "Lower optim.lr, or lengthen schedule.warmup.",
    )


# Judge a run from its files: the newest figures, and the losses at both ends of metrics.jsonl.


HEAD = 1 << 16
"""Bytes at the beginning of metrics.jsonl that are read for the first loss."""


def learning_of(
    metrics: Path, summary: dict[str, Any], newest_lines: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], list[Finding]]:
    """Return the newest training and evaluation figures by name, and the findings about them.

    `metrics`: the file whose beginning is read; `newest_lines`: those at its end."""
    lines = list(newest_lines)
    trained = [line for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    evaluated = [line for line in lines if line.get("kind") == "eval"]
    data = summary.get("data")
    counts = data.get("held_out") if isinstance(data, dict) else None
    newest = with_majority({**summary, **(trained or [{}])[-1], **(evaluated or [{}])[-1]}, counts)
    headline = headline_of(summary)
    figures = {name: value for name, value in newest.items() if is_shown(name, headline)}
    losses = Losses()
    for line in [*tables(_beginning_of(metrics)), *lines]:
        losses.add(line)
    untrained = bool(evaluated) and evaluated[-1].get("step") == 0
    return figures, findings({} if untrained else figures, losses.ends, headline)


def _beginning_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(HEAD).decode(errors="replace")
    except OSError:
        return ""

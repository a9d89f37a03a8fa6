"""Compute what a model without context scores, and judge from the metrics of a run whether it learns.

The findings are plain sentences: the terminal, `maskmill status`, `inspect`, the report and the card show the same
ones. Only the baselines that are counted from arrays need numpy, which is not imported with this module.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pretrain.run.files import number
from pretrain.run.metrics import (
    GUESS,
    HEADLINE,
    HELD_OUT,
    PREDICTIONS,
    Prediction,
    Score,
    headline_of,
    is_shown,
    known_scores,
    leading_prediction,
    nats,
    perplexity,
    score_of,
    title_of,
)

# Compute the scores of baselines that know only label and word frequencies.


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]


def majority(held_out: Mapping[str, Any]) -> dict[str, float]:
    """Compute the accuracy of the majority label on the pairs, from the statistics of these examples, under the name of
    the matching pair task; empty without pairs."""
    counts = {str(label): int(count) for label, count in dict(held_out.get("pair_labels", {})).items()}
    tasks = [one.name for one in PREDICTIONS.values() if one.labels and counts.keys() <= set(one.labels)]
    if not tasks or not sum(counts.values()):
        return {}
    return {f"{HELD_OUT}{tasks[0]}_majority": max(counts.values()) / sum(counts.values())}


def with_majority(metrics: Mapping[str, Any], held_out: object) -> dict[str, Any]:
    """Add the majority label's accuracy from the statistics of the held-out examples if a run did not log it."""
    try:
        known = majority(held_out) if isinstance(held_out, Mapping) else {}
    except (TypeError, ValueError):  # a damaged summary
        known = {}
    return {**metrics, **{name: value for name, value in known.items() if metrics.get(name) is None}}


def unigram(name: str, counts: "Counts") -> dict[str, float]:
    """Compute loss and accuracy of the best constant prediction, from the counts of the targets: their entropy in nats,
    a lower bound for any fixed distribution of words, and the share of the most frequent word. Empty without
    positions."""
    from data_pipeline.shards.statistics import unigram_entropy

    if not counts.any():
        return {}
    return {
        f"{name}_unigram_loss": unigram_entropy(counts),
        f"{name}_majority": float(counts.max() / counts.sum()),
    }


def pair_majority(task: str, counts: "Counts") -> dict[str, float]:
    """Return the accuracy of the majority label, from the counts of two labels, and the number of pairs; empty without
    pairs."""
    if not counts.any():
        return {}
    return {f"{task}_majority": float(counts.max() / counts.sum()), "pairs": float(counts.sum())}


def answers_in_short(name: str, counts: "Counts", words: Sequence[str]) -> dict[str, float | str]:
    """Return the model's most frequent answer, and its share of all answers: near 1 if it predicts the same word
    everywhere. `counts` (words,): how often each word was the answer."""
    top = int(counts.argmax())
    return {f"{name}_top_share": float(counts[top] / counts.sum()), f"{name}_top_token": words[top]}


# Judge from the newest metrics whether a run learns.


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
    hint: str

    def __str__(self) -> str:
        return f"{self.what} {self.hint}"


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
    metrics: Mapping[str, Any], ends: tuple[float, float] | None = None, headline: str = HEADLINE
) -> list[Finding]:
    """Return what is wrong with what a run has learnt so far, most serious first; empty if nothing is.

    `metrics`: the newest ones by their names in metrics.jsonl, any of which may be missing; those of an evaluation at
    step 0 are not judged. `ends`: first and newest loss. `headline`: the objective's."""
    pairs = (_pairs(task, metrics) for task in PREDICTIONS.values() if task.labels)
    candidates = (_risen(ends), _plateau(leading_prediction(headline), metrics), *pairs)
    return [one for one in candidates if one is not None]


def _plateau(prediction: Prediction, metrics: Mapping[str, Any]) -> Finding | None:
    """Describe the plateau at which a model knows only word frequencies."""
    loss, top = (score_of(f"{prediction.name}_{what}", metrics) for what in ("loss", "top_share"))
    grounds = []
    if prediction.words and loss and loss.reference is not None and loss.value >= loss.reference:
        where = prediction.at or f"of {prediction.subject}"
        grounds.append(
            f"{where} the held-out loss is {loss.text}, not below the {loss.reference_text} that word frequencies "
            "alone give"
        )
    if top and top.value > MAX_TOP_SHARE:
        token = metrics.get(f"{HELD_OUT}{prediction.name}_top_token")
        answer = f'"{token}"' if isinstance(token, str) else "the same word"
        grounds.append(
            f"the model answers {answer} at {top.value:.0%} of the {prediction.tag or prediction.subject} positions"
        )
    if not grounds:
        return None
    return Finding(
        PLATEAU,
        f"No context has been learnt yet: {', and '.join(grounds)}.",
        "Shorter examples (data.sequence_length), more steps or another optim.lr usually help.",
    )


def _pairs(task: Prediction, metrics: Mapping[str, Any]) -> Finding | None:
    """Describe pair tasks that are no better than the majority label."""
    right = score_of(f"{task.name}_accuracy", metrics)
    if right is None or right.reference is None:
        return None
    if right.value > right.reference + margin(right.reference, metrics):
        return None
    return Finding(
        PAIRS,
        f"The pair task has not been learnt yet: {right.text} of the held-out pairs are judged right, and always "
        f"answering the commoner label gets {right.reference_text}.",
        "It is learnt after words are: more steps usually help. Objectives without pairs train on single sequences.",
    )


def margin(accuracy: float, metrics: Mapping[str, Any]) -> float:
    """Return how far an accuracy must exceed this one: a multiple of the binomial standard error for this many
    pairs."""
    pairs = number(metrics.get("held_out_pairs"))
    if not pairs or not 0 <= accuracy <= 1:
        return UNKNOWN_MARGIN
    return STANDARD_ERRORS * math.sqrt(accuracy * (1 - accuracy) / pairs)


def _risen(ends: tuple[float, float] | None) -> Finding | None:
    if ends is None or ends[1] <= ends[0] * (1 + RISE):
        return None
    first, newest = ends
    return Finding(
        RISEN,
        f"The loss is higher than where the run began: {nats(newest)}, and {nats(first)} at the beginning.",
        "Lower optim.lr, or lengthen schedule.warmup.",
    )


# Judge a run from its lines and its summary.


class Learning(NamedTuple):
    """What a run has learnt."""

    metrics: dict[str, Any]
    """The newest training and evaluation metrics by key, and the baselines."""
    findings: list[Finding]
    untrained: bool
    """The newest evaluation is that of step 0."""


def learning_of(
    summary: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    first_lines: Iterable[Mapping[str, Any]] = (),
) -> Learning:
    """Judge a run by its summary.json and the lines of metrics.jsonl; where these are only the newest ones, the first
    loss is that of `first_lines`."""
    trained = [line for line in lines if line.get("kind", "train") == "train" and "loss" in line]
    evaluated = [line for line in lines if line.get("kind") == "eval"]
    data = summary.get("data")
    counts = data.get("held_out") if isinstance(data, dict) else None
    newest = with_majority({**summary, **(trained or [{}])[-1], **(evaluated or [{}])[-1]}, counts)
    headline = headline_of(summary)
    metrics = {key: value for key, value in newest.items() if is_shown(key, headline)}
    losses = Losses()
    for line in [*first_lines, *lines]:
        losses.add(line)
    untrained = bool(evaluated) and evaluated[-1].get("step") == 0
    return Learning(metrics, findings({} if untrained else metrics, losses.ends, headline), untrained)


def verdict(metrics: Mapping[str, Any], headline: str, problems: Iterable[Finding]) -> str:
    """Describe in a sentence how well a run has learnt; empty where no metric is known. `problems`: its
    findings."""
    prefix, scores = known_scores(metrics, headline)
    if not scores:
        return ""
    prediction = leading_prediction(headline)
    loss = next((one for one in scores if one.metric.key == f"{prediction.name}_loss"), None)
    if not prefix or not prediction.words or loss is None:
        first = next((one for one in scores if one.metric.key == headline), scores[0])
        name, unit = first.metric.label, f" {first.metric.unit}" if first.metric.unit else ""
        subject = f"On text it has not seen, its {name}" if prefix else f"The {name} in training"
        return f"{subject} is {first.text}{unit}. {caveat_of(first, headline)}".strip()
    words = f"{title_of(prediction.at)} in text it has not seen, its loss is {loss.text} nats, "
    words += f"a perplexity of {perplexity(loss.value)}"
    if loss.reference is None:
        return f"{words}."
    unigram = (
        f"word frequencies alone give {loss.reference_text}, a perplexity of {perplexity(loss.reference)}"
    )
    if any(one.kind == PLATEAU for one in problems):
        return f"No context has been learnt yet. {words}; {unigram}."
    return f"{words}; {unigram}, {math.exp(min(loss.reference - loss.value, 50.0)):.2f} times as unsure."


def caveat_of(score: Score, headline: str) -> str:
    """Return what keeps a score from showing that anything was learnt: the value of a guess, or, of another metric than
    the headline, what it is no measure of."""
    prediction = score.metric.prediction
    if score.metric.baseline == GUESS:
        return score.sentence
    return prediction.caveat if prediction and score.metric.key != headline else ""

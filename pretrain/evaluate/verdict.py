"""Judge from a run's figures whether it learns, in plain sentences.

The terminal, `maskmill status` and the report show the same sentences. Needs neither torch nor numpy.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from pretrain.objectives.metrics import HEADLINE, HELD_OUT, KINDS, Kind, leading_kind
from pretrain.run.tolerant_json import number

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

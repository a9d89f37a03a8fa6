"""Score answers to questions as the official scripts of SQuAD do (Rajpurkar et al. 2016, 2018).

They differ in answers of which normalizing leaves nothing, as of "the": in 1.1's such an answer is one like any other,
and has an F1 of 0 with another of the kind; in 2.0's it is none, and two that are none have an F1 of 1."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, its words one space from each other.

    >>> normalized("The  U.S.!")
    'us'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(gold: str, predicted: str) -> float:
    """Return 1 where both are equal after normalizing, else 0."""
    return float(normalized(gold) == normalized(predicted))


def overlap(gold: str, predicted: str, may_be_none: bool) -> float:
    """Return F1 of the words that both have, each as often as it occurs; where neither has one, 1 with `may_be_none`
    (2.0) and 0 without (1.1)."""
    ours, theirs = normalized(predicted).split(), normalized(gold).split()
    if not ours or not theirs:
        return float(may_be_none and ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def best_over(golds: Sequence[str], predicted: str, may_be_none: bool) -> tuple[float, float]:
    """Return exact match and F1 with the answer of `golds` that each is best with; without one, with no answer.
    `may_be_none`: whether a question of the file may have none, so that 2.0's script is the one to go by."""
    if may_be_none:
        golds = [gold for gold in golds if normalized(gold)]
    golds = golds or [""]
    return (
        max(exact(gold, predicted) for gold in golds),
        max(overlap(gold, predicted, may_be_none) for gold in golds),
    )


def best_threshold(scores: Sequence[float], no_answer: Sequence[float], answerable: Sequence[bool]) -> float:
    """Return the highest mean score, in percent, that any threshold on the odds of no answer gives: below it, a
    question has the score of its answer, above it that of none. `scores`: of the best answer that is not empty.

    As find_best_thresh of SQuAD 2.0's script: questions are taken in from the surest answer on."""
    return 100 * max(_sums(scores, no_answer, answerable)[1]) / max(1, len(scores))


def tuned_threshold(scores: Sequence[float], no_answer: Sequence[float], answerable: Sequence[bool]) -> float:
    """Return the lowest threshold with the highest mean score (see best_threshold): the odds of the last question that
    is answered, or, where none best is, a number just below all odds. One of several questions with the same odds, as
    coarse numbers have them, is never answered alone."""
    odds, sums = _sums(scores, no_answer, answerable)
    ends = [i for i in range(len(odds)) if i + 1 == len(odds) or odds[i] != odds[i + 1]]
    best = max(ends, key=lambda i: sums[i])
    return odds[best] if best else math.nextafter(odds[1], -math.inf)


def _sums(
    scores: Sequence[float], no_answer: Sequence[float], answerable: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """Return the odds from the lowest on, behind that none is low enough, and the sum of the scores where questions up
    to these are answered."""
    order = sorted(range(len(scores)), key=lambda i: no_answer[i])
    gains = [scores[i] if answerable[i] else -1.0 for i in order]
    first = float(sum(not has for has in answerable))
    return [-math.inf, *(no_answer[i] for i in order)], list(accumulate(gains, initial=first))

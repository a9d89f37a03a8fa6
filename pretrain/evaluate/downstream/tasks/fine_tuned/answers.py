"""Find the likeliest answers in what a model of questions says of a text's windows, and write them as BERT's
run_squad.py does (google-research/bert): the one that is given, the n best, and the odds that there is none."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrain.evaluate.downstream.inputs.windows import Window

BEST, ANSWER_TOKENS = 20, 30
"""Candidate starts and ends of a window, and answers that are listed; longest answer in tokens."""
NONE_FOUND = 1e9
"""Odds of no answer where no window has a candidate: finite, since JSON knows no other numbers."""
Windows = Sequence[tuple[Window, NDArray[Any]]]
"""The windows of a question, each with the logits of start and end, (tokens, 2)."""


class Said(NamedTuple):
    """An answer with the logits of its start and end; "" is that there is none, with those of [CLS]."""

    text: str
    start: float
    end: float

    @property
    def score(self) -> float:
        """Their sum, by which answers are ordered."""
        return self.start + self.end


class Candidate(NamedTuple):
    """What a model answers to a question."""

    ranked: list[Said]
    """The likeliest different answers, the likeliest first."""
    null: Said
    """That there is no answer: of the windows the one in which this is the least likely."""

    @property
    def text(self) -> str:
        """The best answer; empty where no window has a candidate."""
        return self.ranked[0].text if self.ranked else ""

    @property
    def no_answer(self) -> float:
        """How much likelier than the best answer it is that there is none: a difference of sums of two logits."""
        return self.null.score - self.ranked[0].score if self.ranked else NONE_FOUND

    def given(self, threshold: float) -> str:
        """Return the best answer; none where the odds of that are above the threshold."""
        return "" if self.no_answer > threshold else self.text

    @property
    def listed(self) -> list[Said]:
        """The answers with that there is none in its place among them: BEST, or one more where that is likelier than
        none of them."""
        ordered = sorted([*self.ranked, self.null], key=lambda one: -one.score)[:BEST]
        return ordered if self.null in ordered else [*ordered, self.null]


def candidate(context: str, windows: Windows, count: int = 1) -> Candidate:
    """Return the `count` likeliest different answers over the windows: of the BEST likeliest starts and ends of each,
    the pairs of the highest sum whose end is not before its start, which have at most ANSWER_TOKENS tokens, and whose
    start has more context in no other window."""
    found: list[tuple[float, float, int, int]] = []
    null = Said("", np.inf, np.inf)
    for window, logits in windows:
        null = min(null, Said("", *logits[window.cls].tolist()), key=lambda one: one.score)
        starts, ends = (np.argsort(-logits[:, i], kind="stable")[:BEST].tolist() for i in (0, 1))
        for start in starts:
            first = window.spans[start]
            if first is None or not window.is_widest[start]:
                continue
            for end in ends:
                last = window.spans[end]
                if last is not None and 0 <= end - start < ANSWER_TOKENS:
                    found.append((float(logits[start, 0]), float(logits[end, 1]), first[0], last[1]))
    ranked: dict[str, Said] = {}
    for at_start, at_end, first_character, end_character in sorted(found, key=lambda one: -(one[0] + one[1])):
        text = context[first_character:end_character].strip()
        if text and text not in ranked:
            ranked[text] = Said(text, at_start, at_end)
        if len(ranked) == count:
            break
    return Candidate(list(ranked.values()), null)


def answer_files(ids: Sequence[str], found: Sequence[Candidate], threshold: float | None) -> dict[str, str]:
    """Return file -> content: predictions.json, id -> the answer that is given; nbest_predictions.json, id -> answers
    with their logits and the softmax of these; and where a question may have no answer null_odds.json, id -> the odds
    of that, which the script of SQuAD 2.0 reads as --na-prob-file. `threshold`: see Candidate.given; None where every
    question has an answer, and none is withheld or listed."""
    every = threshold is None
    said = [one.text if threshold is None else one.given(threshold) for one in found]
    files: dict[str, list[Any]] = {
        "predictions.json": said,
        "nbest_predictions.json": [_with_probabilities(one.ranked if every else one.listed) for one in found],
    }
    if not every:
        files["null_odds.json"] = [one.no_answer for one in found]
    return {
        name: json.dumps(dict(zip(ids, values, strict=True)), indent=1, ensure_ascii=False) + "\n"
        for name, values in files.items()
    }


def _with_probabilities(said: Sequence[Said]) -> list[dict[str, Any]]:
    scores = np.array([one.score for one in said])
    shares = np.exp(scores - scores.max(initial=-np.inf))
    return [
        {"text": one.text, "probability": share, "start_logit": one.start, "end_logit": one.end}
        for one, share in zip(said, (shares / shares.sum()).tolist(), strict=True)
    ]

"""Score what is answered to questions, by the official script that their file has: SQuAD's of 2.0 where one of them
has no answer, else 1.1's."""

from collections.abc import Sequence

import numpy as np

from pretrain.evaluate.downstream.tasks.base import Scores, TaskData
from pretrain.evaluate.downstream.tasks.fine_tuned.answers import Candidate
from pretrain.evaluate.downstream.tasks.fine_tuned.squad import best_over
from pretrain.evaluate.downstream.tasks.fine_tuned.squad_files import Question


def may_be_none(items: Sequence[Question]) -> bool:
    """Return whether a question has no answer: the file is scored as SQuAD 2.0 then, else as 1.1."""
    return any(not item.answers for item in items)


def given(items: Sequence[Question], candidates: Sequence[Candidate], data: TaskData) -> list[str]:
    """Return what is answered to each question: none above the threshold, where a question may have none."""
    if not may_be_none(items):
        return [one.text for one in candidates]
    assert data.null_threshold is not None, "chosen by `decided` before anything is scored"
    return [one.given(data.null_threshold) for one in candidates]


def means(items: Sequence[Question], said: Sequence[str]) -> Scores:
    """Return the mean exact match and F1 of what is said to each question, in percent."""
    unanswerable = may_be_none(items)
    pairs = np.array(
        [best_over(_texts(item), text, unanswerable) for item, text in zip(items, said, strict=True)]
    )
    return {"f1": 100 * float(pairs[:, 1].mean()), "exact": 100 * float(pairs[:, 0].mean())}


def by_odds(
    items: Sequence[Question], candidates: Sequence[Candidate], metric: int
) -> tuple[list[float], list[float], list[bool]]:
    """Return of each question the exact match (0) or F1 (1) of the best answer, the odds that there is none, and
    whether there is one."""
    pairs = [best_over(_texts(item), one.text, True) for item, one in zip(items, candidates, strict=True)]
    odds, has = [one.no_answer for one in candidates], [bool(item.answers) for item in items]
    return [pair[metric] for pair in pairs], odds, has


def _texts(item: Question) -> list[str]:
    return [answer.text for answer in item.answers]

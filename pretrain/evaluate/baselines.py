"""Compute what a model scores that has learnt nothing but how often things occur."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

MAJORITY = "held_out_nsp_majority"


def majority_share(held_out: Mapping[str, Any]) -> float | None:
    """Accuracy on the pairs of always the same answer; None without pairs."""
    counts = [int(count) for count in dict(held_out.get("pair_labels", {})).values()]
    return max(counts) / sum(counts) if sum(counts) else None


def with_majority(figures: Mapping[str, Any], held_out: object) -> dict[str, Any]:
    """The figures, with the majority label's accuracy from the statistics of the held-out examples where an older run
    did not log it."""
    if figures.get(MAJORITY) is not None or not isinstance(held_out, Mapping):
        return dict(figures)
    try:
        known = majority_share(held_out)
    except (TypeError, ValueError):  # a damaged summary
        known = None
    return {**figures, **({MAJORITY: known} if known is not None else {})}


def unigram(kind: str, counts: "Counts") -> dict[str, float]:
    """Loss and accuracy at the predictions of a kind whose targets have these counts, of the best answer that is the
    same at all of them: the entropy of the targets in nats, which no fixed distribution of words goes below, and the
    share of the most frequent word. Empty without a position."""
    from data_pipeline.shards.statistics import unigram_entropy

    if not counts.any():
        return {}
    return {
        f"{kind}_unigram_loss": unigram_entropy(counts),
        f"{kind}_majority": float(counts.max() / counts.sum()),
    }


def pair_majority(task: str, counts: "Counts") -> dict[str, float]:
    """Accuracy of always the commoner of two labels with these counts, and how many pairs they are; empty without."""
    if not counts.any():
        return {}
    return {f"{task}_majority": float(counts.max() / counts.sum()), "pairs": float(counts.sum())}


def answers_in_short(counts: "Counts", words: Sequence[str]) -> dict[str, float | str]:
    """The answer that a model gave most often, and its share of all answers: near 1 where it says the same word
    everywhere. `counts` (words,): how often each word was the answer."""
    top = int(counts.argmax())
    return {"mask_top_share": float(counts[top] / counts.sum()), "mask_top_token": words[top]}

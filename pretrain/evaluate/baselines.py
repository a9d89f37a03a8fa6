"""Compute the scores of baselines that know only label and word frequencies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pretrain.objectives.metrics import HELD_OUT, KINDS

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

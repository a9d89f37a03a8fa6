"""Score BLiMP (Warstadt et al. 2020): which of two sentences that differ minimally is the likelier one, without
training.

A masked model's score of a sentence is its pseudo-log-likelihood (Salazar et al. 2020): every token is masked in turn,
and the log-probabilities of the true ones are added up, not divided by the length."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from pretrain.downstream.encoders import Encoder
from pretrain.downstream.likelihood import score_sentences
from pretrain.downstream.settings import EvaluationSettings
from pretrain.downstream.tasks.base import Material, Scores, Untrained, evenly_spaced, hashes
from pretrain.downstream.tasks.tables import read_lines

S_SELECTION = {"s-selection": "argument_structure"}
"""The files name 13 groups, the paper 12: it counts the sets of selectional restrictions (animate subjects) with the
argument structure (Warstadt et al. 2020, table 1)."""
KEYS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")


class Paradigm(NamedTuple):
    """One of the 67 sets of pairs."""

    name: str
    group: str
    good: list[str]
    bad: list[str]


class Blimp(Untrained):
    """The task `blimp`. Its items are sentences, two of each pair."""

    def __init__(self) -> None:
        super().__init__("blimp", "BLiMP", "accuracy")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Read every *.jsonl of the folder; of each the evenly spaced share that settings.part says. Raises UserError
        where there is none, or a line lacks a key."""
        paths = sorted(folder.glob("*.jsonl"))
        if not paths:
            raise UserError("has no *.jsonl", where=folder, expected="the 67 files of BLiMP")
        paradigms = [_paradigm(path, settings.part) for path in paths]
        return Material(paradigms, sum(2 * len(one.good) for one in paradigms), hashes(paths))

    def score(
        self,
        encoder: Encoder,
        material: Material,
        settings: EvaluationSettings,
        seed: int,
        advance: Callable[[int], None],
    ) -> dict[str, Any]:
        """Return {"scores": {"accuracy": mean over the sets}, "groups", "paradigms", "unknown_share"}, in percent.
        Pairs of equal scores do not count as right."""
        sentences = [text for one in material.items for text in (*one.good, *one.bad)]
        found = score_sentences(encoder, sentences, settings, seed, advance)
        return {
            **summary(material.items, found.log_likelihoods),
            "unknown_share": 100 * found.unknown_share,
            "trivial": {self.headline: 50.0},
        }


def _paradigm(path: Path, part: float) -> Paradigm:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line)
            rows.append({key: str(row[key]) for key in KEYS})
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "is no pair of BLiMP", where=f"{path}, line {number}", expected=f"the keys {', '.join(KEYS)}"
            ) from None
    if not rows:
        raise UserError("has no example", where=path)
    kept = [rows[i] for i in evenly_spaced(len(rows), part)]
    good, bad = ([row[key] for row in kept] for key in KEYS[:2])
    group = kept[0]["linguistics_term"]
    return Paradigm(kept[0]["UID"], S_SELECTION.get(group, group), good, bad)


def summary(paradigms: list[Paradigm], found: NDArray[np.float64]) -> dict[str, Any]:
    """Return the accuracy of each set, of each group of sets and their mean, from the score of each sentence: of each
    set first its good ones, then its bad ones."""
    accuracies, start = {}, 0
    for one in paradigms:
        count = len(one.good)
        good, bad = found[start : start + count], found[start + count : start + 2 * count]
        accuracies[one.name] = 100 * float((good > bad).mean())
        start += 2 * count
    members: dict[str, list[float]] = {}
    for one in paradigms:
        members.setdefault(one.group, []).append(accuracies[one.name])
    groups = {group: float(np.mean(values)) for group, values in sorted(members.items())}
    scores: Scores = {"accuracy": float(np.mean(list(accuracies.values())))}
    return {"scores": scores, "groups": groups, "paradigms": accuracies}

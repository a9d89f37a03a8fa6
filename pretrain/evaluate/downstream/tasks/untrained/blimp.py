"""Score BLiMP (Warstadt et al. 2020): which of two sentences that differ minimally is the likelier one, without
training.

A masked model's score of a sentence is its pseudo-log-likelihood (Salazar et al. 2020): every token is masked in turn,
and the log-probabilities of the true ones are added up, not divided by the length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Material, Scores, Untrained
from pretrain.evaluate.downstream.tasks.splits import evenly_spaced, hashes
from pretrain.evaluate.downstream.tasks.tables import parsed_json, read_lines
from pretrain.evaluate.downstream.tasks.untrained.likelihood import score_sentences

S_SELECTION = {"s-selection": "argument_structure"}
"""The files name 13 groups, the paper 12: it counts the sets of selectional restrictions (animate subjects) with the
argument structure (Warstadt et al. 2020, table 1)."""
SETS, PAIRS = 67, 1000
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
        found = [_paradigm(path, settings.part) for path in paths]
        size, notes = sum(2 * len(one.good) for one, _ in found), _notes([count for _, count in found])
        if settings.part < 1:
            notes.append(f"{settings.part:.0%} of each set")
        return Material([one for one, _ in found], size, hashes(paths), tuple(notes))

    def score(
        self,
        encoder: Encoder,
        material: Material,
        settings: EvaluationSettings,
        seed: int,
        advance: Callable[[int], None],
    ) -> dict[str, Any]:
        """Return {"scores": {"accuracy": mean over the sets, "group_accuracy": mean over the groups of sets, as BabyLM
        has it (Warstadt et al. 2023)}, "groups", "paradigms", "unknown_share"}, in percent. Pairs of equal scores do
        not count as right."""
        sentences = [text for one in material.items for text in (*one.good, *one.bad)]
        found = score_sentences(encoder, sentences, settings, seed, advance)
        return {
            **summary(material.items, found.log_likelihoods),
            "unknown_share": 100 * found.unknown_share,
            "trivial": dict.fromkeys(("accuracy", "group_accuracy"), 50.0),
            "notes": [f"{found.cut} sentences were cut to the encoder's positions"] if found.cut else [],
        }


def _notes(counts: list[int]) -> list[str]:
    """Return in what the files are not BLiMP as published, from the number of pairs of each."""
    others = sum(count != PAIRS for count in counts)
    notes = [f"{len(counts)} sets, of the {SETS} of BLiMP"] if len(counts) != SETS else []
    return notes + ([f"{others} sets have not {PAIRS:,} pairs"] if others else [])


def _paradigm(path: Path, part: float) -> tuple[Paradigm, int]:
    """Return a set, this share of its pairs, and how many it has."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = parsed_json(line, path, number)
            rows.append({key: str(row[key]) for key in KEYS})
        except (ValueError, KeyError, TypeError):
            raise UserError(
                "is no pair of BLiMP", where=f"{path}, line {number}", expected=f"the keys {', '.join(KEYS)}"
            ) from None
    if not rows:
        raise UserError("has no example", where=path, expected=f"{PAIRS:,} pairs")
    kept = [rows[i] for i in evenly_spaced(len(rows), part)]
    good, bad = ([row[key] for row in kept] for key in KEYS[:2])
    group = kept[0]["linguistics_term"]
    return Paradigm(kept[0]["UID"], S_SELECTION.get(group, group), good, bad), len(rows)


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
    scores: Scores = {
        name: float(np.mean(list(values.values())))
        for name, values in (("accuracy", accuracies), ("group_accuracy", groups))
    }
    return {"scores": scores, "groups": groups, "paradigms": accuracies}

"""Find the answer to a question in a text: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and files of their shape.

Texts longer than an input are read in windows that overlap; a window without the answer points to [CLS] (Devlin et al.
2019, sections 4.2 and 4.3; google-research/bert, run_squad.py). Answers are cut from the text by the characters of
their tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.inputs.windows import Window, windows
from pretrain.evaluate.downstream.settings import TUNE, EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task, TaskData
from pretrain.evaluate.downstream.tasks.fine_tuned.answers import BEST, Candidate, answer_files, candidate
from pretrain.evaluate.downstream.tasks.fine_tuned.question_scores import by_odds, given, may_be_none, means
from pretrain.evaluate.downstream.tasks.fine_tuned.squad import best_threshold, tuned_threshold
from pretrain.evaluate.downstream.tasks.fine_tuned.squad_files import (
    MISPLACED,
    Answer,
    Question,
    read_split,
    sound,
)
from pretrain.evaluate.downstream.tasks.splits import Split, hashes, one_file, with_training
from pretrain.evaluate.downstream.tasks.tables import some

QUESTION_TOKENS, STEP = 64, 128
"""Longest question; tokens from one window's start to the next."""


class Questions(Task):
    """Start and end of the answer: two logits per token.

    What transformers documents for its models of questions (its pipeline, until version 5 dropped it) finds the same
    answers, but for what follows BERT's code here: windows start STEP tokens apart, where stride there is how many they
    share; an answer starts where no other window has more context, which transformers leaves open; answers have at most
    ANSWER_TOKENS tokens (there 30, the pipeline 15); they begin and end at tokens, not at whole words; scores are sums
    of logits over all windows, not probabilities within each of them."""

    kind = "QuestionAnswering"
    outputs = ("start", "end")
    per_token = True
    needs_both_ways = (
        "a token does not see what follows it, and [CLS], which says that there is no answer, no text"
    )
    cut = f"questions cut to {QUESTION_TOKENS} tokens"
    file_settings = ("carve", "null_threshold")

    def __init__(self, name: str, folder: str, files: tuple[str, str]) -> None:
        """`files`: patterns of the training and dev files."""
        super().__init__(name, folder, "f1")
        self.files = files

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files; see Task.read. A training question whose answer is not in the text at its place is skipped
        and counted."""
        pattern = self.files[0]
        train_paths, paths = sorted(folder.glob(pattern)), self._scored_paths(folder)
        train = read_split("train", one_file(folder, pattern))[1] if train_paths else None
        names = ["dev"] if len(paths) == 1 else [path.stem for path in paths]
        versions, splits = zip(*map(read_split, names, paths), strict=True)
        first, *others = splits
        if train is None and settings.epochs and others:
            raise UserError(
                f"has no {pattern}, and {len(paths)} files to score: {some([path.name for path in paths])}",
                where=folder,
                expected="one to train on, or epochs=0, which scores a model that has been fine-tuned",
            )
        groups = self.groups(first.items)
        train, first, notes = with_training(train, first, folder / pattern, settings, groups)
        if not others and not paths[0].match(self.files[1]):
            notes.append(f"dev is {paths[0].name}")
        train = sound(train)
        if train.skipped:
            notes.append(f"train: {train.skipped} questions skipped {MISPLACED}")
        for split in (first, *others):
            if count := sound(split).skipped:
                notes.append(
                    f"{split.name}: {count} questions, scored by the words of their answers, {MISPLACED}"
                )
        scored, files = (first, *others), hashes([*train_paths, *paths])
        threshold = _threshold(settings, train, scored, folder)
        return TaskData(train, scored, (), files, tuple(notes), version=versions[0], null_threshold=threshold)

    def is_in(self, folder: Path) -> bool:
        """Return whether the dev file is there: both versions have the folder SQuAD; see Task.is_in."""
        return bool(list(folder.glob(self.files[1])))

    def _scored_paths(self, folder: Path) -> list[Path]:
        """Return the dev file. Without one, of a user's own files all that are not for training: a single one, whatever
        its name, or one a language (XQuAD)."""
        train_pattern, dev_pattern = self.files
        others = set(folder.glob("*.json")) - set(folder.glob(train_pattern))
        if self.folder != "." or not others or list(folder.glob(dev_pattern)):
            return [one_file(folder, dev_pattern)]
        return sorted(others)

    def groups(self, items: Sequence[Question]) -> list[str]:
        """Return the text that each is about; see Task.groups."""
        return [item.context for item in items]

    def features(self, items: Sequence[Question], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return a feature per window; see Task.features."""
        found = []
        for number, item in enumerate(items):
            for window in windows(builder, item.question, item.context, QUESTION_TOKENS, STEP):
                start, end = _target(window, item.answers[0] if item.answers else None)
                targets = {"start_positions": start, "end_positions": end}
                found.append(Feature((window.input,), dict(targets), (number, window)))
        return found

    def count_cut(self, features: Sequence[Feature]) -> int:
        """Return how many questions were cut; texts are not, but read in windows."""
        return len({feature.extra[0] for feature in features if feature.inputs[0].was_cut})

    def answer(self, output: Any) -> torch.Tensor:
        """Return the logits of start and end, (examples, tokens, 2)."""
        return torch.stack([output.start_logits, output.end_logits], -1)

    def score(
        self,
        items: Sequence[Question],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> Scores:
        """Return exact match and F1, and where questions may have no answer their best over all thresholds as well; see
        Task.score."""
        candidates = self.candidates(items, features, answers)
        found = means(items, given(items, candidates, data))
        if may_be_none(items):
            for i, name in enumerate(("exact", "f1")):
                found[f"best_{name}"] = best_threshold(*by_odds(items, candidates, i))
        return found

    def decided(
        self,
        items: Sequence[Question],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> TaskData:
        """Return the data with the threshold that has the best F1 on these questions; see Task.decided. Raises
        UserError where all have answers: any threshold that withholds none is as good."""
        if data.null_threshold is not None:
            return data
        if not may_be_none(items):
            raise UserError(
                f"has no question without an answer among the {len(items)} that are kept to choose by",
                where=f"null_threshold={TUNE}",
                remedy="a larger tune_share, or null_threshold=0",
            )
        candidates = self.candidates(items, features, answers)
        return replace(data, null_threshold=tuned_threshold(*by_odds(items, candidates, 1)))

    def predictions(
        self,
        items: Sequence[Question],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        data: TaskData,
    ) -> dict[str, str]:
        """Return the files of run_squad.py; see answer_files and Task.predictions."""
        found = self.candidates(items, features, answers, BEST)
        threshold = data.null_threshold if may_be_none(items) else None
        return answer_files([item.id for item in items], found, threshold)

    def candidates(
        self,
        items: Sequence[Question],
        features: Sequence[Feature],
        answers: list[NDArray[Any]],
        count: int = 1,
    ) -> list[Candidate]:
        """Return the `count` best answers to each question over its windows."""
        found: list[list[Any]] = [[] for _ in items]
        for feature, logits in zip(features, answers, strict=True):
            number, window = feature.extra
            found[number].append((window, logits))
        return [candidate(item.context, of_item, count) for item, of_item in zip(items, found, strict=True)]

    def trivial(self, split: Split, data: TaskData) -> Scores:
        """Return the scores of never an answer."""
        return means(split.items, [""] * len(split.items))


def _threshold(
    settings: EvaluationSettings, train: Split, scored: Sequence[Split], folder: Path
) -> float | None:
    """Return the threshold of the settings; None where the tuning examples are to choose it. Raises UserError where
    these cannot: what has no answer is what it is chosen for."""
    if not any(may_be_none(split.items) for split in scored):
        return 0.0
    if settings.null_threshold != TUNE:
        return float(settings.null_threshold)
    if not may_be_none(train.items):
        raise UserError(
            f"has no question without an answer among {len(train.items)} to train on",
            where=folder,
            expected=f"some, for null_threshold={TUNE} to choose by",
            remedy="null_threshold=0, or another number",
        )
    return None


def _target(window: Window, answer: Answer | None) -> tuple[int, int]:
    """Return the first and last token of the answer, or [CLS] twice where the window does not hold all of it."""
    if answer is None:
        return window.cls, window.cls
    first, last = answer.start, answer.start + len(answer.text)
    inside = [place for place, span in enumerate(window.spans) if span and span[1] > first and span[0] < last]
    if not inside:
        return window.cls, window.cls
    covered = window.spans[inside[0]], window.spans[inside[-1]]
    whole = covered[0] and covered[1] and covered[0][0] <= first and covered[1][1] >= last
    return (inside[0], inside[-1]) if whole else (window.cls, window.cls)


QUESTIONS = [
    Questions("squad1", "SQuAD", ("train-v1.1.json", "dev-v1.1.json")),
    Questions("squad2", "SQuAD", ("train-v2.0.json", "dev-v2.0.json")),
    Questions("questions", ".", ("train*.json", "dev*.json")),
]

"""Find the answer to a question in a text: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018) and files of their shape.

Texts longer than an input are read in windows that overlap; a window without the answer points to [CLS] (Devlin et al.
2019, sections 4.2 and 4.3; google-research/bert, run_squad.py). Answers are cut from the text by the characters of
their tokens."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.errors import UserError, first_line
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.inputs.windows import Window, windows
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import (
    Feature,
    Scores,
    Split,
    Task,
    TaskData,
    hashes,
    not_empty,
    one_file,
    with_training,
)
from pretrain.evaluate.downstream.tasks.fine_tuned.squad import best_over, best_threshold

QUESTION_TOKENS, STEP, BEST, ANSWER_TOKENS = 64, 128, 20, 30
"""Longest question; tokens from one window's start to the next; candidate starts and ends; longest answer."""


MISPLACED = "whose answer is not in the text at its place"


class Answer(NamedTuple):
    """A text and where it starts, in characters."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a text; without answers where the text has none."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


class Candidate(NamedTuple):
    """The best answer to a question, and how much likelier it is that there is none (a difference of logits)."""

    text: str
    score: float
    no_answer: float


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

    def __init__(self, name: str, folder: str, files: tuple[str, str]) -> None:
        """`files`: patterns of the training and dev files."""
        super().__init__(name, folder, "f1")
        self.files = files

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read both files; see Task.read. A training question whose answer is not in the text at its place is skipped
        and counted."""
        train_pattern, dev_pattern = self.files
        dev_path = one_file(folder, dev_pattern)
        train_paths = sorted(folder.glob(train_pattern))
        version, questions = _questions(dev_path)
        dev = not_empty(Split("dev", questions), dev_path)
        train = None
        if train_paths:
            train_path = one_file(folder, train_pattern)
            train = not_empty(Split("train", _questions(train_path)[1]), train_path)
        texts = [item.context for item in dev.items]
        train, dev, notes = with_training(train, dev, folder / train_pattern, settings, texts)
        train = _sound(train)
        if train.skipped:
            notes.append(f"train: {train.skipped} questions skipped {MISPLACED}")
        if misplaced := _sound(dev).skipped:
            notes.append(f"dev: {misplaced} questions, scored by the words of their answers, {MISPLACED}")
        files = hashes([*train_paths, dev_path])
        return TaskData(train, (dev,), (), files, tuple(notes), version=version)

    def features(self, items: Sequence[Question], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return a feature per window; see Task.features."""
        found = []
        for number, item in enumerate(items):
            for window in windows(builder, item.question, item.context, QUESTION_TOKENS, STEP):
                start, end = _target(window, item.answers[0] if item.answers else None)
                targets = {"start_positions": start, "end_positions": end}
                found.append(Feature((window.input,), dict(targets), (number, window)))
        return found

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
        may_be_none = _may_be_none(items)
        found = _means(items, ["" if may_be_none and one.no_answer > 0 else one.text for one in candidates])
        if may_be_none:
            pairs = [
                best_over(_texts(item), one.text, may_be_none)
                for item, one in zip(items, candidates, strict=True)
            ]
            odds, has = [one.no_answer for one in candidates], [bool(item.answers) for item in items]
            for i, name in enumerate(("exact", "f1")):
                found[f"best_{name}"] = best_threshold([pair[i] for pair in pairs], odds, has)
        return found

    def candidates(
        self, items: Sequence[Question], features: Sequence[Feature], answers: list[NDArray[Any]]
    ) -> list[Candidate]:
        """Return the best answer to each question over its windows."""
        found: list[list[tuple[Window, NDArray[Any]]]] = [[] for _ in items]
        for feature, logits in zip(features, answers, strict=True):
            number, window = feature.extra
            found[number].append((window, logits))
        return [_candidate(item.context, of_item) for item, of_item in zip(items, found, strict=True)]

    def trivial(self, split: Split, data: TaskData) -> Scores:
        """Return the scores of never an answer."""
        return _means(split.items, [""] * len(split.items))


def _may_be_none(items: Sequence[Question]) -> bool:
    """Return whether a question has no answer: the file is scored as SQuAD 2.0 then, else as 1.1."""
    return any(not item.answers for item in items)


def _means(items: Sequence[Question], said: Sequence[str]) -> Scores:
    may_be_none = _may_be_none(items)
    pairs = np.array(
        [best_over(_texts(item), text, may_be_none) for item, text in zip(items, said, strict=True)]
    )
    return {"f1": 100 * float(pairs[:, 1].mean()), "exact": 100 * float(pairs[:, 0].mean())}


def _texts(item: Question) -> list[str]:
    return [answer.text for answer in item.answers]


def _candidate(context: str, windows: Sequence[tuple[Window, NDArray[Any]]]) -> Candidate:
    """Return the best answer over the windows: of the BEST likeliest starts and ends of each, the pair of the highest
    sum whose end is not before its start, which has at most ANSWER_TOKENS tokens, and whose start has more context in
    no other window."""
    best = Candidate("", -np.inf, 0.0)
    null = np.inf
    for window, logits in windows:
        null = min(null, float(logits[window.cls].sum()))
        starts, ends = (np.argsort(-logits[:, i], kind="stable")[:BEST].tolist() for i in (0, 1))
        for start in starts:
            if window.spans[start] is None or not window.is_widest[start]:
                continue
            for end in ends:
                if window.spans[end] is None or not 0 <= end - start < ANSWER_TOKENS:
                    continue
                score = float(logits[start, 0] + logits[end, 1])
                text = context[window.spans[start][0] : window.spans[end][1]].strip()
                if text and score > best.score:
                    best = Candidate(text, score, 0.0)
    return best._replace(no_answer=null - best.score)


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


def _questions(path: Path) -> tuple[str, list[Question]]:
    """Return the version that a file in SQuAD's format states, and its questions. Raises UserError for another."""
    found: list[Question] = []
    try:
        content = json.loads(path.read_bytes())
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = str(paragraph["context"])
                for one in paragraph["qas"]:
                    answers = tuple(Answer(str(a["text"]), int(a["answer_start"])) for a in one["answers"])
                    answers = () if one.get("is_impossible") else answers
                    found.append(Question(str(one["id"]), str(one["question"]), context, answers))
        return str(content.get("version", "")), found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"is not in SQuAD's format behind {len(found)} questions: {type(error).__name__} {first_line(error)}",
            where=path,
            expected="data, paragraphs, context and qas, id, question and answers, text and answer_start",
        ) from None


def _sound(split: Split) -> Split:
    """Return the split without the questions whose first answer is not what the text has at its place."""
    kept = [
        item
        for item in split.items
        if not item.answers or item.context.startswith((a := item.answers[0]).text, max(0, a.start))
    ]
    return Split(split.name, kept, len(split.items) - len(kept))


QUESTIONS = [
    Questions("squad1", "SQuAD", ("train-v1.1.json", "dev-v1.1.json")),
    Questions("squad2", "SQuAD", ("train-v2.0.json", "dev-v2.0.json")),
    Questions("questions", ".", ("train*.json", "dev*.json")),
]

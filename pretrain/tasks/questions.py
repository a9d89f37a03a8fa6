"""Find the answer to a question in a text, and score it: SQuAD 1.1 and 2.0, and files of their shape.

SQuAD: Rajpurkar et al. 2016, 2018. Texts longer than an input are read in windows that overlap; a window without the
answer points to [CLS] (Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert, run_squad.py). Answers are cut
from the text by the characters of their tokens, and written as run_squad.py writes them.

Answers are scored as the official scripts of SQuAD do: by that of 2.0 where a question of the file has no answer,
else by that of 1.1. The two differ in answers of which normalizing leaves nothing, as of "the": in 1.1's such an
answer is one like any other, and has an F1 of 0 with another of the kind; in 2.0's it is none, and two that are none
have an F1 of 1.
"""

import json
import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.errors import UserError, first_line
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData
from pretrain.tasks.files import (
    Split,
    hashes,
    not_empty,
    one_file,
    parsed_json,
    read_text,
    some,
    with_training,
)
from pretrain.tasks.inputs import Feature, InputBuilder, Window, windows
from pretrain.tasks.settings import TUNE, EvaluationSettings

# Find the likeliest answers in what a model says of a text's windows, and write them: the one that is given, the n
# best, and the odds that there is none.


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


# Score an answer as the official scripts do, and find the best threshold on the odds of no answer.


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


# Read questions about texts from files in SQuAD's format.


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


def read_split(name: str, path: Path) -> tuple[str, Split]:
    """Return the version that a file in SQuAD's format states, and its questions. Raises UserError for a file of
    another format, with half a character in it, or without a question."""
    found: list[Question] = []
    try:
        content = parsed_json(read_text(path), path)
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = str(paragraph["context"])
                for one in paragraph["qas"]:
                    answers = tuple(
                        _trimmed(Answer(str(a["text"]), int(a["answer_start"])), context)
                        for a in one["answers"]
                    )
                    answers = () if one.get("is_impossible") else answers
                    found.append(Question(str(one["id"]), str(one["question"]), context, answers))
        version = str(content.get("version", ""))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"is not in SQuAD's format behind {len(found)} questions: {type(error).__name__} {first_line(error)}",
            where=path,
            expected="data, paragraphs, context and qas, id, question and answers, text and answer_start",
        ) from None
    return version, not_empty(Split(name, found), path)


def _trimmed(answer: Answer, context: str) -> Answer:
    """Return the answer without white space at its ends. Where it begins with some, COVID-QA's files give at times the
    place behind that: it is taken if the text has the answer there and not at the other place."""
    text = answer.text.strip()
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    has_at = [place >= 0 and context.startswith(text, place) for place in (start, answer.start)]
    return Answer(text, answer.start if has_at == [False, True] else start)


def sound(split: Split) -> Split:
    """Return the split without the questions whose first answer is not what the text has at its place."""
    kept = [
        item
        for item in split.items
        if not item.answers or item.context.startswith((a := item.answers[0]).text, max(0, a.start))
    ]
    return replace(split, items=kept, skipped=len(split.items) - len(kept))


# Score the answers to all questions of a file by the script that is for it.


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


# Fine-tune a model that points to the start and the end of an answer, and score it.


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

    def score(self, answered: ModelAnswers) -> Scores:
        """Return exact match and F1, and where questions may have no answer their best over all thresholds as well; see
        Task.score."""
        items, candidates = answered.items, self.candidates(answered)
        found = means(items, given(items, candidates, answered.data))
        if may_be_none(items):
            for i, name in enumerate(("exact", "f1")):
                found[f"best_{name}"] = best_threshold(*by_odds(items, candidates, i))
        return found

    def decided(self, answered: ModelAnswers) -> TaskData:
        """Return the data with the threshold that has the best F1 on these questions; see Task.decided. Raises
        UserError where all have answers: any threshold that withholds none is as good."""
        data = answered.data
        if data.null_threshold is not None:
            return data
        if not may_be_none(answered.items):
            raise UserError(
                f"has no question without an answer among the {len(answered.items)} that are kept to choose by",
                where=f"null_threshold={TUNE}",
                remedy="a larger tune_share, or null_threshold=0",
            )
        odds = by_odds(answered.items, self.candidates(answered), 1)
        return replace(data, null_threshold=tuned_threshold(*odds))

    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return the files of run_squad.py; see answer_files and Task.predictions."""
        threshold = answered.data.null_threshold if may_be_none(answered.items) else None
        return answer_files([item.id for item in answered.items], self.candidates(answered, BEST), threshold)

    def candidates(self, answered: ModelAnswers, count: int = 1) -> list[Candidate]:
        """Return the `count` best answers to each question over its windows."""
        found: list[list[Any]] = [[] for _ in answered.items]
        for feature, logits in zip(answered.features, answered.answers, strict=True):
            number, window = feature.extra
            found[number].append((window, logits))
        pairs = zip(answered.items, found, strict=True)
        return [candidate(item.context, of_item, count) for item, of_item in pairs]

    def baseline(self, split: Split, data: TaskData) -> Scores:
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

"""Tag words: named entities in CoNLL-2003's columns (IOB1), in two columns (BIO2), and as UNER has them."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from data_pipeline.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import SPLITS, Split, at_line, hashes, not_empty, one_file, read_lines
from pretrain.tasks.heads import CrfTagger, FrozenTagger
from pretrain.tasks.inputs import IGNORED, Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

OUTSIDE = "O"
CELL = re.compile(r"[^ \t\n\r\f\v]+")
"""What stands between ASCII white space: other spaces, as U+00A0, may be part of a word."""


class Sentence(NamedTuple):
    """Words with a tag each, in BIO2."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


WordAndTag = Callable[[list[str]], tuple[str, str]]


class Tagging(Task):
    """Entities by a tag per word, predicted at its first token (Devlin et al. 2019, section 5.3), by itself or, with
    `crf`, together with the sentence's others. The context is the sentence.

    transformers' own pipeline gives the tokens of the words, joined by spaces, the same tags. Other than there, words
    are the file's, each with the tag of its first token, where aggregation_strategy="first" goes by the tokenizer's own
    words, four in "U.S."; those that the tokenizer drops are read as unknown; what is beyond max_length is O."""

    kind = "TokenClassification"
    per_token = True
    head_settings = ("features", "crf")
    file_settings = ("test", "class_order")

    def __init__(
        self,
        name: str,
        folder: str,
        files: tuple[str, str, str],
        columns: int,
        word_and_tag: WordAndTag,
        skips: Callable[[list[str]], bool] = lambda cells: False,
        is_even: bool = False,
    ) -> None:
        """`files`: patterns of the training, dev and test files. `columns`: fewest columns of a line. `skips`: whether
        a line is none of a sentence. `is_even`: all lines have as many columns as the first one, for the tag is in the
        last: a word with a space in it would be cut. Published files are not even: UNER's lines outside of entities are
        shorter."""
        super().__init__(name, folder, "f1")
        self.files, self.columns, self.word_and_tag, self.skips = files, columns, word_and_tag, skips
        self.is_even = is_even

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read the files; see Task.read."""
        paths = [one_file(folder, pattern) for pattern in self.files[: 2 + settings.test]]
        train, *scored = (
            not_empty(Split(name, list(self._sentences(path))), path)
            for name, path in zip(SPLITS, paths, strict=False)
        )
        tags = sorted(_tags_in(train) | {OUTSIDE})
        unseen = {split.name: sorted(_tags_in(split) - {*tags}) for split in scored}
        notes = [
            f"{name}: tags never seen in training: {', '.join(new)}" for name, new in unseen.items() if new
        ]
        return TaskData(train, tuple(scored), tuple(tags), hashes(paths), tuple(notes))

    def model(self, encoder: Encoder, data: TaskData, seed: int, settings: EvaluationSettings) -> nn.Module:
        """Return the tagger to train, of the kind that the settings say; see Task.model."""
        if settings.features:
            base, count = encoder.load("", seed), len(data.labels)
            model: nn.Module = FrozenTagger(base, settings.features, count, settings.dropout)
        else:
            model = super().model(encoder, data, seed, settings)
        return (CrfTagger(model, data.labels) if settings.crf else model).eval()

    def finished_model(
        self, encoder: Encoder, data: TaskData, settings: EvaluationSettings
    ) -> tuple[nn.Module, TaskData]:
        """Return the tagger of a folder, of the kind that the settings say; see Task.finished_model."""
        if settings.features:
            base, count = encoder.load("", 0), len(data.labels)
            model: nn.Module = FrozenTagger(base, settings.features, count, 0).load_head(encoder.folder)
        else:
            model, data = super().finished_model(encoder, data, settings)
        if settings.crf:
            model = CrfTagger(model, data.labels).load_crf(encoder.folder)
        return model.eval(), data

    def _sentences(self, path: Path) -> Iterator[Sentence]:
        words: list[str] = []
        tags: list[str] = []
        columns = 0
        for number, line in enumerate([*read_lines(path), ""], 1):
            # in WNUT-17 a tab alone ends a sentence too, and a byte order mark ends a file
            is_blank = not line.strip("\ufeff\t ")
            cells = [] if is_blank else line.split("\t") if "\t" in line else CELL.findall(line)
            if self.skips(cells):
                continue
            if cells:
                columns = columns or max(len(cells), self.columns)
                if len(cells) < self.columns or (self.is_even and len(cells) != columns):
                    wanted = (
                        f"{columns}, as in the first line" if self.is_even else f"at least {self.columns}"
                    )
                    raise UserError(f"has {len(cells)} columns", where=at_line(path, number), expected=wanted)
                word, tag = self.word_and_tag(cells)
                if tag != OUTSIDE and tag[:2] not in ("B-", "I-"):
                    raise UserError(
                        f"has the tag {tag!r}", where=at_line(path, number), expected="O, B-TYPE or I-TYPE"
                    )
                words.append(word)
                tags.append(tag)
            elif words:
                yield Sentence(tuple(words), tuple(to_bio2(tags)))
                words, tags = [], []

    def features(self, items: Sequence[Sentence], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return one sequence per sentence, its targets at the first token of each word; see Task.features."""
        ids = {tag: i for i, tag in enumerate(data.labels)}
        features = []
        for sentence in items:
            built = builder.words(sentence.words)
            targets = [IGNORED] * len(built.ids)
            for word, place in built.first_tokens.items():
                # a tag that is not in training counts by what is predicted, not by this loss; a CRF needs the word
                targets[place] = ids.get(sentence.tags[word], ids[OUTSIDE])
            features.append(Feature((built,), {"labels": targets}))
        return features

    def score(self, answered: ModelAnswers) -> Scores:
        """Return precision, recall and F1 of entities; words that were cut off count as O. See Task.score."""
        return metrics.entity_f1(
            [list(sentence.tags) for sentence in answered.items], self.predicted(answered)
        )

    def predicted(self, answered: ModelAnswers) -> list[list[str]]:
        """Return the tag of each word of each sentence."""
        found = []
        for sentence, feature, answer in zip(
            answered.items, answered.features, answered.answers, strict=True
        ):
            tags = [OUTSIDE] * len(sentence.words)
            for word, place in feature.inputs[0].first_tokens.items():
                tags[word] = answered.data.labels[int(answer[place].argmax())]
            found.append(tags)
        return found

    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return a file of words, their tags and the predicted ones, as conlleval reads it; see Task.predictions."""
        sentences = [
            "".join(f"{' '.join(row)}\n" for row in zip(sentence.words, sentence.tags, tags, strict=True))
            for sentence, tags in zip(answered.items, self.predicted(answered), strict=True)
        ]
        return {"predictions.conll": "\n".join(sentences)}

    def baseline(self, split: Split, data: TaskData) -> Scores:
        """Return of each metric the best of no entity at all, and of every word being one of always the same type."""
        gold = [list(sentence.tags) for sentence in split.items]
        beginnings = [tag for tag in data.labels if tag.startswith("B-")]
        found = [metrics.entity_f1(gold, [[tag] * len(tags) for tags in gold]) for tag in beginnings]
        return {
            name: max((one[name] for one in found), default=0.0) for name in ("f1", "precision", "recall")
        }


def _tags_in(split: Split) -> set[str]:
    return {tag for sentence in split.items for tag in sentence.tags}


def to_bio2(tags: Sequence[str]) -> Iterator[str]:
    """Yield the tags of a sentence in BIO2, where every entity begins with B-; given BIO2 or IOB1, where one does only
    directly behind another of its type.

    >>> list(to_bio2(["I-PER", "I-PER", "B-PER", "I-LOC", "O"]))
    ['B-PER', 'I-PER', 'B-PER', 'B-LOC', 'O']
    """
    before = OUTSIDE
    for tag in tags:
        begins = tag.startswith("I-") and before[2:] != tag[2:]
        yield f"B-{tag[2:]}" if begins else tag
        before = tag


def _uner(cells: list[str]) -> tuple[str, str]:
    """Return word and tag: what annotators marked as OTH, or left without a type, is outside of UNER's three types."""
    tag = cells[2]
    return cells[1], OUTSIDE if tag[2:] in ("OTH", "O") else tag


TAGGING = [
    Tagging(
        "conll2003",
        "CoNLL-2003",
        ("eng.train", "eng.testa", "eng.testb"),
        4,
        lambda cells: (cells[0], cells[3]),
        skips=lambda cells: bool(cells) and cells[0] == "-DOCSTART-",
    ),
    Tagging(
        "uner",
        "UNER_English-EWT",
        ("*train.iob2", "*dev.iob2", "*test.iob2"),
        3,
        _uner,
        skips=lambda cells: bool(cells) and cells[0].startswith("#"),
    ),
    Tagging(
        "wnut17",
        "WNUT17",
        ("*train.conll", "*dev.conll", "*test.annotated"),
        2,
        lambda cells: (cells[0], cells[1]),
    ),
    Tagging(
        "tagging", ".", ("train.*", "dev.*", "test.*"), 2, lambda cells: (cells[0], cells[-1]), is_even=True
    ),
]

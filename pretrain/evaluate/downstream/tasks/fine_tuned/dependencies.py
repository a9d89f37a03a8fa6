"""Predict tags, features, lemmas and dependency trees of Universal Dependencies, scored by the official CoNLL 2018
scorer.

Words and sentences are the file's own. All columns are learnt together, with a decoder each (van der Goot et al.
2021)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream import metrics
from pretrain.evaluate.downstream.encoders import Encoder, width_of
from pretrain.evaluate.downstream.heads.parser import FILE, Parser, best_tree
from pretrain.evaluate.downstream.heads.saved import labels_beside
from pretrain.evaluate.downstream.inputs.batches import IGNORED
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task, TaskData, with_dropout
from pretrain.evaluate.downstream.tasks.fine_tuned.lemmas import apply_rule, lemma_rule
from pretrain.evaluate.downstream.tasks.splits import Split, hashes, not_empty, one_file, with_training
from pretrain.evaluate.downstream.tasks.tables import at_line, read_lines

FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL = 1, 2, 3, 4, 5, 6, 7
COLUMNS = 10
TAGS = {"upos": UPOS, "xpos": XPOS, "feats": FEATS, "lemma": LEMMA}
"""Column of the file that each tagger predicts; lemmas by rules."""
RELATIONS = "deprel"
MEASURED = ("LAS", "UAS", "UPOS", "XPOS", "UFeats", "Lemmas", "CLAS", "MLAS", "BLEX")


class Tree(NamedTuple):
    """A sentence: its rows as they are in the file, and which of them are words."""

    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]

    def column(self, number: int) -> list[str]:
        """Return one column of the words."""
        return [self.rows[row][number] for row in self.words]


class Dependencies(Task):
    """The columns of a treebank."""

    kind = ""
    per_token = True
    file_settings = ("carve", "test")

    def __init__(self) -> None:
        super().__init__("ud", "UD", "LAS")

    def read(self, folder: Path, settings: EvaluationSettings) -> TaskData:
        """Read *-train.conllu and *-dev.conllu, and *-test.conllu if asked to; see Task.read. Raises UserError also for
        what the official scorer refuses: cycles, several roots."""
        dev_path = one_file(folder, "*dev.conllu")
        train_paths = sorted(folder.glob("*train.conllu"))
        train = _split("train", one_file(folder, "*train.conllu")) if train_paths else None
        train, dev, notes = with_training(train, _split("dev", dev_path), folder / "train.conllu", settings)
        label_sets = {
            name: tuple(sorted({value for tree in train.items for value in _labels(tree, name)}))
            for name in (*TAGS, RELATIONS)
        }
        test_paths = [one_file(folder, "*test.conllu")] if settings.test else []
        scored = (dev, *(_split("test", path) for path in test_paths))
        notes += [note for split in scored for note in _unseen(split, label_sets) if train.items]
        files = hashes([*train_paths, dev_path, *test_paths])
        return TaskData(train, scored, (), files, tuple(notes), label_sets)

    def model(self, encoder: Encoder, data: TaskData, seed: int, settings: EvaluationSettings) -> nn.Module:
        """Return a Parser on the bare encoder; see Task.model."""
        base = encoder.load("", seed, with_dropout(encoder, settings.dropout))
        return Parser(base, width_of(base), data.label_sets, RELATIONS).eval()

    def finished_model(
        self, encoder: Encoder, data: TaskData, settings: EvaluationSettings
    ) -> tuple[nn.Module, TaskData]:
        """Return the Parser that --save left, with its own labels; see Task.finished_model."""
        labels = labels_beside(encoder.folder / FILE)
        if set(labels) != set(data.label_sets):
            raise UserError(
                f"predicts {', '.join(labels) or 'nothing'}",
                where=encoder.folder / FILE,
                expected=", ".join(data.label_sets),
            )
        base = encoder.load("", 0)
        model = Parser(base, width_of(base), labels, RELATIONS).load_decoders(encoder.folder)
        return model.eval(), replace(data, label_sets=labels)

    def features(self, items: Sequence[Tree], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return a sequence per sentence; see Task.features."""
        ids = {name: {label: i for i, label in enumerate(labels)} for name, labels in data.label_sets.items()}
        return [_feature(tree, builder, ids) for tree in items]

    def score(
        self, items: Sequence[Tree], features: Sequence[Feature], answers: list[NDArray[Any]], data: TaskData
    ) -> Scores:
        """Return the metrics of the official scorer, F1 in percent; see Task.score."""
        return _official(items, _sentences(items, features, answers, data))

    def predictions(
        self, items: Sequence[Tree], features: Sequence[Feature], answers: list[NDArray[Any]], data: TaskData
    ) -> dict[str, str]:
        """Return the file with predicted columns that the official scorer reads; see Task.predictions."""
        return {"predictions.conllu": "".join(_sentences(items, features, answers, data))}

    def trivial(self, split: Split, data: TaskData) -> Scores:
        """Return of each metric the best of two answers: all words hang on the one before, or all on the one after,
        each with the commonest label of training."""
        common = {
            name: max(labels, key=_counts(data.train.items, name).__getitem__)
            for name, labels in data.label_sets.items()
        }
        found = []
        for heads_of in (lambda words: [*range(words)], lambda words: [*range(2, words + 1), 0]):
            said = []
            for tree in split.items:
                heads = heads_of(len(tree.words))
                said.append(_written(tree, {name: [common[name]] * len(heads) for name in common}, heads))
            found.append(_official(split.items, said))
        return {name: max(scores[name] for scores in found) for name in MEASURED}


def _unseen(split: Split, label_sets: dict[str, tuple[str, ...]]) -> list[str]:
    """Return a note of how many words have labels that training has not, which no model of it predicts."""
    counts = {}
    for name, labels in label_sets.items():
        known = set(labels)
        counts[name] = sum(label not in known for tree in split.items for label in _labels(tree, name))
    found = [f"{name} of {count:,} words" for name, count in counts.items() if count]
    return [f"{split.name}: labels never seen in training: {', '.join(found)}"] if found else []


def _counts(trees: Sequence[Tree], name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for tree in trees:
        for label in _labels(tree, name):
            counts[label] = counts.get(label, 0) + 1
    return counts


def _labels(tree: Tree, name: str) -> list[str]:
    """Return the label of each word in one of TAGS or RELATIONS."""
    if name == "lemma":
        pairs = zip(tree.column(FORM), tree.column(LEMMA), strict=True)
        return [lemma_rule(form, lemma) for form, lemma in pairs]
    return tree.column(DEPREL if name == RELATIONS else TAGS[name])


def _feature(tree: Tree, builder: InputBuilder, ids: dict[str, dict[str, int]]) -> Feature:
    built = builder.words(tree.column(FORM))
    places = built.first_tokens
    count = len(built.ids)
    root = built.ids.index(builder.classification)
    owners = [IGNORED if word is None else places[word] for word in built.words]
    targets: dict[str, Any] = {name: [IGNORED] * count for name in (*TAGS, "heads", "relations")}
    columns = {name: _labels(tree, name) for name in (*TAGS, RELATIONS)}
    for word, place in places.items():
        head = int(tree.column(HEAD)[word])
        targets["heads"][place] = root if head == 0 else places.get(head - 1, IGNORED)
        for name in TAGS:
            targets[name][place] = ids[name].get(columns[name][word], IGNORED)
        known = ids[RELATIONS].get(columns[RELATIONS][word], IGNORED)
        targets["relations"][place] = known if targets["heads"][place] != IGNORED else IGNORED
    return Feature((built,), {"owners": owners, "root": root, **targets}, builder.left_padded)


def _sentences(
    items: Sequence[Tree], features: Sequence[Feature], answers: list[NDArray[Any]], data: TaskData
) -> list[str]:
    return [
        _predicted(tree, feature, answer, data)
        for tree, feature, answer in zip(items, features, answers, strict=True)
    ]


def _predicted(tree: Tree, feature: Feature, answer: NDArray[Any], data: TaskData) -> str:
    """Return the sentence with the predicted columns. Words that were cut off hang on the last word that was not, with
    its labels."""
    places = feature.inputs[0].first_tokens
    words, rows = list(places), np.array(list(places.values()))
    sets = data.label_sets
    widths = np.cumsum([len(sets[name]) for name in TAGS])
    *tags, rest = np.split(answer[rows], widths, axis=1)
    columns = {
        name: [sets[name][i] for i in logits.argmax(1)] for name, logits in zip(TAGS, tags, strict=True)
    }
    forms = tree.column(FORM)
    columns["lemma"] = [
        apply_rule(rule, forms[word]) for rule, word in zip(columns["lemma"], words, strict=True)
    ]
    arcs, relations = np.split(rest, 2, axis=1)
    shift = arcs.shape[1] - len(answer) if feature.extra else 0  # padded on the left
    candidates = np.array([feature.targets["root"], *rows]) + shift
    heads = best_tree(arcs[:, candidates])
    best = relations[np.arange(len(words)), candidates[heads]].astype(int)
    columns[RELATIONS] = [
        "root" if head == 0 else sets[RELATIONS][i] for head, i in zip(heads, best, strict=True)
    ]
    whole = [0 if head == 0 else words[head - 1] + 1 for head in heads]
    for word in range(len(words), len(forms)):
        whole.append(word)
        for column in columns.values():
            column.append(column[-1])
        columns[RELATIONS][-1] = "dep"
    return _written(tree, columns, whole)


def _written(tree: Tree, columns: dict[str, list[str]], heads: Sequence[int]) -> str:
    """Return the sentence in CoNLL-U with these columns and heads, the rest as it is. Exactly the root's child has the
    relation root."""
    rows = [list(row) for row in tree.rows]
    for i, row in enumerate(tree.words):
        for name, number in TAGS.items():
            rows[row][number] = columns[name][i]
        rows[row][HEAD] = str(heads[i])
        relation = columns[RELATIONS][i]
        rows[row][DEPREL] = "root" if heads[i] == 0 else ("dep" if relation == "root" else relation)
    return "".join("\t".join(row) + "\n" for row in rows) + "\n"


def _official(trees: Sequence[Tree], said: Sequence[str]) -> Scores:
    gold = "".join("".join("\t".join(row) + "\n" for row in tree.rows) + "\n" for tree in trees)
    return metrics.conll18(gold, "".join(said), MEASURED)


def _split(name: str, path: Path) -> Split:
    lines = read_lines(path)
    _check_numbers(lines, path)
    text = "\n".join(lines) + "\n"
    metrics.check_conllu(text, path)
    return not_empty(Split(name, list(_trees(text))), path)


def _check_numbers(lines: Sequence[str], path: Path) -> None:
    """Raise UserError for a word without the number of its head: within multi-word tokens the official scorer looks for
    none."""
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if cells[0].isdigit() and len(cells) == COLUMNS and not cells[HEAD].isdigit():
            raise UserError(
                f"has the head {cells[HEAD]!r}",
                where=at_line(path, number),
                expected="the number of a word, or 0",
            )


def _trees(text: str) -> Iterator[Tree]:
    """Yield the sentences of a file that the official scorer has accepted."""
    rows: list[tuple[str, ...]] = []
    for line in text.split("\n"):
        if line.startswith("#"):
            continue
        if line:
            rows.append(tuple(line.split("\t")))
        elif rows:
            yield Tree(tuple(rows), tuple(i for i, row in enumerate(rows) if row[0].isdigit()))
            rows = []


DEPENDENCIES = Dependencies()

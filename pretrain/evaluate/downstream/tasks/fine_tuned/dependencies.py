"""Predict tags, features, lemmas and dependency trees of Universal Dependencies, scored by the official CoNLL 2018
scorer.

Words and sentences are the file's own. All columns are learnt together, with a decoder each (van der Goot et al.
2021)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.evaluate.downstream import metrics
from pretrain.evaluate.downstream.encoders import Encoder, width_of
from pretrain.evaluate.downstream.heads.parser import Parser, best_tree
from pretrain.evaluate.downstream.heads.saved import HEAD_FILE, labels_beside
from pretrain.evaluate.downstream.inputs.batches import IGNORED
from pretrain.evaluate.downstream.inputs.builder import InputBuilder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Feature, Scores, Task, TaskData, with_dropout
from pretrain.evaluate.downstream.tasks.fine_tuned.conllu import (
    DEPREL,
    FORM,
    HEAD,
    LEMMA,
    RELATIONS,
    TAGS,
    Tree,
    read_trees,
    written,
)
from pretrain.evaluate.downstream.tasks.fine_tuned.lemmas import apply_rule, lemma_rule
from pretrain.evaluate.downstream.tasks.splits import Split, hashes, one_file, with_training

MEASURED = ("LAS", "UAS", "UPOS", "XPOS", "UFeats", "Lemmas", "CLAS", "MLAS", "BLEX")
NONE = "BeyondMaxLength"
BEYOND = {"upos": NONE, "xpos": NONE, "feats": f"Case={NONE}", "lemma": NONE, RELATIONS: "dep"}
"""What words beyond max_length are given: values that no treebank has. Their feature is a universal one, since the
scorer leaves out all others, and no feature is right where there is none."""


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
        train = read_trees("train", one_file(folder, "*train.conllu")) if train_paths else None
        train, dev, notes = with_training(
            train, read_trees("dev", dev_path), folder / "train.conllu", settings
        )
        label_sets = {
            name: tuple(sorted({value for tree in train.items for value in _labels(tree, name)}))
            for name in (*TAGS, RELATIONS)
        }
        test_paths = [one_file(folder, "*test.conllu")] if settings.test else []
        scored = (dev, *(read_trees("test", path) for path in test_paths))
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
        labels = labels_beside(encoder.folder / HEAD_FILE)
        if set(labels) != set(data.label_sets):
            raise UserError(
                f"predicts {', '.join(labels) or 'nothing'}",
                where=encoder.folder / HEAD_FILE,
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
        each with the commonest label of training, or, where nothing is trained, of the scored sentences themselves; a
        word's lemma is what the commonest rule makes of it."""
        common = {name: _commonest(data.train.items or split.items, name) for name in (*TAGS, RELATIONS)}
        found = []
        for heads_of in (lambda words: [*range(words)], lambda words: [*range(2, words + 1), 0]):
            said = []
            for tree in split.items:
                columns = {name: [label] * len(tree.words) for name, label in common.items()}
                columns["lemma"] = [apply_rule(common["lemma"], form) for form in tree.column(FORM)]
                said.append(written(tree, columns, heads_of(len(tree.words))))
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


def _commonest(trees: Sequence[Tree], name: str) -> str:
    """Return the commonest label, of equally common ones the first in the alphabet."""
    counts = Counter(label for tree in trees for label in _labels(tree, name))
    return max(sorted(counts), key=counts.__getitem__)


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
    """Return the sentence with the predicted columns. Words that were cut off are wrong in all of them: they have the
    values of BEYOND, and hang on the first word that was not cut and is not their head in the file. Two exceptions: any
    lemma is right for the official scorer where the file has _, and where a single word was not cut off, all others
    hang on it, those too that it is the head of."""
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
    for head in map(int, tree.column(HEAD)[len(words) :]):
        whole.append(next((word + 1 for word in words if word + 1 != head), words[0] + 1))
        for name, column in columns.items():
            column.append(BEYOND[name])
    return written(tree, columns, whole)


def _official(trees: Sequence[Tree], said: Sequence[str]) -> Scores:
    gold = "".join("".join("\t".join(row) + "\n" for row in tree.rows) + "\n" for tree in trees)
    return metrics.conll18(gold, "".join(said), MEASURED)


DEPENDENCIES = Dependencies()

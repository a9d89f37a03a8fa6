"""Predict tags, features, lemmas and dependency trees of Universal Dependencies, and score them.

Words and sentences are the file's own, in CoNLL-U. The scorer is the official one of CoNLL 2018.

All columns are learnt together, with a decoder each (van der Goot et al. 2021): `Parser` in heads.py has linear
taggers, of lemmas too, whose rules are the classes, and a parser of trees, on an encoder's last layer.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data_pipeline.errors import UserError
from pretrain.tasks import metrics
from pretrain.tasks.base import ModelAnswers, Scores, Task, TaskData, with_dropout
from pretrain.tasks.encoders import Encoder, width_of
from pretrain.tasks.files import Split, at_line, hashes, not_empty, one_file, read_lines, with_training
from pretrain.tasks.heads import HEAD_FILE, Parser, labels_beside
from pretrain.tasks.inputs import IGNORED, Feature, InputBuilder
from pretrain.tasks.settings import EvaluationSettings

# Find the best tree.


def best_tree(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the heads of the tree of the highest sum of scores whose root has one child: 0 for that child, else the
    head's number from 1. scores: (words, words + 1), of each word's heads, the root first.

    Chu-Liu and Edmonds' algorithm, by ufal.chu_liu_edmonds, where the best heads of all words are no such tree
    already."""
    from ufal.chu_liu_edmonds import chu_liu_edmonds  # an extra, as are the metrics of trees

    count = len(scores)
    known = np.full((count + 1, count + 1), -np.inf)
    known[1:] = scores
    np.fill_diagonal(known, -np.inf)
    heads = known[1:].argmax(1)
    if (heads == 0).sum() == 1 and _is_tree(heads):
        return heads
    finite = known[np.isfinite(known)]
    # no two children of the root where one will do
    known[1:, 0] -= (finite.max() - finite.min() + 1) * (count + 1)
    known[~np.isfinite(known)] = np.nan  # no edge
    return np.array(chu_liu_edmonds(known)[0][1:], np.int64)


def _is_tree(heads: NDArray[Any]) -> bool:
    """Return whether every word leads to the root."""
    good: set[int] = {0}
    for word in range(1, len(heads) + 1):
        path, at = [], word
        while at not in good:
            if at in path:
                return False
            path.append(at)
            at = int(heads[at - 1])
        good |= set(path)
    return True


# Read and write sentences in CoNLL-U, the format of Universal Dependencies.


FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL = 1, 2, 3, 4, 5, 6, 7
COLUMNS = 10
TAGS = {"upos": UPOS, "xpos": XPOS, "feats": FEATS, "lemma": LEMMA}
"""Column of the file that each tagger predicts; lemmas by rules."""
RELATIONS = "deprel"


class Tree(NamedTuple):
    """A sentence: its rows as they are in the file, and which of them are words."""

    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...]

    def column(self, number: int) -> list[str]:
        """Return one column of the words."""
        return [self.rows[row][number] for row in self.words]


def read_trees(name: str, path: Path) -> Split:
    """Return the sentences of a file. Raises UserError for one that the official scorer refuses, and without a
    sentence."""
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


def written(tree: Tree, columns: dict[str, list[str]], heads: Sequence[int]) -> str:
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


# Predict lemmas by classes: the rule that turns a word into its lemma, which other words share. As in UDPipe (Straka
# 2018, section 3.4), a rule is the casing of the lemma, and what to remove and to add around the longest common part.


CASING, PARTS = ";", "¦"
UPPER, LOWER = "↑", "↓"


def lemma_rule(form: str, lemma: str) -> str:
    """Return the rule that turns `form` into `lemma`; one that names the lemma as it is where no other does, as with
    letters whose upper case has another length.

    >>> lemma_rule("Running", "run"), lemma_rule("mice", "mouse"), lemma_rule("went", "go")
    ('↓0;d0¦4¦¦', '↓0;d0¦3¦¦ouse', '↓0;ago')
    """
    rule = f"{_casing(lemma)}{CASING}{_edit(form.lower(), lemma.lower())}"
    return rule if apply_rule(rule, form) == lemma else f"{CASING}a{lemma}"


def _edit(form: str, lemma: str) -> str:
    """Return what to remove from both ends and to add there, or the lemma where the two have no letter in common."""
    found = SequenceMatcher(None, form, lemma, autojunk=False).find_longest_match()
    if not found.size or any(mark in lemma for mark in (CASING, PARTS)):
        return f"a{lemma}"
    first, last = found.a, len(form) - found.a - found.size
    return f"d{first}{PARTS}{last}{PARTS}{lemma[: found.b]}{PARTS}{lemma[found.b + found.size :]}"


def apply_rule(rule: str, form: str) -> str:
    """Return the lemma that a rule makes of a word; the word itself where the rule does not fit it.

    >>> apply_rule(lemma_rule("Running", "run"), "Sitting")
    'sit'
    """
    casing, _, edit = rule.partition(CASING)
    if edit.startswith("a"):
        return _cased(edit[1:], casing)
    small = form.lower()
    parts = edit[1:].split(PARTS)
    first, last = int(parts[0]), int(parts[1])
    if first + last > len(small):
        return form
    return _cased(parts[2] + small[first : len(small) - last] + parts[3], casing)


def _casing(lemma: str) -> str:
    """Return where the case of the letters changes and to what; places in the second half are counted from the end."""
    steps, before = [], ""
    for i, character in enumerate(lemma):
        case = UPPER if character.lower() != character else LOWER
        if case != before:
            steps.append(f"{case}{i if i <= len(lemma) // 2 else i - len(lemma)}")
        before = case
    return PARTS.join(steps)


def _cased(text: str, casing: str) -> str:
    """Return the text with this casing."""
    for step in casing.split(PARTS) if casing else []:
        place = int(step[1:])
        start = max(0, place if place >= 0 else len(text) + place)
        rest = text[start:]
        text = text[:start] + (rest.upper() if step[0] == UPPER else rest.lower())
    return text


# Fine-tune a parser on a treebank, and score the columns that it predicts.


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
        model = Parser(base, width_of(base), labels, RELATIONS).load_head(encoder.folder)
        return model.eval(), replace(data, label_sets=labels)

    def features(self, items: Sequence[Tree], builder: InputBuilder, data: TaskData) -> list[Feature]:
        """Return a sequence per sentence; see Task.features."""
        ids = {name: {label: i for i, label in enumerate(labels)} for name, labels in data.label_sets.items()}
        return [_feature(tree, builder, ids) for tree in items]

    def score(self, answered: ModelAnswers) -> Scores:
        """Return the metrics of the official scorer, F1 in percent; see Task.score."""
        return _official(answered.items, _sentences(answered))

    def predictions(self, answered: ModelAnswers) -> dict[str, str]:
        """Return the file with predicted columns that the official scorer reads; see Task.predictions."""
        return {"predictions.conllu": "".join(_sentences(answered))}

    def baseline(self, split: Split, data: TaskData) -> Scores:
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


def _sentences(answered: ModelAnswers) -> list[str]:
    rows = zip(answered.items, answered.features, answered.answers, strict=True)
    return [_predicted(tree, feature, answer, answered.data) for tree, feature, answer in rows]


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

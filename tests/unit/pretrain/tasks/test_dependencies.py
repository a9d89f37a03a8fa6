"""Trees, tags and lemmas: the best tree against all trees, rules against their words, the official scores."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from pretrain.evaluate.fine_tune import FineTuner
from pretrain.tasks import metrics
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.dependencies import HEAD, TAGS, apply_rule, best_tree, lemma_rule
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.heads import Biaffine, Parser
from pretrain.tasks.inputs import Feature
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import ENCODERS, encoder_folder
from tests.factories.tasks import TREES, write

TASK = FINE_TUNED["ud"]
GOLD = "\n".join(TREES) + "\n"
CPU = torch.device("cpu")


def is_tree(heads: tuple[int, ...]) -> bool:
    if heads.count(0) != 1:
        return False
    for word in range(1, len(heads) + 1):
        at = word
        for _ in heads:
            at = heads[at - 1] if at else 0
        if at:
            return False
    return True


@given(words=st.integers(1, 5), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_tree_is_the_best_of_all(words: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(words, words + 1))
    found = best_tree(scores)
    every = [h for h in itertools.product(range(words + 1), repeat=words) if is_tree(h)]

    def total(heads: tuple[int, ...]) -> float:
        return float(sum(scores[word, head] for word, head in enumerate(heads)))

    assert tuple(found) in every
    assert total(tuple(found)) == pytest.approx(max(map(total, every)))


@given(form=st.text(min_size=1, max_size=12), lemma=st.text(min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_rule_gives_its_own_lemma(form: str, lemma: str) -> None:
    assert apply_rule(lemma_rule(form, lemma), form) == lemma


@pytest.mark.parametrize(
    ("form", "lemma", "other", "expected"),
    [
        ("Running", "run", "sitting", "sit"),
        ("dogs", "dog", "Cats", "cat"),
        ("PARIS", "Paris", "ROME", "Rome"),
        ("went", "go", "anything", "go"),
        ("unhappiest", "happy", "a", "a"),  # too short for the rule
    ],
)
def test_rules_fit_other_words(form: str, lemma: str, other: str, expected: str) -> None:
    assert apply_rule(lemma_rule(form, lemma), other) == expected


def read(folder: Path) -> TaskData:
    return TASK.read(
        write(folder, {"x-ud-train.conllu": TREES, "x-ud-dev.conllu": TREES}), EvaluationSettings()
    )


def test_gold_against_gold_is_perfect_and_subtypes_do_not_count() -> None:
    names = ("LAS", "UAS", "UPOS", "XPOS", "UFeats", "Lemmas", "CLAS", "MLAS", "BLEX")
    assert metrics.conll18(GOLD, GOLD, names) == dict.fromkeys(names, 100)
    assert metrics.conll18(GOLD, GOLD.replace("nsubj\t", "nsubj:pass\t"), ["LAS"]) == {"LAS": 100}
    words = sum(line.split("\t")[0].isdigit() for line in TREES)
    broken = GOLD.replace("1\tThe\tthe\tDET\tDT\tDefinite=Def\t2", "1\tThe\tthe\tDET\tDT\tDefinite=Def\t3", 1)
    assert broken != GOLD
    assert metrics.conll18(GOLD, broken, ["LAS", "UAS"]) == pytest.approx(
        dict.fromkeys(["LAS", "UAS"], 100 * (words - 1) / words)
    )


def test_what_the_official_scorer_refuses_is_one_line(tmp_path: Path) -> None:
    for old, new in (
        ("4\tnsubj", "1\tnsubj"),
        ("2\tdet", "0\troot"),
        ("2\tdet", "77\tdet"),
        ("2\tdet\t", ""),
    ):
        lines = [TREES[0], *(line.replace(old, new) for line in TREES[1:7]), *TREES[7:]]
        with pytest.raises(UserError, match=r"dev\.conllu: is refused by the official scorer: "):
            TASK.read(write(tmp_path, {"x-train.conllu": TREES, "x-dev.conllu": lines}), EvaluationSettings())


QUICK = {"bert", "xlnet"}
"""Encoders that `make test` has."""
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in ENCODERS
    if name != "causal"
]


@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_learns_a_small_treebank(name: str, tmp_path: Path) -> None:
    wanted = EvaluationSettings(
        epochs=60, batch=2, lr=2e-3, head_lr=5e-3, dropout=0, max_length=64, weight_decay=0
    )
    data = read(tmp_path)
    encoder = Encoder(encoder_folder(name))
    one = FineTuner(
        TASK, TASK.model(encoder, data, 1, EvaluationSettings(dropout=0)), encoder.builder(64), wanted, 1, CPU
    )
    features = TASK.features(data.train.items, one.builder, data)
    one.train(features, lambda n: None)
    found = TASK.score(ModelAnswers(data.train.items, features, one.answers(features, lambda n: None), data))
    assert found["LAS"] == found["UPOS"] == found["Lemmas"] == found["MLAS"] == 100
    assert TASK.baseline(data.scored[0], data)["LAS"] < 50


def test_the_trivial_tree_is_the_better_chain(tmp_path: Path) -> None:
    """In English more words hang on the one after than on the one before."""
    data = read(tmp_path)
    trees = data.scored[0].items
    heads = [[int(head) for head in tree.column(HEAD)] for tree in trees]
    words = sum(map(len, heads))
    before = sum(head == i for one in heads for i, head in enumerate(one))
    after = sum(head == (i + 2 if i + 1 < len(one) else 0) for one in heads for i, head in enumerate(one))
    assert after > before
    assert TASK.baseline(data.scored[0], data)["UAS"] == pytest.approx(100 * after / words)


def test_the_trivial_lemma_is_what_the_commonest_rule_makes_of_each_word(tmp_path: Path) -> None:
    """Three of four are their words in lower case; all hang on the one before."""
    pairs = [("Dogs", "dogs"), ("Over", "over"), ("foxes", "fox"), ("It", "it")]
    rows = [
        f"{n}\t{form}\t{lemma}\tX\tFW\t_\t{n - 1}\t{'obj' if n > 1 else 'root'}\t_\t_"
        for n, (form, lemma) in enumerate(pairs, 1)
    ]
    files = {f"x-ud-{name}.conllu": [*rows, ""] for name in ("train", "dev")}
    data = TASK.read(write(tmp_path, files), EvaluationSettings())
    found = TASK.baseline(data.scored[0], data)
    assert found["LAS"] == 100
    assert found["Lemmas"] == found["BLEX"] == pytest.approx(75)


def test_without_training_trivial_labels_are_the_commonest_scored_ones(tmp_path: Path) -> None:
    """With epochs=0 a folder needs no training file, and has no labels of training."""
    data = read(tmp_path)
    (tmp_path / "x-ud-train.conllu").unlink()
    alone = TASK.read(tmp_path, settings_for("ud", {"epochs": 0.0}))
    assert not alone.train.items
    assert TASK.baseline(alone.scored[0], alone) == TASK.baseline(data.scored[0], data)


def test_tokens_of_a_word_are_averaged_and_the_root_has_a_vector_of_its_own() -> None:
    parser = Parser(torch.nn.Identity(), 4, {"upos": "ABC", "deprel": "xy"}, "deprel").eval()
    states = torch.arange(24.0).reshape(1, 6, 4)
    owners = torch.tensor([[-100, 1, 1, 3, 3, -100]])
    words = parser._words(states, owners, torch.tensor([0]))
    assert torch.equal(words[0, 1], states[0, 1:3].mean(0))
    assert torch.equal(words[0, 3], states[0, 3:5].mean(0))
    assert torch.equal(words[0, 0], parser.root)
    assert not words[0, 2].any()


def test_only_words_and_the_root_can_be_heads() -> None:
    parser = Parser(_Fixed(), 4, {"upos": "ABC", "deprel": "xy"}, "deprel").eval()
    owners = torch.tensor([[-100, 1, 1, 3, -100]])
    logits = parser(owners, torch.tensor([0]), input_ids=torch.zeros(1, 5, dtype=torch.long)).logits
    assert logits.shape == (1, 5, 3 + 2 * 5)
    heads = logits[0, 1, 3:8]
    assert (heads > torch.finfo(heads.dtype).min / 2).tolist() == [True, True, False, True, False]


def test_scores_of_pairs_are_those_of_the_whole_table() -> None:
    one = Biaffine(4, 3)
    torch.nn.init.normal_(one.weight)
    dependents, heads = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    whole = one(dependents, heads)  # (examples, outputs, dependents, heads)
    example, dependent, head = torch.tensor([[0, 1, 1], [2, 0, 4], [3, 3, 1]])
    pairs = one.of_pairs(dependents[example, dependent], heads[example, head])
    torch.testing.assert_close(pairs, whole[example, :, dependent, head])


def test_the_best_labels_are_those_of_the_whole_table() -> None:
    parser = Parser(torch.nn.Identity(), 4, {"upos": "ABC", "deprel": "vwxyz"}, "deprel").eval()
    torch.nn.init.normal_(parser.labels.weight)
    vectors, other = torch.randn(2, 6, 256), torch.randn(2, 6, 256)
    may_head = torch.tensor([[True, True, False, True, False, False], [True, False, True, True, True, True]])
    found = parser._best_labels(vectors, other, may_head)
    both = may_head[:, :, None] & may_head[:, None]
    assert torch.equal(found[both], parser.labels(vectors, other).argmax(1)[both])
    assert not found[~both].any()
    assert len(found[both].unique()) > 1


class _Fixed(torch.nn.Module):
    def forward(self, input_ids: torch.Tensor) -> object:
        states = torch.ones(*input_ids.shape, 4)
        return type("Output", (), {"last_hidden_state": states})()


def right(feature: Feature, data: TaskData) -> np.ndarray:
    """The answer of a model that is right about every word of its input."""
    targets, count = feature.targets, len(feature.inputs[0].ids)
    tags = [np.eye(len(data.label_sets[name]))[np.maximum(0, targets[name])] for name in TAGS]
    arcs, relations = np.zeros((2, count, count))
    for place in feature.inputs[0].first_tokens.values():
        arcs[place, targets["heads"][place]] = 1
        relations[place, targets["heads"][place]] = targets["relations"][place]
    return np.concatenate([*tags, arcs, relations], 1)


def test_words_beyond_the_input_are_counted_as_wrong_not_left_out(tmp_path: Path) -> None:
    """By what the scores of the words before are, where these are all right. To say the same of each, and hang it on
    the one before, would be right here: it is the same word with the same labels, but for the head of the last one."""
    heads = [*range(9), 1]
    rows = [
        f"{n}\tfox\tfox\tX\tFW\t_\t{head}\t{'dep' if head else 'root'}\t_\t_"
        for n, head in enumerate(heads, 1)
    ]
    files = {f"x-ud-{name}.conllu": [*rows, "", *rows[:2], ""] for name in ("train", "dev")}
    data = TASK.read(write(tmp_path, files), EvaluationSettings())
    trees = data.train.items
    features = TASK.features(trees, Encoder(encoder_folder("bert")).builder(9), data)
    kept = [len(feature.inputs[0].first_tokens) for feature in features]
    assert 2 < kept[0] < 9
    assert kept[1] == 2
    answers = [right(feature, data) for feature in features]
    every = ("LAS", "UAS", "UPOS", "XPOS", "UFeats", "Lemmas", "CLAS", "MLAS", "BLEX")
    assert TASK.score(ModelAnswers(trees, features, answers, data)) == pytest.approx(
        dict.fromkeys(every, 100 * sum(kept) / 12)
    )
    whole = TASK.features(trees, Encoder(encoder_folder("bert")).builder(64), data)
    found = TASK.score(ModelAnswers(trees, whole, [right(feature, data) for feature in whole], data))
    assert found == pytest.approx(dict.fromkeys(every, 100))


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        # of ten words, six have relations of content: dogs, n't, sleep, foxes, jumped, it
        ("dogs\tdog", "dogs\tdogs", {"Lemmas": 90, "BLEX": 500 / 6}),
        ("foxes\tfox\tNOUN\tNNS\tNumber=Plur", "foxes\tfox\tNOUN\tNNS\tNumber=Sing", {"UFeats": 90, "MLAS": 500 / 6}),
        # "over" is a functional child: MLAS loses the word that it belongs to
        ("over\tover\tADP", "over\tover\tX", {"UPOS": 90, "MLAS": 500 / 6}),
        ("5\tcase", "5\tmark", {"LAS": 90, "MLAS": 500 / 6}),
        # and here the word that it is said to belong to as well
        ("5\tcase", "3\tcase", {"LAS": 90, "UAS": 90, "MLAS": 400 / 6}),
        ("3\tobl", "3\tobj", {"LAS": 90, "CLAS": 500 / 6, "MLAS": 500 / 6, "BLEX": 500 / 6}),
        ("\tRB\t", "\tNN\t", {"XPOS": 90}),
    ],
)  # fmt: skip
def test_each_metric_counts_its_own_columns(old: str, new: str, wrong: dict[str, float]) -> None:
    names = ("LAS", "UAS", "UPOS", "XPOS", "UFeats", "Lemmas", "CLAS", "MLAS", "BLEX")
    assert GOLD.count(old) == 1
    found = metrics.conll18(GOLD, GOLD.replace(old, new), names)
    assert found == pytest.approx(dict.fromkeys(names, 100) | wrong)

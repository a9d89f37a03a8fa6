"""A probe scores a model in memory as it would its folder, leaves torch's generators alone, and fits what scikit-learn
fits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from data_pipeline.errors import UserError
from pretrain.evaluate.probe import ProbeTask, fit_classes, fit_numbers, probe_names
from pretrain.tasks.encoders import Encoder, InMemory
from pretrain.tasks.registry import FINE_TUNED
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

ANIMALS = ["quick fox", "lazy dogs"]


def in_memory(name: str) -> InMemory:
    folder = encoder_folder(name)
    return InMemory(folder, weights=load_file(folder / "model.safetensors"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Texts whose class is the animal in them, among other words."""
    rows = [f"the {ANIMALS[i % 2]} jumped over {'some ' * (i % 5)}it\t{i % 2}" for i in range(60)]
    return write(
        tmp_path / "own", {"train.tsv": ["text\tlabel", *rows], "dev.tsv": ["text\tlabel", *rows[:20]]}
    )


@pytest.fixture
def blimp(tmp_path: Path) -> Path:
    pair = {"sentence_good": "the quick fox jumped", "sentence_bad": "the fox quick over"}
    rows = [json.dumps({**pair, "linguistics_term": "syntax", "UID": "x"})] * 10
    return write(tmp_path / "BLiMP", {"x.jsonl": rows})


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert", "electra", "ernie", "distilbert", "xlnet", "causal"]
)
def test_a_model_in_memory_scores_as_its_folder(name: str, own: Path, blimp: Path) -> None:
    folder_of_weights = encoder_folder(name)  # writing it sets the seed
    before = torch.random.get_rng_state()
    for task, folder in (("own", own), ("blimp", blimp)):
        probe = ProbeTask.read(task, folder)
        assert probe.score(in_memory(name)) == probe.score(Encoder(folder_of_weights)), task
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_without_a_weight_is_refused(own: Path) -> None:
    encoder = in_memory("bert")
    weights = {n: t for n, t in encoder.weights.items() if "layer.1.attention.self.query" not in n}
    with pytest.raises(UserError, match="lacks weights of BertModel: encoder"):
        ProbeTask.read("own", own).score(InMemory(encoder.folder, weights=weights))
    bare = {n: t for n, t in encoder.weights.items() if n.startswith("bert.")}
    with pytest.raises(UserError, match=r"cls\.predictions"):
        InMemory(encoder.folder, weights=bare).load("ForMaskedLM", 0, has_head=True)


def test_classes_and_tags_that_a_token_tells_are_read(own: Path, tmp_path: Path) -> None:
    encoder = Encoder(encoder_folder("bert"))
    assert ProbeTask.read("own", own).score(encoder) == {"own_accuracy": 100.0, "own_trivial": 50.0}
    words = ["the", "fox", "jumped", "over", "dogs"]
    lines = [
        line
        for i in range(30)
        for line in (*(f"{w}\t{'B-PER' if w == 'fox' else 'O'}" for w in words[i % 2 :]), "")
    ]
    folder = write(tmp_path / "task", {"train.tsv": lines, "dev.tsv": lines[:40]})
    named, tagged = (sum(word in line for line in lines[:40]) for word in ("B-PER", "\t"))
    always = pytest.approx(200 * named / (named + tagged))  # every word a person
    assert ProbeTask.read("tagging", folder).score(encoder) == {
        "tagging_f1": 100.0,
        "tagging_trivial": always,
    }


def test_numbers_are_read(tmp_path: Path) -> None:
    rows = [f"the {'quick ' * (i % 30)}fox\t{(i % 30) / 7}" for i in range(90)]
    folder = write(
        tmp_path / "own", {"train.tsv": ["text\tscore", *rows], "dev.tsv": ["text\tscore", *rows[:30]]}
    )
    assert ProbeTask.read("own", folder).score(Encoder(encoder_folder("bert")))["own_pearson"] > 90


def test_linear_models_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    vectors = (rng.normal(size=(80, 6)) * [1, 2, 3, 4, 5, 0] + 3).astype(np.float32)
    classes = (vectors[:, :3].argmax(1) + rng.integers(0, 2, 80)) % 3
    rows = StandardScaler().fit_transform(vectors.astype(np.float64))
    theirs = LogisticRegression(tol=1e-8, max_iter=1000).fit(rows, classes).predict_log_proba(rows)
    ours = torch.from_numpy(fit_classes(vectors, classes, 3)(vectors)).log_softmax(-1)
    assert np.allclose(ours, theirs, atol=2e-3)
    numbers = vectors @ np.arange(6.0) + rng.normal(size=80)
    assert np.allclose(
        fit_numbers(vectors, numbers)(vectors)[:, 0], Ridge(1.0).fit(rows, numbers).predict(rows), atol=1e-3
    )


def test_many_examples_are_drawn_once(tmp_path: Path) -> None:
    rows = [f"the fox {i}\t{i % 2}" for i in range(2500)]
    folder = write(tmp_path / "own", {"train.tsv": ["text\tlabel", *rows], "dev.tsv": ["text\tlabel", *rows]})
    one, two = (ProbeTask.read("own", folder).data for _ in range(2))
    assert len(one.train.items) == len(one.scored[0].items) == 2000
    assert one == two


def test_tasks_that_cannot_be_a_probe_are_refused(tmp_path: Path) -> None:
    assert {"blimp", "own", "tagging", "mrpc", "uner"} <= set(probe_names())
    assert not {"squad1", "swag", "ud", "held_out", "ax"} & set(probe_names())
    assert set(probe_names()) - {"blimp"} <= set(FINE_TUNED)
    for task in ("swag", "ax"):  # AX has no training examples
        with pytest.raises(
            UserError, match=f"train.probe: no such probe: {task} .expected one of blimp, cola, "
        ):
            ProbeTask.read(task, write(tmp_path / task, FILES[task]))

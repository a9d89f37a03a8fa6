"""Features of a frozen encoder: the layers that the paper names, cached as computed; only the head learns."""

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation, with_lower_features
from pretrain.evaluate.fine_tune import FineTuner
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.heads import (
    Crf,
    CrfTagger,
    FrozenTagger,
    chosen_layers,
    frozen_tagger,
    may_follow,
    with_states,
)
from pretrain.tasks.inputs import IGNORED, Feature, collate
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import FEATURES, EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import write

TASK, CPU = FINE_TUNED["tagging"], torch.device("cpu")
QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
WORDS = ["the", "quick", "fox", "jumped", "over", "some", "lazy", "dogs"]


def sentences(count: int) -> list[str]:
    """Lines of sentences of different lengths in which each fox is a person."""
    lines = []
    for i in range(count):
        lines += [f"{w}\t{'B-PER' if w == 'fox' else 'O'}" for w in WORDS[i % 3 : 4 + i % 5]] + [""]
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "task", {"train.tsv": sentences(40), "dev.tsv": sentences(9)})


def features(model: torch.nn.Module, encoder: Encoder, folder: Path) -> tuple[list[Feature], list[Feature]]:
    """Those of dev, without and with hidden states."""
    data = TASK.read(folder, settings_for("tagging", {}))
    builder = encoder.builder(32)
    plain = TASK.features(data.scored[0].items, builder, data)
    return plain, with_states(frozen_tagger(model), plain, builder, CPU, lambda n: None)


@pytest.mark.parametrize("name", ["bert", "xlnet", "distilbert", "albert"])
@pytest.mark.parametrize("kind", FEATURES)
def test_cached_states_give_what_the_encoder_gives(name: str, kind: str, folder: Path) -> None:
    """XLNet pads on the left: its rows are turned round for the BiLSTM."""
    encoder = Encoder(encoder_folder(name))
    settings = settings_for("tagging", {"features": kind})
    data = TASK.read(folder, settings)
    model = TASK.model(encoder, data, 1, settings)
    plain, cached = features(model, encoder, folder)
    builder = encoder.builder(32)
    assert len({len(one.inputs[0].ids) for one in plain}) > 2
    with torch.no_grad():
        found = model(**collate(cached, builder, CPU, choices=False)).logits
        expected = model(**collate(plain, builder, CPU, choices=False)).logits
        mask = collate(plain, builder, CPU, choices=False)["attention_mask"].bool()
        assert torch.allclose(found[mask], expected[mask], atol=2e-3)
        # a sentence by itself, without padding
        alone = model(**collate(plain[:1], builder, CPU, choices=False)).logits
        assert torch.allclose(alone[0], expected[0][mask[0]], atol=1e-5)


def test_layers_are_those_of_the_paper() -> None:
    """Devlin et al. 2019, Table 7, for 12 layers; a smaller encoder takes the last four that it has."""
    expected = {
        "embeddings": [0],
        "second_to_last": [11],
        "last": [12],
        "sum_last_4": [9, 10, 11, 12],
        "concat_last_4": [9, 10, 11, 12],
        "sum_all": list(range(1, 13)),
    }
    assert {name: list(chosen_layers(name, 12)) for name in FEATURES} == expected
    assert list(chosen_layers("concat_last_4", 2)) == [1, 2]


def test_hidden_states_are_those_of_transformers() -> None:
    encoder = Encoder(encoder_folder("bert"))
    base = encoder.load("", 1)
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    expected = base(ids, output_hidden_states=True).hidden_states
    model = FrozenTagger(base, "concat_last_4", 3, 0.5).train()
    found = model.hidden(input_ids=ids)
    assert torch.equal(found, torch.stack(expected[1:], 2))


def test_only_the_head_learns_and_it_learns(folder: Path, tmp_path: Path) -> None:
    settings = settings_for("tagging", {"features": "sum_last_4", "epochs": 8, "threads": 1, "batch": 8})
    encoder, data = Encoder(encoder_folder("bert")), TASK.read(folder, settings)
    model = TASK.model(encoder, data, 1, settings)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    builder = encoder.builder(32)
    tuner = FineTuner(TASK, model, builder, settings, 1, CPU)
    rows = with_states(
        frozen_tagger(model),
        TASK.features(data.train.items, builder, data),
        builder,
        CPU,
        lambda n: None,
    )
    losses = tuner.train(rows, lambda n: None).losses
    assert sum(losses[-3:]) < sum(losses[:3]) / 3
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("encoder."), name


@pytest.mark.parametrize("changes", [{"crf": True}, {"features": "last"}, {"features": "last", "crf": True}])
def test_a_saved_tagger_predicts_the_same(changes: dict[str, object], folder: Path, tmp_path: Path) -> None:
    settings = settings_for("tagging", {"epochs": 1, "max_length": 32, **changes})
    encoder = Encoder(encoder_folder("bert"))
    evaluation = Evaluation("tagging", encoder, folder, tmp_path / "out", settings, [1], False, save=True)
    note = evaluation.run(QUIET)
    saved = tmp_path / "out" / evaluation.name / "seed-1"
    again = replace(
        evaluation, encoder=Encoder(saved), out=tmp_path / "again", settings=replace(settings, epochs=0)
    ).run(QUIET)
    assert note["scores"]["dev"] == again["scores"]["dev"]
    with pytest.raises(UserError, match=r"crf.safetensors|head.safetensors"):
        replace(
            evaluation, encoder=Encoder(saved), out=tmp_path / "third", settings=other_kind(settings)
        ).run(QUIET)


def other_kind(settings: EvaluationSettings) -> EvaluationSettings:
    """Settings of a tagger whose files the folder lacks, or has in another shape."""
    if settings.crf and not settings.features:
        return replace(settings, epochs=0, features="last")
    return replace(
        settings, epochs=0, crf=not settings.crf, features="concat_last_4" if settings.crf else "last"
    )


def test_embeddings_are_scored_beside_as_a_floor(folder: Path, tmp_path: Path) -> None:
    settings = settings_for("tagging", {"features": "last", "epochs": 1})
    one = Evaluation("tagging", Encoder(encoder_folder("bert")), folder, tmp_path, settings, [1], True)
    assert [each.name for each in with_lower_features(one)] == ["tagging-last", "tagging-embeddings"]
    assert with_lower_features(replace(one, has_floor=False)) == [replace(one, has_floor=False)]
    note = one.run(QUIET)
    assert note["task"] == "tagging-last"
    assert note["not_pretrained"]["dev"]["f1"]["values"]
    assert json.loads((tmp_path / "tagging-last" / "result.json").read_text())["settings"]["lr"] == 1e-3


@pytest.mark.parametrize("changes", [{"features": "last"}, {"crf": True}])
@pytest.mark.parametrize("task", ["rte", "blimp", "ud"])
def test_it_is_for_tasks_that_tag_words(changes: dict[str, object], task: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not for {task}.*conll2003"):
        Evaluation(task, Encoder(tmp_path), tmp_path, tmp_path, settings_for(task, changes), [1], True)


# The CRF: its sums and its best tags are those found by writing out every sequence of tags.


TAGS = ("B-LOC", "B-PER", "I-PER", "O")
LENGTHS = torch.tensor([4, 1, 3])


@pytest.fixture
def crf() -> Crf:
    torch.manual_seed(0)
    one = Crf(TAGS)
    for weight in one.parameters():
        nn.init.normal_(weight)
    return one


def sequences(crf: Crf, scores: Tensor) -> dict[tuple[int, ...], float]:
    """The score of every sequence of tags that BIO2 allows."""
    found = {}
    for tags in product(range(len(TAGS)), repeat=len(scores)):
        names = ["O", *(TAGS[tag] for tag in tags)]
        if not all(may_follow(a, b) for a, b in pairwise(names)):
            continue
        total = crf.start[tags[0]] + crf.end[tags[-1]] + sum(s[t] for s, t in zip(scores, tags, strict=True))
        total = total + sum(crf.between[a, b] for a, b in pairwise(tags))
        found[tags] = total.item()
    return found


def test_loss_and_best_tags_are_those_of_all_sequences_written_out(crf: Crf) -> None:
    scores = torch.randn(3, 4, len(TAGS), generator=torch.Generator().manual_seed(1))
    tags = torch.tensor([[1, 2, 3, 0], [3, 0, 0, 0], [0, 1, 2, 3]])
    losses, best = [], crf.best(scores, LENGTHS).tolist()
    for row, length in enumerate(LENGTHS.tolist()):
        every = sequences(crf, scores[row, :length])
        total = torch.logsumexp(torch.tensor(list(every.values())), 0)
        losses.append(float(total) - every[tuple(tags[row, :length].tolist())])
        assert tuple(best[row][:length]) == max(every, key=every.__getitem__)
    expected = sum(losses) / int(LENGTHS.sum())
    assert crf.loss(scores, tags, LENGTHS).item() == pytest.approx(expected, abs=1e-5)


def test_what_is_behind_a_sentence_is_not_read(crf: Crf) -> None:
    scores = torch.randn(3, 4, len(TAGS), generator=torch.Generator().manual_seed(1))
    tags = torch.tensor([[1, 2, 3, 0], [3, 0, 0, 0], [0, 1, 2, 3]])
    inside = torch.arange(4) < LENGTHS[:, None]
    other = torch.where(inside[..., None], scores, torch.full_like(scores, 99.0))
    assert torch.equal(crf.loss(scores, tags, LENGTHS), crf.loss(other, tags * inside, LENGTHS))
    assert torch.equal(crf.best(scores, LENGTHS)[inside], crf.best(other, LENGTHS)[inside])


def test_the_best_tags_are_valid_bio2_whatever_the_scores(crf: Crf) -> None:
    scores = 20 * torch.randn(50, 6, len(TAGS), generator=torch.Generator().manual_seed(2))
    for tags in crf.best(scores, torch.full((50,), 6)).tolist():
        names = ["O", *(TAGS[tag] for tag in tags)]
        assert all(may_follow(a, b) for a, b in pairwise(names))


class Scores(nn.Module):
    """A tagger that answers what it is given."""

    base_model_prefix = ""

    def forward(self, scores: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=scores)


def test_tags_stand_at_the_first_tokens_and_do_not_depend_on_the_targets() -> None:
    torch.manual_seed(0)
    model = CrfTagger(Scores(), TAGS).eval()
    words = torch.tensor([[0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    scores = torch.randn(3, 6, len(TAGS))
    labels = torch.where(words, 3, IGNORED)
    found = model(labels, scores=scores).logits
    assert torch.equal(found.sum(-1), words.float())
    assert torch.equal(found, model(torch.where(words, 0, IGNORED), scores=scores).logits)
    best = model.crf.best(scores[0][words[0]][None], torch.tensor([3]))[0]
    assert torch.equal(found[0][words[0]].argmax(-1), best)


def test_its_loss_is_that_of_the_words_alone() -> None:
    torch.manual_seed(0)
    model = CrfTagger(Scores(), TAGS).train()
    labels = torch.tensor([[IGNORED, 1, IGNORED, 2, 3, IGNORED], [IGNORED] * 6])
    scores = torch.randn(2, 6, len(TAGS))
    alone = model.crf.loss(scores[:1, [1, 3, 4]], torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    assert torch.allclose(model(labels, scores=scores).loss, alone)

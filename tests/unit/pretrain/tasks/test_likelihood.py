"""Likelihoods of sentences: batched as one token after the other by hand, and blind to the token that is predicted."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer

from data_pipeline.errors import UserError
from pretrain.tasks import likelihood
from pretrain.tasks.encoders import NOT_PRETRAINED, Encoder
from pretrain.tasks.inputs import Input
from pretrain.tasks.likelihood import (
    Blimp,
    Causal,
    Masked,
    Paradigm,
    Perplexity,
    Scorer,
    score_sentences,
    summary,
)
from pretrain.tasks.settings import EvaluationSettings
from tests.factories.encoders import encoder_folder, inputs_of
from tests.factories.tasks import write_pairs

SENTENCES = [
    "the quick fox jumped over it",
    "dogs slept",
    "some others did not jump over the lazy dogs at all",
]
MASKED = ["bert", "roberta", "albert", "electra", "ernie", "distilbert", "modernbert"]


def scores(name: str, sentences: list[str] = SENTENCES) -> np.ndarray:
    encoder = Encoder(encoder_folder(name))
    return score_sentences(inputs_of(encoder), sentences).log_likelihoods


@torch.no_grad()
def by_hand(name: str, sentence: str) -> float:
    """Mask one token at a time, alone in its batch, with transformers alone."""
    folder = encoder_folder(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    batch = tokenizer(sentence, return_tensors="pt", return_special_tokens_mask=True)
    special = batch.pop("special_tokens_mask")[0]
    total = 0.0
    for place in (special == 0).nonzero()[:, 0].tolist():
        ids = batch["input_ids"].clone()
        ids[0, place] = tokenizer.mask_token_id
        logits = model(**{**batch, "input_ids": ids}).logits[0, place]
        total += float(logits.log_softmax(-1)[batch["input_ids"][0, place]])
    return total


@pytest.mark.parametrize("name", MASKED)
def test_masked_models_score_as_one_token_at_a_time(name: str) -> None:
    expected = [by_hand(name, sentence) for sentence in SENTENCES]
    assert scores(name) == pytest.approx(expected, rel=1e-4)


def test_scores_do_not_depend_on_the_batch() -> None:
    alone = [scores("bert", [sentence])[0] for sentence in SENTENCES * 20]
    assert scores("bert", SENTENCES * 20) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("name", "scorer"), [("bert", Masked), ("causal", Causal)])
def test_sentences_of_the_same_ids_are_equally_likely_whatever_their_batches(
    name: str, scorer: type[Scorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that differs in unknown words alone is not right by what a batch of another size rounds: here each batch
    adds more than the one before."""
    pair = ["the quick \u2a00 jumped over it", "the quick \u2a01 jumped over it"]
    others = [f"the quick {word} jumped over it" for word in ("fox", "dogs", "others")]
    score, batches = scorer.score, []

    def rounded(self: Scorer, sentences: list[Input]) -> list[float]:
        batches.append(len(sentences))
        return [value + 1e-6 * len(batches) for value in score(self, sentences)]

    monkeypatch.setattr(scorer, "score", rounded)
    monkeypatch.setattr(likelihood, "tokens_per_pass", lambda device: 8)
    done: list[int] = []
    sentences = [pair[0], *others, pair[1]]
    encoder = Encoder(encoder_folder(name))
    found = score_sentences(inputs_of(encoder, on_progress=done.append), sentences)
    assert len(batches) > 1
    assert sum(done) == len(sentences) == len(found.tokens)
    assert len(set(found.log_likelihoods.tolist())) == 4
    for order in ([0, -1], [-1, 0]):
        one = Paradigm("a", "x", [sentences[order[0]]], [sentences[order[1]]])
        assert summary([one], found.log_likelihoods[order])["scores"]["accuracy"] == 0


@torch.no_grad()
def test_xlnet_scores_with_its_query_stream() -> None:
    """Against one call per token; what is predicted is replaced in the input there, and changes nothing."""
    folder = encoder_folder("xlnet")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        count, total = ids.shape[1], 0.0
        for place in range(count - 2):  # <sep> and <cls> are last
            other = ids.clone()
            other[0, place] = tokenizer.unk_token_id
            hidden = torch.zeros(1, count, count)
            hidden[0, :, place] = 1
            wanted = torch.zeros(1, 1, count)
            wanted[0, 0, place] = 1
            types = torch.zeros_like(ids)
            types[0, -1] = 2
            logits = model(other, token_type_ids=types, perm_mask=hidden, target_mapping=wanted).logits[0, 0]
            total += float(logits.log_softmax(-1)[ids[0, place]])
        expected.append(total)
    assert scores("xlnet") == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_left_to_right_models_score_by_what_is_before() -> None:
    folder = encoder_folder("causal")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        logits = model(ids).logits[0].log_softmax(-1)
        expected.append(sum(float(logits[i - 1, ids[0, i]]) for i in range(1, ids.shape[1] - 1)))
    assert scores("causal") == pytest.approx(expected, rel=1e-4)


def test_a_discriminator_is_refused() -> None:
    with pytest.raises(UserError, match=r"predicts no words.*generator"):
        scores("discriminator")


def test_a_folder_without_the_head_for_words_is_refused(tmp_path: Path) -> None:
    folder = encoder_folder("bert")
    model = transformers.BertModel.from_pretrained(folder)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"lacks weights of BertForMaskedLM: cls\.predictions"):
        score_sentences(inputs_of(Encoder(tmp_path)), SENTENCES)


def test_unknown_tokens_are_counted() -> None:
    encoder = Encoder(encoder_folder("bert"))
    found = score_sentences(inputs_of(encoder), ["the \u2a00 \u2a01 the"])
    assert found.unknown_share == 0.5
    assert found.tokens.tolist() == [4]


def test_equal_scores_are_not_right_and_sets_weigh_alike_or_groups_do() -> None:
    paradigms = [
        Paradigm("a", "x", ["1", "2"], ["3", "4"]),
        Paradigm("b", "x", ["5"] * 4, ["6"] * 4),
        Paradigm("c", "y", ["7"], ["8"]),
    ]
    found = np.array([-1, -2, -1, -3, *[-1] * 4, *[-2, -2, -2, -0.5], -2, -1], float)
    assert summary(paradigms, found) == {
        "scores": {"accuracy": pytest.approx((50 + 75 + 0) / 3), "group_accuracy": (62.5 + 0) / 2},
        "groups": {"x": 62.5, "y": 0},
        "paradigms": {"a": 50, "b": 75, "c": 0},
    }


def test_a_part_of_each_set_is_spread_over_it(tmp_path: Path) -> None:
    data = Blimp().read(write_pairs(tmp_path), EvaluationSettings(part=0.1)).items
    assert [one.good for one in data] == [["the fox 0", "the fox 19"]] * 3
    assert {one.group for one in data} == {"argument_structure", "ellipsis"}  # as in the paper
    (tmp_path / "two.jsonl").write_text('{"sentence_good": "a"}\n')
    with pytest.raises(UserError, match=r"two\.jsonl, line 1: is no pair of BLiMP"):
        Blimp().read(tmp_path, EvaluationSettings())


def test_the_floor_is_the_same_encoder_without_its_weights(tmp_path: Path) -> None:
    data = Blimp().read(write_pairs(tmp_path), EvaluationSettings())
    encoder, floor = (Encoder(encoder_folder("bert"), pretrained=known) for known in (True, False))
    assert floor.identity["weights"] == NOT_PRETRAINED != encoder.identity["weights"]
    one, again, other = (Blimp().score(inputs_of(floor, data, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert Blimp().score(inputs_of(encoder, data))["paradigms"].keys() == one["paradigms"].keys()
    weights = floor.load("ForMaskedLM", 1).state_dict()
    assert not torch.equal(
        weights["bert.encoder.layer.0.output.dense.weight"],
        encoder.load("ForMaskedLM", 1).state_dict()["bert.encoder.layer.0.output.dense.weight"],
    )
    assert other["scores"]


# Pseudo-perplexity: the likelihoods of a text's sentences, per token, per word and per character.


TASK = Perplexity()
TEXT = ["The quick fox jumped over it.", "Dogs slept.", "Some others did not jump over the lazy dogs at all."]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "one.txt").write_text(f"{TEXT[0]} {TEXT[1]}\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "two.jsonl").write_text(json.dumps({"text": TEXT[2]}) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_figures_follow_from_the_likelihoods_of_the_sentences(name: str, text: Path) -> None:
    settings = EvaluationSettings()
    encoder = Encoder(encoder_folder(name))
    material = TASK.read(text, settings)
    assert sorted(material.items) == sorted(TEXT)
    assert material.files.keys() == {"one.txt", "more/two.jsonl"}
    one = TASK.read(text / "more" / "two.jsonl", settings)
    assert (one.items, one.files) == ([TEXT[2]], {"two.jsonl": material.files["more/two.jsonl"]})
    found = TASK.score(inputs_of(encoder, material, settings))
    scores = score_sentences(inputs_of(encoder, settings=settings), TEXT)
    nats = -scores.log_likelihoods.sum()
    assert found["scores"] == pytest.approx(
        {
            "perplexity": np.exp(nats / scores.tokens.sum()),
            "perplexity_per_word": np.exp(nats / 19),
            "bits_per_character": nats / sum(map(len, TEXT)) / np.log(2),
        },
        rel=1e-5,
    )
    assert found["tokens"] == scores.tokens.sum()
    assert not found["notes"]


def test_the_trivial_answer_is_the_entropy_of_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("the dogs the dogs\n")
    settings = EvaluationSettings()
    material = TASK.read(tmp_path, settings)
    found = TASK.score(inputs_of(Encoder(encoder_folder("bert")), material, settings))
    counts = score_sentences(
        inputs_of(Encoder(encoder_folder("bert")), settings=settings), ["the dogs the dogs"]
    )
    shares = counts.frequencies[counts.frequencies > 0] / counts.frequencies.sum()
    assert found["trivial"]["perplexity"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


def test_sentences_longer_than_the_positions_are_cut_and_counted(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(f"{' '.join(['dogs'] * 100)}\n")
    settings = EvaluationSettings()
    found = TASK.score(inputs_of(Encoder(encoder_folder("bert")), TASK.read(tmp_path, settings), settings))
    assert found["notes"] == ["1 sentences were cut to the encoder's positions"]
    assert found["tokens"] == 64


@pytest.mark.parametrize("name", ["bert", "causal"])
def test_of_a_cut_sentence_only_what_was_scored_counts(name: str, tmp_path: Path) -> None:
    encoder, settings = Encoder(encoder_folder(name)), EvaluationSettings()
    words = ["dogs", "over", "unquickable"] * 30
    builder = encoder.builder(encoder.max_positions)
    fits = next(n for n in range(len(words), 0, -1) if not builder.single(" ".join(words[:n])).was_cut)
    (tmp_path / "one.txt").write_text(f"{' '.join(words)}\n")
    found = TASK.score(inputs_of(encoder, TASK.read(tmp_path, settings), settings))
    assert len(found["notes"]) == 1
    for figures in (found["scores"], found["trivial"]):
        nats = math.log(figures["perplexity"]) * found["tokens"]
        assert nats / math.log(figures["perplexity_per_word"]) == pytest.approx(fits + 1), "one is cut in two"
        characters = nats / math.log(2) / figures["bits_per_character"]
        assert len(" ".join(words[:fits])) < characters < len(" ".join(words[: fits + 1]))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file to read here"):
        TASK.read(tmp_path, EvaluationSettings())

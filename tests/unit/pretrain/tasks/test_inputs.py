"""Inputs of texts, pairs and words: as each encoder's own tokenizer builds them, cut as BERT cuts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from data_pipeline.errors import UserError
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.inputs import (
    Feature,
    collate,
    cut_pair,
    padded,
    scoring_batches,
    sizes,
    token_slice,
    training_batches,
)
from tests.factories.encoders import ENCODERS, encoder_folder

FIRST, SECOND = "the quick fox jumped over it", "some dogs slept, the others did not"


@pytest.mark.parametrize("name", ENCODERS)
def test_single_texts_and_pairs_are_what_the_tokenizer_gives(name: str) -> None:
    folder = encoder_folder(name)
    builder, tokenizer = Encoder(folder).builder(64), AutoTokenizer.from_pretrained(folder)
    for built, theirs in (
        (builder.single(FIRST), tokenizer(FIRST)),
        (builder.pair(FIRST, SECOND), tokenizer(FIRST, SECOND)),
    ):
        assert built.ids == theirs["input_ids"]
        assert not built.was_cut
        if "token_type_ids" in theirs:
            assert built.segments == theirs["token_type_ids"]


@pytest.mark.parametrize("name", ENCODERS)
def test_padded_arrays_are_what_the_tokenizer_gives(name: str) -> None:
    folder = encoder_folder(name)
    builder, tokenizer = Encoder(folder).builder(64), AutoTokenizer.from_pretrained(folder)
    arrays = padded([builder.pair(FIRST, SECOND), builder.pair("a", SECOND)], builder)
    theirs = tokenizer([FIRST, "a"], [SECOND, SECOND], padding=True, return_tensors="np")
    assert arrays.keys() == theirs.keys()
    for key, array in arrays.items():
        assert array.tolist() == theirs[key].tolist(), key


@given(first=st.integers(0, 60), second=st.integers(0, 60), room=st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_a_pair_loses_tokens_of_its_longer_text_one_at_a_time(first: int, second: int, room: int) -> None:
    kept = cut_pair(first, second, room)
    assert sum(kept) == min(first + second, room)
    assert kept[0] <= first
    assert kept[1] <= second
    if sum(kept) < first + second and min(kept) < min(first, second):  # both are cut: the second one more
        assert kept[0] - kept[1] in (0, 1)


def test_inputs_are_cut_to_max_length() -> None:
    builder = Encoder(encoder_folder("bert")).builder(12)
    for built in (
        builder.single(" ".join([FIRST] * 4)),
        builder.pair(FIRST * 4, SECOND * 4),
        builder.words(FIRST.split() * 4),
    ):
        assert len(built.ids) == 12
        assert built.was_cut
    assert Encoder(encoder_folder("roberta")).builder(512).max_length == 64  # two positions are the padding's


def test_max_length_without_room_is_refused() -> None:
    with pytest.raises(UserError, match="leave no room for text"):
        Encoder(encoder_folder("bert")).builder(4)


@pytest.mark.parametrize("name", ENCODERS)
def test_words_are_read_as_in_running_text(name: str) -> None:
    builder = Encoder(encoder_folder(name)).builder(64)
    words = [*FIRST.split(), "U.S.", "--", "dogs"]
    built = builder.words(words)
    assert built.ids == builder.single(" ".join(words)).ids
    assert built.segments == builder.single(" ".join(words)).segments
    owners = [word for word in built.words if word is not None]
    assert owners == sorted(owners)
    assert set(owners) == set(range(len(words)))
    for i, word in enumerate(words):
        pieces = [token for token, owner in zip(built.ids, built.words, strict=True) if owner == i]
        assert builder.backend.decode(pieces).strip().replace(" ", "") in (
            word.replace(" ", ""),
            word.lower(),
            "",
        )


def test_a_word_that_the_tokenizer_drops_is_the_unknown_token() -> None:
    builder = Encoder(encoder_folder("bert")).builder(64)
    words = ["\u200b", "the", "\ufe0f", "fox", "\u00ad"]
    built = builder.words(words)
    assert [word for word in built.words if word is not None] == sorted(
        word for word in built.words if word is not None
    )
    assert {word for word in built.words if word is not None} == set(range(5))
    assert built.ids[1] == builder.unknown
    assert len(built.ids) == len(built.segments) == len(built.words)


def test_where_tokens_are_in_a_padded_row() -> None:
    assert token_slice(2, 5, left_padded=False) == slice(0, 2)
    assert token_slice(2, 5, left_padded=True) == slice(3, 5)


# Batches of fine-tuning: every example once, in an order of the seed's, with little padding.


LENGTHS = np.random.default_rng(0).integers(5, 100, 1003)


def test_an_epoch_has_each_example_once() -> None:
    batches = training_batches(LENGTHS, 32, seed=1, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert sorted({len(batch) for batch in batches}) == [11, 32]
    assert sum(len(batch) == 32 for batch in batches) == 31


def test_the_order_is_that_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(training_batches(LENGTHS, 32, seed, epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) != order(2, 1)


def test_batches_are_of_near_lengths_and_in_no_order_of_length() -> None:
    batches = training_batches(LENGTHS, 32, seed=1, epoch=0)
    padding = 1 - LENGTHS.sum() / sum(LENGTHS[batch].max() * len(batch) for batch in batches)
    in_order = np.split(np.arange(992), 31)
    plain = 1 - LENGTHS[:992].sum() / sum(LENGTHS[batch].max() * len(batch) for batch in in_order)
    assert padding < 0.1 < 0.4 < plain
    longest = [LENGTHS[batch].max() for batch in batches]
    assert longest != sorted(longest)
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.5


def test_batches_for_scoring_keep_to_their_tokens() -> None:
    batches = list(scoring_batches(LENGTHS, 512))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert all(LENGTHS[batch].max() * len(batch) <= 512 for batch in batches)
    assert [len(batch) for batch in scoring_batches(np.array([900, 3]), 512)] == [
        1,
        1,
    ]  # longer than that: alone


def test_targets_are_placed_as_the_tokens_are() -> None:
    for name in ("bert", "xlnet"):  # padded on the right and on the left
        builder = Encoder(encoder_folder(name)).builder(64)
        inputs = [builder.words(text.split()) for text in ("the fox", "the quick dogs jumped over it")]
        features = [Feature((one,), {"labels": list(range(len(one.ids)))}) for one in inputs]
        batch = collate(features, builder, torch.device("cpu"), choices=False)
        assert batch["labels"].shape == batch["input_ids"].shape
        real = batch["attention_mask"].bool()
        assert (batch["labels"][~real] == -100).all()
        assert batch["labels"][0][real[0]].tolist() == list(range(len(inputs[0].ids)))


def test_choices_are_an_axis_of_their_own() -> None:
    builder = Encoder(encoder_folder("bert")).builder(64)
    features = [
        Feature(tuple(builder.pair("the fox", ending) for ending in endings), {"labels": 1})
        for endings in (("a", "b c d"), ("over", "it"))
    ]
    batch = collate(features, builder, torch.device("cpu"), choices=True)
    assert batch["input_ids"].shape == (2, 2, int(sizes(features).max()))
    assert batch["labels"].tolist() == [1, 1]

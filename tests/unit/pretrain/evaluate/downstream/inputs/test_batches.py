"""Batches of fine-tuning: every example once, in an order of the seed's, with little padding."""

import numpy as np
import torch

from pretrain.tasks.encoders import Encoder
from pretrain.tasks.inputs import Feature, collate, scoring_batches, sizes, training_batches
from tests.factories.encoders import encoder_folder

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

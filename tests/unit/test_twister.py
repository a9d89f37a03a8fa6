"""The compiled twister draws what Python's `random` draws, in the same order."""

import random

import numpy as np
import pytest

from data_pipeline import draws, twister


@pytest.mark.parametrize("seed", [0, 7, 12345, 2**40])
def test_a_mixture_of_draws_equals_pythons(seed):
    ours, python = twister.python_stream(seed), random.Random(seed)
    choose = random.Random(seed + 1)
    for _ in range(3000):  # several refills of the 624 words
        n = choose.choice([1, 2, 3, 64, 1000, 30522, 2**31, 2**32 - 1])
        assert twister.unit(ours) == python.random()
        assert twister.below(ours, n) == python.randint(0, n - 1)


@pytest.mark.parametrize("length", [0, 1, 2, 700])
def test_shuffle_equals_pythons(length):
    ours, python = twister.python_stream(3), random.Random(3)
    items, expected = np.arange(length), list(range(length))
    twister.shuffle(ours, items)
    python.shuffle(expected)
    assert items.tolist() == expected
    assert twister.unit(ours) == python.random()


def test_a_philox_stream_gives_its_own_draws():
    stream, again = np.zeros(8, np.uint64), np.zeros(8, np.uint64)
    for s in (stream, again):
        draws.start(s, np.uint64(1), np.uint64(2), np.uint64(draws.SEGMENTS))
    assert [twister.below(stream, 10), twister.unit(stream)] == [draws.below(again, 10), draws.unit(again)]

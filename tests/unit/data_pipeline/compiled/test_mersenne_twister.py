"""The compiled twister draws what Python's `random` draws, in the same order."""

import random

import numpy as np
import pytest

from data_pipeline import rng


@pytest.mark.parametrize("seed", [0, 7, 12345, 2**40])
def test_a_mixture_of_draws_equals_pythons(seed):
    ours, python = rng.python_stream(seed), random.Random(seed)
    choose = random.Random(seed + 1)
    for _ in range(3000):  # several refills of the 624 words
        n = choose.choice([1, 2, 3, 64, 1000, 30522, 2**31, 2**32 - 1])
        assert rng.mersenne_unit(ours) == python.random()
        assert rng.mersenne_below(ours, n) == python.randint(0, n - 1)


@pytest.mark.parametrize("length", [0, 1, 2, 700])
def test_shuffle_equals_pythons(length):
    ours, python = rng.python_stream(3), random.Random(3)
    items, expected = np.arange(length), list(range(length))
    rng.shuffle(ours, items)
    python.shuffle(expected)
    assert items.tolist() == expected
    assert rng.mersenne_unit(ours) == python.random()


def test_a_philox_stream_gives_its_own_draws():
    stream, again = np.zeros(8, np.uint64), np.zeros(8, np.uint64)
    for s in (stream, again):
        rng.start(s, np.uint64(1), np.uint64(2), np.uint64(rng.SEGMENTS))
    assert [rng.mersenne_below(stream, 10), rng.mersenne_unit(stream)] == [
        rng.philox_below(again, 10),
        rng.philox_unit(again),
    ]

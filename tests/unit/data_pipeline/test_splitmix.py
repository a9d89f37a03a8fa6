"""SplitMix64 against published numbers."""

import numpy as np

from data_pipeline.jit import jit
from data_pipeline.rng import derive_key

PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
"""The first numbers of Vigna's splitmix64.c seeded with 1234567, as many other implementations test them."""


@jit
def _keys(key, out):
    for number in range(len(out)):
        out[number] = derive_key(key, number)


def test_keys_derived_from_one_key_are_the_stream_of_splitmix64() -> None:
    out = np.empty(len(PUBLISHED), np.uint64)
    _keys(np.uint64(1234567), out)
    assert out.tolist() == PUBLISHED

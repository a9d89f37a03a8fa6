"""Hash 64-bit words with the finalizer of SplitMix64, in compiled code.

Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"; the constants are those of Stafford's
variant 13.
"""

import numpy as np

from data_pipeline.compiled.jit import inlined

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, made odd: the step from one state of SplitMix64 to the next."""
MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
"""The finalizer's first multiplier, also good for mixing one word after another."""
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


@inlined
def finalize(x):
    """Hash a uint64: a bijection in which every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> np.uint64(30))) * MULTIPLIER
    x = (x ^ (x >> np.uint64(27))) * _MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


@inlined
def derive_key(key, number):
    """Derive a 64-bit key from a key and a number >= 0: state `number + 1` of SplitMix64 seeded with `key`. For a
    fixed key all numbers, and for a fixed number all keys, give different results."""
    return finalize(key + GOLDEN_GAMMA * np.uint64(number + 1))

"""Reproduce the draws of Python's `random.Random(seed)` in compiled code, in the same order.

The exact mode repeats a script that draws from Python's `random`. Its streams, like those of philox.py, are arrays of
uint64; the length tells them apart. So one compiled algorithm serves both modes, and what the golden files prove for
one holds for the other.

Source of the words: MT19937, Matsumoto and Nishimura 1998, "Mersenne Twister". Source of the ranges: CPython's
`random.randint` and `random.shuffle` (draw as many bits as the range needs, and reject words that are too large).
"""

import random

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled import philox
from data_pipeline.compiled.jit import jit

PHILOX_WORDS = 8  # length of a stream of philox.py
_WORDS, _MIDDLE = 624, 397  # length and middle distance of MT19937's state
_UPPER, _LOWER, _MATRIX = np.uint64(0x80000000), np.uint64(0x7FFFFFFF), np.uint64(0x9908B0DF)
_TEMPER_B, _TEMPER_C = np.uint64(0x9D2C5680), np.uint64(0xEFC60000)
_ZERO, _ONE = np.uint64(0), np.uint64(1)


def python_stream(seed: int) -> NDArray[np.uint64]:
    """Return the stream of `random.Random(seed)`: 624 words of state and the position in them."""
    return np.array(random.Random(seed).getstate()[1], np.uint64)


@jit
def _twist(stream):
    for i in range(_WORDS):
        joined = (stream[i] & _UPPER) | (stream[(i + 1) % _WORDS] & _LOWER)
        bit = _MATRIX if joined & _ONE else _ZERO
        stream[i] = stream[(i + _MIDDLE) % _WORDS] ^ (joined >> _ONE) ^ bit
    stream[_WORDS] = _ZERO


@jit
def _word32(stream):
    """Return the next 32 random bits."""
    if stream[_WORDS] >= np.uint64(_WORDS):
        _twist(stream)
    w = stream[np.int64(stream[_WORDS])]
    stream[_WORDS] += _ONE
    w ^= w >> np.uint64(11)
    w ^= (w << np.uint64(7)) & _TEMPER_B
    w ^= (w << np.uint64(15)) & _TEMPER_C
    return w ^ (w >> np.uint64(18))


@jit
def _below32(stream, n):
    """Return `Random.randrange(n)`, n < 2**32. Even n = 1 draws, one bit at a time until it is 0."""
    shift, rest = np.uint64(32), np.uint64(n)
    while rest > _ZERO:
        rest >>= _ONE
        shift -= _ONE
    while True:
        drawn = _word32(stream) >> shift
        if drawn < np.uint64(n):
            return np.int64(drawn)


@jit
def below(stream, n):
    """Draw from 0..n-1 with either kind of stream."""
    if len(stream) == PHILOX_WORDS:
        return philox.below(stream, n)
    return _below32(stream, n)


@jit
def unit(stream):
    """Draw a float64 in [0, 1) with 53 random bits from either kind of stream."""
    if len(stream) == PHILOX_WORDS:
        return philox.unit(stream)
    high, low = _word32(stream) >> np.uint64(5), _word32(stream) >> np.uint64(6)
    return (np.float64(high) * 67108864.0 + np.float64(low)) * (1.0 / 9007199254740992.0)


@jit
def shuffle(stream, items):
    """Shuffle `items` in place, like `Random.shuffle`."""
    for i in range(len(items) - 1, 0, -1):
        j = below(stream, i + 1)
        items[i], items[j] = items[j], items[i]

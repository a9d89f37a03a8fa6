"""Draw random numbers that no library release changes, in compiled code, and hash 64-bit words into keys.

Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") draws random 64-bit words that depend
only on (seed, key, purpose). It is written out so that no library release changes the bytes of a shard. Two ways lead
to the same words: compiled scalar draws for the kernels (`start`, `word`, `philox_below`, `philox_unit`), and `words`
for whole arrays.

MT19937 (Matsumoto and Nishimura 1998, "Mersenne Twister") reproduces the draws of Python's `random.Random(seed)` in
the same order, since the exact mode repeats a script that draws from Python's `random`.

A stream of either kind is an array of uint64; the length tells them apart. `draw_below`, `draw_unit` and
`shuffle` take both. So one compiled algorithm serves both modes, and what the golden files prove for one holds for the
other.
"""

import hashlib
import random

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import inlined, jit, multiply_high

# What a draw is for: the second counter word, so that two uses of one key never share bits.
SEGMENTS, CORRUPT, BLOCK_ORDER, WINDOW_ORDER, HELD_OUT, SHUFFLE = range(6)
PASSES = 16  # passes over a document
DYNAMIC_MASK = 17  # by epoch and number of an example
VOCABULARY = 32  # which documents a vocabulary is trained on
BIN_ORDER = 48  # blocks of one length bin within a shard

_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)


def text_key(text: str) -> int:
    """Return a 64-bit hash of `text` (BLAKE2b), the same on every machine."""
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


@jit
def philox(seed, key, counter, purpose, out):
    """Fill `out` (4 uint64) with block `counter` of the stream (seed, key, purpose)."""
    c0, c1, c2, c3 = np.uint64(counter), np.uint64(purpose), np.uint64(0), np.uint64(0)
    k0, k1 = np.uint64(seed), np.uint64(key)
    for _ in range(10):
        high0, low0 = multiply_high(_M0, c0), _M0 * c0
        high1, low1 = multiply_high(_M1, c2), _M1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += _W0
        k1 += _W1
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3


# A stream of Philox is an array of 8 uint64: four buffered words, then seed, key, purpose and the number of draws so
# far.


@jit
def start(stream, seed, key, purpose):
    """Set `stream` (8 uint64) to the first word of (seed, key, purpose)."""
    stream[4], stream[5], stream[6], stream[7] = seed, key, purpose, np.uint64(0)


@jit
def word(stream):
    """Return the next 64-bit word of `stream`."""
    position = stream[7] & np.uint64(3)
    if position == np.uint64(0):
        philox(stream[4], stream[5], stream[7] >> np.uint64(2), stream[6], stream)
    stream[7] += np.uint64(1)
    return stream[np.int64(position)]


@jit
def philox_below(stream, n):
    """Draw from 0..n-1: the upper half of the product, less than n / 2**64 off uniform."""
    return np.int64(multiply_high(word(stream), np.uint64(n)))


@jit
def philox_unit(stream):
    """Draw a float64 in [0, 1) with 53 random bits."""
    return np.float64(word(stream) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def _fill(seed, key, purpose, stream, out):
    start(stream, seed, key, purpose)
    for i in range(len(out)):
        out[i] = word(stream)


def words(seed: int, key: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` words of the stream (seed, key, purpose)."""
    out = np.empty(count, np.uint64)
    stream = np.zeros(8, np.uint64)
    _fill(np.uint64(seed), np.uint64(key), np.uint64(purpose), stream, out)
    return out


@jit
def _first(seed, keys, purpose, block, out):
    for i in range(len(keys)):
        philox(seed, keys[i], np.uint64(0), purpose, block)
        out[i] = block[0]


def first_words(seed: int, keys: NDArray[np.uint64], purpose: int) -> NDArray[np.uint64]:
    """Return the first word of the stream of each of many keys."""
    out = np.empty(len(keys), np.uint64)
    block = np.zeros(4, np.uint64)
    _first(np.uint64(seed), np.ascontiguousarray(keys), np.uint64(purpose), block, out)
    return out


def permutation(seed: int, key: int, purpose: int, n: int) -> NDArray[np.int64]:
    """Draw a uniform permutation of 0..n-1 (ties of the 64-bit sort keys, at most n**2 / 2**65, are broken by
    index)."""
    return np.argsort(words(seed, key, purpose, n), kind="stable")


# Reproduce the draws of Python's `random.Random(seed)`. The words are those of MT19937. The ranges are those of
# CPython's `random.randint` and `random.shuffle`: draw as many bits as the range needs, and reject words that are too
# large.

PHILOX_WORDS = 8  # length of a stream of Philox
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
def draw_below(stream, n):
    """Draw from 0..n-1 with either kind of stream."""
    if len(stream) == PHILOX_WORDS:
        return philox_below(stream, n)
    return _below32(stream, n)


@jit
def draw_unit(stream):
    """Draw a float64 in [0, 1) with 53 random bits from either kind of stream."""
    if len(stream) == PHILOX_WORDS:
        return philox_unit(stream)
    high, low = _word32(stream) >> np.uint64(5), _word32(stream) >> np.uint64(6)
    return (np.float64(high) * 67108864.0 + np.float64(low)) * (1.0 / 9007199254740992.0)


@jit
def shuffle(stream, items):
    """Shuffle `items` in place, like `Random.shuffle`."""
    for i in range(len(items) - 1, 0, -1):
        j = draw_below(stream, i + 1)
        items[i], items[j] = items[j], items[i]


# Hash 64-bit words with the finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators"). The constants are those of Stafford's variant 13.

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

"""Draw random 64-bit words that depend only on (seed, key, purpose).

Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), written out so that no library
release changes the bytes of a shard. Two ways to the same words: compiled scalar draws for the kernels (`start`,
`word`, `below`, `unit`), and `words` for whole arrays.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.intrinsics import multiply_high
from data_pipeline.compiled.jit import jit

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


# A stream is an array of 8 uint64: four buffered words, then seed, key, purpose and the number of draws so far.


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
def below(stream, n):
    """Draw from 0..n-1: the upper half of the product, less than n / 2**64 off uniform."""
    return np.int64(multiply_high(word(stream), np.uint64(n)))


@jit
def unit(stream):
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

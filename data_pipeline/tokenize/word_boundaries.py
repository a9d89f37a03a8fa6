"""Find where the words of UTF-8 text begin and end, 64 bytes at a time, in compiled code.

What counts as a word here is what BERT's pre-tokenizer can never join with its neighbours: text between white space,
and single characters of punctuation or Chinese. Everything else (accents, case, other scripts' punctuation and white
space) stays within a word and is the library's business, once for every distinct word.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.intrinsics import trailing_zeros
from data_pipeline.compiled.jit import inlined

WINDOW = 64
"""Bytes looked at together, one bit each; a text is followed by so many spaces, which are no part of it."""
LONGEST_RUN = 1 << 20
"""Text without any border for so many bytes is cut here, since the library needs some hundred bytes for each."""

# What a byte means where a word may begin or end: one bit in each sixteen, so that sixteen bytes are looked up into one
# number. A WIDE byte may begin a character that stands by itself.
PLAIN, ALONE, END, WIDE = (1 << n for n in (0, 16, 32, 48))
SPACE = 0
_QUARTER = np.uint64(0xFFFF)

# Places in the text are unsigned: of an int64 numba asks at every use whether it counts from the end.
_ZERO, _ONE, _TWO, _THREE, _WINDOW = (np.uint64(n) for n in (0, 1, 2, 3, WINDOW))


def byte_kinds(punctuation: bool, chinese: bool) -> NDArray[np.uint64]:
    """(256,): the kind of every byte; whether characters of punctuation, and Chinese ones, always stand apart."""
    kinds = np.full(256, PLAIN, np.uint64)
    kinds[[*b"\t\r "]] = SPACE
    kinds[ord("\n")] = END
    if punctuation:
        kinds[[*b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]] = ALONE
        kinds[0xE2] = WIDE  # U+2010..U+2027: dashes, quotation marks, the ellipsis
    if chinese:
        kinds[0xE4:0xEA] = WIDE  # U+4E00..U+9FFF
    return kinds


@inlined
def stands_alone(data, position):
    """Whether the WIDE byte at `position` begins a character that is a word by itself, in three bytes."""
    lead, second, third = data[position], data[position + _ONE], data[position + _TWO]
    if lead == 0xE2:
        return second == 0x80 and 0x90 <= third <= 0xA7
    return lead > 0xE4 or second >= 0xB8


@inlined
def kind_bits(data, base, kinds):
    """Bit i of four numbers: whether data[base + i] is PLAIN, ALONE, END and WIDE."""
    plain, alone, end, wide = _ZERO, _ZERO, _ZERO, _ZERO
    for quarter in range(4):
        first, found = np.uint64(16 * quarter), _ZERO
        for i in range(16):
            found |= kinds[data[base + first + np.uint64(i)]] << np.uint64(i)
        plain |= (found & _QUARTER) << first
        alone |= ((found >> np.uint64(16)) & _QUARTER) << first
        end |= ((found >> np.uint64(32)) & _QUARTER) << first
        wide |= (found >> np.uint64(48)) << first
    return plain, alone, end, wide


@inlined
def parted(data, base, bits, inside):
    """What `kind_bits` found, with each WIDE byte counted as what it is: `plain`, or in `alone` and in `threes` where
    its character stands by itself, whose other two bytes are then nothing. `inside`: how many such bytes the window
    begins with, and what it becomes for the next one."""
    plain, alone, end, wide = bits
    plain &= ~((_ONE << inside) - _ONE)
    inside, threes = _ZERO, _ZERO
    while wide:
        i = trailing_zeros(wide)
        wide &= wide - _ONE
        if stands_alone(data, base + i):
            threes |= _ONE << i
            plain &= ~(_THREE << i << _ONE)
            if i + _THREE > _WINDOW:
                inside = i + _THREE - _WINDOW
        else:
            plain |= _ONE << i
    return plain, alone | threes, end, threes, inside


@inlined
def character_end(data, position, size):
    """`position`, or behind the character that it lies within."""
    while position < size and data[position] & 0xC0 == 0x80:
        position += _ONE
    return position

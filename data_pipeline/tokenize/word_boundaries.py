"""Find the word boundaries of UTF-8 text, 64 bytes at a time, in compiled code.

A word here is what BERT's pre-tokenizer can never join with its neighbours: text between white space, and single
characters of punctuation or Chinese. Everything else (accents, case, other scripts' punctuation and white space)
stays within a word and is left to the library, once per distinct word.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import inlined, trailing_zeros

WINDOW = 64
"""Bytes examined together, one bit each; a text is padded with this many spaces."""
LONGEST_RUN = 1 << 20
"""Text without a border is cut after this many bytes, since the library needs about a hundred bytes for each."""

# The kind of a byte: one bit in each group of sixteen, so that the kinds of sixteen bytes fit into one number. A WIDE
# byte may begin a character that is a word by itself.
PLAIN, ALONE, END, WIDE = (1 << n for n in (0, 16, 32, 48))
SPACE = 0
_QUARTER = np.uint64(0xFFFF)

# Positions in the text are unsigned: for an int64, numba checks at every use whether it is negative.
_ZERO, _ONE, _TWO, _THREE, _WINDOW = (np.uint64(n) for n in (0, 1, 2, 3, WINDOW))


def byte_kinds(punctuation: bool, chinese: bool) -> NDArray[np.uint64]:
    """Return (256,): the kind of every byte. The flags: whether punctuation, and Chinese, characters are words."""
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
    """Return whether the WIDE byte at `position` begins a three-byte character that is a word by itself."""
    lead, second, third = data[position], data[position + _ONE], data[position + _TWO]
    if lead == 0xE2:
        return second == 0x80 and 0x90 <= third <= 0xA7
    return lead > 0xE4 or second >= 0xB8


@inlined
def kind_bits(data, base, kinds):
    """Return four numbers; their bits i: whether data[base + i] is PLAIN, ALONE, END and WIDE."""
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
    """Resolve the WIDE bytes of `kind_bits`: each becomes `plain`, or, if its character is a word by itself, is set in
    `alone` and `threes`, and the character's other two bytes in none. `inside`: the number of such bytes at the start
    of the window; returned for the next window."""
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
    """Return `position`, or the end of the character that contains it."""
    while position < size and data[position] & 0xC0 == 0x80:
        position += _ONE
    return position

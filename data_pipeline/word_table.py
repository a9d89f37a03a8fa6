"""UTF-8 text in, the ids of its words out: an exact hash table from words to ids, in compiled code.

What counts as a word here is what BERT's pre-tokenizer can never join with its neighbours: text between white space,
and single characters of punctuation or Chinese. Everything else (accents, case, other scripts' punctuation and white
space) stays within a word and is the library's business, once for every distinct word.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import jit

LONGEST_CACHED = 64
"""Longer words, in bytes, are looked up anew each time: they are rare, and would fill the table."""
LONGEST_RUN = 1 << 20
"""Text without any border for so many bytes is cut here, since the library needs some hundred bytes for each."""

# What a byte means where a word may begin or end. A WIDE byte may begin a character that stands by itself.
PLAIN, SPACE, END, ALONE, WIDE = range(5)


def byte_kinds(punctuation: bool, chinese: bool) -> NDArray[np.uint8]:
    """(256,): the kind of every byte; whether characters of punctuation, and Chinese ones, always stand apart."""
    kinds = np.full(256, PLAIN, np.uint8)
    kinds[[*b"\t\r "]] = SPACE
    kinds[ord("\n")] = END
    if punctuation:
        kinds[[*b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]] = ALONE
        kinds[0xE2] = WIDE  # U+2010..U+2027: dashes, quotation marks, the ellipsis
    if chinese:
        kinds[0xE4:0xEA] = WIDE  # U+4E00..U+9FFF
    return kinds


@jit
def stands_alone(data, position):
    """Whether the WIDE byte at `position` begins a character that is a word by itself, in three bytes."""
    lead, second, third = data[position], data[position + 1], data[position + 2]
    if lead == 0xE2:
        return second == 0x80 and 0x90 <= third <= 0xA7
    return lead > 0xE4 or second >= 0xB8


@jit
def read_word(data, position, kinds):
    """Where the word that begins at `position` ends, and its hash. Two words of one length of at most 8 bytes have
    different hashes, since every step from the bytes to the hash can be undone."""
    kind = kinds[data[position]]
    if kind == ALONE:
        width = 1
    elif kind == WIDE and stands_alone(data, position):
        width = 3
    else:
        width = LONGEST_RUN
    value, block, shift = np.uint64(0), np.uint64(0), np.uint64(0)
    stop = position
    while stop < len(data) and stop - position < width:
        if stop > position and width == LONGEST_RUN:
            kind = kinds[data[stop]]
            if kind != PLAIN and (kind != WIDE or stands_alone(data, stop)):
                break
        block |= np.uint64(data[stop]) << shift
        shift += np.uint64(8)
        stop += 1
        if shift == np.uint64(64):
            value = mixed(value ^ block)
            block = shift = np.uint64(0)
    while stop < len(data) and data[stop] & 0xC0 == 0x80:  # LONGEST_RUN ended within a character
        stop += 1
    return stop, mixed(value ^ block)


@jit
def mixed(value):
    """A one-to-one scrambling of 64 bits."""
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@jit
def same_bytes(data, position, arena, start, size):
    """Whether data[position:] and arena[start:] agree in `size` bytes."""
    same = True
    for i in range(size):
        same &= data[position + i] == arena[start + i]
    return same


@jit
def number_of(data, position, stop, value, table, known):
    """Number of the word data[position:stop], whose hash is `value`: as it was given, or `known`, with which it is
    entered now."""
    slots, hashes, arena, starts = table
    size, mask = stop - position, len(slots) - 1
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        number = slots[slot]
        start = starts[number]
        if (
            hashes[number] == value
            and starts[number + 1] - start == size
            and (size <= 8 or same_bytes(data, position, arena, start, size))
        ):
            return number
        slot = (slot + 1) & mask
    slots[slot], hashes[known] = known, value
    for i in range(size):
        arena[starts[known] + i] = data[position + i]
    starts[known + 1] = starts[known] + size
    return np.int32(known)


@jit
def fill_slots(slots, hashes, known):
    """Enters the first `known` words into the empty `slots`."""
    mask = len(slots) - 1
    for number in range(known):
        slot = np.int64(hashes[number]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@jit
def find_words(data, position, kinds, table, known, found, ends, long):
    """Numbers the words of `data` from `position` on, until it ends, or a buffer, the table or half of its
    slots are full.

    found[w]: number of word w, or -1 - k for the k-th long one, which is data[long[k, 0]:long[k, 1]];
    ends[s]: words before the end of sentence s. Returns the new position, words in the table, words found,
    sentences ended and long words."""
    words, sentences, longs = 0, 0, 0
    most_known = min(len(table[0]) // 2, len(table[1]))
    while position < len(data) and words < len(found) and known < most_known and longs < len(long):
        kind = kinds[data[position]]
        if kind == SPACE:
            position += 1
        elif kind == END:
            if sentences == len(ends):
                break
            ends[sentences] = words
            sentences += 1
            position += 1
        else:
            stop, value = read_word(data, position, kinds)
            if stop - position > LONGEST_CACHED:
                long[longs, 0], long[longs, 1] = position, stop
                longs += 1
                found[words] = -longs
            else:
                found[words] = number_of(data, position, stop, value, table, known)
                known += found[words] == known
            words += 1
            position = stop
    return position, known, words, sentences, longs


@jit
def count_ids(found, ends, id_starts, long_starts, out):
    """out[s]: ids before the end of sentence s; returns the ids of all words."""
    total, sentence = 0, 0
    for w in range(len(found)):
        while sentence < len(ends) and ends[sentence] == w:
            out[sentence] = total
            sentence += 1
        number = found[w]
        if number >= 0:
            total += id_starts[number + 1] - id_starts[number]
        else:
            total += long_starts[-number] - long_starts[-number - 1]
    out[sentence:] = total
    return total


@jit
def write_ids(found, ids, id_starts, long_ids, long_starts, out):
    """The ids of all words, one after another, into `out`."""
    at = 0
    for number in found:
        if number >= 0:
            for i in range(id_starts[number], id_starts[number + 1]):
                out[at] = ids[i]
                at += 1
        else:
            for i in range(long_starts[-number - 1], long_starts[-number]):
                out[at] = long_ids[i]
                at += 1

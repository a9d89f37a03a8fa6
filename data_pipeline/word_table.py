"""UTF-8 text in, the ids of its words out: an exact hash table from words to ids, in compiled code.

What counts as a word here is what BERT's pre-tokenizer can never join with its neighbours: text between white space,
and single characters of punctuation or Chinese. Everything else (accents, case, other scripts' punctuation and white
space) stays within a word and is the library's business, once for every distinct word.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.bits import load_word, trailing_zeros
from data_pipeline.draws import inlined, jit

LONGEST_CACHED = 64
"""Longer words, in bytes, are looked up anew each time: they are rare, and would fill the table."""
LONGEST_RUN = 1 << 20
"""Text without any border for so many bytes is cut here, since the library needs some hundred bytes for each."""

# What a byte means where a word may begin or end. A WIDE byte may begin a character that stands by itself.
PLAIN, SPACE, END, ALONE, WIDE = range(5)

# Places in the text are unsigned: of an int64 numba asks at every use whether it counts from the end.
_ONE, _TWO = np.uint64(1), np.uint64(2)


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


@inlined
def stands_alone(data, position):
    """Whether the WIDE byte at `position` begins a character that is a word by itself, in three bytes."""
    lead, second, third = data[position], data[position + _ONE], data[position + _TWO]
    if lead == 0xE2:
        return second == 0x80 and 0x90 <= third <= 0xA7
    return lead > 0xE4 or second >= 0xB8


@inlined
def border_bits(data, base, kinds):
    """Bit i: whether data[base + i] is anything but PLAIN, or beyond the end."""
    bits, count = np.uint64(0), np.uint64(len(data)) - base
    if count >= 64:
        for i in range(64):
            bits |= np.uint64(kinds[data[base + np.uint64(i)]] != PLAIN) << np.uint64(i)
        return bits
    for i in range(count):
        bits |= np.uint64(kinds[data[base + np.uint64(i)]] != PLAIN) << np.uint64(i)
    return bits | (~np.uint64(0) << count)


@inlined
def run_end(data, position, window, kinds):
    """Where the word ends that begins at `position` and is no single character. `window`: where the 64 bytes begin
    whose borders are known, and these; what they become is returned too."""
    base, bits = window
    size, stop = np.uint64(len(data)), position + _ONE
    while stop - position < np.uint64(LONGEST_RUN):
        if stop - base >= np.uint64(64):
            base, bits = stop, border_bits(data, stop, kinds)
        ahead = bits >> (stop - base)
        if ahead == np.uint64(0):
            stop = base + np.uint64(64)
            continue
        stop += trailing_zeros(ahead)
        if stop >= size or kinds[data[stop]] != WIDE or stands_alone(data, stop):
            break
        stop += _ONE
    if stop - position < np.uint64(LONGEST_RUN):
        return stop, base, bits
    stop = position + np.uint64(LONGEST_RUN)
    while stop < size and data[stop] & 0xC0 == 0x80:  # LONGEST_RUN ended within a character
        stop += _ONE
    return stop, base, bits


@inlined
def hash_of(data, position, stop):
    """The hash of data[position:stop]. Two words of one length of at most 8 bytes have different hashes, since every
    step from the bytes to the hash can be undone."""
    value = np.uint64(0)
    while position + np.uint64(8) <= stop:
        value = mixed(value ^ load_word(data, position))
        position += np.uint64(8)
    rest = stop - position
    if position + np.uint64(8) <= np.uint64(len(data)):
        block = load_word(data, position) & ((_ONE << (np.uint64(8) * rest)) - _ONE)
    else:
        block = np.uint64(0)
        for i in range(rest):
            block |= np.uint64(data[position + np.uint64(i)]) << np.uint64(8 * i)
    return mixed(value ^ block)


@inlined
def mixed(value):
    """A one-to-one scrambling of 64 bits."""
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@inlined
def same_bytes(data, position, arena, start, size):
    """Whether data[position:] and arena[start:] agree in `size` bytes."""
    same = True
    for i in range(size):
        same &= data[position + i] == arena[start + i]
    return same


@inlined
def number_of(data, position, stop, value, table, known):
    """Number of the word data[position:stop], whose hash is `value`: as it was given, or `known`, with which it is
    entered now."""
    slots, hashes, arena, starts = table
    size, mask = stop - position, np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot] >= 0:
        number = np.uint64(slots[slot])
        start = np.uint64(starts[number])
        if (
            hashes[number] == value
            and np.uint64(starts[number + _ONE]) - start == size
            and (size <= 8 or same_bytes(data, position, arena, start, size))
        ):
            return slots[slot]
        slot = (slot + _ONE) & mask
    slots[slot], hashes[known] = known, value
    start = np.uint64(starts[known])
    for i in range(size):
        arena[start + i] = data[position + i]
    starts[known + 1] = start + size
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
    words, sentences, longs = np.uint64(0), np.uint64(0), 0
    most_known = min(len(table[0]) // 2, len(table[1]))
    at, size = np.uint64(position), np.uint64(len(data))
    most_words, most_sentences = np.uint64(len(found)), np.uint64(len(ends))
    base, bits = at, border_bits(data, at, kinds)
    while at < size and words < most_words and known < most_known and longs < len(long):
        kind = kinds[data[at]]
        if kind == SPACE:
            at += _ONE
            continue
        if kind == END:
            if sentences == most_sentences:
                break
            ends[sentences] = words
            sentences += _ONE
            at += _ONE
            continue
        if kind == ALONE:
            stop = at + _ONE
        elif kind == WIDE and stands_alone(data, at):
            stop = at + np.uint64(3)
        else:
            stop, base, bits = run_end(data, at, (base, bits), kinds)
        if stop - at > np.uint64(LONGEST_CACHED):
            long[longs, 0], long[longs, 1] = at, stop
            longs += 1
            found[words] = -longs
        else:
            number = number_of(data, at, stop, hash_of(data, at, stop), table, known)
            found[words] = number
            known += number == known
        words += _ONE
        at = stop
    return np.int64(at), known, np.int64(words), np.int64(sentences), longs


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

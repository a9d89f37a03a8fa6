"""Find the words of UTF-8 text and look up their ids in an exact hash table, in compiled code.

A word here is what BERT's pre-tokenizer can never join with its neighbours: text between white space, and single
characters of punctuation or Chinese. Everything else (accents, case, other scripts' punctuation and white space)
stays within a word and is left to the library, once per distinct word.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import inlined, jit, load_word, trailing_zeros

# Find the word boundaries, 64 bytes at a time.

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
_ZERO, _ONE, _TWO, _THREE, _EIGHT, _WINDOW = (np.uint64(n) for n in (0, 1, 2, 3, 8, WINDOW))


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


# Number the words of a text by a hash table, and write the ids of numbered words.

LONGEST_CACHED = 64
"""Maximum bytes of a cached word; longer ones are encoded each time: they are rare, and would fill the table."""
TOGETHER = 256
"""Words found before they are looked up, so that their memory accesses overlap."""
ROOM = TOGETHER + WINDOW + 1
"""Maximum words that may be found, and be new, before the next check for free space."""

# A slot of the table is a word's hash and, packed in one number, the start and size of its bytes and the word's number:
# one cache line is enough for nearly every word.
EMPTY = np.uint64(2**64 - 1)
_SIZE_AT, _START_AT = np.uint64(24), np.uint64(32)
_NUMBER_BITS, _SIZE_BITS = np.uint64(2**24 - 1), np.uint64(255)

_ALL_BITS = np.uint64(2**64 - 1)
_NONE = _ALL_BITS


@inlined
def hash_of(data, position, size):
    """Return the hash of `size` bytes, at least one. Different words of the same length of at most 8 bytes have
    different hashes, since every step from the bytes to the hash is invertible."""
    if size <= _EIGHT:
        return mixed(load_word(data, position) & (_ALL_BITS >> (_EIGHT * (_EIGHT - size))))
    value, at, last = mixed(load_word(data, position)), position + _EIGHT, position + size - _EIGHT
    while at < last:
        value = mixed(value ^ load_word(data, at))
        at += _EIGHT
    return mixed(value ^ load_word(data, last))  # it may overlap the one before


@inlined
def mixed(value):
    """Mix 64 bits, one to one."""
    value = (value ^ (value >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(29))


@inlined
def same_bytes(data, position, arena, start, size):
    """Return whether data[position:] and arena[start:] agree in `size` bytes, more than 8."""
    at, last = np.uint64(0), size - _EIGHT
    same = load_word(data, position + last) == load_word(arena, start + last)
    while same and at < last:
        same = load_word(data, position + at) == load_word(arena, start + at)
        at += _EIGHT
    return same


@inlined
def number_of(data, position, size, value, slots, arena, starts, known):
    """Return the number of the word of `size` bytes at `position` with the hash `value`; a new word is entered with
    the number `known`."""
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot, 1] != EMPTY:
        entry = slots[slot, 1]
        if (
            slots[slot, 0] == value
            and (entry >> _SIZE_AT) & _SIZE_BITS == size
            and (size <= _EIGHT or same_bytes(data, position, arena, entry >> _START_AT, size))
        ):
            return np.int32(entry & _NUMBER_BITS)
        slot = (slot + _ONE) & mask
    start = np.uint64(starts[known])
    slots[slot, 0] = value
    slots[slot, 1] = np.uint64(known) | (size << _SIZE_AT) | (start << _START_AT)
    for i in range(size):
        arena[start + i] = data[position + i]
    starts[known + 1] = start + size
    return np.int32(known)


@jit
def fill_slots(slots, old):
    """Enter the words of the `old` slots into the empty, larger table `slots`."""
    mask = np.uint64(len(slots) - 1)
    for i in range(len(old)):
        if old[i, 1] != EMPTY:
            slot = old[i, 0] & mask
            while slots[slot, 1] != EMPTY:
                slot = (slot + _ONE) & mask
            slots[slot, 0], slots[slot, 1] = old[i, 0], old[i, 1]


@inlined
def note(data, start, stop, places, sizes, hashes, count, long, longs):
    """Record word number `count`, data[start:stop]: its position, size and hash. A long word is added to `long`, with
    size 0 and its number there, from 1, in place of the hash. Return the number of long words."""
    size = stop - start
    if size > np.uint64(LONGEST_CACHED):
        long[longs, 0], long[longs, 1] = start, stop
        longs += _ONE
        sizes[count], hashes[count] = _ZERO, longs
    else:
        places[count], sizes[count], hashes[count] = start, size, hash_of(data, start, size)
    return longs


@jit
def find_words(data, position, kinds, table, known, found, ends, long, batch):
    """Number the words of `data`, which ends with WINDOW spaces, from `position` on, until it ends, or a buffer, the
    table or half of its slots might overflow.

    found[w]: number of word w, or -1 - k for the k-th long one, which is data[long[k, 0]:long[k, 1]];
    ends[s]: words before the end of sentence s; batch: three arrays (ROOM,) to work in. Returns the new position, words
    in the table, words found, sentences ended and long words."""
    base, size = np.uint64(position), np.uint64(len(data) - WINDOW)
    start, inside = (
        _NONE,
        _ZERO,
    )  # of a word that continues from the window before, and the bytes of such a character
    words, sentences, longs = _ZERO, _ZERO, _ZERO
    places, sizes, hashes = batch
    slots, arena, starts = table
    most_known = min(len(slots) // 2, len(starts) - 1) - ROOM
    most_words, most_longs = np.uint64(len(found) - ROOM), np.uint64(len(long) - ROOM)
    most_sentences = np.uint64(len(ends) - WINDOW)
    cut = False
    while base < size and not cut and words <= most_words and known <= most_known and longs <= most_longs:
        if sentences > most_sentences:
            break
        count = _ZERO
        while base < size and count < np.uint64(TOGETHER) and sentences <= most_sentences:
            bits = kind_bits(data, base, kinds)
            plain, alone, end, threes, inside = parted(data, base, bits, inside)
            if start != _NONE:
                run = trailing_zeros(~plain)
                if run == _WINDOW and base + _WINDOW - start < np.uint64(LONGEST_RUN):
                    base += _WINDOW
                    continue
                stop = base + run
                if stop - start >= np.uint64(LONGEST_RUN):
                    stop, cut = character_end(data, start + np.uint64(LONGEST_RUN), size), True
                longs = note(data, start, stop, places, sizes, hashes, count, long, longs)
                count, start = count + _ONE, _NONE
                if cut:
                    base = stop
                    break
                plain &= ~((_ONE << run) - _ONE)
            events = (plain & ~(plain << _ONE)) | alone | end
            while events:
                i = trailing_zeros(events)
                events &= events - _ONE
                if (end >> i) & _ONE:
                    ends[sentences] = words + count
                    sentences += _ONE
                    continue
                # either a run of PLAIN bytes, or a character that is a word by itself
                stop = (
                    i + trailing_zeros(~(plain >> i)) + ((alone >> i) & _ONE) + _TWO * ((threes >> i) & _ONE)
                )
                if stop == _WINDOW and (plain >> i) & _ONE:
                    start = base + i
                    break
                longs = note(data, base + i, base + stop, places, sizes, hashes, count, long, longs)
                count += _ONE
            base += _WINDOW
        for i in range(count):
            if sizes[i]:
                number = number_of(data, places[i], sizes[i], hashes[i], slots, arena, starts, known)
                found[words] = number
                known += number == known
            else:
                found[words] = -np.int32(hashes[i])
            words += _ONE
    if start != _NONE:
        base = start
    elif not cut:
        base += inside
    return np.int64(base), known, np.int64(words), np.int64(sentences), np.int64(longs)


@jit
def count_ids(found, ends, id_starts, long_starts, out):
    """Count ids. out[s]: ids before the end of sentence s; returns the ids of all words."""
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
    """Write the ids of all words, in order, into `out`."""
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

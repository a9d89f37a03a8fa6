"""Encode words with the tokenizers library in a few long calls instead of many short ones.

A call costs more than encoding a word. Words of ASCII letters are passed as one text, separated by spaces: no
normaliser or pre-tokenizer joins or splits them. All others are passed as pre-tokenized input, which the library
processes one by one. In both cases it reports the word of each id.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.io.npy import offsets_of

_GROUP = 512  # words per text


def encode_words(
    tokenizer: Tokenizer, words: list[bytes], dtype: np.dtype, before: str = ""
) -> tuple[NDArray, NDArray[np.int64]]:
    """Return the ids of words (UTF-8), each encoded after `before` (nothing or a space) as if alone and without special
    tokens: flat, and where the ids of each word begin (words + 1)."""
    plain = np.fromiter((word.isalpha() and word.isascii() for word in words), np.bool_, len(words))
    ids, lengths = np.empty(0, dtype), np.zeros(len(words), np.int64)
    places = [np.flatnonzero(plain), np.flatnonzero(~plain)]
    parts = []
    for chosen, together in zip(places, (True, False), strict=True):
        texts = [words[n].decode("utf-8") for n in chosen]
        for first, found, counts in _encoded(tokenizer, texts, before, together):
            lengths[chosen[first : first + len(counts)]] = counts
            parts.append(found)
    starts = offsets_of(lengths)
    if not parts:
        return ids, starts
    # the ids are in the order of `places`: reorder them by word
    order = np.argsort(np.repeat(np.concatenate(places), lengths[np.concatenate(places)]), kind="stable")
    return np.concatenate(parts).astype(dtype)[order], starts


def _encoded(
    tokenizer: Tokenizer, texts: list[str], before: str, together: bool
) -> Iterator[tuple[int, NDArray, NDArray[np.int64]]]:
    """Yield for each group of texts: index of its first text, ids, and the number of ids per text."""
    # encode_batch_fast does not report the word of an id
    groups = [[before + text for text in texts[i : i + _GROUP]] for i in range(0, len(texts), _GROUP)]
    if together:
        separator = "" if before else " "
        lines = [separator.join(group) for group in groups]
        encodings = tokenizer.encode_batch(lines, add_special_tokens=False)
    else:
        encodings = tokenizer.encode_batch(groups, is_pretokenized=True, add_special_tokens=False)
    for number, (group, encoding) in enumerate(zip(groups, encodings, strict=True)):
        counts = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(group))
        yield number * _GROUP, np.array(encoding.ids, np.uint32), counts

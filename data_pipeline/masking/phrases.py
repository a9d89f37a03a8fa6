"""Join words into phrases and names that are masked as one, and draw how many words spans and n-grams have.

A phrase (Sun et al. 2019, ERNIE, section 3) is, in this order: the longest lexicon entry that starts and ends at word
boundaries; in English text, for masking=phrase, a chunk: up to CHUNK_WORDS consecutive words that are neither
closed-class words (articles, prepositions, pronouns, auxiliaries, ...) nor punctuation; else a single word. All are
found in token ids, so this works on shards as well as on text.

The lexicon is UTF-8 text with one phrase or name per line, tokenized like any text. A line with a word unknown to the
vocabulary is skipped: [UNK] would match any such word.

How many consecutive words or phrases are masked together:

    ALONE    one word or phrase
    NGRAM    n words, n with probability proportional to 1/n (Lan et al. 2020, ALBERT, section 3.1)
    SPAN     n words, n geometric and truncated at the maximum (Joshi et al. 2020, SpanBERT, section 3.1)

Neither an n-gram nor a span extends past the end of its segment: text on both sides of a [SEP] is not one phrase.
(ALBERT's script, of google-research/albert, continues there.) A word is what the vocabulary says: in a unigram
vocabulary the pieces between two spaces, where that script also begins a word at punctuation, digits and any character
beyond a to z.
"""

from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.io.npy import offsets_of
from data_pipeline.jit import jit
from data_pipeline.rng import GOLDEN_GAMMA, draw_unit
from data_pipeline.settings import DataSettings
from data_pipeline.tokenize.tokenize import WordCache

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


# Draw the lengths of spans and n-grams, and find where they end.

ALONE, NGRAM, SPAN = range(3)


def geometric(p: float, longest: int) -> NDArray[np.float64]:
    """Compute cumulative weights (longest,): the probability of at most n words is [n - 1] / [longest - 1]. The tail of
    the geometric distribution is cut off and the rest renormalised, as in SpanBERT's script, not put on the longest."""
    return np.cumsum((1.0 - p) ** np.arange(longest))


def harmonic(longest: int) -> NDArray[np.float64]:
    """Compute the same for n with probability proportional to 1/n."""
    return np.cumsum(1.0 / np.arange(1, longest + 1))


@jit
def draw_length(stream, lengths, most):
    """Draw a number of words, at most `most`, from the cumulative weights `lengths`."""
    place = draw_unit(stream) * lengths[most - 1]
    n = 1
    while n < most and lengths[n - 1] <= place:
        n += 1
    return n


@jit
def follows(members, starts, group):
    """Return whether group `group` directly follows the one before it, in the same segment."""
    return members[starts[group]] == members[starts[group] - 1] + 1


@jit
def ngram_end(stream, lengths, room, groups, members, starts, covered, first):
    """Return the group after the n-gram that begins with group `first`; `first` itself if none fits.

    The length is drawn from those that fit into the segment: ALBERT's script draws from all of them, and takes what
    is left where the sequence ends. As in that script, an n-gram of more than `room` tokens, the number left to mask,
    is shortened, and one that contains a masked word is dropped."""
    most = 1
    while most < len(lengths) and first + most < groups and follows(members, starts, first + most):
        most += 1
    stop = first + draw_length(stream, lengths, most)
    while stop > first and starts[stop] - starts[first] > room:
        stop -= 1
    for m in range(starts[first], starts[stop]):
        if covered[members[m]]:
            return first
    return stop


@jit
def span_end(stream, lengths, room, groups, members, starts, covered, first):
    """Return the group after the span that begins with group `first`; `first` itself if it is masked or too long.

    Words already masked count towards its length but use no budget. SpanBERT's script cuts the last word where the
    budget ends; here a span ends before a word that would not fit, so that no word is partly masked."""
    if covered[members[starts[first]]]:
        return first
    stop = first + draw_length(stream, lengths, len(lengths))
    group = first
    while group < min(stop, groups) and (group == first or follows(members, starts, group)):
        if not covered[members[starts[group]]]:
            room -= starts[group + 1] - starts[group]
            if room < 0:
                break
        group += 1
    return group


# Find the phrases of a lexicon and of the chunker.

CHUNK_WORDS = 4
"""Maximum words of a chunk; a longer run is cut after this many."""
CLOSED_CLASS = "closed_class_words.en.txt"
"""File in this package with the English closed-class words."""

_LEXICON, _CLOSED, _INNER = (
    np.uint8(1),
    np.uint8(2),
    np.uint8(4),
)  # what ends at a node; that an edge leaves it
_S29, _S32 = np.uint64(29), np.uint64(32)
_NOWHERE = -1


class PhraseTable(NamedTuple):
    """A trie over ids, stored as a hash table: the edge (node, id) leads to a node. Node 0 is the root."""

    edges: NDArray[np.uint64]  # (slots,) node * 2**32 + id + 1; 0: free
    nodes: NDArray[np.int32]  # (slots,) where the edge leads
    heads: NDArray[np.int32]  # (vocabulary,) where the edges of the root lead; -1: no edge
    ends: NDArray[
        np.uint8
    ]  # (nodes,) bits: an entry of the lexicon ends there, a closed-class word does, edges leave
    punctuation: NDArray[np.bool_]  # (vocabulary,) pieces without a letter or digit
    chunk_words: int  # maximum words of a chunk; 0: no chunks


def no_phrases() -> PhraseTable:
    """Return the empty table, for kinds of masking without phrases."""
    return _table(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint8), np.zeros(0, bool), 0)


def phrase_table(settings: DataSettings, vocabulary: "Vocabulary", chunks: bool) -> PhraseTable:
    """Build the table of `settings.lexicon` and, with `chunks` and only English text, of the chunker. Raises UserError
    for an unreadable or empty lexicon, and if there are neither lexicon nor chunks."""
    chunks = chunks and set(settings.languages or ["en"]) == {"en"}
    lexicon = read_lexicon(settings.lexicon) if settings.lexicon else []
    if not lexicon and not chunks:
        raise UserError(
            "is empty, and nothing else tells what to mask as one",
            where="data.lexicon",
            expected="a text file, a phrase or name a line",
            remedy="chunks of words are found in English only, for masking=phrase",
        )
    closed = closed_class_words() if chunks else []
    ids, lengths = WordCache(vocabulary).encode([*lexicon, *closed])
    marks = np.repeat(np.array([_LEXICON, _CLOSED]), [len(lexicon), len(closed)])
    offsets = offsets_of(lengths)
    known = np.array([vocabulary.unk not in ids[a:b] for a, b in pairwise(offsets)], bool)
    marks[(lengths == 0) | ~known] = 0
    if lexicon and not (marks == _LEXICON).any():
        raise UserError(
            "no line of it is made of words that the vocabulary knows",
            where=settings.lexicon,
            expected="phrases in the language of the vocabulary",
            remedy="check data.lexicon",
        )
    return _table(ids, offsets, marks, _punctuation(vocabulary), CHUNK_WORDS if chunks else 0)


def read_lexicon(path: str) -> list[str]:
    """Read the stripped, non-empty lines of a lexicon. Raises UserError if it is missing, not UTF-8, or empty."""
    expected = "a UTF-8 text file, a phrase or name a line"
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UserError("no such file", where=path, expected=expected, remedy="check data.lexicon") from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error}", where=path, expected=expected, remedy="convert it") from None
    entries = [line.strip() for line in lines if line.strip()]
    if not entries:
        raise UserError("holds no entry", where=path, expected=expected, remedy="check data.lexicon")
    return entries


def closed_class_words() -> list[str]:
    """Read the English closed-class words of this package, each as listed, capitalised and in upper case."""
    words = files("data_pipeline.masking").joinpath(CLOSED_CLASS).read_text(encoding="utf-8").split()
    return sorted({form for word in words for form in (word, word.capitalize(), word.upper())})


def _punctuation(vocabulary: "Vocabulary") -> NDArray[np.bool_]:
    """Return (vocabulary,): which pieces have no letter or digit; part of a multi-byte character counts as a letter."""
    pieces = vocabulary.tokenizer.decode_batch(
        [[i] for i in range(vocabulary.size)], skip_special_tokens=False
    )
    return np.array([not any(c.isalnum() or c == "\ufffd" for c in piece) for piece in pieces], np.bool_)


def _table(
    ids: NDArray, offsets: NDArray[np.int64], marks: NDArray[np.uint8], punctuation: NDArray, chunk_words: int
) -> PhraseTable:
    slots = 1 << int(2 * len(ids) + 1).bit_length()  # at most half of them are used
    edges, nodes = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
    ends = np.zeros(len(ids) + 1, np.uint8)
    # most kinds of masking have no phrases: skip loading compiled code, which takes a third of a second
    count = _build(ids.astype(np.uint32), offsets, marks, edges, nodes, ends) if len(ids) else 1
    heads = np.full(len(punctuation), _NOWHERE, np.int32)
    for piece in np.unique(ids[offsets[:-1][marks > 0]]).tolist():
        heads[piece] = nodes[_slot(edges, _edge(0, piece))]
    return PhraseTable(edges, nodes, heads, ends[:count].copy(), punctuation, chunk_words)


@jit
def _slot(edges, edge):
    """Return the slot of `edge` in the table, or the one where it would be entered."""
    mask = np.uint64(len(edges) - 1)
    slot = ((edge * GOLDEN_GAMMA) >> _S29) & mask
    while edges[slot] != edge and edges[slot] != np.uint64(0):
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@jit
def _edge(node, piece):
    return (np.uint64(node) << _S32) + np.uint64(piece) + np.uint64(1)


@jit
def _build(ids, offsets, marks, edges, nodes, ends):
    """Enter every sequence of ids that has a mark; return the number of nodes."""
    count = 1
    for entry in range(len(marks)):
        if not marks[entry]:
            continue
        node = 0
        for i in range(offsets[entry], offsets[entry + 1]):
            slot = _slot(edges, _edge(node, ids[i]))
            if edges[slot] == np.uint64(0):
                edges[slot], nodes[slot] = _edge(node, ids[i]), count
                ends[node] |= _INNER
                count += 1
            node = nodes[slot]
        ends[node] |= marks[entry]
    return count


@jit
def join_words(sequence, units, members, starts, words):
    """Join the words members[starts[w]:starts[w + 1]] into phrases, in place; return the number of phrases."""
    heads, edges, nodes, ends = units.heads, units.edges, units.nodes, units.ends
    made, open_words, word = 0, 0, 0  # open_words: words of the last phrase, if it is a chunk
    while word < words:
        begins, after, content = starts[word], word, units.chunk_words > 0
        node, walked, m = heads[sequence[members[begins]]], word, begins + 1
        while node != _NOWHERE:
            if m == starts[walked + 1]:  # here a word ends
                if ends[node] & _LEXICON:
                    after = walked + 1
                if ends[node] & _CLOSED:
                    content = False
                walked += 1
                if walked == words or not ends[node] & _INNER or not follows(members, starts, walked):
                    break
            edge = _edge(node, sequence[members[m]])
            slot = _slot(edges, edge)
            node = nodes[slot] if edges[slot] == edge else _NOWHERE
            m += 1
        if content and after == word:
            m = begins
            while m < starts[word + 1] and units.punctuation[sequence[members[m]]]:
                m += 1
            content = m < starts[word + 1]  # a piece with a letter or digit
        else:
            content = False
        joins = content and 0 < open_words < units.chunk_words and follows(members, starts, word)
        starts[made] = begins  # no effect if the word joins the phrase before: a branch would cost more
        made += 1 - joins
        open_words = open_words * joins + content
        word = max(after, word + 1)
    starts[made] = starts[words]
    return made

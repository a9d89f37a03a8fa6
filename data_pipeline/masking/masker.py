"""Turn Segments into Examples, masked or unchanged, as a pure function of the segments and a seed.

A sequence is divided into candidates, taken in random order until k = max(1, round(masked_lm_prob * length)) tokens
are masked, at most max_predictions if that is above 0; the length includes [CLS] and [SEP], unless count_specials is
off. Each masked token becomes [MASK] (80 %), stays (10 %) or becomes a random id of the vocabulary (10 %). [CLS] and
[SEP] are never masked. The kind of masking decides what is masked as one:

    token     a token, or with whole_word a word: BERT's algorithm (Devlin et al. 2019, section 3.1), as in
              google-research/bert's create_pretraining_data.py
    span      words from that of a random token on, their number geometric (Joshi et al. 2020, SpanBERT, section 3.1)
    ngram     words from a random one on, n with probability proportional to 1/n (Lan et al. 2020, ALBERT)
    phrase    a phrase of the lexicon or the chunker, or a word (Sun et al. 2019, ERNIE, section 3)
    entity    a name of the lexicon, or a word (the same)

k follows the same rule for all kinds, so that they differ in nothing else: SpanBERT's script masks ceil(0.15 n) tokens,
without counting [CLS] and [SEP], and cuts the last word to fit; ERNIE's draws for each phrase whether it is masked,
with no upper bound. A candidate that would exceed k is skipped (a span or n-gram: shortened), so fewer than k tokens
may be masked. Random tokens are uniform over the vocabulary in all kinds (SpanBERT's script: drawn from the text).

The draws of sequence i depend only on (seed, keys[i], purpose), not on how sequences are batched or ordered.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import jit, multiply_high, read_only, trailing_zeros
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.masking.phrases import (
    ALONE,
    NGRAM,
    SPAN,
    PhraseTable,
    geometric,
    harmonic,
    join_words,
    ngram_end,
    no_phrases,
    phrase_table,
    span_end,
)
from data_pipeline.records import Examples, Segments
from data_pipeline.rng import CORRUPT, PHILOX_WORDS, draw_below, draw_unit, philox, shuffle, start
from data_pipeline.settings import UNMASKED, DataSettings

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


# Choose which tokens of a sequence are masked and what replaces them, in a compiled loop for all kinds of masking.
# `group_tokens` groups tokens, words or phrases (joined by `join_words` of phrases.py). `ngram_end` and `span_end` of
# phrases.py say how many of these are masked as one. `draw_replacement` and `replace` replace a token by [MASK], itself
# or a random one. The kinds differ in the first two steps, which a MaskRule selects; `_rule` has the names of the
# kinds.

TOKENS, WORDS, PHRASES = range(3)
_MASKED, _KEPT, _RANDOM = range(3)


class MaskRule(NamedTuple):
    """The parameters of masking for compiled code."""

    grouping: int  # TOKENS, WORDS or PHRASES: what a group is
    span_kind: int  # ALONE, NGRAM or SPAN: how many groups are masked as one
    across: bool  # a word whose head was truncated joins the word before the [SEP]
    continuation: NDArray[np.bool_]  # (vocabulary,) True for a piece that continues a word ('##...')
    cls: int
    sep: int
    mask: int
    mask_prob: float
    keep_prob: float  # of the tokens that do not become [MASK]
    together: bool  # one draw of the replacement for all tokens masked as one
    lengths: NDArray[np.float64]  # cumulative weights of 1, 2, ... groups
    units: PhraseTable


@jit
def group_tokens(sequence, specials, by_word, across, continuation, members, starts):
    """List the positions of `sequence` that do not hold one of the two `specials` in `members`; group g is
    members[starts[g]:starts[g + 1]], a token or, with `by_word`, a word. Return the number of groups.

    With `across` a continuation joins the previous word even across a [SEP]: if truncation removed the head of a word,
    its rest joins the word before, as in BERT's script."""
    groups, used = 0, 0
    for i in range(len(sequence)):
        token = sequence[i]
        if token == specials[0] or token == specials[1]:
            continue
        goes_on = by_word and groups > 0 and continuation[token]
        if not (goes_on and (across or members[used - 1] == i - 1)):
            starts[groups] = used
            groups += 1
        members[used] = i
        used += 1
    starts[groups] = used
    return groups


@jit
def list_candidates(span_kind, starts, groups, order):
    """Fill `order` with the groups that masking may begin at; return how many. A span begins at the word of a random
    token, so a word is listed once per token."""
    if span_kind != SPAN:
        for g in range(groups):
            order[g] = g
        return groups
    for g in range(groups):
        for m in range(starts[g], starts[g + 1]):
            order[m] = g
    return starts[groups]


@jit
def draw_replacement(stream, shares):
    """Draw the replacement of a masked token: shares = (of all that become [MASK], of the others that stay)."""
    if draw_unit(stream) < shares[0]:
        return _MASKED
    return _RANDOM if draw_unit(stream) >= shares[1] else _KEPT


@jit
def replace(stream, replacement, ids, corrupted, position):
    """Apply the drawn replacement to the token at `position`; ids = (id of [MASK], size of the vocabulary)."""
    if replacement == _MASKED:
        corrupted[position] = ids[0]
    elif replacement == _RANDOM:
        corrupted[position] = draw_below(stream, ids[1])


@jit
def replace_runs(stream, shares, together, ids, corrupted, covered):
    """Replace the masked tokens once all are known: spans that touch or overlap are one span."""
    replacement = _KEPT
    for i in range(len(covered)):
        if covered[i]:
            if not (together and i > 0 and covered[i - 1]):
                replacement = draw_replacement(stream, shares)
            replace(stream, replacement, ids, corrupted, i)


@jit
def mask_sequence(stream, k, rule, sequence, corrupted, covered, scratch):
    """Mask at most `k` tokens of `sequence`: write them into its copy `corrupted` and mark them in `covered` (all
    False before). `scratch`: three int64 rows, each longer than the sequence. Return the number of masked tokens.

    A stream of Python's draws shuffles all candidates first, as the script does; a Philox stream draws them one by one,
    only as many as needed: the same distribution with fewer draws."""
    members, starts, order = scratch[0], scratch[1], scratch[2]
    # unpack what the loop needs of the rule: passing all its arrays on costs more than a draw
    shares, ids = (rule.mask_prob, rule.keep_prob), (rule.mask, len(rule.continuation))
    span_kind, together, lengths = rule.span_kind, rule.together, rule.lengths
    by_word, specials = rule.grouping != TOKENS, (rule.cls, rule.sep)
    groups = group_tokens(sequence, specials, by_word, rule.across, rule.continuation, members, starts)
    if rule.grouping == PHRASES:
        groups = join_words(sequence, rule.units, members, starts, groups)
    candidates = list_candidates(span_kind, starts, groups, order)
    lazily = len(stream) == PHILOX_WORDS
    if not lazily:
        shuffle(stream, order[:candidates])
    done, replacement = 0, _KEPT
    for c in range(candidates):
        if done >= k:
            break
        if lazily:
            other = c + draw_below(stream, candidates - c)
            order[c], order[other] = order[other], order[c]
        first, room = order[c], k - done
        if span_kind == ALONE:
            last = first if starts[first + 1] - starts[first] > room else first + 1
        elif span_kind == NGRAM:
            last = ngram_end(stream, lengths, room, groups, members, starts, covered, first)
        else:
            last = span_end(stream, lengths, room, groups, members, starts, covered, first)
        if together and span_kind != SPAN and first < last:
            replacement = draw_replacement(stream, shares)
        for m in range(starts[first], starts[last]):
            position = members[m]
            if covered[position]:
                continue
            covered[position] = True
            done += 1
            if span_kind != SPAN:
                if not together:
                    replacement = draw_replacement(stream, shares)
                replace(stream, replacement, ids, corrupted, position)
    if span_kind == SPAN:
        replace_runs(stream, shares, together, ids, corrupted, covered[: len(sequence)])
    return done


@jit
def emit_masked(sequence, covered, done, positions, ids):
    """List the `done` marked positions, ascending, with their original ids, and clear the marks."""
    found, i = 0, 0
    while found < done:
        positions[found], ids[found] = i, sequence[i]  # overwritten unless i is masked: a branch costs more
        found += covered[i]
        covered[i] = False
        i += 1


def scratch_for(longest: int) -> tuple[NDArray, ...]:
    """Allocate the scratch memory of `mask_all`, for sequences of at most `longest` tokens."""
    return (
        np.zeros(PHILOX_WORDS, np.uint64),
        np.empty((3, longest + 1), np.int64),
        np.zeros(longest, np.bool_),
    )


@jit
def mask_all(key, sequences, counts, rule, scratch, out):
    """Mask all sequences; the draws of each are keyed by key = (seed, purpose) and its own key. Fill `out` (tokens,
    already a copy; positions; ids; masked_offsets); return the number of masked rows. scratch: `scratch_for` the
    longest sequence."""
    source, offsets, keys = sequences
    seed, purpose = key
    tokens, positions, ids, masked_offsets = out
    stream, places, covered = scratch
    used = 0
    for s in range(len(keys)):
        start(stream, seed, keys[s], purpose)
        sequence = source[offsets[s] : offsets[s + 1]]
        corrupted = tokens[offsets[s] : offsets[s + 1]]
        done = mask_sequence(stream, counts[s], rule, sequence, corrupted, covered, places)
        emit_masked(sequence, covered, done, positions[used:], ids[used:])
        used += done
        masked_offsets[s + 1] = used
    return used


# Mask single tokens, the most common kind of masking, with the draws of the general loop in a third of its time. A
# group is a single token here, so a candidate is a position, the masked positions fit into a bit set, and listing them
# in order is a scan over its bits.

_ONE, _WORD = np.uint64(1), np.uint64(63)
_UNIT = 1.0 / 9007199254740992.0  # 53 random bits to [0, 1), as `philox_unit`


@jit
def nth_word(block, key, number):
    """Return word `number` of the stream key = (seed, key, purpose); `block` holds the four words around the previous
    one."""
    if number & 3 == 0:
        philox(key[0], key[1], np.uint64(number >> 2), key[2], block)
    return block[number & 3]


@jit
def list_token_candidates(sequence, cls, sep, members):
    """List the positions of all tokens except [CLS] and [SEP] in `members`; return how many."""
    found = 0
    for i in range(len(sequence)):
        members[found] = i
        found += (sequence[i] != cls) & (sequence[i] != sep)
    return found


@jit
def cover(key, k, candidates, rule, corrupted, block, bits):
    """Draw k of the candidates one by one, replace each in `corrupted` and set its bit."""
    _, _, mask, vocabulary_size, mask_prob, keep_prob = rule
    drawn = 0
    for c in range(k):
        other = c + np.int64(multiply_high(nth_word(block, key, drawn), np.uint64(len(candidates) - c)))
        position = np.int64(candidates[other])
        candidates[other] = candidates[c]
        bits[position >> 6] |= _ONE << (np.uint64(position) & _WORD)
        share = np.float64(nth_word(block, key, drawn + 1) >> np.uint64(11)) * _UNIT
        drawn += 2
        if share < mask_prob:
            corrupted[position] = mask
            continue
        share = np.float64(nth_word(block, key, drawn) >> np.uint64(11)) * _UNIT
        drawn += 1
        if share >= keep_prob:
            corrupted[position] = multiply_high(nth_word(block, key, drawn), np.uint64(vocabulary_size))
            drawn += 1


@jit
def list_masked(sequence, bits, positions, ids):
    """List the positions whose bits are set, ascending, with the ids there; clear the bits and return how many."""
    found = 0
    for b in range((len(sequence) + 63) >> 6):
        word = bits[b]
        bits[b] = np.uint64(0)
        while word != 0:
            position = 64 * b + np.int64(trailing_zeros(word))
            positions[found], ids[found] = position, sequence[position]
            found += 1
            word &= word - _ONE
    return found


def token_scratch_for(longest: int) -> tuple[NDArray, ...]:
    """Allocate the scratch memory of `mask_tokens`, for sequences of at most `longest` tokens."""
    return np.empty(longest + 1, np.uint16), np.zeros((longest >> 6) + 1, np.uint64), np.zeros(4, np.uint64)


@jit
def mask_tokens(key, sequences, counts, rule, scratch, out):
    """Mask at most counts[s] tokens of every sequence s; the draws of each are keyed by key = (seed, purpose) and its
    own key. rule: ids of [CLS], [SEP] and [MASK], size of the vocabulary, share of the masked tokens that become
    [MASK], share of the others that stay; scratch: `token_scratch_for` the longest sequence. Fill `out` (tokens,
    already a copy; positions; ids; masked_offsets); return the number of masked rows."""
    source, offsets, keys = sequences
    tokens, positions, ids, masked_offsets = out
    candidates, bits, block = scratch
    used = 0
    for s in range(len(keys)):
        sequence = source[offsets[s] : offsets[s + 1]]
        found = list_token_candidates(sequence, rule[0], rule[1], candidates)
        stream = (key[0], keys[s], key[1])
        k = min(counts[s], found)
        cover(stream, k, candidates[:found], rule, tokens[offsets[s] : offsets[s + 1]], block, bits)
        used += list_masked(sequence, bits, positions[used:], ids[used:])
        masked_offsets[s + 1] = used
    return used


# Mask all sequences of Segments by the settings of one kind.


@dataclass(frozen=True, eq=False)
class Masker:
    """One kind of masking with its settings. It holds plain arrays and numbers, so it can be sent to any worker."""

    masked_lm_prob: float
    max_predictions: int
    """Maximum masked tokens per example; 0: no cap."""
    rule: MaskRule
    count_specials: bool = True
    """Whether [CLS] and [SEP] count in the length that masked_lm_prob is a share of."""

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: "Vocabulary") -> "Masker":
        """Make the masker for these settings. Raises UserError for a setting out of range or an unusable lexicon."""
        return cls(*MaskBudget.of(settings), _rule(settings, vocabulary), settings.count_specials)

    def __call__(self, segments: Segments, seed: int, purpose: int = CORRUPT) -> Examples:
        """Mask every sequence of `segments`; the draws are keyed by (seed, segments.keys, purpose)."""
        lengths = np.diff(segments.offsets)
        counts = self.counts(lengths if self.count_specials else lengths - self._specials(segments))
        tokens = segments.tokens.copy()
        positions = np.empty(int(counts.sum()), np.uint16)
        ids = np.empty(len(positions), tokens.dtype)
        masked_offsets = np.zeros(len(segments) + 1, np.int64)
        key = (np.uint64(seed % 2**64), np.uint64(purpose))
        sequences = (read_only(segments.tokens), read_only(segments.offsets), read_only(segments.keys))
        out, rule = (tokens, positions, ids, masked_offsets), self.rule
        longest = int(lengths.max(initial=0))
        if rule.grouping == TOKENS and rule.span_kind == ALONE:
            shares = (rule.mask_prob, rule.keep_prob)
            plain = (rule.cls, rule.sep, rule.mask, len(rule.continuation), *shares)
            used = mask_tokens(key, sequences, counts, plain, token_scratch_for(longest), out)
        else:
            used = mask_all(key, sequences, counts, rule, scratch_for(longest), out)
        return Examples.of(
            segments,
            tokens=tokens,
            masked_positions=positions[:used],
            masked_ids=ids[:used],
            masked_offsets=masked_offsets,
        )

    def _specials(self, segments: Segments) -> NDArray[np.int64]:
        """Count the [CLS] and [SEP] of each sequence."""
        found = np.isin(segments.tokens, (self.rule.cls, self.rule.sep))
        return np.diff(np.concatenate(([0], np.cumsum(found)))[segments.offsets])

    @property
    def budget(self) -> MaskBudget:
        """Maximum masked tokens per example."""
        return MaskBudget(self.masked_lm_prob, self.max_predictions)

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compute the maximum number of masked tokens in sequences of these lengths."""
        return self.budget.counts(lengths)

    def max_rows(self, length: int) -> int:
        """Compute the maximum number of masked tokens in a sequence of this length."""
        return self.budget.count(length)

    def expected(self, mean_length: float) -> float:
        """Compute an upper bound of the mean number of masked tokens in sequences of this mean length."""
        return self.budget.mean_count(mean_length)


def _rule(settings: DataSettings, vocabulary: "Vocabulary") -> MaskRule:
    kind, rest = settings.masking, 1.0 - settings.mask_replace_prob
    by_phrases = kind in ("phrase", "entity")
    units = phrase_table(settings, vocabulary, chunks=kind == "phrase") if by_phrases else no_phrases()
    continuation = np.array(vocabulary.continuation, np.bool_)
    if (
        by_phrases
    ):  # with words separated only by white space, a comma continues a word, but is not part of a name
        continuation &= ~units.punctuation
    return MaskRule(
        grouping=PHRASES if by_phrases else TOKENS if kind == "token" and not settings.whole_word else WORDS,
        span_kind={"span": SPAN, "ngram": NGRAM}.get(kind, ALONE),
        across=kind == "token",
        continuation=continuation,
        cls=vocabulary.cls,
        sep=vocabulary.sep,
        mask=vocabulary.mask,
        mask_prob=float(settings.mask_replace_prob),
        # rounded: 0.1 of 0.2 must be exactly one half, as in BERT's script
        keep_prob=round(1.0 - settings.random_prob / rest, 12) if rest > 0 else 0.0,
        together=settings.replace_together,
        lengths=harmonic(settings.max_ngram)
        if kind == "ngram"
        else geometric(settings.span_p, settings.max_span),
        units=units,
    )


# Choose what makes examples from sequences: a masker, or what leaves them unchanged.


class Corruption(Protocol):
    """Makes examples from sequences. It holds plain arrays and numbers, so it can be sent to any worker."""

    def __call__(self, segments: Segments, seed: int, purpose: int = CORRUPT) -> Examples:
        """Corrupt every sequence of `segments`, in order; the draws are keyed by (seed, segments.keys, purpose)."""

    def expected(self, mean_length: float) -> float:
        """Compute an upper bound of the mean number of masked tokens in sequences of this mean length."""

    def max_rows(self, length: int) -> int:
        """Compute the maximum number of masked tokens in a sequence of this length."""


@dataclass(frozen=True)
class Unmasked:
    """Leave the text unchanged and mask nothing, for objectives that predict without masks."""

    def __call__(self, segments: Segments, seed: int, purpose: int = CORRUPT) -> Examples:
        """Make an unmasked example of every sequence."""
        return Examples.of(
            segments,
            masked_positions=np.zeros(0, np.uint16),
            masked_ids=np.zeros(0, segments.tokens.dtype),
            masked_offsets=np.zeros(len(segments) + 1, np.int64),
        )

    def expected(self, mean_length: float) -> float:
        """Return 0: nothing is masked."""
        return 0.0

    def max_rows(self, length: int) -> int:
        """Return 0: nothing is masked."""
        return 0


def corruption_of(settings: DataSettings, vocabulary: "Vocabulary") -> Corruption:
    """Make the corruption that data.masking names. Raises UserError for a setting out of range or an unusable
    lexicon."""
    return Unmasked() if settings.masking == UNMASKED else Masker.from_settings(settings, vocabulary)

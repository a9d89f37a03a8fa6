"""Pure maskers: Segments and a seed in, Examples out; nothing else decides a mask.

The algorithm is BERT's (Devlin et al. 2019, section 3.1; google-research/bert's create_pretraining_data.py):
candidates are all tokens but [CLS] and [SEP], or whole words; they are taken in random order until
k = min(max_predictions, max(1, round(masked_lm_prob * length))) tokens are covered, the length counting
[CLS] and [SEP]; each covered token becomes [MASK] (80 %), stays (10 %) or becomes any id of the
vocabulary (10 %). Whole words that would exceed k are passed over, so fewer than k may be covered.

The draws of sequence i come from (seed, keys[i]) alone: how sequences are batched or ordered changes nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.draws import CORRUPT, jit, start
from data_pipeline.errors import UserError
from data_pipeline.records import Examples, Segments, read_only
from data_pipeline.settings import DataSettings
from data_pipeline.token_masks import mask_tokens
from data_pipeline.twister import PHILOX_WORDS, below, shuffle, unit

if TYPE_CHECKING:
    from data_pipeline.vocabulary import Vocabulary


class MaskRule(NamedTuple):
    """What compiled code needs to know to mask a sequence."""

    whole_word: bool
    continuation: NDArray[np.bool_]  # (vocabulary,) True for a piece that goes on a word ('##...')
    cls: int
    sep: int
    mask: int


@dataclass(frozen=True, eq=False)
class Masker:
    """BERT's masking with its settings. Plain arrays and numbers: it can be sent to any worker."""

    masked_lm_prob: float
    max_predictions: int
    rule: MaskRule

    def __post_init__(self) -> None:
        if not 0.0 < self.masked_lm_prob <= 1.0:
            raise _refused("masked_lm_prob", self.masked_lm_prob, "a share above 0, at most 1")
        if not 1 <= self.max_predictions <= np.iinfo(np.uint16).max:
            raise _refused("max_predictions", self.max_predictions, "1 to 65535")

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: "Vocabulary") -> "Masker":
        """Raises UserError where a setting is out of its range."""
        rule = MaskRule(
            whole_word=settings.whole_word,
            continuation=np.array(vocabulary.continuation, np.bool_),
            cls=vocabulary.cls,
            sep=vocabulary.sep,
            mask=vocabulary.mask,
        )
        return cls(settings.masked_lm_prob, settings.max_predictions, rule)

    def __call__(self, segments: Segments, seed: int) -> Examples:
        """Masks every sequence of `segments`; the draws are keyed by (seed, segments.keys)."""
        lengths = np.diff(segments.offsets)
        counts = self.counts(lengths)
        tokens = segments.tokens.copy()
        positions = np.empty(int(counts.sum()), np.uint16)
        ids = np.empty(len(positions), tokens.dtype)
        masked_offsets = np.zeros(len(segments) + 1, np.int64)
        sequences = (read_only(segments.tokens), read_only(segments.offsets), read_only(segments.keys))
        out = (tokens, positions, ids, masked_offsets)
        rule, key = self.rule, np.uint64(seed % 2**64)
        if rule.whole_word:
            used = _mask_all(key, sequences, counts, rule, out)
        else:
            plain = (rule.cls, rule.sep, rule.mask, len(rule.continuation), 0.8, 0.5)
            used = mask_tokens((key, np.uint64(CORRUPT)), sequences, counts, plain, out)
        return Examples(
            tokens=tokens,
            offsets=segments.offsets,
            first_lengths=segments.first_lengths,
            labels=segments.labels,
            masked_positions=positions[:used],
            masked_ids=ids[:used],
            masked_offsets=masked_offsets,
        )

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most tokens to cover in sequences of these lengths; halves are rounded to even, as Python does."""
        wanted = np.rint(lengths * self.masked_lm_prob).astype(np.int64)
        return np.clip(wanted, 1, self.max_predictions)


def _refused(setting: str, value: object, expected: str) -> UserError:
    return UserError(f"cannot be {value}", where=f"data.{setting}", expected=expected)


@jit
def group_candidates(sequence, rule, members, starts):
    """Lists the maskable positions of `sequence` in `members`; group g is members[starts[g]:starts[g + 1]].
    Returns the number of groups.

    A group is a token, or with `whole_word` a word. A continuation joins the last group that there is, even
    across a [SEP]: where truncation cut the head off a word, its rest goes with the word before."""
    groups, used = 0, 0
    for i in range(len(sequence)):
        token = sequence[i]
        if token == rule.cls or token == rule.sep:
            continue
        if not (rule.whole_word and groups > 0 and rule.continuation[token]):
            starts[groups] = used
            groups += 1
        members[used] = i
        used += 1
    starts[groups] = used
    return groups


@jit
def mask_sequence(stream, k, rule, sequence, corrupted, covered, scratch):
    """Writes the corrupted tokens of `sequence` into its copy `corrupted` and marks them in `covered` (all
    False before). `scratch`: three int64 rows, each longer than the sequence. Returns how many it covered.

    A stream of Python's draws (twister.py) shuffles all candidates first, as the script does; a Philox
    stream draws them one by one, no more than it needs: the same distribution for fewer draws."""
    members, starts, order = scratch[0], scratch[1], scratch[2]
    groups = group_candidates(sequence, rule, members, starts)
    for g in range(groups):
        order[g] = g
    lazily = len(stream) == PHILOX_WORDS
    if not lazily:
        shuffle(stream, order[:groups])
    done = 0
    for g in range(groups):
        if done >= k:
            break
        if lazily:
            other = g + below(stream, groups - g)
            order[g], order[other] = order[other], order[g]
        first, last = starts[order[g]], starts[order[g] + 1]
        if done + last - first > k:
            continue
        for m in range(first, last):
            position = members[m]
            if unit(stream) < 0.8:
                corrupted[position] = rule.mask
            elif unit(stream) >= 0.5:
                corrupted[position] = below(stream, len(rule.continuation))
            covered[position] = True
        done += last - first
    return done


@jit
def emit_covered(sequence, covered, done, positions, ids):
    """Lists the `done` marked positions, ascending, with their original ids, and clears the marks."""
    found, i = 0, 0
    while found < done:
        if covered[i]:
            positions[found], ids[found] = i, sequence[i]
            covered[i] = False
            found += 1
        i += 1


@jit
def _mask_all(seed, sequences, counts, rule, out):
    """Fills `out` (tokens, already a copy; positions; ids; masked_offsets); returns the masked rows used."""
    source, offsets, keys = sequences
    tokens, positions, ids, masked_offsets = out
    longest = 0
    for s in range(len(keys)):
        longest = max(longest, offsets[s + 1] - offsets[s])
    stream = np.zeros(PHILOX_WORDS, np.uint64)
    scratch = np.empty((3, longest + 1), np.int64)
    covered = np.zeros(longest, np.bool_)
    used = 0
    for s in range(len(keys)):
        start(stream, seed, keys[s], np.uint64(CORRUPT))
        sequence = source[offsets[s] : offsets[s + 1]]
        corrupted = tokens[offsets[s] : offsets[s + 1]]
        done = mask_sequence(stream, counts[s], rule, sequence, corrupted, covered, scratch)
        emit_covered(sequence, covered, done, positions[used:], ids[used:])
        used += done
        masked_offsets[s + 1] = used
    return used

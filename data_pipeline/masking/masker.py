"""Mask Segments into Examples, as a pure function of the segments and a seed.

A sequence is divided into candidates, taken in random order until k = max(1, round(masked_lm_prob * length)) tokens
are masked, at most max_predictions if that is above 0; the length includes [CLS] and [SEP], unless count_specials is
off. Each masked token becomes
[MASK] (80 %), stays (10 %) or becomes a random id of the vocabulary (10 %). [CLS] and [SEP] are never masked. The kind
of masking decides what is masked as one:

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
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.jit import read_only
from data_pipeline.masking import mask_kernel, token_kernel
from data_pipeline.masking.mask_budget import MaskBudget
from data_pipeline.masking.mask_kernel import PHRASES, TOKENS, WORDS, MaskRule, mask_all
from data_pipeline.masking.phrases import no_phrases, phrase_table
from data_pipeline.masking.spans import ALONE, NGRAM, SPAN, geometric, harmonic
from data_pipeline.masking.token_kernel import mask_tokens
from data_pipeline.records import Examples, Segments
from data_pipeline.rng import CORRUPT
from data_pipeline.settings import MASKINGS, DataSettings

if TYPE_CHECKING:
    from data_pipeline.vocabulary.base import Vocabulary


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
            used = mask_tokens(key, sequences, counts, plain, token_kernel.scratch_for(longest), out)
        else:
            used = mask_all(key, sequences, counts, rule, mask_kernel.scratch_for(longest), out)
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
    kind, rest = settings.masking, 1.0 - settings.mask_prob
    if kind not in MASKINGS:
        raise _refused("masking", repr(kind), " or ".join(MASKINGS))
    if not 0.0 <= settings.random_prob <= round(rest, 12) <= 1.0:
        shares = f"{settings.mask_prob} beside data.random_prob={settings.random_prob}"
        raise _refused("mask_prob", shares, "a share, at most 1 with data.random_prob")
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
        mask_prob=float(settings.mask_prob),
        # rounded: 0.1 of 0.2 must be exactly one half, as in BERT's script
        keep_prob=round(1.0 - settings.random_prob / rest, 12) if rest > 0 else 0.0,
        together=settings.replace_together,
        lengths=harmonic(settings.max_ngram)
        if kind == "ngram"
        else geometric(settings.span_p, settings.max_span),
        units=units,
    )


def _refused(setting: str, value: object, expected: str) -> UserError:
    return UserError(f"must be {expected}, got {value}", where=f"data.{setting}")

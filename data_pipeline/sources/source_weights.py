"""Compute how often each source's text is read, from source weights and smoothed language shares.

Exponentially smoothed sampling (Devlin et al., multilingual BERT's README; google-research/bert/multilingual.md):
a language with the share p of the text gets the share q ~ p ** data.smoothing, both for the vocabulary's sample and
for the data. The total amount of text stays the same: a language gets q / p times the average number of passes. The
fractional part of the number of passes is drawn per document.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from data_pipeline.errors import UserError
from data_pipeline.settings import MOST, DataSettings, stated_languages, stated_weights

_DIGITS = 9
"""Decimals of a rate: fewer than a float has, so that the last bit of a machine's `pow` has no effect."""


def language_numbers(settings: DataSettings) -> tuple[list[str], NDArray[np.int64]]:
    """Return the languages in order of first appearance, and the index of each source's language among them.
    Raises UserError if data.languages and data.sources differ in length."""
    names = stated_languages(settings)
    languages = list(dict.fromkeys(names))
    return languages, np.array([languages.index(name) for name in names], np.int64)


def source_weights(settings: DataSettings) -> NDArray[np.float64]:
    """Return the weight of each source. Raises UserError as `stated_weights` does."""
    return np.array(stated_weights(settings))


def smoothed(shares: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """Return the shares q ~ p ** exponent of languages with the shares (or amounts) p; a share of 0 stays 0.

    >>> smoothed([0.8046, 0.1916, 0.0038], 0.7).round(3).tolist()
    [0.72, 0.264, 0.017]
    """
    amounts = np.asarray(shares, np.float64)
    total = amounts.sum()
    if total <= 0.0:
        return np.zeros(len(amounts))
    raised = np.array([math.pow(a / total, exponent) if a > 0.0 else 0.0 for a in amounts])
    return raised / raised.sum()


def repeats(amounts: ArrayLike, settings: DataSettings) -> NDArray[np.float64]:
    """Compute how often each source's text is used, before dupe_factor: its weight times q / p of its language, where
    p is the language's share of the weighted text.

    `amounts`: the text of each source, in any unit (tokens, bytes, ...); sources beyond its length have none. The
    total of the weighted text is preserved. Rounded to nine decimals. Raises UserError as
    `language_numbers` and `source_weights` do."""
    languages, numbers = language_numbers(settings)
    weights = source_weights(settings)
    if settings.smoothing == 1.0 or len(languages) == 1:  # q = p to the last bit
        return weights.round(_DIGITS)
    text = np.zeros(len(weights))
    given = np.asarray(amounts, np.float64)
    text[: len(given)] = given
    share = np.bincount(numbers, weights=text * weights, minlength=len(languages))
    taken = smoothed(share, settings.smoothing) * share.sum()
    rates = np.divide(taken, share, out=np.ones(len(share)), where=share > 0.0)
    return (weights * rates[numbers]).round(_DIGITS)


def document_passes(
    keys: NDArray[np.uint64],
    sources: NDArray[np.unsignedinteger],
    rates: ArrayLike,
    seed: int,
    dupe_factor: int,
) -> NDArray[np.int64]:
    """Compute the passes over each document: dupe_factor times the rate of its source, rounded down, plus one with the
    probability of the fractional part, drawn from (seed, key) alone. Without rates: dupe_factor.

    Raises UserError if that exceeds MOST passes."""
    expected = (np.asarray(rates, np.float64) * dupe_factor).round(_DIGITS)
    if not len(expected):
        return np.full(len(keys), dupe_factor, np.int64)
    if expected.max() > MOST:
        raise UserError(
            f"asks for {expected.max():.0f} passes over a source",
            where="data.weights",
            expected=f"at most {MOST} passes",
            remedy="lower its weight or data.dupe_factor, or raise data.smoothing towards 1",
        )
    whole = np.floor(expected)
    limits = ((expected - whole) * 2.0**64).astype(np.uint64)  # below 1 by nine decimals: it fits
    from data_pipeline import rng

    drawn = rng.first_words(seed % 2**64, keys, rng.PASSES) < limits[sources]
    return whole.astype(np.int64)[sources] + drawn

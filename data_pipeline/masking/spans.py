"""Draw how many consecutive words are masked together: spans and n-grams.

    ALONE    one word or phrase
    NGRAM    n words, n with probability proportional to 1/n (Lan et al. 2020, ALBERT, section 3.1)
    SPAN     n words, n geometric and truncated at the maximum (Joshi et al. 2020, SpanBERT, section 3.1)

Neither extends past the end of its segment: text on both sides of a [SEP] is not one phrase. (ALBERT's script, of
google-research/albert, continues there.) A word is what the vocabulary says: in a unigram vocabulary the pieces between
two spaces, where that script also begins a word at punctuation, digits and any character beyond a to z.
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.jit import jit
from data_pipeline.rng import mersenne_unit

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
    place = mersenne_unit(stream) * lengths[most - 1]
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

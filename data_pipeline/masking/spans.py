"""Draw how many words are masked together from a word on: spans and n-grams.

    ALONE    the one word or unit itself
    NGRAM    n words, n with probability proportional to 1/n (Lan et al. 2020, ALBERT, section 3.1)
    SPAN     n words, n geometric and cut off at the longest (Joshi et al. 2020, SpanBERT, section 3.1)

Neither runs on past the end of its segment: what stands beyond a [SEP] is no part of one phrase. (ALBERT's script
goes on there.)
"""

import numpy as np
from numpy.typing import NDArray

from data_pipeline.compiled.jit import jit
from data_pipeline.compiled.mersenne_twister import unit

ALONE, NGRAM, SPAN = range(3)


def geometric(p: float, longest: int) -> NDArray[np.float64]:
    """(longest,): n or fewer words have a share of [n - 1] / [longest - 1]. The tail of the geometric distribution
    is cut off and its mass goes to all lengths alike, as in SpanBERT's script; it is not put on the longest."""
    return np.cumsum((1.0 - p) ** np.arange(longest))


def harmonic(longest: int) -> NDArray[np.float64]:
    """The same for n with probability proportional to 1/n."""
    return np.cumsum(1.0 / np.arange(1, longest + 1))


@jit
def draw_length(stream, lengths, most):
    """How many words, at most `most`, from the cumulative weights `lengths`."""
    place = unit(stream) * lengths[most - 1]
    n = 1
    while n < most and lengths[n - 1] <= place:
        n += 1
    return n


@jit
def follows(members, starts, group):
    """Whether group `group` stands directly behind the one before it, in the same segment."""
    return members[starts[group]] == members[starts[group] - 1] + 1


@jit
def ngram_end(stream, lengths, room, groups, members, starts, covered, first):
    """The group behind the n-gram that begins with group `first`; `first` itself where none fits.

    As ALBERT's script: the length is drawn from those that the segment still has room for; an n-gram beyond the
    `room` tokens that are left to cover is shortened; one that meets a covered word is given up."""
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
    """The group behind the span that begins with group `first`; `first` itself where that is covered or too long.

    Words that are covered already count towards its length and cost no room. SpanBERT's script cuts the last word
    where the budget ends; here a span ends before a word that would not fit, so that no word is masked in part."""
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

"""XLNet's factorization orders: who sees whom, what is predicted, and that draws depend on (seed, epoch, number)."""

import numpy as np
import pytest

from data_pipeline.compiled.philox import start
from data_pipeline.loader.permutation import OrderRule, Orders, draw_orders, rank_tokens, write_visibility
from tests.factories.pairs import CLS, FIRST, SEP, rows, surprise

SIZE = 50


def rule(**changes):
    continuation = np.zeros(SIZE, np.bool_)
    continuation[FIRST::4] = True
    return OrderRule(continuation=continuation, cls=CLS, sep=SEP, **changes)


def examples(count, length=60, seed=0):
    """Examples as XLNet has them: text [SEP] text [SEP] [CLS]."""
    tokens = np.random.default_rng(seed).integers(FIRST, SIZE, (count, length)).astype(np.uint16)
    tokens[:, length // 2], tokens[:, -2], tokens[:, -1] = SEP, SEP, CLS
    return tokens.ravel(), np.arange(count + 1, dtype=np.int64) * length


def drawn(count=200, length=60, seed=1, **changes):
    tokens, offsets = examples(count, length)
    numbers = np.arange(count)
    orders = draw_orders(tokens, offsets, np.zeros(count, np.int64), numbers, rule(**changes), seed)
    return tokens.reshape(count, length), Orders(*(column.reshape(count, length) for column in orders))


def blocked(queries, keys):
    return queries[:, None] <= keys[None, :]


def test_the_worked_example():
    special = np.array([0, 0, 0, 0, 1, 1], np.bool_)
    masked = np.array([0, 1, 0, 1, 0, 0], np.bool_)
    queries, keys = np.empty((2, 6), np.int32)
    write_visibility(np.array([3, 0, 5, 2, 1, 4]), masked & ~special, special, 0, queries, keys)
    found = ["".join(map(str, row)) for row in blocked(queries, keys).astype(int)]
    assert found == ["010111", "010111", "010111", "000101", "000101", "000000"]


def test_a_target_sees_the_context_and_what_is_before_it_and_never_itself():
    for sequence, targets, queries, keys in zip(*[drawn()[0]], *drawn()[1], strict=True):
        hidden = blocked(queries, keys)
        special = (sequence == CLS) | (sequence == SEP)
        context = ~targets & ~special
        assert not hidden[:, context].any(), "context is seen by all"
        assert hidden[targets, targets.nonzero()[0]].all(), "no target sees itself"
        assert not hidden[special, special.nonzero()[0]].any(), "special tokens do"
        assert hidden[np.ix_(context, ~context)].all(), "context sees nothing that is to be predicted"
        among = hidden[np.ix_(targets, targets)]
        assert (among ^ among.T)[~np.eye(len(among), dtype=bool)].all(), "of two targets, one sees the other"
        assert sorted(among.sum(1)) == list(range(1, len(among) + 1)), "they stand in one order"


def test_the_second_part_sees_all_of_the_first_which_sees_nothing_of_it():
    _, (targets, queries, keys) = drawn(reuse=40)
    for marked, q, k in zip(targets, queries, keys, strict=True):
        hidden = blocked(q, k)
        assert hidden[:40, 40:].all()
        assert not hidden[40:, :40].any()
        assert (marked[:40].sum(), marked[40:].sum()) == (6, 4)


def test_windows_stand_in_their_order():
    _, (targets, queries, _) = drawn(window=20)
    for marked, q in zip(targets, queries, strict=True):
        places = marked.nonzero()[0]
        assert (np.diff(places[np.argsort(q[places])] // 20) >= 0).all()
    orders = [np.argsort(q[m.nonzero()[0]]) for m, q in zip(targets, queries, strict=True)]
    assert any((np.diff(order) < 0).any() for order in orders), "within a window they do not"


@pytest.mark.parametrize("length", [4, 7, 30, 130, 512])
def test_the_number_of_targets_is_exact_and_no_special_token_is_one(length):
    sequences, orders = drawn(50, length)
    assert (orders.targets.sum(1) == max(1, length // 6)).all()
    assert not orders.targets[np.isin(sequences, [CLS, SEP])].any()


def test_no_more_targets_than_there_are_tokens():
    tokens, offsets = np.array([SEP, FIRST, FIRST + 1, CLS], np.uint16), np.array([0, 4])
    found = draw_orders(tokens, offsets, np.zeros(1, int), np.zeros(1, int), rule(share=1), 1)
    assert found.targets.tolist() == [False, True, True, False]


def test_spans_begin_with_words_and_have_their_lengths():
    """20 targets of 400 tokens are all of spans: none is filled in at the end."""
    sequences, orders = drawn(3000, 400, share=20)
    lengths = np.zeros(6)
    for sequence, targets in zip(sequences, orders.targets, strict=True):
        edges = np.flatnonzero(np.diff(targets.astype(int), prepend=0))
        assert not rule().continuation[sequence[edges[::2]]].any()
        lengths[min(edges[1] - edges[0], 6) - 1] += 1
    assert lengths[5] < 60, "two spans seldom touch"
    assert abs(surprise(lengths[:5], 1 / np.arange(1, 6))) < 4
    assert surprise(lengths[:5], np.ones(5)) > 10


def test_every_order_is_as_likely():
    stream, ranks, counts = np.zeros(8, np.uint64), np.empty(4, np.int64), {}
    start(stream, np.uint64(1), np.uint64(2), np.uint64(3))
    for _ in range(24_000):
        rank_tokens(stream, 4, ranks)
        counts[tuple(ranks.tolist())] = counts.get(tuple(ranks.tolist()), 0) + 1
    assert len(counts) == 24
    assert abs(surprise(list(counts.values()), np.ones(24))) < 4


def test_draws_depend_on_seed_epoch_and_number_alone():
    tokens, offsets = examples(40)
    epochs, numbers = np.arange(40) % 3, np.arange(40) * 7
    whole = draw_orders(tokens, offsets, epochs, numbers, rule(), 5)
    chosen = [31, 4, 17]
    parts = [rows(column, offsets) for column in whole]
    picked = np.concatenate([rows(tokens, offsets)[i] for i in chosen])
    again = draw_orders(picked, np.arange(4) * 60, epochs[chosen], numbers[chosen], rule(), 5)
    for column, part in zip(again, parts, strict=True):
        assert np.array_equal(column, np.concatenate([part[i] for i in chosen]))
    for other in (
        draw_orders(tokens, offsets, epochs + 1, numbers, rule(), 5),
        draw_orders(tokens, offsets, epochs, numbers + 1, rule(), 5),
        draw_orders(tokens, offsets, epochs, numbers, rule(), 6),
    ):
        assert (other.queries != whole.queries).mean() > 0.3

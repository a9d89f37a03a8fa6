"""The two-stream encoder: distances, what each target depends on, packing, and what is remembered."""

import torch
from torch import Tensor

from pretrain.config.encoder import EncoderSettings
from pretrain.model.batch import IGNORED, MicroBatch, Shape
from pretrain.model.initialize import initialize
from pretrain.model.xlnet import TwoStreamEncoder, by_place, plan_streams, sinusoids

TINY = EncoderSettings(
    layers=2,
    hidden=16,
    heads=2,
    intermediate=32,
    max_positions=40,
    segments=0,
    dropout=0.0,
    attention_dropout=0.0,
)
WORDS, LEAST = 60, torch.iinfo(torch.int64).min


def encoder(activation_checkpointing: bool = False) -> TwoStreamEncoder:
    made = TwoStreamEncoder(TINY, WORDS, activation_checkpointing)
    initialize(made, seed=1, std=0.5)
    return made.double()


def test_every_row_has_its_own_distances() -> None:
    """Four queries behind a memory of three: the first row is 3 ... -3, the last 6 ... 0."""
    columns = torch.arange(7, -4, -1).expand(2, 4, 11)
    found = by_place(columns, keys=7)
    assert found.shape == (2, 4, 7)
    assert found[1].tolist() == [[*range(first, first - 7, -1)] for first in (3, 4, 5, 6)]


def test_sinusoids_are_sines_then_cosines_of_distances() -> None:
    [table] = sinusoids(4, 3, 8, torch.device("cpu"))
    assert (table.shape, table.dtype) == ((11, 8), torch.float32)
    assert table[7].tolist() == [0.0] * 4 + [1.0] * 4  # distance 0
    expected = torch.tensor([7 * 10_000 ** (-2 * place / 8) for place in range(4)])
    torch.testing.assert_close(table[0], torch.cat((expected.sin(), expected.cos())))
    torch.testing.assert_close(table[-1, :4], -table[4, :4])  # distances -3 and 3
    ways = sinusoids(4, 3, 8, torch.device("cpu"), both_directions=True)
    assert ways[0].equal(table)
    assert ways[1, :, :4].equal(-table[:, :4])
    assert ways[1, :, 4:].equal(table[:, 4:])


def example() -> tuple[MicroBatch, Tensor]:
    """Section 6's example in our order: [CLS], four words of which the second and the fourth are targets, [SEP]."""
    batch = MicroBatch.from_lists([[3, 10, 11, 12, 13, 4]], masked=[{2: 11, 4: 13}])
    return batch, torch.tensor([4, LEAST, 0, LEAST, 2, 1])


def depends_on(batch: MicroBatch, ranks_T: Tensor | None) -> list[set[int]]:
    """The rows whose words each target's state depends on."""
    module, found = encoder(), []
    for row in range(len(batch.masked_index)):
        module.zero_grad()
        state_H = module(batch, ranks_T).query_RH[row]
        (state_H * torch.arange(16)).sum().backward()  # a plain sum is 0 behind LayerNorm
        moved = module.embeddings.word.weight.grad.abs().sum(1)
        found.append({i for i, word in enumerate(batch.input_ids.tolist()) if moved[word] > 0})
    return found


def test_a_target_depends_on_what_is_before_it_in_the_order_and_never_on_itself() -> None:
    batch, ranks_T = example()
    # the second word: on the other two words; the fourth: on [SEP] and the second as well; [CLS] is last of all
    assert depends_on(batch, ranks_T) == [{1, 3}, {1, 2, 3, 5}]
    assert depends_on(batch, torch.tensor([4, LEAST, 2, LEAST, 0, 1])) == [{1, 3, 4, 5}, {1, 3}]


def test_a_changed_target_leaves_its_own_prediction_bit_equal() -> None:
    module, (batch, ranks_T) = encoder(), example()
    changed = batch.filled(torch.tensor([20, 13]))
    with torch.no_grad():
        one, two = (module(b, ranks_T, with_content=True) for b in (batch, changed))
    assert one.query_RH[0].equal(two.query_RH[0])
    assert not one.query_RH[1].allclose(two.query_RH[1])
    assert not one.content_TH[2].allclose(two.content_TH[2])


def test_masks_are_the_published_ones_with_cls_last() -> None:
    """The example of `_local_perm`, whose rows are in the order of XLNet; a token of the content stream sees itself."""
    batch, ranks_T = example()
    [tile] = plan_streams(batch, ranks_T, 0, heads=2).tiles
    assert tile.rows_ES.tolist() == [[1, 2, 3, 4, 5, 0]]
    hidden = [
        ["".join(map(str, row)) for row in x[0, 0].int().tolist()]
        for x in (tile.content_E1SK, tile.query_E1SK)
    ]
    assert hidden[0] == ["010111", "000111", "010111", "000001", "000101", "000000"]
    assert [hidden[1][target] for target in (1, 3)] == ["010111", "000101"]


def test_without_an_order_all_see_all_and_a_target_itself_through_others_only() -> None:
    batch, _ = example()
    [tile] = plan_streams(batch, None, 0, heads=2).tiles
    assert not tile.content_E1SK.any()
    assert tile.query_E1SK[0, 0].equal(torch.eye(6, dtype=torch.bool))


def test_a_target_that_sees_nothing_depends_on_nothing_and_has_finite_gradients() -> None:
    module = encoder()
    batch, ranks_T = MicroBatch.from_lists([[3, 10, 4]], masked=[{1: 10}]), torch.tensor([1, 0, 2])
    assert depends_on(batch, ranks_T) == [set()]
    streams = module(batch, ranks_T)
    streams.query_RH.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


SEQUENCES = [[3, 10, 11, 12, 4], [3, 20, 21, 22, 23, 24, 25, 26, 4, 27, 4], [3, 30, 31, 4]]
MASKED = [{2: 11}, {1: 20, 6: 25, 9: 27}, {1: 30}]
FIRSTS = [5, 9, 4]


def remembered(count: int, length: int = 6) -> Tensor:
    shape = (count, TINY.layers, length, TINY.hidden)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_examples_do_not_see_one_another() -> None:
    module, memory = encoder(), remembered(3)
    packed = MicroBatch.from_lists(SEQUENCES, FIRSTS, MASKED)
    ranks_T = torch.arange(packed.tokens) * 7919 % 31
    with torch.no_grad():
        whole = module(packed, ranks_T, memory, with_content=True)
        padded = packed.padded(Shape(34, 6, 8, 16))
        spare = module(padded, torch.arange(34) * 7919 % 31, torch.cat((memory, remembered(3))))
        torch.testing.assert_close(spare.query_RH[:5], whole.query_RH, rtol=0, atol=1e-12)
        targets, tokens = 0, 0
        for number, ids in enumerate(SEQUENCES):
            alone = MicroBatch.from_lists([ids], [FIRSTS[number]], [MASKED[number]])
            rows = slice(tokens, tokens + len(ids))
            found = module(alone, ranks_T[rows], memory[number : number + 1], with_content=True)
            asked = slice(targets, targets + len(MASKED[number]))
            torch.testing.assert_close(whole.content_TH[rows], found.content_TH, rtol=0, atol=1e-12)
            torch.testing.assert_close(whole.query_RH[asked], found.query_RH, rtol=0, atol=1e-12)
            torch.testing.assert_close(whole.memory[number], found.memory[0], rtol=0, atol=1e-12)
            targets, tokens = asked.stop, rows.stop


def test_the_memory_is_the_end_of_what_was_there_and_the_example() -> None:
    module, memory = encoder(), remembered(3)
    batch = MicroBatch.from_lists(SEQUENCES, FIRSTS, MASKED)
    with torch.no_grad():
        words = module.embeddings.word.weight
        kept = module(batch, None, memory).memory[:, 0]  # the first layer's input: words
    for number, ids in enumerate(SEQUENCES):
        states = torch.cat((memory[number, 0], words[[*ids[1:], ids[0]]]))  # [CLS] is last
        assert kept[number].equal(states[-6:])
    assert not module(batch, None, memory).memory.requires_grad


def test_recomputing_gives_the_same_gradients() -> None:
    batch = MicroBatch.from_lists(SEQUENCES, FIRSTS, MASKED)
    found = []
    for recompute in (False, True):
        module = encoder(recompute).train()
        module(batch, torch.arange(batch.tokens), remembered(3)).query_RH.sin().sum().backward()
        found.append([p.grad for p in module.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_the_rate_of_attention_dropout_is_applied() -> None:
    settings = EncoderSettings(**{**vars(TINY), "attention_dropout": 0.5})
    module = TwoStreamEncoder(settings, WORDS)
    initialize(module, seed=1, std=0.5)
    batch, ranks_T = example()
    with torch.no_grad():
        one, two = (module(batch, ranks_T).query_RH for _ in range(2))
        assert not one.allclose(two)
        module.eval()
        one, two = (module(batch, ranks_T).query_RH for _ in range(2))
        assert one.equal(two)


def test_spare_rows_are_no_targets_of_the_first_token() -> None:
    batch = MicroBatch.from_lists([[3, 10, 11, 4]], masked=[{1: 10}]).padded(Shape(8, 2, 4, 8))
    assert batch.masked_ids.tolist() == [10, IGNORED, IGNORED, IGNORED]
    with torch.no_grad():
        found = encoder()(batch, torch.zeros(8, dtype=torch.int64)).query_RH
    assert found.isfinite().all()

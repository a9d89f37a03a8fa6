"""Sampled words: the softmax's distribution, and noise that only a row's key decides."""

import pytest
import torch

from pretrain.model import vocabulary_losses
from pretrain.model.vocabulary_losses import exponentials, row_keys, sample_words

WORDS, PADDED = 40, 64
GOLDEN_KEYS = [6158432399520968995, -7033947919151787979]
GOLDEN_BITS = [
    [327622659.2984395, 255505317.60761476, 624622730.040267],
    [1331332739.3936734, 931720801.0639212, 1197378404.7476406],
]


def inputs(rows: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((rows, 8), (PADDED, 8), (PADDED,))
    )
    bias[WORDS:] = 100.0  # padding would win every draw
    return hidden, weight, bias


def keys(rows: int, seed: int = 1, position: int = 3) -> torch.Tensor:
    return row_keys(seed, torch.arange(rows), torch.full((rows,), position))


def test_words_are_drawn_from_the_softmax() -> None:
    hidden, weight, bias = inputs(1)
    rows = 30_000
    drawn = sample_words(hidden.expand(rows, -1), weight, bias, keys(rows), WORDS).bincount(minlength=WORDS)
    expected = rows * torch.softmax(hidden[0] @ weight[:WORDS].T + bias[:WORDS], -1)
    rare = expected < 5
    assert len(drawn) == WORDS
    assert (
        float(((drawn - expected) ** 2 / expected)[~rare].sum()) < 90
    )  # 39 degrees of freedom: once in 10**5
    assert abs(float(drawn[rare].sum() - expected[rare].sum())) < 5 * float(expected[rare].sum()) ** 0.5 + 1


def test_rows_draw_the_same_in_any_order_and_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias = inputs(50)
    whole = sample_words(hidden, weight, bias, keys(50), WORDS)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    monkeypatch.setitem(vocabulary_losses._CHUNK_ELEMENTS, "cpu", 7 * WORDS)
    again = sample_words(hidden[order], weight, bias, keys(50)[order], WORDS)
    assert torch.equal(again, whole[order])
    assert len(whole.unique()) > 5


def test_seed_example_and_position_each_change_the_noise() -> None:
    words = torch.arange(5000, dtype=torch.int32)
    base = torch.cat((keys(2), keys(2, seed=2), keys(2, position=4)))
    noise = exponentials(base, words).double()
    assert len(base.unique()) == 6
    apart = torch.corrcoef(noise) - torch.eye(6)
    assert float(apart.abs().max()) < 0.08  # 5.6 standard deviations
    shifted = torch.corrcoef(torch.stack((noise[:, 1:].flatten(), noise[:, :-1].flatten())))
    assert abs(float(shifted[0, 1])) < 0.03


def test_noise_is_exponential_down_to_its_smallest_values() -> None:
    noise = exponentials(keys(400), torch.arange(5000, dtype=torch.int32)).double()
    assert float(noise.mean()) == pytest.approx(1, abs=0.004)
    for edge in (1e-4, 1e-3, 0.1, 1.0, 5.0):
        share = 1 - torch.exp(torch.tensor(-edge)).item()
        found = float((noise < edge).double().mean())
        assert found == pytest.approx(share, abs=5 * (share * (1 - share) / noise.numel()) ** 0.5)
    assert float(noise.min()) > 0


def test_noise_never_changes() -> None:
    """Runs that resume with another version draw the same words."""
    key = row_keys(1, torch.tensor([(3 << 40) | 5, 0]), torch.tensor([7, 0]))
    assert key.tolist() == GOLDEN_KEYS
    bits = (1 - torch.exp(-exponentials(key, torch.arange(3, dtype=torch.int32)).double())) * 2**31
    torch.testing.assert_close(bits, torch.tensor(GOLDEN_BITS, dtype=torch.float64), rtol=1e-6, atol=0)


def test_keys_are_split_mix() -> None:
    def finalizer(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    golden, seed, example, position = 0x9E3779B97F4A7C15, 2**40 + 9, (2 << 40) | 11, 500
    inner = finalizer((example + seed * golden % 2**63) % 2**64)
    expected = finalizer((inner + position * golden) % 2**64)
    found = row_keys(seed, torch.tensor([example]), torch.tensor([position])).item()
    assert found % 2**64 == expected


def test_no_gradient_and_one_graph() -> None:
    hidden, weight, bias = (x.detach() for x in inputs(20, torch.float32))
    compiled = torch.compile(sample_words, backend="eager", fullgraph=True)
    assert torch.equal(
        compiled(hidden, weight, bias, keys(20), WORDS), sample_words(hidden, weight, bias, keys(20), WORDS)
    )
    meta = (x.to("meta") for x in (hidden, weight, bias, keys(20)))
    assert sample_words(*meta, WORDS).shape == (20,)

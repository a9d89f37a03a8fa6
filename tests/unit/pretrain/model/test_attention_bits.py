"""Attention's gradients on a GPU twice: the same bits, as train.deterministic promises."""

import pytest
import torch

from pretrain.model.attention import Packing, attend

LENGTHS = [512] * 16
REPEATS = 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("backend", "dropout"), [("varlen", 0.0), ("flash", 0.0), ("flash", 0.1)])
def test_gradients_of_long_examples_have_the_same_bits_each_time(backend: str, dropout: float) -> None:
    """A query's gradient is a sum over many blocks of keys, which else add up in the order in which they end."""
    generator = torch.Generator("cuda").manual_seed(3)
    shape, kind = (sum(LENGTHS), 8, 64), {"dtype": torch.bfloat16, "device": "cuda"}
    q, k, v, weights = (torch.randn(shape, generator=generator, **kind) for _ in range(4))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    found, before = [], torch.get_deterministic_debug_mode()
    try:
        torch.set_deterministic_debug_mode("error")  # as set_arithmetic has it
        for _ in range(REPEATS):
            torch.manual_seed(7)
            out = attend(*qkv, Packing.of(LENGTHS, "cuda"), dropout=dropout, backend=backend)
            found.append((out, *torch.autograd.grad(out, qkv, weights)))
    finally:
        torch.set_deterministic_debug_mode(before)
    for other in found[1:]:
        for first, again in zip(found[0], other, strict=True):
            assert torch.equal(first, again)

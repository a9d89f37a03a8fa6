"""ModernBERT's local layers in sequences of 8,192 tokens on a GPU, beside a dense mask."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.model.attention import Packing, attend
from pretrain.model.attention_tiles import Visibility

LENGTHS = [8192, 1, 3000]
WINDOW = 64
"""To either side: encoder.local_attention=128."""


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each example by itself under a mask of all its pairs, in fp32."""
    found = []
    for piece in zip(*(x.split(LENGTHS) for x in (q, k, v)), strict=True):
        place = torch.arange(len(piece[0]), device=q.device)
        mask = (place[:, None] - place).abs() <= WINDOW
        heads = (x.transpose(0, 1)[None] for x in piece)
        found.append(F.scaled_dot_product_attention(*heads, attn_mask=mask)[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["varlen", "flash"])
def test_the_window_of_8192_tokens_is_the_dense_masks(backend: str) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    shape = (sum(LENGTHS), 4, 64)
    q, k, v, weights = (torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(4))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    exact = [x.detach().float().requires_grad_() for x in qkv]
    out = attend(
        *qkv, Packing.of(LENGTHS, "cuda"), visibility=Visibility(False, window=WINDOW), backend=backend
    )
    expected = dense(*exact)
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=2e-2)
    gradients = torch.autograd.grad(out, qkv, weights)
    wanted = torch.autograd.grad(expected, exact, weights.float())
    for ours, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=5e-2)

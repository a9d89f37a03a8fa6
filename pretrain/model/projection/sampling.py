"""Sample words from a vocabulary projection, with noise that depends on nothing but a key of each row.

The word of a row is argmax(logits + Gumbel noise): a draw from the softmax of its logits. The noise of a word in a row
is a hash of the row's key, so that a token draws the same word in any cut of the global batch, at every world size,
after a resume and on any device. (Sums round differently in another cut: that moves a draw where two words are as good
as tied.)

Shape legend: R rows, E embedding size, V words with padding, C rows of a chunk.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from pretrain.model.operators import operator

_CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Logits alive at a time: 4 MiB on a CPU, 128 MiB on a GPU."""
# Constants are the signed numbers with the bits of the unsigned ones in the sources: torch multiplies modulo 2**64.
_GOLDEN_64, _GOLDEN_32 = -0x61C8864680B583EB, -0x61C88647
_SPLITMIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_LOW_BIAS = (0x7FEB352D, -0x7B935975)


def row_keys(seed: int, keys_R: Tensor, positions_R: Tensor) -> Tensor:
    """Hash a seed, keys of examples and positions in them into a key (R,) int64 of each row (SplitMix64, Steele et al.
    2014)."""
    return _split_mix(_split_mix(keys_R + seed * _GOLDEN_64 % (1 << 63)) + positions_R * _GOLDEN_64)


@operator("sample_words")
def sample_words(
    hidden_RE: Tensor, weight_VE: Tensor, bias_V: Tensor, keys_R: Tensor, vocabulary_size: int
) -> Tensor:
    """Draw a word of each row from softmax(hidden weight' + bias): ids (R,) int64 below `vocabulary_size`.

    Noise and sums are in float32 (float64 for float64 input). No gradient comes through: detach the inputs. A node that
    torch.compile leaves as it is, with a few rows of logits alive at a time."""
    sampled_R = torch.empty_like(keys_R)
    weight_VE, bias_V = weight_VE[:vocabulary_size], bias_V[:vocabulary_size]
    words_V = torch.arange(vocabulary_size, device=keys_R.device, dtype=torch.int32)
    elements = _CHUNK_ELEMENTS.get(keys_R.device.type, _CHUNK_ELEMENTS["cuda"])
    rows = max(1, elements // vocabulary_size)
    for first in range(0, len(keys_R), rows):
        chunk = slice(first, first + rows)
        logits_CV = F.linear(hidden_RE[chunk], weight_VE)
        logits_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)).add_(bias_V)
        sampled_R[chunk] = logits_CV.sub_(exponentials(keys_R[chunk], words_V).log_()).argmax(-1)
    return sampled_R


@torch.library.register_fake("maskmill::sample_words")
def _(hidden_RE: Tensor, weight_VE: Tensor, bias_V: Tensor, keys_R: Tensor, vocabulary_size: int) -> Tensor:
    return torch.empty_like(keys_R)


def exponentials(keys_C: Tensor, words_V: Tensor) -> Tensor:
    """Draw from the exponential distribution of mean 1 for each row's key (C,) int64 and each word (V,) int32: (C, V)
    float32. Minus its logarithm is Gumbel noise.

    The word and the lower half of the key go through Wellons' 32-bit hash ("lowbias32", 2018), which the upper half
    enters midway. The 31 bits that are used keep the full precision of float32 at small numbers: they win draws."""
    low_C1, high_C1 = (half[:, None].to(torch.int32) for half in (keys_C, keys_C >> 32))
    bits_CV = words_V * _GOLDEN_32 + low_C1
    bits_CV.bitwise_xor_(_shifted(bits_CV, 16)).mul_(_LOW_BIAS[0]).bitwise_xor_(high_C1)
    bits_CV.bitwise_xor_(_shifted(bits_CV, 15)).mul_(_LOW_BIAS[1])
    bits_CV.bitwise_xor_(_shifted(bits_CV, 16)).bitwise_and_((1 << 31) - 1)
    uniform_CV = bits_CV.to(torch.float32).add_(0.5).mul_(2.0**-31)
    return uniform_CV.neg_().log1p_().neg_()


def _split_mix(x: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64."""
    x = (x ^ _shifted(x, 30)) * _SPLITMIX[0]
    x = (x ^ _shifted(x, 27)) * _SPLITMIX[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros: torch's own shift of a signed integer copies its sign."""
    return (x >> bits).bitwise_and_((1 << (8 * x.element_size() - bits)) - 1)

"""Count the floating-point operations of a forward and backward pass: those of the model, on real tokens.

A matrix product costs 6 operations per weight and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1).
Attention costs 12 h per pair of query and key that see each other (Narayanan et al. 2021). No recomputation, no
padding. A weight that several layers share is counted in each of them.
"""

from pretrain.config.encoder import EncoderSettings
from pretrain.model.visibility import FULL, Visibility


def encoder_flops(
    settings: EncoderSettings, tokens: int, squares: int, visibility: Visibility = FULL
) -> float:
    """Count the operations of the matrices over examples with `tokens` tokens in all, whose squared lengths sum
    to `squares`."""
    hidden = settings.hidden
    weights = settings.layers * layer_weights(settings)
    if settings.embedding_width != hidden:
        weights += settings.embedding_width * hidden
    windowed = visibility._replace(window=settings.local_reach)
    local = sum(map(settings.is_local, range(settings.layers)))
    pairs = (settings.layers - local) * seen_pairs(visibility, tokens, squares)
    pairs += local * seen_pairs(windowed, tokens, squares)
    return float(6 * weights * tokens + 12 * hidden * pairs)


def layer_weights(settings: EncoderSettings) -> int:
    """Count the elements of the matrices of one layer."""
    keys = settings.key_heads * settings.head_size
    products = 3 if settings.gated else 2
    return settings.hidden * (2 * settings.hidden + 2 * keys + products * settings.intermediate)


def projection_flops(settings: EncoderSettings, vocabulary: int, rows: int) -> float:
    """Count the operations of the head's dense layer, if any, and the projection of `rows` rows to `vocabulary`
    words."""
    dense = settings.hidden if settings.head_transform else 0
    return float(6 * settings.embedding_width * (dense + vocabulary) * rows)


def seen_pairs(visibility: Visibility, tokens: int, squares: int) -> int:
    """Count the pairs of query and key in examples with `tokens` tokens in all, whose squared lengths sum to `squares`;
    with a window, at most, since only their sums are known. Ranks see half of all pairs, as a causal order does."""
    pairs = squares
    if visibility.window:
        pairs = min(pairs, tokens * (2 * visibility.window + 1))
    return (pairs + tokens) // 2 if visibility.causal or visibility.ranked else pairs

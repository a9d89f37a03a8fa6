"""Say which encoder layers use the same parameters: functions of integers and names, without torch.

Consecutive layers form a group, and the first layer of a group owns what the group shares (Lan et al. 2020, ALBERT,
section 3.1). A layer has two halves, each with its own LayerNorm: the paper does not say whose a LayerNorm is where
one half alone is shared.
"""

from collections.abc import Iterable

from pretrain.config.encoder_settings import EncoderSettings

HALVES = {"attention": ("attention", "attention_norm"), "feed_forward": ("feed_forward", "feed_forward_norm")}
"""Halves of a layer -> the modules of each."""


def group_of(layer: int, layers: int, groups: int) -> int:
    """Return the group, from 0, of layer `layer`, from 0: the formula of transformers' AlbertTransformer, so that an
    export is the same network. Google's script rounds otherwise where floats do not divide evenly."""
    return int(layer / (layers / groups))


def first_of_group(group: int, layers: int, groups: int) -> int:
    """Return the first layer of a group."""
    return next(layer for layer in range(layers) if group_of(layer, layers, groups) == group)


def owner_of(settings: EncoderSettings, layer: int, half: str) -> int:
    """Return the layer that owns the parameters of `half` (of HALVES) of layer `layer`: itself, or an earlier one."""
    if settings.sharing not in ("all", half):
        return layer
    group = group_of(layer, settings.layers, settings.groups)
    return first_of_group(group, settings.layers, settings.groups)


def half_of(name: str) -> str:
    """Return the half of a layer that a parameter belongs to, from its name within the layer."""
    module = name.partition(".")[0]
    return next(half for half, modules in HALVES.items() if module in modules)


def layer_and_rest(name: str) -> tuple[int, str] | None:
    """Split the name of an encoder layer's parameter into the layer's number and the name within the layer; None for
    the name of any other parameter."""
    prefix, _, numbered = name.partition("encoder.layers.")
    number, _, rest = numbered.partition(".")
    return (int(number), rest) if not prefix and number.isdecimal() else None


def in_layer(layer: int, rest: str) -> str:
    """Join what `layer_and_rest` splits."""
    return f"encoder.layers.{layer}.{rest}"


def names_within_layers(names: Iterable[str]) -> list[str]:
    """List the names within a layer that occur in any layer, in order, each once."""
    parts = map(layer_and_rest, names)
    return list(dict.fromkeys(part[1] for part in parts if part))

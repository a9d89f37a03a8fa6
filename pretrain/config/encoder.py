"""Define the settings of the encoder and of ELECTRA, and tell which encoder layers use the same parameters.

EncoderSettings, the settings encoder.*, describe sizes and kinds of the layers of an encoder. Nothing here needs
torch.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from data_pipeline.fields import marked, setting
from data_pipeline.settings import MOST_POSITIONS

NARROW, SHARED, MODERN = "narrow", "shared", "modern"
"""Variants of an encoder, in which it differs from BERT's in kind, not in size: which objectives have a place for them
is in their registry."""


@dataclass
class EncoderSettings:
    """The sizes and the kinds of an encoder's layers.

    Marks of a setting say what else depends on it. `variant`: another value than the default makes an encoder of this
    variant. `training_only`: a finished model computes the same whatever it is, so that a run may start from weights
    that were trained with another value. `may_change`: no parameter depends on it, and a run may start from weights
    that were trained with another value, though they compute something else by it. `may_grow`: a run may start from
    weights that were trained with a smaller value. `by_phase`: it may differ between the phases of a run. A setting
    with none of these is the same in all that starts from a model, or is exported as one."""

    layers: int = setting(12, at_least=1, at_most=10_000)
    """Transformer blocks."""
    hidden: int = setting(768, at_least=1, at_most=1_000_000)
    """Width of a token's vector."""
    embedding_size: int = setting(0, at_least=0, at_most=1_000_000, variant=NARROW)
    """Width of the embedding tables, which a linear layer projects to `hidden` where it differs; 0: as wide."""
    sharing: str = setting("none", one_of=("none", "all", "attention", "feed_forward"), variant=SHARED)
    """What the layers of a group have in common: none, all (as ALBERT), attention or feed_forward, each with the
    LayerNorm behind it."""
    groups: int = setting(1, at_least=1, at_most=10_000, variant=SHARED)
    """Groups of consecutive layers that share among themselves; 1: all layers are one group."""
    heads: int = setting(12, at_least=1, at_most=100_000)
    """Attention heads; they share out the width."""
    kv_heads: int = setting(0, at_least=0, at_most=100_000, variant=MODERN)
    """Heads of keys and values, each of which several query heads use (grouped-query attention); 0: one for each."""
    intermediate: int = setting(3072, at_least=1, at_most=10_000_000)
    """Width of the feed-forward layer."""
    gated: bool = setting(False, variant=MODERN)
    """Multiply what the activation gives with a second projection of the input (GeGLU with gelu, SwiGLU with silu)."""
    activation: str = setting("gelu_tanh", one_of=("gelu_tanh", "gelu", "relu", "silu"))
    """gelu_tanh (Google's and NVIDIA's BERT; `gelu_new` at Hugging Face), gelu (erf), relu or silu."""
    biases: bool = setting(True, variant=MODERN)
    """Whether the Linear layers have biases, the one of each word in the output aside."""
    norm: str = setting("layer", one_of=("layer", "rms"), variant=MODERN)
    """layer (LayerNorm) or rms (RMSNorm, which has no bias)."""
    norm_place: str = setting("post", one_of=("post", "pre"), variant=MODERN)
    """post: after each residual sum, as in BERT. pre: before attention and feed-forward, and once after the last layer;
    the first attention has none where the embeddings have one."""
    norm_biases: bool = setting(True, variant=MODERN)
    """Whether LayerNorms have a bias."""
    embedding_norm: bool = setting(True, variant=MODERN)
    """Whether a norm follows the embeddings."""
    head_transform: bool = setting(True, variant=MODERN)
    """Whether hidden states pass a Linear layer, the activation and a norm before they are compared with the words.
    Without it the words have biases only with encoder.biases."""
    dropout: float = setting(0.1, at_least=0, at_most=0.99, training_only=True)
    """Dropout of embeddings and of each block's two outputs."""
    attention_dropout: float = setting(0.1, at_least=0, at_most=0.99, training_only=True)
    """Dropout of the attention weights."""
    attention_output_dropout: float = setting(
        -1.0, at_least=-1, at_most=0.99, variant=MODERN, training_only=True
    )
    """Dropout of the attention's output; below 0: encoder.dropout, as of the others."""
    positions: str = setting("learned", one_of=("learned", "rope"), variant=MODERN)
    """learned: a table of max_positions vectors. rope: queries and keys are rotated by their position (RoPE)."""
    max_positions: int = setting(512, at_least=8, at_most=MOST_POSITIONS, may_grow=True)
    """Longest sequence: with learned positions the rows of their table."""
    rope_theta: float = setting(10_000.0, at_least=1, variant=MODERN, may_change=True, by_phase=True)
    """RoPE's base in global layers."""
    local_rope_theta: float = setting(10_000.0, at_least=1, variant=MODERN, may_change=True, by_phase=True)
    """RoPE's base in local layers."""
    global_every: int = setting(1, at_least=1, at_most=10_000, variant=MODERN)
    """Every so many-th layer, from the first on, attends to the whole example, the others to a window; 1: all do."""
    local_attention: int = setting(128, at_least=2, at_most=131_072, variant=MODERN)
    """Width of that window: a token sees half as many tokens on either side."""
    segments: int = setting(2, at_least=0, at_most=65_535)
    """Segments that the embedding tells apart; 0: it has no segment table, as in RoBERTa."""
    layer_norm_eps: float = setting(1e-12, at_least=0, at_most=1)
    """Added to the variance in LayerNorm, to the mean square in RMSNorm."""
    initializer_range: float = setting(0.02, at_least=0, at_most=10, training_only=True)
    """Standard deviation of the truncated normal (cut at two of it) that weights start from."""
    scale_residual_init: bool = setting(False, variant=MODERN, training_only=True)
    """Start projections back into the residual stream, and the Linear layer of the head for words, from this over the
    square root of twice the number of layers."""

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables."""
        return self.embedding_size or self.hidden

    @property
    def head_size(self) -> int:
        """The width of an attention head."""
        return self.hidden // self.heads

    @property
    def key_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def local_reach(self) -> int:
        """How many tokens on either side a token sees in a local layer."""
        return self.local_attention // 2

    @property
    def in_use(self) -> "EncoderSettings":
        """The same encoder, with the defaults of settings that change nothing in it: as many heads of keys as of
        queries, and what is said of local layers where there are none."""
        default = EncoderSettings()
        unused = ["kv_heads"] if self.key_heads == self.heads else []
        if not any(map(self.is_local, range(self.layers))):
            unused += ["global_every", "local_attention", "local_rope_theta"]
        return replace(self, **{name: getattr(default, name) for name in unused})

    def is_local(self, layer: int) -> bool:
        """Return whether layer `layer`, from 0, attends to a window."""
        return layer % self.global_every != 0


VARIANTS = {name: marked(EncoderSettings, "variant", name) for name in (NARROW, SHARED, MODERN)}
"""Variant -> its settings."""
TRAINING_ONLY = marked(EncoderSettings, "training_only")
MAY_CHANGE = marked(EncoderSettings, "may_change")
MAY_GROW = marked(EncoderSettings, "may_grow")
SWITCHES = tuple(name for name in VARIANTS[MODERN] if name not in TRAINING_ONLY)
"""Settings that make a ModernBERT or a EuroBERT of a BERT, and that a finished model is computed by."""


# The settings objective.electra.*, and the generator's encoder, which follows from them and from encoder.*.


@dataclass
class ElectraSettings:
    generator_share: float = setting(0.25, at_least=0.001, at_most=1)
    """Width of the generator as a share of encoder.hidden. It has heads of about 64, and a feed-forward layer of four
    times its width, or where layers are gated, of this share of the encoder's."""
    generator_layers: int = setting(0, at_least=0, at_most=10_000)
    """Layers of the generator; 0: as many as encoder.layers. DeBERTa-v3's has half of them, and its whole width."""
    discriminator_weight: float = setting(50.0, at_least=0)
    """Weight of the discriminator's loss beside the generator's."""
    embeddings: str = setting("shared", one_of=("shared", "disentangled", "separate"))
    """shared: generator and discriminator have the same embeddings, which both losses move. disentangled: each table of
    the discriminator is the generator's, without gradient, plus one of its own that starts at zero. separate: each has
    its own, and without encoder.embedding_size the generator's are as wide as its layers."""

    def generator(self, encoder: EncoderSettings) -> EncoderSettings:
        """Derive the generator's encoder from the discriminator's."""
        hidden = max(1, round(encoder.hidden * self.generator_share))
        even = 1 if encoder.positions == "learned" else 2  # RoPE rotates halves of heads
        fitting = (n for n in range(max(1, hidden // 64), 0, -1) if hidden % (n * even) == 0)
        heads = next(fitting, 1)
        inner = max(1, round(encoder.intermediate * self.generator_share)) if encoder.gated else 4 * hidden
        separate = self.embeddings == "separate"
        return replace(
            encoder,
            layers=self.generator_layers or encoder.layers,
            hidden=hidden,
            embedding_size=encoder.embedding_size if separate else encoder.embedding_width,
            heads=heads,
            kv_heads=0 if heads % encoder.key_heads else encoder.kv_heads,
            intermediate=inner,
        )


# Which layers use the same parameters.
#
# Consecutive layers form a group, and the first layer of a group owns what the group shares (Lan et al. 2020, ALBERT,
# section 3.1). A layer has two halves, each with its own LayerNorm: the paper does not say whose a LayerNorm is where
# one half alone is shared.


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

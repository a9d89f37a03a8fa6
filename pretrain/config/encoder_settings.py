"""Define EncoderSettings: sizes and kinds of the layers of an encoder, the settings encoder.*."""

from dataclasses import dataclass, replace

SWITCHES = (
    *("norm", "norm_place", "norm_biases", "embedding_norm", "head_transform", "biases", "gated", "kv_heads"),
    *("positions", "rope_theta", "local_rope_theta", "global_every", "local_attention"),
)
"""Settings that make a ModernBERT or a EuroBERT of a BERT."""


@dataclass
class EncoderSettings:
    layers: int = 12
    """Transformer blocks."""
    hidden: int = 768
    """Width of a token's vector."""
    embedding_size: int = 0
    """Width of the embedding tables, which a linear layer projects to `hidden` where it differs; 0: as wide."""
    sharing: str = "none"
    """What the layers of a group have in common: none, all (as ALBERT), attention or feed_forward, each with the
    LayerNorm behind it."""
    groups: int = 1
    """Groups of consecutive layers that share among themselves; 1: all layers are one group."""
    heads: int = 12
    """Attention heads; they share out the width."""
    kv_heads: int = 0
    """Heads of keys and values, each of which several query heads use (grouped-query attention); 0: one for each."""
    intermediate: int = 3072
    """Width of the feed-forward layer."""
    gated: bool = False
    """Multiply what the activation gives with a second projection of the input (GeGLU with gelu, SwiGLU with silu)."""
    activation: str = "gelu_tanh"
    """gelu_tanh (Google's and NVIDIA's BERT; `gelu_new` at Hugging Face), gelu (erf), relu or silu."""
    biases: bool = True
    """Whether the Linear layers have biases, the one of each word in the output aside."""
    norm: str = "layer"
    """layer (LayerNorm) or rms (RMSNorm, which has no bias)."""
    norm_place: str = "post"
    """post: after each residual sum, as in BERT. pre: before attention and feed-forward, and once after the last layer;
    the first attention has none where the embeddings have one."""
    norm_biases: bool = True
    """Whether LayerNorms have a bias."""
    embedding_norm: bool = True
    """Whether a norm follows the embeddings."""
    head_transform: bool = True
    """Whether hidden states pass a Linear layer, the activation and a norm before they are compared with the words.
    Without it the words have biases only with encoder.biases."""
    dropout: float = 0.1
    """Dropout of embeddings and of each block's two outputs."""
    attention_dropout: float = 0.1
    """Dropout of the attention weights."""
    attention_output_dropout: float = -1.0
    """Dropout of the attention's output; below 0: encoder.dropout, as of the others."""
    positions: str = "learned"
    """learned: a table of max_positions vectors. rope: queries and keys are rotated by their position (RoPE)."""
    max_positions: int = 512
    """Longest sequence: with learned positions the rows of their table."""
    rope_theta: float = 10_000.0
    """RoPE's base in global layers."""
    local_rope_theta: float = 10_000.0
    """RoPE's base in local layers."""
    global_every: int = 1
    """Every so many-th layer, from the first on, attends to the whole example, the others to a window; 1: all do."""
    local_attention: int = 128
    """Width of that window: a token sees half as many tokens on either side."""
    segments: int = 2
    """Segments that the embedding tells apart; 0: it has no segment table, as in RoBERTa."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm, to the mean square in RMSNorm."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal (cut at two of it) that weights start from."""
    scale_residual_init: bool = False
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

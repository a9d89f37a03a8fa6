"""Define ElectraSettings, objective.electra.*, and the generator's encoder that follows from them."""

from dataclasses import dataclass, replace

from pretrain.config.encoder_settings import EncoderSettings


@dataclass
class ElectraSettings:
    generator_share: float = 0.25
    """Width of the generator as a share of encoder.hidden. It has heads of about 64, and a feed-forward layer of four
    times its width, or where layers are gated, of this share of the encoder's."""
    generator_layers: int = 0
    """Layers of the generator; 0: as many as encoder.layers. DeBERTa-v3's has half of them, and its whole width."""
    discriminator_weight: float = 50.0
    """Weight of the discriminator's loss beside the generator's."""
    embeddings: str = "shared"
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

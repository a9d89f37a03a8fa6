"""Embed token ids, segment ids and positions: the first hidden states.

Shape legend: T packed tokens, E embedding size.
"""

from torch import Tensor, nn

from pretrain.config.settings import EncoderSettings
from pretrain.model.dropout import Dropout
from pretrain.model.initialize import bare, bare_embedding, padded


class Embeddings(nn.Module):
    """LayerNorm(word + segment + position), then dropout (Devlin et al. 2019, section 3 and figure 2); with
    `encoder.segments` 0 there is no segment table and nothing is added for it (Liu et al. 2019, RoBERTa).

    The word table has a row for each entry of the padded vocabulary; no id reaches its padding."""

    def __init__(self, settings: EncoderSettings, vocabulary_size: int) -> None:
        super().__init__()
        width = settings.embedding_width
        self.word = bare_embedding(padded(vocabulary_size), width)
        self.position = bare_embedding(settings.max_positions, width)
        self.segment = bare_embedding(settings.segments, width) if settings.segments else None
        self.norm = bare(nn.LayerNorm, width, eps=settings.layer_norm_eps)
        self.dropout = Dropout(settings.dropout)
        self.vocabulary_rows = {"word.weight": vocabulary_size}

    def forward(self, input_ids_T: Tensor, segment_ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Embed the tokens of a run: (T, E)."""
        x_TE = self.word(input_ids_T)
        if self.segment is not None:
            x_TE = x_TE + self.segment(segment_ids_T)
        return self.dropout(self.norm(x_TE + self.position(positions_T)))

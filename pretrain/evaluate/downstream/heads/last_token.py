"""Classify a text by its last token, the only one that sees all of it in a model that reads in one direction."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.evaluate.downstream.encoders import width_of
from pretrain.evaluate.downstream.heads.saved import Output, load_beside, save_beside

FILE = "head.safetensors"
LABELS = "labels"


class LastTokenClassifier(nn.Module):
    """A linear layer on the last hidden state of each text's last token: [SEP] where the model reads left to right, and
    [CLS] where its input is reversed. transformers has no such class with BERT's layers."""

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any, labels: tuple[str, ...], dropout: float) -> None:
        """`encoder`: a bare model of transformers. `labels`: empty for a number. `dropout`: of the token's vector."""
        super().__init__()
        self.encoder, self.labels = encoder, labels
        self.dropout = nn.Dropout(max(dropout, 0.0))
        self.classifier = nn.Linear(width_of(encoder), len(labels) or 1)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, attention_mask: Tensor, labels: Tensor | None = None, **batch: Tensor) -> Output:
        """Return the loss, if there are labels (mean cross-entropy, or squared error of a number), and (examples,
        classes) logits."""
        states = self.encoder(attention_mask=attention_mask, **batch).last_hidden_state
        places = torch.arange(1, states.shape[1] + 1, device=states.device)
        last = (attention_mask * places).argmax(1)
        logits = self.classifier(self.dropout(states[torch.arange(len(states), device=states.device), last]))
        if labels is None:
            return Output(None, logits)
        if self.labels:
            return Output(functional.cross_entropy(logits, labels), logits)
        return Output(functional.mse_loss(logits[:, 0], labels.to(logits.dtype)), logits)

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as a folder of its own, and the head with its labels beside it."""
        self.encoder.save_pretrained(folder)
        save_beside(self, folder / FILE, {LABELS: self.labels}, without="encoder.")

    def load_head(self, folder: Path) -> "LastTokenClassifier":
        """Read the head that `save_pretrained` wrote. Raises UserError where there is none of this shape."""
        load_beside(self, folder / FILE, without="encoder.")
        return self

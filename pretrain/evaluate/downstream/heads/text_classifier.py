"""Classify texts in ways that transformers has no class for: by the last token, the only one that sees all of a text in
a model that reads in one direction, or by a BiLSTM on the encoder."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.evaluate.downstream.encoders import width_of
from pretrain.evaluate.downstream.heads.bilstm import WIDTH, BiLstm
from pretrain.evaluate.downstream.heads.saved import HEAD_FILE, LABELS, Output, load_beside, save_beside


class TextClassifier(nn.Module):
    """A linear layer on the last hidden state of each text's last token ([SEP] where the model reads left to right, and
    [CLS] where its input is reversed), or on what a BiLSTM over all its tokens ends with."""

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any, labels: tuple[str, ...], dropout: float, bilstm: bool) -> None:
        """`encoder`: a bare model of transformers. `labels`: empty for a number. `dropout`: of the vector that is
        classified, and of those that the BiLSTM reads."""
        super().__init__()
        self.encoder, self.labels = encoder, labels
        self.dropout = nn.Dropout(max(dropout, 0.0))
        self.lstm = BiLstm(width_of(encoder)) if bilstm else None
        self.classifier = nn.Linear(WIDTH if bilstm else width_of(encoder), len(labels) or 1)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, attention_mask: Tensor, labels: Tensor | None = None, **batch: Tensor) -> Output:
        """Return the loss, if there are labels (mean cross-entropy, or squared error of a number), and (examples,
        classes) logits."""
        states = self.encoder(attention_mask=attention_mask, **batch).last_hidden_state
        if self.lstm is not None:
            vectors = self.lstm.read(self.dropout(states.float()), attention_mask).ends
        else:
            places = torch.arange(1, states.shape[1] + 1, device=states.device)
            last = (attention_mask * places).argmax(1)
            vectors = states[torch.arange(len(states), device=states.device), last]
        logits = self.classifier(self.dropout(vectors))
        if labels is None:
            return Output(None, logits)
        if self.labels:
            return Output(functional.cross_entropy(logits, labels), logits)
        return Output(functional.mse_loss(logits[:, 0], labels.to(logits.dtype)), logits)

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder as a folder of its own, and the head with its labels beside it."""
        self.encoder.save_pretrained(folder)
        save_beside(self, folder / HEAD_FILE, {LABELS: self.labels}, without="encoder.")

    def load_head(self, folder: Path) -> "TextClassifier":
        """Read the head that `save_pretrained` wrote. Raises UserError where there is none of this shape."""
        load_beside(self, folder / HEAD_FILE, without="encoder.")
        return self

"""Train BERT: masked tokens and labels of pairs, each weighing 1 (Devlin et al. 2019, section 3.1, appendix A.2)."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from data_pipeline.sequences.registry import NEXT_SENTENCE, PairTask, pair_task
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedTokenHead, PairHead, masked_words
from pretrain.objectives.base import MODERN_FAMILIES, Model, Objective
from pretrain.objectives.losses import (
    MASKED_METRICS,
    Term,
    Terms,
    masked_metrics,
    pair_metric_names,
    pair_metrics,
    pair_term,
)

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare


class MaskedTokensAndPairs(Model):
    """An encoder that predicts masked tokens, and the label of a pair: whether B follows A, or their order."""

    def __init__(self, encoder: Encoder, mask_id: int, task: PairTask) -> None:
        super().__init__(encoder)
        self.task = task.name
        self.mlm_head = MaskedTokenHead(encoder, mask_id)
        self.nsp_head = PairHead(encoder, task.labels)  # same name for any task: weights are drawn by name

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the terms `mlm` and that of the pair task: cross-entropies of masked tokens and of pair labels."""
        rows, predicted = batch.predicted()
        hidden_PH = self.encoder(batch, rows)
        mlm = self.mlm_head(hidden_PH, predicted)
        pairs = self.nsp_head(hidden_PH, predicted)
        terms = {"mlm": Term(mlm.all.loss, mlm.all.count, 1.0), self.task: pair_term(pairs)}
        metrics = {**dict(masked_metrics(mlm)), **dict(pair_metrics(self.task, pairs))}
        return Terms(terms, metrics, mlm.answers_R), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute the logits of both heads, by the heads' names: {"mlm": (masked rows, words), "nsp": (examples,
        labels)}."""
        hidden_TH = self.encoder(batch)
        return {
            "mlm": self.mlm_head.logits(hidden_TH, batch),
            "nsp": self.nsp_head.logits(hidden_TH, batch),
        }


class Bert(Objective):
    """The objective `bert`. Its second term, and that term's figures, have the name of the pair task of
    data.sequences: nsp or sop."""

    headline = "mask_loss"
    words = ("mask",)
    pairs = True
    families: tuple[str, ...] = ("BertForPreTraining", *MODERN_FAMILIES)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.task = pair_task(config.data.sequences) or NEXT_SENTENCE
        self.labels = {self.task.name: self.task.labels}
        self.terms = ("mlm", self.task.name)
        self.metrics = (*MASKED_METRICS, *pair_metric_names(self.task.name, self.task.labels))

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the encoder with both heads."""
        return MaskedTokensAndPairs(self.build_encoder(vocabulary), vocabulary.mask, self.task)

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the words behind [MASK], and the labels of the pairs."""
        return {"mask": masked_words(batch, vocabulary.mask), self.task.name: batch.labels}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count masked tokens and pairs."""
        return {"mlm": share.masked, self.task.name: share.pairs}

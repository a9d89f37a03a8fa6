"""Train BERT, ALBERT and ERNIE 1.0: masked tokens and labels of pairs, each weighing 1 (Devlin et al. 2019).

The objectives `albert` and `ernie` have the loss of `bert`. They differ from it in pairs, masks and encoder, which
settings and recipes state.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from data_pipeline.sequences.registry import NEXT_SENTENCE, PairTask, pair_task
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedTokenHead, PairHead, masked_words
from pretrain.objectives.base import (
    MASKED_METRICS,
    MODERN_FAMILIES,
    Model,
    Objective,
    Term,
    Terms,
    masked_metrics,
    pair_metric_names,
    pair_metrics,
    pair_term,
)

if TYPE_CHECKING:
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
    """Train BERT: masked tokens and labels of pairs, each weighing 1 (Devlin et al. 2019, section 3.1, appendix A.2).

    The objective `bert`. Its second term, and that term's figures, have the name of the pair task of data.sequences:
    nsp or sop."""

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


class Albert(Bert):
    """Train ALBERT: masked tokens and the order of two segments, each weighing 1 (Lan et al. 2020, section 3).

    The objective `albert`: the loss of `bert` with the pair task of data.sequences=sentence_order; the paper also
    compares next-sentence prediction (section 4.6). What makes an ALBERT is in the encoder's settings: narrow
    embeddings (encoder.embedding_size) and parameters that layers share (encoder.sharing, encoder.groups). N-gram masks
    are data.masking=ngram; the recipes have all of it.

    Where the published code (google-research/albert) and this differ: there a chunk of one sentence gets a random
    second segment, here it is cut in two (data_pipeline/sequences/pairs.py); its n-grams may cross a [SEP], and its
    words are separated at punctuation and digits as well as at spaces (data_pipeline/masking/phrases.py)."""

    families = ("AlbertForPreTraining",)


class Ernie(Bert):
    """Train ERNIE 1.0: masked tokens, phrases and names, and labels of pairs (Sun et al. 2019, section 3).

    The objective `ernie`: the loss of `bert`. Its stages, knowledge of ever larger units, are kinds of masks that
    follow one another in one run (data.mask_stages with data.dynamic_masking): pairs and schedule continue, and no
    stage needs shards of its own. What makes the encoder an ERNIE (relu, LayerNorm with 1e-5) is in the recipes.

    Where the published code (PaddlePaddle/ERNIE, 2019) and this differ: its labels of pairs are 1 for the true next
    segment, here, as in BERT and in transformers' class, 0; it draws for each phrase whether it is masked, without a
    limit (data_pipeline/masking/masker.py); its pairs join neighbours of a shuffled buffer. Its dialogue embeddings and
    their task are left out."""

    families = ("ErnieForPreTraining", *MODERN_FAMILIES)

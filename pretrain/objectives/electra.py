"""Train ELECTRA: a generator fills in masked tokens, a discriminator tells which were replaced (Clark et al. 2020).

The generator is small; the discriminator judges every token. The objective `electra` trains both at once;
`electra_two_stage` is the second of the paper's two stages, beside a generator that is finished. The paper's
adversarial variant and those of all tokens are not here.

Differences from Google's code (google-research/electra), each on purpose:
- Positions are masked without replacement (data_pipeline/masking), where it draws them with replacement: there a
  position drawn twice counts twice in the generator's loss, and the mean of two sampled ids becomes the fake token.
- Losses are divided by the counts of the whole global batch, where it takes the mean of each device's mean.
- Every weight starts from the same truncated normal, where it takes Glorot's for the embeddings' projections and the
  discriminator's last layer.

DeBERTa-v3's gradient-disentangled embeddings (He et al. 2023, section 3.3) are a setting; there tables of words and
positions are disentangled, here those of segments too, and both encoders have a norm of their own.

A sample is any word of the vocabulary, special ones too, until the generator has learnt that none of them is masked.

Samples do not depend on how a batch is cut (`sample_words` in pretrain/model/vocabulary_losses.py), but for one
limit: at another number of ranks, or with another micro-batch, sums round differently, and where two words are as
good as tied another one may be drawn. From there on the weights differ by more than rounding: the discriminator has
read another word. In float64, and in fp32 with the same samples, they are equal within rounding.

Shape legend: T packed tokens, E examples, R masked rows, H hidden size, B bins.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch, Predicted
from pretrain.model.encoder import ACTIVATIONS, Encoder, add_to, encoder_flops, projection_flops
from pretrain.model.heads import MaskedPredictions, MaskedTokenHead, Predictions, masked_words
from pretrain.model.initialize import bare, load_parameters
from pretrain.model.vocabulary_losses import row_keys, sample_words
from pretrain.objectives.base import (
    MASKED_METRICS,
    Model,
    Objective,
    Ranking,
    Ratio,
    Term,
    Terms,
    accuracy,
    masked_metrics,
)
from pretrain.objectives.distilbert import first_weights, load_teacher
from pretrain.objectives.teacher import teacher_encoder

if TYPE_CHECKING:
    from data_pipeline.loader.packing import StepShare


METRICS = (
    *MASKED_METRICS,
    *("sampled_accuracy", "rtd_auc", "rtd_accuracy", "rtd_majority", "rtd_recall"),
)
"""Figures of generator and discriminator."""

BINS, LARGEST_LOGIT = 1024, 16.0
"""Of the histogram behind the area under the curve; larger logits count as this one."""


class GeneratorHead(MaskedTokenHead):
    """A head for masked tokens that also draws a word of each row from what it predicts."""

    def forward(  # type: ignore[override]
        self, hidden_TH: Tensor, batch: Predicted, keys_R: Tensor
    ) -> tuple[MaskedPredictions, Tensor]:
        """Compute what MaskedTokenHead does, and draw words (R,) int64 keyed by `keys_R`. They have no gradient."""
        hidden_RE = self.transform(hidden_TH, batch)
        weight_VE, bias_V = self.decoder.detach(), self.bias.detach()
        sampled_R = sample_words(hidden_RE.detach(), weight_VE, bias_V, keys_R, self.vocabulary_size)
        return self.predictions(hidden_RE, batch), sampled_R


class Detections(NamedTuple):
    """Results of the discriminator's head over all counted tokens: 0-d, except `ranking`."""

    all: Predictions
    replaced: Tensor
    """How many were replaced,"""
    found: Tensor
    """and how many of them the head says were."""
    ranking: Ranking


class ReplacedTokenHead(nn.Module):
    """Linear, activation, and Linear to one logit of each token: above 0, it was replaced."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        settings = encoder.settings
        self.dense = bare(nn.Linear, settings.hidden, settings.hidden)
        self.activation = ACTIVATIONS[settings.activation]
        self.prediction = bare(nn.Linear, settings.hidden, 1)

    def forward(self, hidden_TH: Tensor, replaced_T: Tensor, counted_T: Tensor) -> Detections:
        """Sum the binary cross-entropies of all tokens that count, and count hits. Sums are in float32 at least."""
        logits_T = self.logits(hidden_TH)
        logits_T = logits_T.to(torch.promote_types(logits_T.dtype, torch.float32))
        losses_T = F.binary_cross_entropy_with_logits(
            logits_T, replaced_T.to(logits_T.dtype), reduction="none"
        )
        flagged_T = logits_T > 0
        return Detections(
            Predictions(
                losses_T.masked_fill(~counted_T, 0.0).sum(),
                counted_T.sum(),
                ((flagged_T == replaced_T) & counted_T).sum(),
            ),
            replaced=(replaced_T & counted_T).sum(),
            found=(flagged_T & replaced_T & counted_T).sum(),
            ranking=ranking(logits_T.detach(), replaced_T, counted_T),
        )

    def logits(self, hidden_TH: Tensor) -> Tensor:
        """Compute the logits (T,)."""
        return self.prediction(self.activation(self.dense(hidden_TH)))[:, 0]


def generate(
    generator: Encoder, head: GeneratorHead, batch: MicroBatch, seed: int
) -> tuple[MaskedPredictions, Tensor]:
    """Predict the masked rows, and draw a word for each, keyed by the run's seed, its example and its place: (R,)."""
    rows_R, predicted = batch.predicted(pairs=False)
    keys_R = batch.keys.index_select(0, batch.example_index.index_select(0, rows_R))
    keys_R = row_keys(seed, keys_R, batch.positions.index_select(0, rows_R))
    return head(generator(batch, rows_R), predicted, keys_R)


def detect(
    discriminator: Encoder, head: ReplacedTokenHead, batch: MicroBatch, sampled_R: Tensor
) -> Detections:
    """Judge every token of the batch with `sampled_R` in its masked rows; one that equals the original is original."""
    original_T, corrupted = batch.filled(batch.masked_ids).input_ids, batch.filled(sampled_R)
    return head(discriminator(corrupted), corrupted.input_ids != original_T, batch.real_tokens())


def electra_metrics(
    mlm: MaskedPredictions, rtd: Detections, sampled_R: Tensor, batch: MicroBatch
) -> dict[str, Any]:
    """Return the figures of METRICS."""
    same_R = (sampled_R == batch.masked_ids).sum()  # a spare row has none
    return {
        **dict(masked_metrics(mlm)),
        "sampled_accuracy": Ratio(same_R, mlm.all.count),
        "rtd_auc": rtd.ranking,
        "rtd_accuracy": accuracy(rtd.all),
        "rtd_majority": Ratio(rtd.all.count - rtd.replaced, rtd.all.count),
        "rtd_recall": Ratio(rtd.found, rtd.replaced),
    }


def ranking(logits_T: Tensor, replaced_T: Tensor, counted_T: Tensor) -> Ranking:
    """Count the logits of replaced tokens and of original ones in BINS equal bins up to LARGEST_LOGIT."""
    scaled_T = (logits_T + LARGEST_LOGIT) * (BINS / (2 * LARGEST_LOGIT))
    bins_T = scaled_T.nan_to_num().clamp(0, BINS - 1).long() + BINS * replaced_T
    counts = torch.zeros(2 * BINS + 1, dtype=torch.int64, device=logits_T.device)
    counts.scatter_add_(0, bins_T.masked_fill(~counted_T, 2 * BINS), torch.ones_like(bins_T))
    return Ranking(positives=counts[BINS : 2 * BINS], negatives=counts[:BINS])


class ReplacedTokens(Model):
    """A discriminator, which is `encoder`, and a generator; objective.electra.embeddings says what they share."""

    def __init__(self, encoder: Encoder, generator: Encoder, config: RunConfig, mask_id: int) -> None:
        super().__init__(encoder)
        self.generator = generator
        self.mlm_head = GeneratorHead(generator, mask_id)
        self.mlm_head.activation = ACTIVATIONS["gelu"]  # as in transformers, independent of the encoder's
        self.rtd_head = ReplacedTokenHead(encoder)
        self.weight, self.seed = config.objective.electra.discriminator_weight, config.run.seed

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the terms `mlm`, of the generator's masked tokens, and `rtd`, of all tokens of the discriminator."""
        mlm, sampled_R = generate(self.generator, self.mlm_head, batch, self.seed)
        rtd = detect(self.encoder, self.rtd_head, batch, sampled_R)
        terms = {
            "mlm": Term(mlm.all.loss, mlm.all.count, 1.0),
            "rtd": Term(rtd.all.loss, rtd.all.count, self.weight),
        }
        return Terms(terms, electra_metrics(mlm, rtd, sampled_R, batch), mlm.answers_R), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute {"mlm": (masked rows, words) of the generator, "rtd": (tokens,) and the states "hidden": (tokens, H)
        of the discriminator}; both read the batch's own ids."""
        hidden_TH = self.encoder(batch)
        return {
            "mlm": self.mlm_head.logits(self.generator(batch), batch),
            "rtd": self.rtd_head.logits(hidden_TH),
            "hidden": hidden_TH,
        }


class Electra(Objective):
    """Train ELECTRA: a small generator fills in masked tokens, and the discriminator tells for every token whether it
    was replaced (Clark et al. 2020; google-research/electra).

    The objective `electra`. The discriminator is the encoder that encoder.* describes."""

    terms = ("mlm", "rtd")
    metrics = METRICS
    headline = "rtd_auc"
    families = (
        *("ElectraForPreTraining", "ModernBertModel of ELECTRA"),
        *("ElectraForMaskedLM", "ModernBertForMaskedLM of ELECTRA"),
    )
    words = ("mask",)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.generator = config.objective.electra.generator(config.encoder)

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build discriminator and generator with their heads."""
        encoder, how = self.build_encoder(vocabulary), self.config.objective.electra.embeddings
        shared = encoder.embeddings if how == "shared" else None
        generator = Encoder(self.generator, vocabulary.size, encoder.activation_checkpointing, shared)
        if how == "disentangled":
            add_to(encoder.embeddings, generator.embeddings)
        return ReplacedTokens(encoder, generator, self.config, vocabulary.mask)

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the words behind [MASK]."""
        return {"mask": masked_words(batch, vocabulary.mask)}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count masked tokens, and all tokens: the discriminator judges [CLS] and [SEP] as well."""
        return {"mlm": share.masked, "rtd": share.tokens}

    def flops(self, vocabulary: int, *, tokens: int, squares: int, masked: int) -> float:
        """Count the operations of both encoders, of the discriminator's head, and of the projection to words, whose
        forward pass is computed once more for the samples."""
        discriminator, generator = self.config.encoder, self.generator
        return (
            encoder_flops(discriminator, tokens, squares)
            + encoder_flops(generator, tokens, squares)
            + projection_flops(generator, vocabulary, masked) * 4 / 3
            + 6.0 * (discriminator.hidden**2 + discriminator.hidden) * tokens
        )


# The second of two stages.


HEAD = "rtd_head."
"""Prefix of the parameters that the generator has no weights for."""


class Generator(Model):
    """A masked language model that draws words."""

    def __init__(self, encoder: Encoder, mask_id: int) -> None:
        super().__init__(encoder)
        self.mlm_head = GeneratorHead(encoder, mask_id)


class Discriminator(Model):
    """An encoder that tells which tokens were replaced; its generator is the one frozen model."""

    def __init__(self, encoder: Encoder, seed: int) -> None:
        super().__init__(encoder)
        self.rtd_head = ReplacedTokenHead(encoder)
        self.seed = seed

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the term `rtd`, of all tokens."""
        [generator] = self.frozen
        assert isinstance(generator, Generator)
        with torch.no_grad():
            mlm, sampled_R = generate(generator.encoder, generator.mlm_head, batch, self.seed)
        rtd = detect(self.encoder, self.rtd_head, batch, sampled_R)
        term = Term(rtd.all.loss, rtd.all.count, 1.0)
        return Terms({"rtd": term}, electra_metrics(mlm, rtd, sampled_R, batch), mlm.answers_R), memory

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute {"rtd": (tokens,)} of the batch's own ids."""
        return {"rtd": self.rtd_head.logits(self.encoder(batch))}


class SecondStage(Objective):
    """Train ELECTRA's discriminator in the second of two stages, beside a generator that is finished (Clark et al.
    2020).

    The objective `electra_two_stage`. Section 3.2 of the paper, "two-stage": a generator is trained alone on masked
    tokens; then a discriminator starts from its weights and learns to detect the words that it puts in, while the
    generator stays as it is. The first stage is any run that leaves a masked language model, such as
    `objective.name=mlm`; its exported folder is the setting `generator`. A discriminator with fewer layers starts from
    evenly spaced ones of the generator's, as a distilled student does; the paper's has as many.

    The generator is in evaluation mode: it draws its samples without dropout. It is no part of optimizer, ZeRO,
    checkpoints and export, which has the discriminator alone."""

    terms = ("rtd",)
    metrics = METRICS
    headline = "rtd_auc"
    families = ("ElectraForPreTraining",)
    words = ("mask",)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        known = bool(config.objective.electra_two_stage.generator)  # a forecast may come before it is named
        self.generator = teacher_encoder(config) if known else config.encoder

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the discriminator alone."""
        return Discriminator(self.build_encoder(vocabulary), self.config.run.seed)

    def training_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the discriminator and its generator."""
        model = self.build_model(vocabulary)
        generator = Generator(Encoder(self.generator, vocabulary.size), vocabulary.mask)
        model.frozen = (generator.requires_grad_(False).eval(),)
        return model

    def fresh_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build both, the generator's weights and the discriminator's encoder from the generator's folder; equal on
        every rank. Raises UserError where the folder's weights do not fit."""
        model = super().fresh_model(vocabulary)
        taught, found = load_teacher(model, self.config)
        weights = first_weights(taught, found.encoder, self.config.encoder)
        weights = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
        unmatched = load_parameters(model, weights, where=str(found.folder), partial=True)
        if unmatched := [name for name in unmatched if not name.startswith(HEAD)]:
            raise UserError(
                f"weights do not match the discriminator: {', '.join(unmatched[:3])}",
                where=found.folder,
                remedy="give encoder.* the generator's values",
            )
        return model

    def targets(self, batch: MicroBatch, vocabulary: VocabularyStamp) -> dict[str, Tensor]:
        """Find the words behind [MASK]."""
        return {"mask": masked_words(batch, vocabulary.mask)}

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count all tokens: [CLS] and [SEP] are judged as well."""
        return {"rtd": share.tokens}

    def flops(self, vocabulary: int, *, tokens: int, squares: int, masked: int) -> float:
        """Count the operations of the discriminator and its head, and of the generator's forward pass: a third of what
        training it would take, its projection once more for the samples."""
        encoder = self.config.encoder
        generated = encoder_flops(self.generator, tokens, squares)
        generated += 2 * projection_flops(self.generator, vocabulary, masked)
        judged = encoder_flops(encoder, tokens, squares) + 6.0 * (encoder.hidden**2 + encoder.hidden) * tokens
        return judged + generated / 3

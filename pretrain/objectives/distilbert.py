"""Train DistilBERT and DistilRoBERTa: students of fewer layers that learn a teacher's predictions and masked words.

Sanh et al. 2019 and its published code (huggingface/transformers, examples/distillation), which we follow where the
paper says less: the loss is 5 times the divergence from the teacher's softened predictions, over all tokens of the
examples (not padding), 2 times the masked tokens' cross-entropy and 1 time one minus the cosine of the last hidden
states, each a mean over its own tokens; the temperature is 2. The student has neither segments nor a pooler, and starts
from the teacher's weights, its head included. Masks are drawn as for BERT; the published code favours rare words
(frequency to the power of -0.7), which is not done here.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import DistillationSettings, RunConfig
from pretrain.huggingface.folder import stored_tensors
from pretrain.model.batch import IGNORED, MicroBatch, Predicted
from pretrain.model.encoder import Encoder, encoder_flops, projection_flops
from pretrain.model.heads import MaskedPredictions, MaskedTokenHead
from pretrain.model.initialize import load_parameters
from pretrain.model.vocabulary_losses import SoftTargets, Targets, soft_targets
from pretrain.objectives.base import (
    MASKED_METRICS,
    MODERN_FAMILIES,
    Model,
    Ratio,
    Term,
    Terms,
    masked_metrics,
)
from pretrain.objectives.mlm import MaskedTokens, Mlm
from pretrain.objectives.teacher import Teacher, find_teacher, teacher_encoder

if TYPE_CHECKING:
    from data_pipeline.loader.packing import StepShare


class Rows(NamedTuple):
    """Rows S of the run at which predictions are compared."""

    index_S: Tensor  # int64
    counted_S: Tensor  # bool


class TaughtHead(MaskedTokenHead):
    """The head for masked words, which also compares its predictions with a teacher's: both in one forward pass, for
    which ZeRO-3 gathers its parameters."""

    def forward(  # type: ignore[override]
        self, hidden_TH: Tensor, batch: Predicted, rows: Rows, targets: Targets
    ) -> tuple[MaskedPredictions, SoftTargets]:
        """Compute loss, count and hits over the masked rows, and the divergence over `rows`, which are those of
        `targets`."""
        hidden_SH = self.transform(hidden_TH, batch._replace(masked_index=rows.index_S))
        soft = soft_targets(hidden_SH, self.decoder, self.bias, targets)
        return super().forward(hidden_TH, batch), soft


class Student(Model):
    """An encoder with a head for masked words, and its teacher: the one frozen model, with the same head."""

    def __init__(self, encoder: Encoder, mask_id: int, settings: DistillationSettings) -> None:
        super().__init__(encoder)
        self.settings = settings
        self.mlm_head = TaughtHead(encoder, mask_id)

    def forward(self, batch: MicroBatch, memory: Any = None) -> tuple[Terms, Any]:
        """Compute the terms `soft`, `mlm` and `cos`, and how often both models would give the same word."""
        settings, real_T = self.settings, batch.real_tokens()
        masked_R, predicted = batch.predicted(pairs=False)
        if settings.masked_only:
            rows = Rows(masked_R, batch.masked_ids != IGNORED)
        else:
            rows = Rows(torch.arange(batch.tokens, device=real_T.device), real_T)
        taught_TK, targets = self.teach(batch, predicted._replace(masked_index=rows.index_S), rows)
        hidden_TH = self.encoder(batch)
        mlm, soft = self.mlm_head(hidden_TH, predicted._replace(masked_index=masked_R), rows, targets)
        cos_T = 1 - F.cosine_similarity(promoted(hidden_TH), promoted(taught_TK), dim=-1)
        compared = rows.counted_S.sum()
        terms = {
            "soft": Term(soft.loss, compared, settings.soft_weight),
            "mlm": Term(mlm.all.loss, mlm.all.count, settings.mlm_weight),
            "cos": Term(cos_T.masked_fill(~real_T, 0.0).sum(), real_T.sum(), settings.cos_weight),
        }
        agreement = Ratio(soft.agreements_R.sum(), compared)
        metrics = {**dict(masked_metrics(mlm)), "soft_accuracy": agreement}
        return Terms(terms, metrics, mlm.answers_R), memory

    @torch.no_grad()
    def teach(self, batch: MicroBatch, compared: Predicted, rows: Rows) -> tuple[Tensor, Targets]:
        """Compute the teacher's hidden states (T, K), and what its head makes of `rows`, which `compared` names."""
        [teacher] = self.frozen
        assert isinstance(teacher, MaskedTokens)
        head = teacher.mlm_head
        hidden_TK = teacher.encoder(batch)
        given_SK = head.transform(hidden_TK, compared)
        size, temperature = head.vocabulary_size, self.settings.temperature
        return hidden_TK, Targets(given_SK, head.decoder, head.bias, rows.counted_S, size, temperature)

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Compute the student's own: {"mlm": (masked rows, words)}."""
        return {"mlm": self.mlm_head.logits(self.encoder(batch), batch)}


def promoted(x: Tensor) -> Tensor:
    """Turn half precision into float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class DistilBert(Mlm):
    """Train DistilBERT: a student of fewer layers that learns a teacher's predictions beside the masked words.

    The objective `distilbert`."""

    terms = ("soft", "mlm", "cos")
    families: tuple[str, ...] = ("DistilBertForMaskedLM", "BertForMaskedLM", *MODERN_FAMILIES)
    metrics = (*MASKED_METRICS, "soft_accuracy")

    @cached_property
    def settings(self) -> DistillationSettings:
        """The settings of this member."""
        return DistillationSettings(**self.config.objective.of_member())

    @cached_property
    def taught_by(self) -> EncoderSettings:
        """The sizes of the teacher."""
        return teacher_encoder(self.config)

    def build_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the student alone."""
        return Student(self.build_encoder(vocabulary), vocabulary.mask, self.settings)

    def training_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the student and its teacher."""
        model = self.build_model(vocabulary)
        teacher = MaskedTokens(Encoder(self.taught_by, vocabulary.size), vocabulary.mask)
        model.frozen = (teacher.requires_grad_(False).eval(),)
        return model

    def fresh_model(self, vocabulary: VocabularyStamp) -> Model:
        """Build the student and its teacher, the weights of both from the teacher's folder; equal on every rank.

        Raises UserError where the folder is no teacher."""
        model = super().fresh_model(vocabulary)
        taught, teacher = load_teacher(model, self.config)
        folder = str(teacher.folder)
        load_parameters(model, first_weights(taught, teacher.encoder, self.config.encoder), where=folder)
        return model

    def counts(self, share: "StepShare") -> dict[str, int]:
        """Count the tokens of all examples, and masked ones."""
        compared = share.masked if self.settings.masked_only else share.tokens
        return {"soft": compared, "mlm": share.masked, "cos": share.tokens}

    def predicted_rows(self, tokens: int, masked: int) -> int:
        """Count the student's rows: those that are compared, and the masked ones again."""
        return masked + (masked if self.settings.masked_only else tokens)

    def flops(self, vocabulary: int, *, tokens: int, squares: int, masked: int) -> float:
        """Count the student's operations, and the teacher's, which has no backward pass: a third of what training it
        would take."""
        rows = masked if self.settings.masked_only else tokens
        taught = encoder_flops(self.taught_by, tokens, squares)
        taught += projection_flops(self.taught_by, vocabulary, rows)
        own = super().flops(vocabulary, tokens=tokens, squares=squares, masked=masked)
        return own + taught / 3


def load_teacher(model: Model, config: RunConfig) -> tuple[dict[str, Tensor], Teacher]:
    """Load the weights of the folder that `config` names into the one frozen model; return them, by its names, and the
    folder's contents. Raises UserError where they do not fit."""
    found = find_teacher(config)
    read = found.family.from_hugging_face(stored_tensors(found.folder), found.fields, found.folder)
    [teacher] = model.frozen
    names = {name for name, _ in teacher.named_parameters()}
    taught = {name: tensor for name, tensor in read.items() if name in names}  # no judgement of pairs
    load_parameters(teacher, taught, where=str(found.folder))
    return taught, found


def kept_layers(teacher: int, student: int) -> list[int]:
    """Choose the teacher's layer that each of the student's starts from: evenly spaced, the first and the last among
    them, each rounded to the nearest. 12 -> 6 gives the published 0, 2, 4, 7, 9, 11; one layer is the first."""
    return [round(i * (teacher - 1) / max(student - 1, 1)) for i in range(student)]


def first_weights(
    taught: dict[str, Tensor], teacher: EncoderSettings, student: EncoderSettings
) -> dict[str, Tensor]:
    """Choose the student's first weights from its teacher's: embeddings, `kept_layers` and the head. Without segments,
    every position gets the vector of the teacher's first one, which all text of one segment shows."""
    kept = kept_layers(teacher.layers, student.layers)
    weights = {name: tensor for name, tensor in taught.items() if not name.startswith("encoder.layers.")}
    for ours, theirs in enumerate(kept):
        start = f"encoder.layers.{theirs}."
        weights |= {
            f"encoder.layers.{ours}.{name.removeprefix(start)}": tensor
            for name, tensor in taught.items()
            if name.startswith(start)
        }
    if "encoder.embeddings.position.weight" not in weights:  # rotated
        return weights
    positions = weights["encoder.embeddings.position.weight"][: student.max_positions]
    if (
        not student.segments
        and (segment := weights.pop("encoder.embeddings.segment.weight", None)) is not None
    ):
        positions = positions + segment[0]
    weights["encoder.embeddings.position.weight"] = positions
    return weights


class DistilRoberta(DistilBert):
    """Train DistilRoBERTa: a student of a RoBERTa's, with DistilBERT's losses (Sanh et al. 2019, and its published
    code).

    The objective `distilroberta`. Six layers learn from RoBERTa-base, over its byte-level BPE vocabulary, and are
    exported as a RoBERTa. The published code can freeze the position embeddings of such students; here they are always
    trained."""

    families = ("RobertaForMaskedLM", *MODERN_FAMILIES)

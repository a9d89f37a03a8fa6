"""Train ELECTRA's discriminator in the second of two stages, beside a generator that is finished (Clark et al. 2020).

Section 3.2 of the paper, "two-stage": a generator is trained alone on masked tokens; then a discriminator starts from
its weights and learns to detect the words that it puts in, while the generator stays as it is. The first stage is any
run that leaves a masked language model, such as `objective.name=mlm`; its exported folder is the setting `generator`.
A discriminator with fewer layers starts from evenly spaced ones of the generator's, as a distilled student does; the
paper's has as many.

The generator is in evaluation mode: it draws its samples without dropout. It is no part of optimizer, ZeRO,
checkpoints and export, which has the discriminator alone.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder, encoder_flops, projection_flops
from pretrain.model.heads import masked_words
from pretrain.model.initialize import load_parameters
from pretrain.objectives.base import Model, Objective
from pretrain.objectives.distilbert import first_weights, load_teacher
from pretrain.objectives.electra import (
    METRICS,
    GeneratorHead,
    ReplacedTokenHead,
    detect,
    electra_metrics,
    generate,
)
from pretrain.objectives.losses import Term, Terms
from pretrain.objectives.teacher import teacher_encoder

if TYPE_CHECKING:  # packing imports numba, which `maskmill plan` need not wait for
    from data_pipeline.loader.packing import StepShare

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
    """The objective `electra_two_stage`."""

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

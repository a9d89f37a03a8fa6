"""Build the peer of each member: its class of transformers, trained on the same examples, padded, with the same parts.

A peer is a plain PyTorch loop without transformers' Trainer: padded batch, forward pass, backward pass, gradients
clipped to 1, fused AdamW. Its model has the sizes of our run's and random weights; its loss has every part of ours: the
pair head, ELECTRA's two models, DistilBERT's teacher, SpanBERT's boundary head.
"""

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from data_pipeline.loader.loader import Shares
from data_pipeline.loader.packing import caps_for
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Family
from pretrain.huggingface.registry import chosen_families
from pretrain.huggingface.xlnet import places
from pretrain.model.batch import IGNORED, MicroBatch
from pretrain.objectives.spanbert import PLACE_SIZE, PLACES, span_rows
from pretrain.objectives.teacher import find_teacher
from pretrain.objectives.xlnet import factorization_ranks
from pretrain.preflight.check_run import Plan

NO_TARGET = -100
"""What transformers' losses leave out."""


class Peer(nn.Module):
    """A model of transformers with heads for words and, where its class has one, for pairs."""

    pair_label = "next_sentence_label"

    def __init__(self, config: RunConfig, vocabulary: VocabularyStamp, families: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.families = [family.of_run(config) for family in chosen_families(families, config)]
        self.model = self.built(self.families[0])

    def built(self, family: Family) -> Any:
        """Build the class of `family` with fresh weights."""
        kind = getattr(transformers, family.export_class)
        return kind(kind.config_class(**family.config(self.config, self.vocabulary)))

    def inputs(self, batch: MicroBatch, family: Family | None = None) -> dict[str, Tensor]:
        """Pad the batch to its longest example."""
        return (family or self.families[0]).inputs(batch, self.vocabulary.pad)

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the loss as the class does."""
        labels = {"labels": targets(batch)}
        if (batch.labels >= 0).all():
            labels[self.pair_label] = batch.labels
        return self.model(**self.inputs(batch), **labels).loss


class AlbertPeer(Peer):
    """ALBERT calls the label of a pair by another name."""

    pair_label = "sentence_order_label"


class CausalPeer(Peer):
    """A decoder: every token but the padding is a target, which the class shifts itself."""

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the loss of every next token."""
        inputs = self.inputs(batch)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, NO_TARGET)
        return self.model(**inputs, labels=labels).loss


class ElectraPeer(Peer):
    """Generator and discriminator, with one set of embeddings."""

    def __init__(self, config: RunConfig, vocabulary: VocabularyStamp, families: tuple[str, ...]) -> None:
        super().__init__(config, vocabulary, families)
        self.generator = self.built(self.families[1])
        self.generator.electra.embeddings = self.model.electra.embeddings
        self.generator.tie_weights()

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute both losses; samples have no gradient."""
        inputs, labels = self.inputs(batch), targets(batch)
        out = self.generator(**inputs, labels=labels)
        replaced = detection(self.model, inputs, labels, out.logits.detach())
        return out.loss + self.config.objective.electra.discriminator_weight * replaced


class SecondStagePeer(Peer):
    """A discriminator and its frozen generator."""

    def __init__(self, config: RunConfig, vocabulary: VocabularyStamp, families: tuple[str, ...]) -> None:
        super().__init__(config, vocabulary, families)
        self.generator = finished_model(config)

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the loss of all tokens."""
        inputs, labels = self.inputs(batch), targets(batch)
        with torch.no_grad():
            out = self.generator(**inputs)
        return detection(self.model, inputs, labels, words_of(out))


def detection(model: Any, inputs: dict[str, Tensor], labels: Tensor, logits: Tensor) -> Tensor:
    """Put sampled words at the targets; the discriminator's loss over all tokens."""
    asked = labels != NO_TARGET
    ids = inputs["input_ids"].masked_scatter(asked, sampled(logits[asked]))
    original = inputs["input_ids"].masked_scatter(asked, labels[asked])
    return model(**inputs | {"input_ids": ids}, labels=(ids != original).long()).loss


def sampled(logits: Tensor) -> Tensor:
    """Draw a word of each row."""
    return torch.distributions.Categorical(logits=logits).sample()


def finished_model(config: RunConfig) -> Any:
    """Load the frozen model that a run's objective reads, in evaluation mode."""
    found = find_teacher(config)
    kind = getattr(transformers, found.family.export_class)
    return kind.from_pretrained(found.folder).requires_grad_(False).eval()


def words_of(out: Any) -> Tensor:
    """The logits of words of any class."""
    return out.logits if "logits" in out else out.prediction_logits


class SpanPeer(Peer):
    """BertForMaskedLM and the boundary head, in plain torch."""

    def __init__(self, config: RunConfig, vocabulary: VocabularyStamp, families: tuple[str, ...]) -> None:
        super().__init__(config, vocabulary, families)
        hidden, eps = config.encoder.hidden, config.encoder.layer_norm_eps
        self.place = nn.Embedding(PLACES, PLACE_SIZE)
        self.boundary = nn.Sequential(
            *(nn.Linear(2 * hidden + PLACE_SIZE, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=eps)),
            *(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=eps)),
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the masked words' loss and the boundaries'."""
        out = self.model(**self.inputs(batch), labels=targets(batch), output_hidden_states=True)
        spans = span_rows(batch, self.vocabulary.cls, self.vocabulary.sep, PLACES)
        example, position, states = batch.example_index, batch.positions, out.hidden_states[-1]
        left, right = (states[example[rows], position[rows]] for rows in (spans.left_R, spans.right_R))
        hidden = self.boundary(torch.cat((left, right, self.place(spans.place_R)), -1))
        logits = F.linear(hidden, self.model.get_input_embeddings().weight, self.bias)
        sums = F.cross_entropy(logits, spans.ids_R, ignore_index=IGNORED, reduction="sum")
        return out.loss + sums / batch.masked_ids.numel()


class DistilledPeer(Peer):
    """A student and its frozen teacher: the three losses of the published code, over all tokens."""

    def __init__(self, config: RunConfig, vocabulary: VocabularyStamp, families: tuple[str, ...]) -> None:
        super().__init__(config, vocabulary, families)
        self.teacher_family = find_teacher(config).family
        self.teacher = finished_model(config)

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the weighted sum of soft targets, masked words and cosine."""
        settings: Any = getattr(self.config.objective, self.config.objective.name)
        inputs, asked = self.inputs(batch), {"output_hidden_states": True}
        out = self.model(**inputs, labels=targets(batch), **asked)
        with torch.no_grad():
            taught = self.teacher(**self.inputs(batch, self.teacher_family), **asked)
        told = words_of(taught)
        real, temperature = inputs["attention_mask"].bool(), settings.temperature
        soft = F.kl_div(
            F.log_softmax(out.logits[real] / temperature, -1),
            F.softmax(told[real] / temperature, -1),
            reduction="batchmean",
        )
        states = (model.hidden_states[-1][real] for model in (out, taught))
        cosine = 1 - F.cosine_similarity(*states, dim=-1).mean()
        return (
            settings.soft_weight * temperature**2 * soft
            + settings.mlm_weight * out.loss
            + settings.cos_weight * cosine
        )


class XlnetPeer(Peer):
    """Two streams, the orders that ours draws."""

    def loss(self, batch: MicroBatch) -> Tensor:
        """Compute the loss at the targets, each from what its order lets it see."""
        batch = batch.filled(batch.masked_ids)
        ranks = factorization_ranks(batch, self.vocabulary.cls, self.vocabulary.sep, self.config.run.seed)
        inputs, example, place = self.inputs(batch), batch.example_index, places(batch)
        padded = torch.zeros_like(inputs["input_ids"])
        padded[example, place] = ranks
        hidden = (padded[:, None, :] > padded[:, :, None]) | (
            (padded[:, None, :] == padded[:, :, None]) & (padded[:, :, None] > padded.amin())
        )
        rows = batch.masked_index
        counts = torch.bincount(example[rows], minlength=len(batch.lengths))
        number = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[example[rows]]
        mapping = torch.zeros(len(counts), int(counts.max()), padded.shape[1])
        mapping[example[rows], number, place[rows]] = 1
        labels = torch.full(mapping.shape[:2], NO_TARGET)
        labels[example[rows], number] = batch.masked_ids
        return self.model(**inputs, perm_mask=hidden.float(), target_mapping=mapping, labels=labels).loss


PEERS: dict[str, type[Peer]] = {
    "albert": AlbertPeer,
    "causal": CausalPeer,
    "electra": ElectraPeer,
    "electra_two_stage": SecondStagePeer,
    "spanbert": SpanPeer,
    "distilbert": DistilledPeer,
    "distilroberta": DistilledPeer,
    "xlnet": XlnetPeer,
}
"""Member -> its peer; all others have the plain one."""


def targets(batch: MicroBatch) -> Tensor:
    """Put the masked words where transformers expects them: (examples, longest) int64, NO_TARGET elsewhere."""
    labels = torch.full((len(batch.lengths), max(batch.lengths)), NO_TARGET)
    rows = batch.masked_index
    labels[batch.example_index[rows], batch.positions[rows]] = batch.masked_ids
    return labels


def batches(plan: Plan, config: RunConfig) -> Iterator[MicroBatch]:
    """Yield the global batches of a run in their order, each as one micro-batch."""
    index, length = plan.index, plan.index.settings["sequence_length"]
    masker = plan.masking.masker(0) if plan.masking else None
    caps = caps_for(index.train, 2 * config.train.global_batch, length, masker)
    shares = Shares(index, plan.order(config), caps, masking=plan.masking)
    number = 0
    while True:
        [packed] = shares.read(number).micro_batches
        yield MicroBatch.from_packed(packed)
        number += 1


def trained(plan: Plan, config: RunConfig) -> Iterator[tuple[int, float]]:
    """Train the peer of the run's member without end; yield the tokens and the loss of each step."""
    torch.manual_seed(config.run.seed)
    peer = PEERS.get(config.objective.name, Peer)(config, plan.index.vocabulary, plan.objective.families)
    peer.train()
    parameters = [p for p in peer.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.optim.lr, fused=True)
    for batch in batches(plan, config):
        loss = peer.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield batch.tokens, loss.item()

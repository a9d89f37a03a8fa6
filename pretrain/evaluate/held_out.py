"""The shards' held-out examples in; loss and accuracies of the model at hand out. The same examples every time."""

import numpy as np
import torch
from numpy.typing import NDArray

from data_pipeline.index import VocabularyStamp
from data_pipeline.loader import held_out
from data_pipeline.statistics import unigram_entropy
from pretrain.agreement import told_alike
from pretrain.batch import MicroBatch
from pretrain.config import RunConfig
from pretrain.engine import Engine
from pretrain.meters import Meter
from pretrain.preflight import Plan
from pretrain.world import World


class HeldOut:
    """This rank's share of the held-out examples, packed once and kept in memory."""

    def __init__(self, plan: Plan, config: RunConfig, world: World) -> None:
        """All ranks call this. Raises UserError on all where one cannot read its share."""
        index = plan.index
        self._world = world
        self.examples = min(index.held_out.examples, config.train.eval_examples)
        """How many examples an evaluation has, over all ranks."""
        self._micro_batches: list[MicroBatch] = []
        if self.examples:
            caps = plan.caps(index.held_out, config)
            # a damaged block is read by one rank only
            share = told_alike(world, lambda: held_out(index, self.examples, caps, world.rank, world.size))
            self._micro_batches = [MicroBatch.from_packed(packed) for packed in share.micro_batches]
        own = _word_counts(self._micro_batches, index.vocabulary)
        counts, (most,) = world.sum_max(own.tolist(), [len(self._micro_batches)]).wait()
        self._entropy = unigram_entropy(np.array(counts)) if self.examples else 0.0
        # a rank with less than others computes empty ones: under ZeRO-3 every forward pass is a collective
        missing = most - len(self._micro_batches)
        self._micro_batches += [MicroBatch.empty(index.vocabulary.cls, index.vocabulary.sep)] * missing

    def evaluate(self, engine: Engine) -> dict[str, float]:
        """held_out_loss and the like, over all ranks; empty without held-out examples. All ranks call this."""
        if not self.examples:
            return {}
        meter = Meter()
        engine.eval()
        # these micro-batches have other shapes than training's, and are few: not worth a graph of their own
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for micro_batch in self._micro_batches:
                terms, _ = engine(micro_batch.to(self._world.device))
                meter.add(terms)
        engine.train()
        meter.end_step()
        figures = {f"held_out_{name}": value for name, value in meter.read(self._world).items()}
        figures["unigram_entropy"] = self._entropy
        return figures


def _word_counts(micro_batches: list[MicroBatch], vocabulary: VocabularyStamp) -> NDArray[np.int64]:
    """How often each word stands in the text of these examples, before masking and without special tokens."""
    counts = np.zeros(vocabulary.size, np.int64)
    for batch in micro_batches:
        words = batch.input_ids.clone()
        words[batch.masked_index] = batch.masked_ids
        counts += np.bincount(words.numpy(), minlength=vocabulary.size)
    counts[[vocabulary.cls, vocabulary.sep]] = 0
    return counts

"""Evaluate the model at hand on the shards' held-out examples: the same ones every time."""

import numpy as np
import torch

from data_pipeline.loader.loader import held_out
from data_pipeline.shards.index import Index
from data_pipeline.shards.inspect.show_examples import words_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.evaluate.baselines import answers_in_short, pair_majority, unigram
from pretrain.model.batch import MicroBatch
from pretrain.model.heads import rows_of_kinds
from pretrain.preflight.check_run import Plan
from pretrain.training.meters import Meter

Figures = dict[str, float | str]
"""Of one evaluation, by name."""


class HeldOut:
    """This rank's share of the held-out examples, packed once and kept in memory."""

    def __init__(self, plan: Plan, config: RunConfig, world: World) -> None:
        """All ranks call this. Raises UserError on all where one cannot read its share."""
        index = plan.index
        self._world, self._index = world, index
        self.examples = min(index.held_out.examples, config.train.eval_examples)
        """How many examples an evaluation has, over all ranks."""
        self._micro_batches: list[MicroBatch] = []
        if self.examples:
            caps = plan.caps(index.held_out, config)
            # a damaged block is read by one rank only
            share = raise_on_all_ranks(
                world, lambda: held_out(index, self.examples, caps, world.rank, world.size)
            )
            self._micro_batches = [MicroBatch.from_packed(packed) for packed in share.micro_batches]
        self._baselines, most = _baselines(self._micro_batches, index, world)
        # a rank with less than others computes empty ones: under ZeRO-3 every forward pass is a collective
        missing = most - len(self._micro_batches)
        self._micro_batches += [MicroBatch.empty(index.vocabulary.cls, index.vocabulary.sep)] * missing

    def evaluate(self, engine: Engine) -> Figures:
        """held_out_loss and the like over all ranks, with what a model without any context would score beside them;
        empty without held-out examples. All ranks call this."""
        if not self.examples:
            return {}
        meter = Meter()
        answers = np.zeros(self._index.vocabulary.size, np.int64)
        engine.eval()
        # these micro-batches have other shapes than training's, and are few: not worth a graph of their own
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for micro_batch in self._micro_batches:
                terms, _ = engine(micro_batch.to(self._world.device))
                meter.add(terms)
                if terms.answers_R is not None:
                    given = terms.answers_R[terms.answers_R >= 0].cpu().numpy()
                    answers += np.bincount(given, minlength=len(answers))
        engine.train()
        meter.end_step()
        found: Figures = {**meter.read(self._world)}
        total, _ = self._world.sum_max(answers.tolist(), []).wait()
        if sum(total):
            found |= answers_in_short(np.array(total), words_of(self._index))
        return {f"held_out_{name}": value for name, value in (found | self._baselines).items()}


def _baselines(micro_batches: list[MicroBatch], index: Index, world: World) -> tuple[Figures, int]:
    """What these examples of all ranks give away without any context, and how many micro-batches the rank with most of
    them has. All ranks call this."""
    targets = np.zeros(index.vocabulary.size, np.int64)
    labels = np.zeros(2, np.int64)
    for batch in micro_batches:
        _, predicted = batch.predicted()
        at_mask = rows_of_kinds(predicted, index.vocabulary.mask)["mask"]
        targets += predicted.masked_ids[at_mask].bincount(minlength=len(targets)).numpy()
        labels += batch.labels[batch.labels >= 0].bincount(minlength=len(labels)).numpy()
    own = [*targets.tolist(), *labels.tolist()]
    total, (most,) = world.sum_max(own, [len(micro_batches)]).wait()
    counts = np.array(total, np.int64)
    return {**unigram(counts[:-2]), **pair_majority(counts[-2:])}, most

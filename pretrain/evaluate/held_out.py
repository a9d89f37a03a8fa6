"""The shards' held-out examples in; loss and accuracies of the model at hand out. The same examples every time."""

import torch

from data_pipeline.loader import held_out
from pretrain.batch import MicroBatch
from pretrain.config import RunConfig
from pretrain.engine import Engine
from pretrain.meters import Meter
from pretrain.preflight import Plan
from pretrain.world import World


class HeldOut:
    """This rank's share of the held-out examples, packed once and kept in memory."""

    def __init__(self, plan: Plan, config: RunConfig, world: World) -> None:
        index = plan.index
        self._world = world
        self._entropy = index.statistics.get("held_out_unigram_entropy")
        self.examples = min(index.held_out.examples, config.train.eval_examples)
        """How many examples an evaluation has, over all ranks."""
        self._micro_batches: list[MicroBatch] = []
        if self.examples:
            share = held_out(index, self.examples, plan.caps(index.held_out, config), world.rank, world.size)
            self._micro_batches = [MicroBatch.from_packed(packed) for packed in share.micro_batches]
        _, (most,) = world.sum_max([], [len(self._micro_batches)]).wait()
        # a rank with less than others computes empty ones: under ZeRO-3 every forward pass is a collective
        missing = most - len(self._micro_batches)
        self._micro_batches += [MicroBatch.empty(index.vocabulary.cls, index.vocabulary.sep)] * missing

    def evaluate(self, engine: Engine) -> dict[str, float]:
        """held_out_loss and the like, over all ranks; empty without held-out examples. All ranks call this."""
        if not self.examples:
            return {}
        meter = Meter()
        engine.eval()
        with torch.no_grad():
            for micro_batch in self._micro_batches:
                terms, _ = engine(micro_batch.to(self._world.device))
                meter.add(terms)
        engine.train()
        figures = {f"held_out_{name}": value for name, value in meter.read(self._world).items()}
        if self._entropy is not None:
            figures["unigram_entropy"] = self._entropy
        return figures

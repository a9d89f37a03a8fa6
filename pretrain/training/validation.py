"""Evaluate the model while it trains: on the shards' held-out examples, and on a small task.

The held-out examples are the same ones every time.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from data_pipeline.loader.loader import held_out, held_out_steps
from data_pipeline.loader.packing import Caps, StepShare
from data_pipeline.shards.show import words_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import Engine
from pretrain.distributed.partition_map import whole_weights
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import without_padding
from pretrain.preflight.check_run import Plan
from pretrain.run.learning import answers_in_short, pair_majority, unigram
from pretrain.run.metrics import leading_prediction
from pretrain.run.metrics_log import PROBE_PREFIX
from pretrain.training.feed import eager
from pretrain.training.guard import LossMeter
from pretrain.training.stream_memory import StreamMemory

Figures = dict[str, float | str]
"""Figures of one evaluation, by name."""


class HeldOut:
    """This rank's share of the held-out examples, packed once and kept in memory."""

    def __init__(self, plan: Plan, config: RunConfig, world: World) -> None:
        """Load this rank's share. All ranks call this; if one cannot read its share, all raise UserError."""
        index = plan.index
        self._world, self._index, self._separators = world, index, plan.separators
        self._both_directions = config.data.both_directions
        self._leads = leading_prediction(plan.objective.headline).name
        self.examples = min(index.held_out.examples, config.train.eval_examples)
        """Number of examples per evaluation, over all ranks."""
        streams = min(config.train.global_batch, self.examples) if plan.objective.memory else 0
        self._memory = StreamMemory.of_rank(plan.objective.memory, streams, world)
        self._micro_batches: list[MicroBatch] = []
        if self.examples:
            caps = plan.caps(index.held_out, config)
            # a damaged block is read by one rank only
            shares = raise_on_all_ranks(world, lambda: self._read(caps, streams))
            self._micro_batches = [
                MicroBatch.from_packed(packed) for share in shares for packed in share.micro_batches
            ]
        self._baselines, most = _baselines(self._micro_batches, plan, world)
        # a rank with fewer than others computes empty ones: under ZeRO-3 every forward pass is a collective
        missing = most - len(self._micro_batches)
        self._micro_batches += [MicroBatch.empty(index.vocabulary.cls, index.vocabulary.sep)] * missing

    def _read(self, caps: Caps, streams: int) -> list[StepShare]:
        index, world = self._index, self._world
        if streams:
            return held_out_steps(
                index,
                self.examples,
                caps,
                streams,
                world.rank,
                world.size,
                self._separators,
                self._both_directions,
            )
        return [held_out(index, self.examples, caps, world.rank, world.size, self._separators)]

    def evaluate(self, engine: Engine | nn.Module) -> Figures:
        """Compute held_out_loss and other metrics over all ranks, with the baselines of a model without context,
        of an engine or a model alone; empty without held-out examples. All ranks call this."""
        if not self.examples:
            return {}
        meter = LossMeter()
        answers = np.zeros(self._index.vocabulary.size, np.int64)
        self._memory.clear()
        engine.eval()
        model = engine if isinstance(engine, nn.Module) else engine.module
        with torch.no_grad(), eager(model):
            for micro_batch in self._micro_batches:
                micro_batch = micro_batch.to(self._world.device)
                terms, memory = engine(micro_batch, self._memory.read(micro_batch))
                self._memory.write(micro_batch, memory)
                self._memory.commit()
                meter.add(terms)
                if terms.answers_R is not None:
                    given = terms.answers_R[terms.answers_R >= 0].cpu().numpy()
                    answers += np.bincount(given, minlength=len(answers))
        engine.train()
        meter.end_step()
        found: Figures = {**meter.read(self._world)}
        total, _ = self._world.sum_max(answers.tolist(), []).wait()
        if sum(total):
            found |= answers_in_short(self._leads, np.array(total), words_of(self._index))
        return {f"held_out_{name}": value for name, value in (found | self._baselines).items()}


def _baselines(micro_batches: list[MicroBatch], plan: Plan, world: World) -> tuple[Figures, int]:
    """Compute the context-free baselines of all ranks' examples, and the maximum number of micro-batches per rank.
    All ranks call this."""
    objective, vocabulary = plan.objective, plan.index.vocabulary
    sizes = {
        **dict.fromkeys(objective.words, vocabulary.size),
        **{n: len(x) for n, x in objective.labels.items()},
    }
    counts = {name: np.zeros(size, np.int64) for name, size in sizes.items()}
    for batch in micro_batches:
        for name, targets in objective.targets(batch, vocabulary).items():
            counts[name] += targets[targets >= 0].bincount(minlength=sizes[name]).numpy()
    own = [int(count) for of_name in counts.values() for count in of_name]
    total, (most,) = world.sum_max(own, [len(micro_batches)]).wait()
    ends = np.cumsum(list(sizes.values()))
    of_all = dict(zip(sizes, np.split(np.array(total, np.int64), ends[:-1]), strict=True)) if sizes else {}
    found: Figures = {}
    for name, summed in of_all.items():
        found |= unigram(name, summed) if name in objective.words else pair_majority(name, summed)
    return found, most


# The small task (train.probe). The first rank gets the weights of all, as transformers' model of what the run exports,
# and scores it; the others wait. Training keeps the same bits as without: the engine is only read, and no generator of
# training is drawn from.


class Probe:
    """The task of train.probe, read once."""

    def __init__(self, config: RunConfig, plan: Plan, world: World) -> None:
        """Read the task's files. All ranks call this; if the first cannot, all raise UserError."""
        self._config, self._plan, self._world = config, plan, world
        self.name = config.train.probe
        """Empty: there is none."""
        if self.name:
            raise_on_all_ranks(world, self._read)

    def _read(self) -> None:
        if self._world.rank:
            return
        from pretrain.evaluate.probe import ProbeTask

        self._task = ProbeTask.read(self.name, Path(self._config.train.probe_data))
        self._tokenizer = self._plan.index.tokenizer_json().decode("utf-8")

    def evaluate(self, engine: Engine) -> Figures:
        """Return the figures of the model as it is, in percent, on every rank. All ranks call this."""
        weights = whole_weights(engine.partition, self._world)
        found: Figures = {}

        def score() -> None:
            if self._world.rank == 0:
                found.update(self._score(without_padding(engine.module, weights)))

        raise_on_all_ranks(self._world, score)
        return {f"{PROBE_PREFIX}{name}": value for name, value in self._world.broadcast(found).items()}

    def _score(self, state: dict[str, Tensor]) -> dict[str, float]:
        """Score the model of these weights, of our names, as what the run exports; of several models the one that
        `maskmill evaluate` takes."""
        from pretrain.evaluate.evaluate import pick_encoder
        from pretrain.export.export import write_without_weights
        from pretrain.tasks.encoders import InMemory

        with TemporaryDirectory(prefix="maskmill-probe-") as folder:
            families = write_without_weights(self._config, self._tokenizer, Path(folder))
            chosen = pick_encoder(self.name, list(families)).folder
            fields = families[chosen].config(self._config, self._plan.index.vocabulary)
            weights = families[chosen].to_hugging_face(state, fields)
            return self._task.score(InMemory(chosen, weights=weights))

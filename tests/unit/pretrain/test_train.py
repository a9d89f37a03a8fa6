"""The loss of a global batch does not depend on how it is cut: over ranks, micro-batches and packings."""

import math
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256
from data_pipeline.loader.loader import Shares, order_of
from data_pipeline.loader.packing import caps_for
from data_pipeline.records import concatenate
from data_pipeline.shards.index import Index, VocabularyStamp
from data_pipeline.shards.shard import BlockReader
from data_pipeline.shards.show import words_of
from pretrain.config.encoder import EncoderSettings
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch
from pretrain.monitoring.run_log import is_due
from pretrain.objectives.base import Term, Terms
from pretrain.objectives.registry import load, with_defaults
from pretrain.preflight.check_run import identity_of
from pretrain.train import compute
from pretrain.training.feed import Feed
from pretrain.training.guard import Guard, LossMeter
from pretrain.training.progress import BatchCounts, Position, StopRequest, with_batch_counts
from pretrain.training.rank_timing import Pace
from pretrain.training.stream_memory import StreamMemory
from pretrain.training.validation import HeldOut
from tests.command_line import setting
from tests.factories.models import config_of, fresh_model
from tests.factories.teachers import taught_by, write_bert

BATCH = 12
SETTINGS = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=32, dropout=0.0, attention_dropout=0.0
)


class PlainEngine:
    """Stands in for DeepSpeed: adds up gradients, in float64, so that only the arithmetic of the cut is compared."""

    def __init__(self, index: Index) -> None:
        mask = index.vocabulary.mask
        self.module = fresh_model("bert", SETTINGS, index.vocabulary.size, seed=3, mask_id=mask).double()

    def __call__(self, batch, memory):  # type: ignore[no-untyped-def]
        return self.module(batch, memory)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        loss.backward()

    def gradients(self) -> dict[str, torch.Tensor]:
        found = {name: p.grad.clone() for name, p in self.module.named_parameters() if p.grad is not None}
        self.module.zero_grad()
        return found


def step(engine: PlainEngine, index: Index, ranks: int, micro_batch: int) -> tuple[dict, dict[str, float]]:
    """Gradients (averaged over the ranks, as DeepSpeed does) and figures of global batch 5, cut in this way."""
    order = order_of(index, seed=1, global_batch=BATCH)
    caps = caps_for(index.train, micro_batch, 32)
    shares = [Shares(index, order, caps, rank, ranks).read(5) for rank in range(ranks)]
    lengths = [np.square(m.lengths, dtype=np.int64).sum() for share in shares for m in share.micro_batches]
    bert = with_defaults("bert")
    counts = BatchCounts(
        examples=sum(s.examples for s in shares),
        tokens=sum(s.tokens for s in shares),
        masked=sum(s.masked for s in shares),
        squares=int(sum(lengths)),
        terms={name: sum(bert.counts(s)[name] for s in shares) for name in bert.terms},
        micro_batches=max(len(s.micro_batches) for s in shares),
        stop=False,
        waited=0.0,
    )
    meter = LossMeter()
    feed = Feed(torch.device("cpu"), index.vocabulary.cls, index.vocabulary.sep)
    for rank, share in enumerate(shares):
        run = SimpleNamespace(
            config=SimpleNamespace(run=SimpleNamespace(seed=0)),
            plan=SimpleNamespace(index=index, objective=with_defaults("bert")),
            engine=engine,
            feed=feed,
            run_log=SimpleNamespace(meter=meter, pace=Pace(torch.device("cpu"))),
            guard=Guard(RunConfig(), Position(), World(), "fp32"),
            memory=StreamMemory({}, 0, 0, 0),
            position=Position(),
            world=World(rank=rank, size=ranks, local_size=ranks, local_rank=rank),
        )
        compute(run, feed.on_host(share), counts)  # type: ignore[arg-type]
    meter.end_step()
    gradients = {name: gradient / ranks for name, gradient in engine.gradients().items()}
    return gradients, meter.read(World())


@pytest.mark.parametrize(("ranks", "micro_batch"), [(1, 3), (1, 1), (2, 12), (2, 2), (3, 4), (5, 1), (12, 2)])
def test_loss_and_gradients_are_equal_under_cutting(tiny: list[str], ranks: int, micro_batch: int) -> None:
    index = Index.load(setting(tiny, "data.out"))
    engine = PlainEngine(index)
    whole, figures = step(engine, index, 1, BATCH)
    cut, cut_figures = step(engine, index, ranks, micro_batch)
    assert cut_figures == pytest.approx(figures, rel=1e-9)
    for name, gradient in whole.items():
        torch.testing.assert_close(cut[name], gradient, rtol=1e-9, atol=1e-14)


def test_the_loss_is_the_mean_over_the_whole_batch_and_not_a_mean_of_means(tiny: list[str]) -> None:
    index = Index.load(setting(tiny, "data.out"))
    engine = PlainEngine(index)
    _, figures = step(engine, index, 3, 2)
    order, caps = order_of(index, seed=1, global_batch=BATCH), caps_for(index.train, 2, 32)
    shares = [Shares(index, order, caps, rank, 3).read(5) for rank in range(3)]
    masked = [len(m.masked_ids) for share in shares for m in share.micro_batches]
    assert len(set(masked)) > 1, "equal counts would hide a mean of means"
    assert figures["loss"] == pytest.approx(figures["mlm_loss"] + figures["nsp_loss"])


def test_the_stop_of_one_rank_travels_with_the_counts() -> None:
    share = SimpleNamespace(
        examples=2, tokens=9, masked=3, pairs=2, micro_batches=[SimpleNamespace(lengths=[4, 5])], damage=()
    )
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        stop = StopRequest()
        steps = with_batch_counts(iter([share] * 10), World(), stop, with_defaults("bert"))  # type: ignore[arg-type]
        _, counts = next(steps)
        assert (counts.tokens, counts.masked, counts.squares, counts.micro_batches) == (9, 3, 41, 1)
        assert counts.terms == {"mlm": 3, "nsp": 2}
        assert not counts.stop
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.received == "SIGTERM"
        assert [next(steps)[1].stop for _ in range(2)] == [False, True], "the next step was announced already"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_share_that_cannot_be_read_is_an_error_only_when_it_is_needed() -> None:
    share = SimpleNamespace(examples=2, tokens=9, masked=3, pairs=2, micro_batches=[], damage=())

    def shares():  # type: ignore[no-untyped-def]
        yield share
        raise UserError("bytes changed", where="train-000007.tar, block 3")

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        steps = with_batch_counts(shares(), World(), StopRequest(), with_defaults("bert"))
        assert next(steps)[1].tokens == 9, "the run may end with this step"
        with pytest.raises(UserError, match="block 3"):
            next(steps)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_skipped_batch_leaves_no_trace_in_the_figures() -> None:
    def terms(loss: float) -> Terms:
        return Terms({"mlm": Term(torch.tensor(loss), torch.tensor(2), 1.0)}, {})

    meter = LossMeter()
    for loss, applied in ((4.0, True), (math.nan, False), (8.0, True)):
        meter.add(terms(loss))
        meter.end_step(applied)
    assert meter.read(World()) == {"loss": 3.0, "mlm_loss": 3.0}
    assert meter.read(World()) == {}


def test_the_two_counters() -> None:
    counts = BatchCounts(8, 100, 15, 1300, {}, 1, False, 0.0)
    position = Position()
    for applied in (True, False, True):
        position.advance(applied, counts)
    assert (position.batch, position.step, position.skipped, position.examples) == (3, 2, [1], 24)


def test_what_is_due() -> None:
    assert [s for s in range(1, 8) if is_due(s, 3, s == 7)] == [3, 6, 7]
    assert [s for s in range(1, 8) if is_due(s, 0, s == 7)] == [7]


@pytest.mark.parametrize(("length", "masked", "gflop"), [(128, 20, 240.6), (512, 76, 1020.5)])
def test_operations_of_bert_large(length: int, masked: int, gflop: float) -> None:
    """The figures of a sequence that published throughputs are converted with."""
    large = EncoderSettings(layers=24, hidden=1024, heads=16, intermediate=4096)
    bert = load(config_of("bert", large))
    found = bert.flops(30_528, tokens=length, squares=length * length, masked=masked) / 1e9
    assert found == pytest.approx(gflop, rel=2e-3)


def test_baselines_are_those_of_the_evaluated_positions(tiny: list[str]) -> None:
    index = Index.load(setting(tiny, "data.out"))
    limit = index.held_out.examples // 2
    config = SimpleNamespace(
        train=SimpleNamespace(eval_examples=limit, micro_batch=4), data=SimpleNamespace(both_directions=False)
    )
    plan = SimpleNamespace(
        index=index,
        objective=with_defaults("bert"),
        caps=lambda split, config: caps_for(split, 4, 32),
        separators=None,
    )
    engine = PlainEngine(index)
    engine.eval, engine.train = engine.module.eval, engine.module.train  # type: ignore[attr-defined]
    figures = HeldOut(plan, config, World()).evaluate(engine)  # type: ignore[arg-type]
    examples = MicroBatch.from_examples(
        concatenate(list(BlockReader(index, index.held_out).all_blocks())).take(np.arange(limit))
    )
    at_mask = examples.input_ids[examples.masked_index] == index.vocabulary.mask
    targets = examples.masked_ids[at_mask].numpy()
    shares = np.unique(targets, return_counts=True)[1] / len(targets)
    assert figures["held_out_mask_unigram_loss"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert figures["held_out_mask_majority"] == pytest.approx(shares.max())
    assert figures["held_out_nsp_majority"] == pytest.approx(
        np.bincount(examples.labels.numpy()).max() / limit
    )
    with torch.no_grad():
        answers = engine.module.eval().logits(examples)["mlm"].argmax(-1)[at_mask].numpy()
    words, counts = np.unique(answers, return_counts=True)
    assert figures["held_out_mask_top_share"] == pytest.approx(counts.max() / len(answers))
    assert figures["held_out_mask_top_token"] == words_of(index)[words[counts.argmax()]]
    assert figures["held_out_mask_accuracy"] == pytest.approx((answers == targets).mean())
    assert figures["held_out_mask_perplexity"] == pytest.approx(math.exp(figures["held_out_mask_loss"]))
    assert figures["held_out_loss"] == pytest.approx(
        figures["held_out_mlm_loss"] + figures["held_out_nsp_loss"]
    )


def test_runs_have_a_place(tmp_path: Path) -> None:
    """The identity says what decides the weights, and nothing else."""
    from launch.recipe import load_config

    index = SimpleNamespace(identity="d", vocabulary=SimpleNamespace(sha256="v"))
    plan = SimpleNamespace(
        index=index, streams=4, precision="fp32", masking=None, phase=phases_of(RunConfig())[0]
    )

    def identity(*changes: str) -> dict:
        return identity_of(load_config("demo", [f"run.dir={tmp_path}", *changes]), plan)  # type: ignore[arg-type]

    same = ("run.ranks=4", "zero.stage=2", "train.micro_batch=7", "train.eval_every=9", "run.stop_after=5")
    assert identity(*same, "monitor.tracker=none", "data.workers=3") == identity()
    for change in ("optim.lr=1", "train.steps=9", "run.seed=9", "encoder.layers=1", "train.global_batch=8"):
        assert identity(change) != identity()


def test_how_longer_phases_begin_is_of_a_run_with_phases() -> None:
    index = SimpleNamespace(identity="d", vocabulary=SimpleNamespace(sha256="v"))
    shared: Any = {"index": index, "streams": 4, "precision": "fp32", "masking": None}
    config = RunConfig(init_positions="fresh")
    [plain], [named] = phases_of(config), phases_of(replace(config, phases=[{"name": "long"}]))
    found = [identity_of(config, SimpleNamespace(**shared, phase=phase)) for phase in (plain, named)]  # type: ignore[arg-type]
    assert [one.get("init_positions") for one in found] == [None, "fresh"]


@pytest.mark.parametrize(
    ("name", "key"),
    [("distilbert", "teacher"), ("distilroberta", "teacher"), ("electra_two_stage", "generator")],
)
def test_a_run_is_that_of_its_teachers_weights_wherever_they_are(name: str, key: str, tmp_path: Path) -> None:
    index = SimpleNamespace(identity="d", vocabulary=SimpleNamespace(sha256="v"))
    plan = SimpleNamespace(
        index=index, streams=4, precision="fp32", masking=None, phase=phases_of(RunConfig())[0]
    )
    config = config_of(name, SETTINGS)

    def identity(folder: Path, seed: int) -> dict:
        teacher = RunConfig(encoder=taught_by(SETTINGS))
        teacher.run.seed = seed
        folder.mkdir(exist_ok=True)
        write_bert(folder, teacher, VocabularyStamp.of_size(90))
        setattr(getattr(config.objective, name), key, str(folder))
        return identity_of(config, plan)  # type: ignore[arg-type]

    one, copy, other = (identity(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("a", 2)))
    assert one == copy
    assert one[f"objective.{name}.{key}"] == file_sha256(tmp_path / "b" / "model.safetensors")
    assert {setting for setting in one if other[setting] != one[setting]} == {f"objective.{name}.{key}"}

"""Static shapes and torch.compile: spare rows change nothing, one graph serves all lengths and computes the same."""

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch._dynamo
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import Caps
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch, Shape
from pretrain.model.encoder import Encoder
from pretrain.model.vocabulary_losses import _ce_with_gradients, vocabulary_cross_entropy
from pretrain.objectives.base import Model
from pretrain.training import feed
from pretrain.training.resume import conditions
from tests.factories.models import fresh_model

VOCABULARY = 90
SETTINGS = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0
)
SHAPE = Shape.of(Caps(tokens=96, examples=12, masked=24), longest=32)
LENGTHS = [[32, 32, 32], [3, 2, 7], [5] * 12, [31, 2], [17, 30, 9, 4]]
CPU = torch.device("cpu")


def model(**changes: float) -> Model:
    return fresh_model("bert", replace(SETTINGS, **changes), VOCABULARY, seed=4)


def batch(lengths: list[int], seed: int = 0) -> MicroBatch:
    draws = np.random.RandomState(seed)
    return MicroBatch.from_lists(
        [draws.randint(5, VOCABULARY, n).tolist() for n in lengths],
        [max(1, n // 2) for n in lengths],
        [dict.fromkeys(range(1, n, 6), 7 + i) for i, n in enumerate(lengths)],
        [int(i % 3 == 0) for i in range(len(lengths))],  # of one kind more than of the other: nothing cancels
    )


def computed(module: Model, micro_batch: MicroBatch) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradients, and sums and counts."""
    terms, _ = module(micro_batch)
    torch.stack([term.weight * term.sum for term in terms.values()]).sum().backward()
    figures = {
        f"{name} {i}": float(x.detach()) for name, term in terms.items() for i, x in enumerate(term[:2])
    }
    figures |= {name: float(ratio.sum) for name, ratio in terms.metrics.items()}
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return gradients, figures


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rtol: float) -> None:
    """Each tensor within `rtol` of its norm, and a hundredth of that of the whole gradient's: sums that nearly cancel,
    as the biases' of the keys do, are no more exact."""
    whole = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert (ours[name] - theirs[name]).norm() <= rtol * (theirs[name].norm() + whole / 100), name


@pytest.mark.parametrize("lengths", LENGTHS)
def test_spare_rows_change_nothing(lengths: list[int]) -> None:
    module, micro_batch = model().double(), batch(lengths)
    spare = micro_batch.padded(SHAPE)
    assert (spare.tokens, len(spare.labels), len(spare.masked_ids)) == (96, SHAPE.examples, 24)
    assert max(spare.lengths) <= spare.max_length == 32
    assert sum(spare.lengths) == 96
    gradients, figures = computed(module, micro_batch)
    ours, with_spare = computed(module, spare)
    assert_equal(ours, gradients, 1e-12)
    assert with_spare == pytest.approx(figures, rel=1e-12)


def test_an_empty_micro_batch_of_full_shape_has_no_weight() -> None:
    gradients, figures = computed(model(), MicroBatch.empty(2, 3).padded(SHAPE))
    assert not any(g.any() for g in gradients.values())
    assert set(figures.values()) == {0.0}
    assert len(gradients) == len(list(model().parameters()))


def test_what_is_beyond_the_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="larger than its shape"):
        batch([32, 32, 32, 2]).padded(SHAPE)


HOOKED: list[Model] = []


def hook(module: Model, _: object) -> None:
    """As DeepSpeed's before each forward pass, it does what cannot be in a graph."""
    torch._dynamo.graph_break()
    HOOKED.append(module)


class Pool:
    """A compiler's process that does not end by itself, as some of torch 2.11 and 2.12."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])

    def shutdown(self) -> None:
        """Wait for it, as torch does."""
        self.process.wait(20)


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[Model, str]]:
    """A model with dropout and a hook, compiled for SHAPE, and what was said meanwhile."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    said, module = io.StringIO(), model(dropout=0.1, attention_dropout=0.1)
    module.register_forward_pre_hook(hook)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")  # for as long as the model is used, or it is compiled again
    from torch._inductor import async_compile  # seconds, which other tests need not wait

    pool = Pool()
    async_compile._pool_set.add(pool)
    feed.compile_model(module, MicroBatch.empty(2, 3).padded(SHAPE), Console(file=said, width=200))
    assert pool.process.poll() is not None, "it would be waited for at the end"
    assert not async_compile._pool_set
    yield module, said.getvalue()
    torch.set_deterministic_debug_mode(before)


@pytest.mark.slow
def test_one_graph_for_all_lengths(compiled: tuple[Model, str]) -> None:
    module, said = compiled
    assert "compiling the model" in said
    assert "compiled in" in said
    assert all(p.grad is None for p in module.parameters())
    for lengths in LENGTHS * 2:
        computed(module, batch(lengths).padded(SHAPE))
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not counters["recompiles"]


@pytest.mark.slow
def test_evaluation_runs_a_compiled_model_eagerly(compiled: tuple[Model, str]) -> None:
    module, _ = compiled
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with feed.eager(module), torch.no_grad():
        module(batch([3, 4]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.slow
def test_the_compiler_is_told_to_be_deterministic(compiled: tuple[Model, str]) -> None:
    assert torch._inductor.config.deterministic
    assert torch.get_deterministic_debug_mode() == 2  # an error, still


@pytest.mark.slow
def test_hooks_are_called_and_not_compiled(compiled: tuple[Model, str]) -> None:
    module, _ = compiled
    before = len(HOOKED)
    computed(module, batch([5, 5]).padded(SHAPE))
    assert HOOKED[before:] == [module]


@pytest.mark.slow
def test_compiled_dropout_is_drawn_anew_everywhere(compiled: tuple[Model, str]) -> None:
    module, _ = compiled
    results = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        results.append(computed(module, batch([20, 31, 8]).padded(SHAPE))[1])
    assert results[0] == results[1]
    assert results[0] != results[2]


@pytest.mark.slow
@pytest.mark.parametrize("recomputes", [False, True], ids=["", "activation checkpointing"])
def test_compiled_equals_eager(recomputes: bool) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module, plain = model(), model()
    for part in module.modules():
        if isinstance(part, Encoder):
            part.activation_checkpointing = recomputes
    feed.compile_model(module, MicroBatch.empty(2, 3).padded(SHAPE), Console(quiet=True))
    for lengths in LENGTHS:
        ours, theirs = (computed(m, batch(lengths).padded(SHAPE)) for m in (module, plain))
        assert_equal(ours[0], theirs[0], 1e-5)
        assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # torch 2.11 had one for each batch


def config(setting: str, **changes: object) -> RunConfig:
    made = RunConfig()
    made.train.compile, made.train.steps = setting, 1000
    for key, value in changes.items():
        setattr(made.train, key, value)
    return made


def test_a_cpu_compiles_long_runs() -> None:
    assert not feed.wants_compiling(config("auto"), CPU, "fp32", 1e13)
    assert feed.wants_compiling(config("auto"), CPU, "fp32", 1e16)
    assert feed.wants_compiling(config("on"), CPU, "fp32", 1.0)
    assert not feed.wants_compiling(config("off"), CPU, "fp32", 1e16)


def test_gpus_compile_what_flash_attention_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, run = torch.device("cuda", 0), config("auto")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    run.encoder.hidden, run.encoder.heads = 768, 12
    assert feed.allowed(run, cuda, "bf16") == "auto"
    assert feed.allowed(run, cuda, "fp32") == "off"
    run.encoder.hidden = 312  # heads of 26
    assert feed.allowed(run, cuda, "bf16") == "off"
    run.encoder.hidden = 768
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    assert feed.allowed(run, cuda, "fp16") == "off"


def test_half_precision_gradients_are_rounded_once() -> None:
    """As in eager mode: the factor, 1 / N of the global batch, is not rounded to bf16 itself."""
    torch.manual_seed(0)
    hidden, weight, bias = (torch.randn(*size, dtype=torch.bfloat16) for size in ((9, 8), (40, 8), (40,)))
    ids = torch.randint(0, 37, (9,))
    found = []
    for compute in (vocabulary_cross_entropy, _ce_with_gradients):
        inputs = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
        (compute(*inputs, ids, 37)[0] / 77).backward()
        found.append([x.grad for x in inputs])
    for eager, in_graph in zip(*found, strict=True):
        assert eager is not None
        assert torch.equal(eager, in_graph)


def test_what_a_compiler_decides_is_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conditions(config("auto"), World())["train.compile"] == "auto"
    monkeypatch.setattr(feed.shutil, "which", lambda _: None)
    assert conditions(config("auto"), World())["train.compile"] == "off"


def test_what_cannot_be_compiled_is_refused_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = config("on")
    sharded.zero.stage = 3
    recomputed = config("on", activation_checkpointing=True)
    for refused, word in ((sharded, "stage 3"), (recomputed, "activation_checkpointing")):
        with pytest.raises(UserError, match=word):
            feed.wants_compiling(refused, CPU, "fp32", 1e16)
        refused.train.compile = "auto"
        assert not feed.wants_compiling(refused, CPU, "fp32", 1e16)
    monkeypatch.setattr(feed.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match=r"C\+\+ compiler"):
        feed.wants_compiling(config("on"), CPU, "fp32", 1e13)

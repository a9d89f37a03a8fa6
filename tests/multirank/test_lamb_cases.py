"""LAMB under ZeRO where it is easily wrong: the paper's form, offload, kernels, many micro-batches, empty batches;
StableAdamW's kernels, and Muon with offload."""

import re
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from ranks import run
from test_engine import allow_fp16_on_cpu
from test_zero_lamb import (
    BETAS,
    CLIP,
    DECAY,
    EPS,
    Pieces,
    Tensors,
    assemble,
    build,
    config,
    distance,
    pieces,
    train,
)
from toy_model import (
    PaperLamb,
    PlainLamb,
    PlainMuon,
    PlainStableAdamW,
    global_batch,
    learning_rate,
    mixed_reference,
    reference,
    toy_model,
)

from pretrain.config.settings import RunConfig
from pretrain.distributed import engine as engine_module
from pretrain.distributed.deepspeed_patches import deepspeed_settings
from pretrain.distributed.engine import Engine
from pretrain.distributed.world import World

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

RANKS, STEPS, SPOILED, MICRO_BATCHES, LOSS_SCALE = 2, 12, 7, 64, 256.0
SHARDED = (1, 2, 3)
STEPPED_BY_KERNELS = {"lamb": PlainLamb, "stable_adamw": PlainStableAdamW}
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def steps_with_one_spoiled(engine: Engine, world: World) -> dict[str, Any]:
    """Trains; before step SPOILED another one, whose gradient is not finite on the last rank only."""
    norms = []
    for step in range(STEPS):
        if step == SPOILED:
            before, scale = pieces(engine), engine.loss_scale
            poison = float("inf") if world.rank == world.size - 1 else 1.0
            assert not any(train(engine, world, range(step, step + 1), poison))
            assert all(np.array_equal(before[key], values) for key, values in pieces(engine).items())
            assert engine.partition.updates == step
            engine.load_scaler_state({"cur_scale": scale})  # fp16 has halved it; the reference keeps it
        assert all(train(engine, world, range(step, step + 1)))
        norms.append(engine.grad_norm)
    return {"norms": norms, **state_of(engine)}


def state_of(engine: Engine) -> dict[str, Any]:
    wrapper = "none" if engine._wrapper is engine._optimizer else type(engine._wrapper).__name__
    return {"pieces": pieces(engine), "shapes": engine.partition.shapes, "wrapper": wrapper}


def offloaded(world: World, stage: int, precision: str, optimizer: str = "lamb") -> dict[str, Any]:
    settings = config(stage, precision, optimizer)
    settings.zero.offload = "cpu"
    engine = build(world, settings)
    engine.load_scaler_state({"cur_scale": LOSS_SCALE})
    result = steps_with_one_spoiled(engine, world)
    result["sub_groups"] = len(engine.partition.flats)
    engine.close()
    return result


def in_the_papers_form(world: World, stage: int) -> dict[str, Any]:
    settings = config(stage, clip=0.0)
    settings.optim.variant = "paper"
    engine = build(world, settings)
    result = steps_with_one_spoiled(engine, world)
    assert all(train(engine, world, range(STEPS, STEPS + 1), poison=0.0))  # a batch without any gradient
    result |= {"idle": pieces(engine), "ratios": sorted(engine.trust_ratios())}
    engine.close()
    return result


def with_kernels(world: World, stage: int, optimizer: str) -> dict[str, Any]:
    settings = config(stage, optimizer=optimizer)
    settings.train.kernels = "triton"
    engine = build(world, settings)
    result = steps_with_one_spoiled(engine, world)
    engine.close()
    return result


def in_bf16(world: World, immediate: bool) -> dict[str, Any]:
    """Stage 1, whose gradients are added to their fp32 sums within the backward pass, or all after it."""

    def settings(given: RunConfig, precision: str, zero: dict[str, Any]) -> dict[str, Any]:
        found = deepspeed_settings(given, precision, zero)
        assert found["bf16"]["immediate_grad_update"], "what every run has"
        return found | {"bf16": found["bf16"] | {"immediate_grad_update": immediate}}

    with patch.object(engine_module, "deepspeed_settings", settings):
        engine = build(world, config(1, "bf16"))
    result = steps_with_one_spoiled(engine, world)
    engine.close()
    return result


def example(rank: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    batch = global_batch(rank * MICRO_BATCHES + micro_batch)
    return batch[0][:1], batch[1][:1], batch[2][:1]


def many_micro_batches(world: World, stage: int) -> dict[str, Any]:
    """The gradient of one step, which the first moment holds after it."""
    engine = build(world, config(stage, "bf16", clip=0.0))
    engine.set_lr(0.0)
    for number in range(MICRO_BATCHES):
        engine.backward(engine(*example(world.rank, number), True), last=number == MICRO_BATCHES - 1)
    assert engine.step()
    result = state_of(engine)
    engine.close()
    return result


def all_cases() -> dict[tuple[str, ...], dict[str, Any]]:
    """One start of the ranks for all, since most of the time goes into imports."""
    world = World.from_environment().start()
    allow_fp16_on_cpu()
    results: dict[tuple[str, ...], dict[str, Any]] = {}
    for stage in range(4):
        results["micro-batches", str(stage)] = many_micro_batches(world, stage)
    for stage in SHARDED:
        results["paper", str(stage)] = in_the_papers_form(world, stage)
        for optimizer in STEPPED_BY_KERNELS:
            results["kernels", str(stage), optimizer] = with_kernels(world, stage, optimizer)
        for precision in ("fp32", *TYPES):
            results["offload", str(stage), precision] = offloaded(world, stage, precision)
    for immediate in (True, False):
        results["immediate", str(immediate)] = in_bf16(world, immediate)
    for stage in (1, 2):
        results["offload", str(stage), "muon"] = offloaded(world, stage, "fp32", "muon")
    return results


Cases = list[dict[tuple[str, ...], dict[str, Any]]]  # by rank


@pytest.fixture(scope="module")
def cases() -> Cases:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # read as triton is imported
        return run(all_cases, RANKS, spawn=True)


def whole(cases: Cases, *key: str, part: str = "pieces") -> Tensors:
    return assemble([rank[key][part] for rank in cases], cases[0][key]["shapes"])


@pytest.mark.parametrize("stage", SHARDED)
def test_the_papers_form_does_not_depend_on_the_stage(cases: Cases, stage: int) -> None:
    lamb = PaperLamb(DECAY, BETAS, EPS, 0.0)
    expected = reference(STEPS, lamb)
    assert distance(whole(cases, "paper", str(stage)), expected.weights[-1]) <= 1
    names = {name for name, p in toy_model().named_parameters() if p.requires_grad}
    assert set(cases[0]["paper", str(stage)]["ratios"]) == names, (
        "vectors and scalars have trust ratios as well"
    )
    without = reference(STEPS, PlainLamb(DECAY, BETAS, EPS, 0.0))
    assert distance(whole(cases, "paper", str(stage)), without.weights[-1]) >= 100
    # A batch without any gradient: moments fade, weight decay and what is left of the moments still move the weights.
    after = {name: w.clone() for name, w in expected.weights[-1].items()}
    lamb.step(list(after.values()), [torch.zeros_like(w) for w in after.values()], learning_rate(STEPS))
    assert distance(whole(cases, "paper", str(stage), part="idle"), after) <= 1


@pytest.mark.parametrize("precision", ["fp32", *TYPES])
@pytest.mark.parametrize("stage", SHARDED)
def test_an_optimizer_on_the_cpu_gives_the_same(cases: Cases, stage: int, precision: str) -> None:
    """Also with parameters unused in a step, in its first or in its last micro-batch, and after an overflow."""
    lamb = PlainLamb(DECAY, BETAS, EPS, CLIP)
    if precision == "fp32":
        expected = reference(STEPS, lamb)
    else:
        scale = LOSS_SCALE if precision == "fp16" else 1.0
        expected = mixed_reference(STEPS, lamb, TYPES[precision], RANKS, loss_scale=scale)
    # In low precision an fp32 rounding error flips a weight's rounding here and there, as it does without offload;
    # gradients that are lost or mixed up make thousands.
    key = ("offload", str(stage), precision)
    assert distance(whole(cases, *key), expected.weights[-1]) <= (1 if precision == "fp32" else 100)
    assert cases[0][key]["norms"] == pytest.approx(expected.norms, rel=2e-3 if precision == "fp16" else 1e-4)
    assert stage < 3 or cases[0][key]["sub_groups"] >= 5


@pytest.mark.parametrize("stage", SHARDED)
def test_tensors_straddle_ranks_and_ranks_lack_tensors(cases: Cases, stage: int) -> None:
    """What the cells above are worth: the cuts that make a LAMB of slices wrong are among them."""
    held = [
        {name for kind, name, _ in rank_pieces(cases, rank, stage) if kind == "exp_avg"}
        for rank in range(RANKS)
    ]
    assert held[0] & held[1], "a tensor on both ranks"
    assert held[0] - held[1], "a tensor of which the last rank has no part"
    assert "embedding.weight" in held[0]  # tied


def rank_pieces(cases: Cases, rank: int, stage: int) -> Pieces:
    return cases[rank]["offload", str(stage), "fp32"]["pieces"]


@pytest.mark.parametrize("stage", [1, 2])
def test_matrices_orthogonalised_on_the_cpu_are_the_same(cases: Cases, stage: int) -> None:
    expected = reference(STEPS, PlainMuon(DECAY, BETAS, EPS, CLIP))
    assert distance(whole(cases, "offload", str(stage), "muon"), expected.weights[-1]) <= 1


@pytest.mark.parametrize("optimizer", STEPPED_BY_KERNELS)
@pytest.mark.parametrize("stage", SHARDED)
def test_tritons_kernels_step_as_torch_does(cases: Cases, stage: int, optimizer: str) -> None:
    expected = reference(STEPS, STEPPED_BY_KERNELS[optimizer](DECAY, BETAS, EPS, CLIP))
    assert distance(whole(cases, "kernels", str(stage), optimizer), expected.weights[-1]) <= 1


def test_the_documented_classes_are_those_that_deepspeed_chooses(cases: Cases) -> None:
    text = (Path(__file__).parents[2] / "docs/develop/internals.md").read_text()
    rows = re.findall(r"^\| (\d) \| (\S+) \| (\S+) \|", text, re.MULTILINE)
    fp32, bf16 = ({int(row[0]): row[column] for row in rows} for column in (1, 2))
    first = cases[0]
    assert {stage: first["micro-batches", str(stage)]["wrapper"] for stage in range(4)} == bf16
    assert {stage: first["paper", str(stage)]["wrapper"] for stage in SHARDED} == {
        s: fp32[s] for s in SHARDED
    }
    for stage, precision in product(SHARDED, ("fp32", *TYPES)):  # offloaded, bf16 is stepped as fp32 is
        assert first["offload", str(stage), precision]["wrapper"] == fp32[stage]


def test_gradients_added_at_once_give_the_same_bits(cases: Cases) -> None:
    for rank in cases:
        once, after = (rank["immediate", str(immediate)] for immediate in (True, False))
        assert once["wrapper"] == "BF16_Optimizer"
        assert once["norms"] == after["norms"]
        assert once["pieces"].keys() == after["pieces"].keys()
        assert all(np.array_equal(values, after["pieces"][key]) for key, values in once["pieces"].items())


def gradient(dtype: torch.dtype, sums: torch.dtype) -> dict[str, torch.Tensor]:
    """Of all micro-batches together, averaged over ranks, at weights rounded to bf16: computed in `dtype`, added up in
    `sums`, at stage 0 inside autograd."""
    model = toy_model().bfloat16().to(dtype)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p, dtype=sums) for n, p in parameters.items()}
    for number in range(MICRO_BATCHES):
        for rank in range(RANKS):
            model(*example(rank, number), True).backward()
            for name, parameter in parameters.items():
                total[name] += parameter.grad.to(sums)
                parameter.grad = None
    return {name: value.double().view(-1) / RANKS for name, value in total.items()}


@pytest.mark.parametrize("stage", range(4))
def test_many_micro_batches_add_up_in_fp32_under_bf16(cases: Cases, stage: int) -> None:
    exact = gradient(torch.float64, torch.float64)
    in_bf16, in_fp32 = (gradient(torch.bfloat16, sums) for sums in (torch.bfloat16, torch.float64))
    found = whole(cases, "micro-batches", str(stage))
    ours = {name: torch.from_numpy(found["exp_avg", name]).double() / (1 - BETAS[0]) for name in exact}

    def error(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
        return sum(float((one[name] - two[name]).square().sum()) for name in exact) ** 0.5

    assert error(ours, exact) < 0.7 * error(in_bf16, exact)
    # Most of what is left is in the micro-batches' own gradients, which bf16 computes; the sums add nothing to it.
    del in_fp32["embedding.weight"], exact["embedding.weight"]  # tied: autograd adds its two gradients, too
    assert error(ours, in_fp32) < 1e-3 * error(in_bf16, in_fp32)

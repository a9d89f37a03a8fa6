"""The engine's refusals, repairs and manners, cell by cell of stage and precision."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run
from test_zero_lamb import BETAS, DECAY, EPS, assemble, build, config, distance, pieces, train
from toy_model import PlainLamb, global_batch, learning_rate, mixed_reference, toy_model

from data_pipeline.errors import UserError
from pretrain.distributed.engine import build_engine
from pretrain.distributed.world import World
from tests.command_line import environ

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

FP16_STAGES, FP16_STEPS, GROWS_EVERY = [1, 2, 3], 8, 3


def allow_fp16_on_cpu(allow: bool = True) -> None:
    """Have DeepSpeed take this CPU for one with fp16, as those with AVX512-FP16 are, or for one without."""
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: allow


def train_in_fp16(world: World, stages: list[int]) -> list[dict[str, Any]]:
    allow_fp16_on_cpu()
    results = []
    for stage in stages:
        engine = build(world, config(stage, "fp16", clip=0.0))  # clipping would hide a wrong scale
        engine.load_scaler_state({"cur_scale": 256.0})
        engine._wrapper.loss_scaler.scale_window = GROWS_EVERY
        assert all(train(engine, world, range(FP16_STEPS)))
        result: dict[str, Any] = {"pieces": pieces(engine), "shapes": engine.partition.shapes}
        result["scale"], before = engine.loss_scale, pieces(engine)
        scales = []
        for _ in range(3):
            assert not any(train(engine, world, range(1), poison=float("inf")))
            scales.append(engine.loss_scale)
        engine.backward(engine(*global_batch(0), True) * float("nan"), last=True)
        assert not engine.step(keep_scale=True)
        assert engine.loss_scale == scales[-1], "a batch that is dropped on purpose is no overflow"
        result["kept"] = all(np.array_equal(before[key], value) for key, value in pieces(engine).items())
        result["scales"], result["norm"] = scales, engine.grad_norm
        result["state"] = engine.scaler_state()
        engine.load_scaler_state({"cur_scale": 1.0, "cur_hysteresis": 1})
        with pytest.raises(UserError, match="smallest loss scale") as caught:
            list(train(engine, world, range(1), poison=float("inf")))
        result["line"] = str(caught.value)
        engine.close()
        results.append(result)
    return results


def test_fp16_scales_grow_and_shrink_without_a_trace_in_the_weights(pair: list[dict[str, Any]]) -> None:
    by_rank = [rank["fp16"] for rank in pair]
    expected = mixed_reference(
        FP16_STEPS, PlainLamb(DECAY, BETAS, EPS, 0.0), torch.float16, 2, loss_scale=256.0
    )
    for index, stage in enumerate(FP16_STAGES):
        first = by_rank[0][index]
        assert first["scale"] == 256 * 2 ** ((FP16_STEPS - 2) // GROWS_EVERY), stage
        found = assemble([rank[index]["pieces"] for rank in by_rank], first["shapes"])
        assert distance(found, expected.weights[-1]) <= 30, stage  # without the repair: thousands
        assert first["kept"]
        assert first["norm"] == float("inf")
        assert first["scales"] == [first["scale"], first["scale"] / 2, first["scale"] / 4], stage
        assert first["state"]["cur_scale"] == first["scales"][-1]
        assert "\n" not in first["line"]


def used_on_one_rank(world: World) -> tuple[list[float], bool]:
    """Stage 1 in bf16; a head that only rank 0 uses, with a large gradient."""
    engine = build(world, config(1, "bf16", clip=1.0))
    norms = []
    for step in range(2):
        batch = global_batch(step)
        engine.set_lr(learning_rate(step))
        engine.backward(engine(*batch, world.rank == 0) * 3.0, last=True)
        assert engine.step()
        norms.append(engine.grad_norm)
    model = torch.cat([p.detach().float().view(-1) for p in engine.module.parameters()])
    others = [torch.zeros_like(model) for _ in range(world.size)]
    torch.distributed.all_gather(others, model)
    engine.close()
    return norms, all(torch.equal(other, model) for other in others)


def test_a_head_that_one_rank_leaves_unused_is_clipped_alike_on_all(pair: list[dict[str, Any]]) -> None:
    first, second = (rank["used on one rank"] for rank in pair)
    assert first == second
    norms, weights_are_equal = first
    assert weights_are_equal
    model = toy_model()
    gradients = []
    for extra in (True, False):
        copy = toy_model().bfloat16()
        copy.scale = model.scale
        (copy(*global_batch(0), extra) * 3.0).backward()
        gradients.append({n: p.grad.float() for n, p in copy.named_parameters() if p.grad is not None})
    both = {n: (gradients[0][n] + gradients[1].get(n, torch.zeros(()))) / 2 for n in gradients[0]}
    norm = float(torch.cat([g.view(-1) for g in both.values()]).norm())
    assert norms[0] == pytest.approx(norm, rel=1e-3)


def move_adamw() -> bool:
    """AdamW's state moves by name between stages as LAMB's does."""
    world = World.from_environment().start()
    held: dict[tuple[str, str], torch.Tensor] = {}
    ends = []
    for stage in (1, 3, 0):
        engine = build(world, config(stage, optimizer="adamw"))
        if held:
            engine.partition.load(lambda n, kind, start, size: held[kind, n][start : start + size], updates=3)
        else:
            assert all(train(engine, world, range(3)))
            for fragment in engine.partition.fragments():
                held[fragment.kind, fragment.name] = fragment.values.clone()
        assert engine.partition.updates == 3
        assert all(train(engine, world, range(3, 6)))
        found = {(f.kind, f.name): f.values.clone() for f in engine.partition.fragments()}
        ends.append(found)
        assert engine.mean_trust_ratio() is None
        engine.close()
    return all(
        torch.allclose(end[key], ends[0][key], rtol=1e-4, atol=1e-7) for end in ends[1:] for key in ends[0]
    )


def test_adamw_moves_between_stages() -> None:
    assert run(move_adamw, 1) == [True]


def weights_only(world: World) -> tuple[int, bool, bool, bool]:
    """Loading weights without moments starts the optimizer anew; None from the reader keeps what is there."""
    engine = build(world, config(2))
    list(train(engine, world, range(2)))
    before = pieces(engine)

    def read(name: str, kind: str, start: int, length: int) -> torch.Tensor | None:
        return torch.full((length,), 0.25) if name == "inner.weight" else None

    engine.partition.load(read, updates=0, kinds=("master",))
    after = pieces(engine)
    filled = all(
        (v == 0.25).all() for (kind, n, _), v in after.items() if (kind, n) == ("master", "inner.weight")
    )
    others = {key for key in after if key[0] == "master" and key[1] != "inner.weight"}
    kept = all(np.array_equal(after[key], before[key]) for key in others)
    zeroed = all(not v.any() for key, v in after.items() if key[0] != "master")
    module = dict(engine.module.named_parameters())["inner.weight"]
    engine.close()
    return engine.partition.updates, filled and bool((module == 0.25).all()), kept, zeroed


def test_weights_load_without_moments(pair: list[dict[str, Any]]) -> None:
    assert [rank["weights only"] for rank in pair] == [(0, True, True, True)] * 2


def in_pairs() -> dict[str, Any]:
    """Several checks in one start of two ranks, most of whose time goes into imports."""
    world = World.from_environment().start()
    return {
        "used on one rank": used_on_one_rank(world),
        "weights only": weights_only(world),
        "rank 0 decides": rank_0_decides(world),
        "fp16": train_in_fp16(world, FP16_STAGES),
    }


@pytest.fixture(scope="module")
def pair() -> list[dict[str, Any]]:
    return run(in_pairs, 2)


REFUSED = """
import sys
sys.path[:0] = [{folder!r}]
from test_engine import allow_fp16_on_cpu, config
from toy_model import toy_model
from data_pipeline.errors import UserError
from pretrain.distributed.engine import build_engine
from pretrain.distributed.world import World

world = World().start()
build_engine(toy_model(), config(1, "fp32"), world)  # has DeepSpeed look for the device without a word
for stage, patched in ((1, False), (0, True)):
    try:
        allow_fp16_on_cpu(patched)
        build_engine(toy_model(), config(stage, "fp16"), world)
    except UserError as error:
        print(error)
"""

QUIET = """
import sys
sys.path[:0] = [{folder!r}]
from test_zero_lamb import build, config, train
from pretrain.distributed.world import World

# The second run of a process must not meet the first one's groups.
for cells in (((0, "fp32"), (1, "bf16"), (3, "fp32")), ((1, "fp32"), (3, "fp32"))):
    world = World().start()
    for stage, precision in cells:
        engine = build(world, config(stage, precision))
        assert all(train(engine, world, range(2)))
        assert not any(train(engine, world, range(1), poison=float("nan")))
        engine.close()
    world.stop()
"""


# What the forward pass reads beside the model is no submodule.
FROZEN = """
import sys
sys.path.insert(0, {folder!r})
import torch
from test_zero_lamb import config
from toy_model import toy_model
from pretrain.distributed.engine import build_engine
from pretrain.distributed.world import World

world = World().start()
for stage in (0, 1, 3):
    model, teacher = toy_model(), torch.nn.Linear(2, 2).requires_grad_(False)
    vars(model)["frozen"] = (teacher,)  # beside its module of that name
    engine = build_engine(model, config(stage, "bf16"), world)
    print(teacher.weight.dtype)
    engine.close()
world.stop()
"""


def test_a_teacher_is_in_the_precision_of_its_student(tmp_path: Path) -> None:
    done = run_alone(FROZEN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.bfloat16"] * 3


ALONE = """
import sys
sys.path.insert(0, {folder!r})
from test_zero_lamb import build, config, train
from pretrain.distributed.world import World

world = World().start()
engine = build(world, config(1, "bf16"))
engine._engine._reduce_non_expert_gradients = None  # a call would raise
assert all(train(engine, world, range(3)))
engine.close()
world.stop()
"""


def test_one_rank_copies_no_gradients_to_reduce_them(tmp_path: Path) -> None:
    done = run_alone(ALONE, tmp_path)
    assert done.returncode == 0, done.stderr


def run_alone(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    environment = environ(TORCH_EXTENSIONS_DIR=str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "DS_ACCELERATOR", "LOCAL_SIZE"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", script.format(folder=str(folder))],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )


def test_impossible_cells_are_refused_in_one_line(tmp_path: Path) -> None:
    done = run_alone(REFUSED, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stdout
    assert "train.precision=fp16 does not run on this device" in lines[0]
    assert "zero.stage=0 with train.precision=fp16" in lines[1]


def test_a_user_sees_nothing_of_deepspeed(tmp_path: Path) -> None:
    done = run_alone(QUIET, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())  # nothing was compiled


def rank_0_decides(world: World) -> bool:
    engine = build_engine(toy_model(seed=10 + world.rank), config(3, "bf16"), world)
    found = {(f.kind, f.name, f.start): f.values for f in engine.partition.fragments()}
    right = {name: p.detach().view(-1) for name, p in toy_model(seed=10).named_parameters()}
    return all(
        torch.equal(values, right[name][start : start + len(values)])
        for (kind, name, start), values in found.items()
        if kind == "master" and name in right and "frozen" not in name  # those are kept rounded
    )


def test_all_ranks_start_from_the_weights_of_rank_0(pair: list[dict[str, Any]]) -> None:
    assert [rank["rank 0 decides"] for rank in pair] == [True, True]

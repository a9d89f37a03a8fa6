"""The planner's bytes of weights, gradients and optimizer state against what the engine really holds."""

from typing import Any

import pytest
import torch
from ranks import run
from torch import Tensor, nn

from launch.recipe import load_config
from pretrain.config.settings import RunConfig
from pretrain.distributed.engine import build_engine
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch
from pretrain.optim.registry import MOMENTS
from pretrain.preflight import memory
from pretrain.preflight.memory import meta_model, states
from tests.factories.models import fresh_model

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

CELLS = [(stage, precision, "lamb") for stage in range(4) for precision in ("fp32", "bf16")]
CELLS += [(0, "fp32", "muon"), (1, "bf16", "muon"), (2, "fp32", "muon")]
VOCABULARY = 101


def config_of(stage: int, precision: str, optimizer: str) -> RunConfig:
    overrides = ["encoder.layers=2", "encoder.hidden=36", "encoder.heads=2", "encoder.intermediate=70"]
    overrides += [f"zero.stage={stage}", f"train.precision={precision}", f"optim.name={optimizer}"]
    return load_config("bert_base", [*overrides, "encoder.max_positions=128"])


def size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def gradient_bytes(wrapper: Any, module: nn.Module, stage: int, precision: str) -> int:
    """What holds the accumulated gradient between a backward pass and the step."""
    if stage == 3:
        return size([wrapper.grad_partitions_flat_buffer])
    if stage == 2:
        kept = [*wrapper.all_grad_tensors.values(), *wrapper.averaged_gradients.values()]
        return size(g for group in kept for g in group or ())
    if stage == 1 and precision == "bf16":
        return size(wrapper.fp32_groups_gradients_flat)
    return size(p.grad for p in module.parameters())


def held(world: World) -> list[dict[str, int]]:
    found = []
    for stage, precision, name in CELLS:
        config = config_of(stage, precision, name)
        torch.manual_seed(1)
        model = fresh_model("bert", config.encoder, VOCABULARY)
        engine = build_engine(model, config, world)
        batch = MicroBatch.from_lists([[1, 2, 3, 4]] * 2, [2, 2], [{1: 5}] * 2, [0, 1])
        terms, _ = engine(batch)
        engine.backward(sum(term.sum for term in terms.values()), last=False)
        gradients = gradient_bytes(engine._wrapper, engine.module, stage, precision)
        terms, _ = engine(batch)
        engine.backward(sum(term.sum for term in terms.values()), last=True)
        engine.set_lr(0.0)
        engine.step()
        optimizer = engine._optimizer
        weights = size(getattr(p, "ds_tensor", p) for p in engine.module.parameters())
        flats = {id(t): t for t in optimizer.state}
        own = {id(p) for p in engine.module.parameters()}
        found.append(
            {
                "weights": weights,
                "gradients": gradients,
                "masters": size(t for key, t in flats.items() if key not in own),
                "moments": size(s.get(kind) for s in optimizer.state.values() for kind in MOMENTS),
            }
        )
        engine.close()
    return found


def held_by_a_rank() -> list[dict[str, int]]:
    return held(World.from_environment().start())


@pytest.mark.parametrize("ranks", [1, 3])
def test_planned_states_are_those_of_the_engine(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BUCKET_ELEMENTS", 0)  # in flight, not at rest
    found = run(held_by_a_rank, ranks)
    for number, (stage, precision, name) in enumerate(CELLS):
        config = config_of(stage, precision, name)
        planned = states(meta_model(config, VOCABULARY), config, precision, ranks)
        most = {name: max(cells[number][name] for cells in found) for name in found[0][number]}
        # BERT remembers nothing of its streams; test_memory.py has an objective that does
        assert vars(planned) == {**most, "streams": 0}, f"stage {stage}, {precision}, {name}"

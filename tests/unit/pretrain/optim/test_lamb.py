"""LAMB against a worked example in float64, and the partition arithmetic against unsharded LAMB."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.config.settings import OptimSettings
from pretrain.distributed.partition_map import Flat, PartitionMap, _group_flat, _sub_group_flat
from pretrain.optim.base import AdamW, build_optimizer, parameter_groups, set_rate, trainable_parameters
from pretrain.optim.flat_layout import Collectives, Layout, Segment, Sharding, squared_norm
from pretrain.optim.lamb import Lamb, StableAdamW

# Worked example: lr 0.01, eps 1e-6, decay 0.01 on W and z, none on b; gradients clipped to norm 1 before.
START = {"W": [[1.0, -2.0], [3.0, 0.5]], "b": [0.1, -0.2], "z": [0.0, 0.0]}
GRADIENTS = [
    {"W": [[0.5, -1.0], [2.0, 0.25]], "b": [0.3, -0.4], "z": [0.6, 0.8]},
    {"W": [[-0.3, 0.4], [0.1, -0.6]], "b": [0.05, 0.2], "z": [-0.2, 0.1]},
]
AFTER = [
    {
        "W": [0.9812423379892973, -1.9810565700450198, 2.9808708258888115, 0.4813352933251862],
        "b": [0.09000008539052723, -0.19000006404303216],
        "z": [-0.009999957304554101, -0.009999967978381395],
    },
    {
        "W": [0.9902265355031159, -1.9826823541997642, 2.9523726940000032, 0.5038067668025673],
        "b": [0.0809150626950269, -0.19174449871075538],
        "z": [-0.010004204010397318, -0.010141325030047157],
    },
]
RATIOS = [{"W": 1.8572036795632276, "z": 1.0}, {"W": 3.611844901007317, "z": 0.016341035080330545}]


def worked_example(dtype: torch.dtype) -> tuple[dict[str, nn.Parameter], Lamb]:
    parameters = {name: nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in START.items()}
    decayed = {"params": [parameters["W"], parameters["z"]], "weight_decay": 0.01}
    plain = {"params": [parameters["b"]], "weight_decay": 0.0}
    return parameters, Lamb([decayed, plain], OptimSettings(lr=0.01))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, {"abs": 1e-12}), (torch.float32, {"rel": 2e-6})]
)
def test_worked_example(dtype: torch.dtype, tolerance: dict[str, float]) -> None:
    parameters, lamb = worked_example(dtype)
    for gradients, after, ratios in zip(GRADIENTS, AFTER, RATIOS, strict=True):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(gradients[name], dtype=dtype)
        norm = torch.cat([p.grad.double().view(-1) for p in parameters.values()]).norm()
        for parameter in parameters.values():
            parameter.grad /= max(1.0, float(norm))
        lamb.step()
        for name, expected in after.items():
            assert parameters[name].detach().view(-1).tolist() == pytest.approx(expected, **tolerance)
        found = lamb.trust_ratios()
        assert float(found["0.0"]) == pytest.approx(ratios["W"], **tolerance)
        assert float(found["0.1"]) == pytest.approx(ratios["z"], **tolerance)
        assert len(found) == 2  # none for b, which has no decay
        mean = lamb.mean_trust_ratio()
        assert mean is not None
        assert float(mean) == pytest.approx(sum(map(float, found.values())) / 2)


# Without clipping, decay and trust ratio for all tensors (Algorithm 2), and Google's code with clipping to norm 1.
PAPER = [
    {
        "W": [0.981242333691824, -1.9810565952837371, 2.9808708661616, 0.4813352307536479],
        "b": [0.09841965141265277, -0.19841807132193973],
        "z": [-0.009999983333361112, -0.009999987500015625],
    },
    {
        "W": [0.9732847703628735, -1.9666121030639607, 2.9517693478395084, 0.4981163245604204],
        "b": [0.09632403198257061, -0.1977011368162889],
        "z": [-0.010066060754663732, -0.01012502235939809],
    },
]
GOOGLE = [
    {
        "W": [0.9811628149961821, -1.981101903722462, 2.9810417528823394, 0.48119555147199083],
        "b": [0.06838576021874954, -0.16838362644577964],
        "z": [-0.03161850761524367, -0.03161957475379357],
    },
    {
        "W": [0.9905297626873905, -1.9833011271313319, 2.953031477226327, 0.5040736763161967],
        "b": [0.029787284127051533, -0.1757958788641582],
        "z": [-0.03163194807453933, -0.03206653348477051],
    },
]


@pytest.mark.parametrize(("variant", "clip", "after"), [("paper", False, PAPER), ("google", True, GOOGLE)])
def test_the_other_variants(variant: str, clip: bool, after: list[dict[str, list[float]]]) -> None:
    model = nn.ParameterDict({name: torch.tensor(v, dtype=torch.float64) for name, v in START.items()})
    settings = OptimSettings(variant=variant, lr=0.01, weight_decay=0.01)
    optimizer = build_optimizer(model, settings)
    if variant == "google":  # the example decays z, a vector, which our groups tell by its shape
        decayed, plain = optimizer.param_groups
        decayed["params"].append(model["z"])
        plain["params"][:] = [model["b"]]
    for gradients, expected in zip(GRADIENTS, after, strict=True):
        norm = float(
            torch.cat([torch.tensor(g, dtype=torch.float64).view(-1) for g in gradients.values()]).norm()
        )
        for name, parameter in model.items():
            parameter.grad = torch.tensor(gradients[name], dtype=torch.float64) / (
                norm if clip and norm > 1 else 1
            )
        optimizer.step()
        for name, values in expected.items():
            assert model[name].detach().view(-1).tolist() == pytest.approx(values, abs=1e-12)


def test_trust_ratios_are_clamped() -> None:
    model = nn.ParameterDict({name: torch.tensor(v, dtype=torch.float64) for name, v in START.items()})
    optimizer = build_optimizer(model, OptimSettings(variant="paper", trust_clamp=[0.5, 1.5]))
    assert isinstance(optimizer, Lamb)
    for name, parameter in model.items():
        parameter.grad = torch.tensor(GRADIENTS[0][name], dtype=torch.float64)
    optimizer.step()
    ratios = [float(ratio) for ratio in optimizer.trust_ratios().values()]
    assert ratios == [1.5, 0.5, 1.0], "1.857 and 0.158 without, and 1 where the weights are zero"


def test_state_counts_each_tensors_own_updates() -> None:
    parameters, lamb = worked_example(torch.float64)
    parameters["W"].grad = torch.ones_like(parameters["W"])
    before = parameters["b"].detach().clone()
    lamb.step()
    assert lamb.state[parameters["W"]]["step"] == 1
    assert parameters["b"] not in lamb.state
    assert torch.equal(parameters["b"], before)


def test_no_trust_ratio_without_updates() -> None:
    assert worked_example(torch.float64)[1].mean_trust_ratio() is None


# Partition arithmetic

SHAPES = {"a": (7, 5), "b": (11,), "c": (3, 3), "d": (1,), "e": (13, 2)}


def unsharded(steps: int) -> dict[str, Tensor]:
    parameters = {name: nn.Parameter(value) for name, value in start().items()}
    lamb = Lamb(
        [
            {"params": [p for p in parameters.values() if p.ndim > 1], "weight_decay": 0.01},
            {"params": [p for p in parameters.values() if p.ndim == 1], "weight_decay": 0.0},
        ],
        OptimSettings(lr=0.02),
    )
    for step in range(steps):
        for name, parameter in parameters.items():
            parameter.grad = gradient(name, step)
        lamb.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


def start() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()
    }


def gradient(name: str, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + ord(name))
    return torch.randn(SHAPES[name], generator=generator, dtype=torch.float64)


def consecutive(names: list[str], rank: int, size: int) -> Flat:
    """As ZeRO 1 and 2 cut a group: one long tensor, padded at the end."""
    lengths = [start()[name].numel() for name in names]
    part = -(-sum(lengths) // size) + 1
    at = [sum(lengths[:i]) for i in range(len(names))]
    flat = torch.zeros(part, dtype=torch.float64)
    return _group_flat(flat, list(zip(names, lengths, at, strict=True)), rank)


def interleaved(names: list[str], rank: int, size: int) -> Flat:
    """As ZeRO 3 cuts a sub-group: a share of each parameter, each padded, with garbage in the padding."""
    parameters: list[Any] = []
    for name in names:
        numel = start()[name].numel()
        parameters.append(
            (name, SimpleNamespace(partition_numel=lambda n=numel: -(-n // size), ds_numel=numel))
        )
    length = sum(parameter.partition_numel() for _, parameter in parameters)
    return _sub_group_flat(torch.full((length,), 4.6e30, dtype=torch.float64), parameters, rank)


class SumOverThreads:
    """An all-reduce between threads that take the part of ranks."""

    def __init__(self, size: int) -> None:
        self.barrier, self.values, self.calls = threading.Barrier(size, timeout=60), [], 0

    def __call__(self, values: Tensor) -> None:
        self.values.append(values.clone())
        if self.barrier.wait() == 0:
            self.total, self.values = torch.stack(self.values).sum(0), []
            self.calls += 1
        self.barrier.wait()
        values.copy_(self.total)
        self.barrier.wait()


def shard(cut: Any, size: int, steps: int) -> tuple[dict[str, Tensor], SumOverThreads, list[Lamb]]:
    weights, add_up = start(), SumOverThreads(size)
    groups = [["a", "c", "e"], ["b", "d"]]
    flats = [[cut(names, rank, size) for names in groups] for rank in range(size)]
    lambs: list[Lamb] = []
    for rank in range(size):
        for flat in flats[rank]:
            copy_in(flat, weights, flat.tensor)
            flat.tensor.requires_grad_()
        layouts = {id(flat.tensor): flat.layout for flat in flats[rank]}
        lamb = Lamb(
            [
                {"params": [flat.tensor], "weight_decay": decay}
                for flat, decay in zip(flats[rank], (0.01, 0.0), strict=True)
            ],
            OptimSettings(lr=0.02),
        )
        ranks = Collectives(rank, size, add_up, lambda values, sent, due: values)
        lamb.use_sharding(Sharding(lambda tensor, found=layouts: found[id(tensor)], ranks))
        lambs.append(lamb)

    def work(rank: int) -> None:
        for step in range(steps):
            for flat in flats[rank]:
                flat.tensor.grad = torch.full_like(flat.tensor, -3e20)  # garbage where nothing is written
                copy_in(flat, {name: gradient(name, step) for name in SHAPES}, flat.tensor.grad)
            lambs[rank].step()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = {name: torch.zeros(value.numel(), dtype=torch.float64) for name, value in weights.items()}
    for flat in (flat for rank in flats for flat in rank):
        for index, at, length, offset in flat.layout.segments:
            result[flat.layout.names[index]][offset : offset + length] = flat.tensor.detach()[
                at : at + length
            ]
        for at, length in flat.layout.padding():
            moments = next(lamb.state[flat.tensor] for lamb in lambs if flat.tensor in lamb.state)
            assert not moments["exp_avg"][at : at + length].any()
            assert not moments["exp_avg_sq"][at : at + length].any()
    return result, add_up, lambs


def copy_in(flat: Flat, values: dict[str, Tensor], target: Tensor) -> None:
    with torch.no_grad():
        for index, at, length, offset in flat.layout.segments:
            target[at : at + length] = values[flat.layout.names[index]].view(-1)[offset : offset + length]


@pytest.mark.parametrize("cut", [consecutive, interleaved])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_partition_arithmetic_is_exact(cut: Any, size: int) -> None:
    found, add_up, lambs = shard(cut, size, steps=4)
    for name, expected in unsharded(4).items():
        assert (found[name] - expected.view(-1)).abs().max() <= 1e-12
    assert add_up.calls == (4 if size > 1 else 0)  # one all-reduce a step, not one a parameter or group
    assert set(lambs[-1].trust_ratios()) == {"a", "c", "e"}


def test_padding_of_a_layout() -> None:
    layout = Layout(("x", "y"), (Segment(0, 1, 2, 0), Segment(1, 5, 3, 4)), 10, split=True)
    assert layout.padding() == [(0, 1), (3, 2), (8, 2)]
    assert Layout(("x",), (), 4, split=True).padding() == [(0, 4)]


@pytest.mark.parametrize("numel", [0, 1, 1023, 1024, 5000, 3_000_001])
def test_squared_norms_do_not_lose_digits_with_size(numel: int) -> None:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    assert float(squared_norm(values)) == pytest.approx(float(values.double().square().sum()), rel=2e-7)


# Groups


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.decoder = nn.Linear(4, 5)
        self.decoder.weight = self.embedding.weight


def test_groups_part_matrices_from_vectors_and_leave_the_frozen_out() -> None:
    model = Tied()
    decayed, plain = parameter_groups(model, OptimSettings(weight_decay=0.01))
    assert [id(p) for p in decayed["params"]] == [id(model.embedding.weight)]
    assert [id(p) for p in plain["params"]] == [
        id(p) for p in (model.norm.weight, model.norm.bias, model.decoder.bias)
    ]
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.01, 0.0)
    names = ["embedding.weight", "norm.weight", "norm.bias", "decoder.bias"]
    assert list(trainable_parameters(model)) == names


@pytest.mark.parametrize(("name", "kind"), [("lamb", Lamb), ("adamw", AdamW), ("stable_adamw", StableAdamW)])
def test_all_optimizers_come_from_one_factory(name: str, kind: type) -> None:
    settings = OptimSettings(name=name, lr=0.5, betas=[0.8, 0.9], eps=1e-5, weight_decay=0.1)
    optimizer = build_optimizer(Tied(), settings)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {(group["lr"], group["betas"], group["eps"]) for group in optimizer.param_groups} == {
        (0.5, (0.8, 0.9), 1e-5)
    }


def test_a_decoupled_decay_follows_the_schedule_and_not_the_rate() -> None:
    weights = {}
    for peak in (0.5, 0.001):
        model = nn.Linear(3, 2)
        nn.init.ones_(model.weight)
        settings = OptimSettings(name="adamw", lr=peak, weight_decay=0.1, decoupled_decay=True)
        optimizer = build_optimizer(model, settings)
        for now, base in (
            (1.0, peak),
            (0.25, peak),
            (0.5, 7 * peak),
        ):  # the last in a phase with a peak of its own
            set_rate(optimizer, now * base, base)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        weights[peak] = model.weight.detach()
    for found in weights.values():
        torch.testing.assert_close(found, torch.full_like(found, 0.9 * 0.975 * 0.95))


def test_a_decoupled_decay_is_refused_for_lamb() -> None:
    with pytest.raises(
        UserError, match=r"optim\.decoupled_decay=true with optim\.name=lamb, which does not read it"
    ):
        load_config("demo", ["optim.name=lamb", "optim.decoupled_decay=true"])


def test_in_googles_variant_exclusion_and_not_the_decay_decides_about_trust_ratios() -> None:
    model = nn.Linear(3, 2)
    for variant, trusts in (("google", [True, False]), ("nvidia", [False, False])):
        settings = OptimSettings(variant=variant, weight_decay=0.0)
        assert [group["trust"] for group in build_optimizer(model, settings).param_groups] == trusts


def test_adamw_counts_where_its_kernel_reads() -> None:
    """torch's fused AdamW takes its counter from the device of the weights."""
    weights = nn.Parameter(torch.zeros(4, device="meta"))
    flat = Flat(weights, Layout(("w",), (), 4, split=False))
    partition = PartitionMap((flat,), (), {}, 0, 1, torch.optim.AdamW([weights]), lambda: None, {})
    assert partition._state(flat)["step"].device.type == "meta"
    partition._set_updates(flat, 3)
    assert partition._state(flat)["step"].device.type == "meta"

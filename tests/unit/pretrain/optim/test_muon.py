"""Muon against torch.optim.Muon and the singular value decomposition, and its matrices cut over ranks."""

import threading

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.config.settings import OptimSettings
from pretrain.distributed.partition_map import _group_flat
from pretrain.optim.base import build_optimizer, parameter_groups, set_rate
from pretrain.optim.flat_layout import Collectives, Layout, Sharding, whole
from pretrain.optim.muon import Muon, matrices_of, orthogonalize
from pretrain.preflight.memory import states

STEPS = 4


class Model(nn.Module):
    """A tall, a wide and a square matrix, a tied table, a predictor of two labels and a scale of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.tall, self.wide, self.square = nn.Linear(12, 30), nn.Linear(30, 12), nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)
        self.decoder = nn.Linear(12, 20)
        self.decoder.weight = self.embedding.weight
        self.labels = nn.Linear(12, 2)
        self.bias = nn.Parameter(torch.ones(9, 9))


MATRICES = ["tall.weight", "wide.weight", "square.weight"]


def set_gradients(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)


def model() -> Model:
    torch.manual_seed(1)
    return Model()


CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("nesterov", "rate", "ratio"),
    [(True, "match_rms_adamw", 1.0), (True, "original", 20.0), (False, "original", 1.0)],
)
def test_in_bf16_it_is_torchs_to_the_bit(device: str, nesterov: bool, rate: str, ratio: float) -> None:
    one, two = model().to(device), model().to(device)
    settings = OptimSettings(
        name="muon", lr=0.02, betas=[0.8, 0.95], eps=1e-5, weight_decay=0.1, muon_momentum=0.9,
        muon_nesterov=nesterov, muon_adjust_lr_fn=rate, muon_lr_ratio=ratio, muon_iterations=4, muon_precision="bf16",
    )  # fmt: skip
    ours = build_optimizer(one, settings)
    named = dict(two.named_parameters())
    theirs = torch.optim.Muon(
        [named[name] for name in MATRICES], lr=0.02 * ratio, weight_decay=0.1, momentum=0.9, nesterov=nesterov,
        ns_steps=4, adjust_lr_fn=rate,
    )  # fmt: skip
    rest = [
        {"params": [p for n, p in named.items() if n not in MATRICES and p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(rest, lr=0.02, betas=(0.8, 0.95), eps=1e-5)
    for step in range(STEPS):
        set_gradients(one, step)
        set_gradients(two, step)
        for optimizer in (ours, theirs, adamw):
            optimizer.step()
        for name, parameter in one.named_parameters():
            if name in MATRICES:
                assert torch.equal(parameter, named[name]), f"{name} at step {step}"
            else:
                torch.testing.assert_close(parameter, named[name], rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("shape", [(9, 20), (20, 9), (8, 8)])
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    exact = orthogonalize(matrix, 5, torch.float64)
    torch.testing.assert_close(exact, u @ torch.diag(s) @ v, rtol=0, atol=1e-12)
    assert 0.6 < s.min() <= s.max() < 1.3
    single = orthogonalize(matrix.float(), 5, torch.float32)
    rough = orthogonalize(matrix.float(), 5, torch.bfloat16)
    assert (single - exact).abs().max() < 1e-5 < 1e-3 < (rough - exact).abs().max()
    assert not orthogonalize(torch.zeros(shape), 5, torch.float32).any()


def test_matrices_of_layers_are_muons_and_the_rest_adamws() -> None:
    one = model()
    names = {id(p): name for name, p in one.named_parameters()}
    groups = parameter_groups(one, OptimSettings(name="muon"))
    assert [[names[id(p)] for p in group["params"]] for group in groups] == [
        MATRICES,
        ["bias", "embedding.weight", "labels.weight"],
        ["tall.bias", "wide.bias", "square.bias", "norm.weight", "norm.bias", "decoder.bias", "labels.bias"],
    ]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.01, 0.0]
    assert [group["moments"] for group in groups] == [("exp_avg",), *[("exp_avg", "exp_avg_sq")] * 2]


@pytest.mark.parametrize("ratio", [1.0, 30.0])
def test_a_decoupled_decay_is_the_same_for_matrices_at_any_rate_of_theirs(ratio: float) -> None:
    one = model()
    before = {name: parameter.detach().clone() for name, parameter in one.named_parameters()}
    settings = OptimSettings(
        name="muon", lr=0.02, weight_decay=0.1, decoupled_decay=True, muon_lr_ratio=ratio, muon_nesterov=False
    )
    optimizer = build_optimizer(one, settings)
    for lr, peak in ((0.02, 0.02), (0.0025, 0.01)):  # a quarter of the peak of a later phase
        set_rate(optimizer, lr, peak)
        for parameter in one.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for name in (*MATRICES, "embedding.weight"):
        torch.testing.assert_close(dict(one.named_parameters())[name].detach(), before[name] * 0.9 * 0.975)


@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (0, 2), (1, 1), (2, 1)])
def test_the_plan_counts_one_moment_for_a_matrix(stage: int, ranks: int) -> None:
    config = load_config("demo", ["optim.name=muon", f"zero.stage={stage}"])
    one = model()
    matrices = sum(p.numel() for name, p in one.named_parameters() if name in MATRICES)
    rest = sum(p.numel() for p in one.parameters()) - matrices
    assert states(one, config, "fp32", ranks).moments == pytest.approx(4 * matrices + 8 * rest, abs=64)


def test_stage_3_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"optim\.name=muon with zero\.stage=3") as caught:
        load_config("demo", ["optim.name=muon", "zero.stage=3"])
    assert "\n" not in str(caught.value).strip()


# Matrices cut over ranks: threads take the part of ranks

SHAPES = {"a": (12, 30), "b": (30, 12), "c": (12, 12), "d": (20, 9)}
ORDER = list(SHAPES)


class SwapOverThreads:
    """An all-to-all between threads."""

    def __init__(self, size: int) -> None:
        self.barrier, self.sent = threading.Barrier(size, timeout=60), [[] for _ in range(size)]  # type: ignore[var-annotated]
        self.calls = 0

    def of(self, rank: int, size: int) -> Collectives:
        def swap(values: Tensor, sizes: list[int], due: list[int]) -> Tensor:
            self.sent[rank] = list(values.split(sizes))
            if self.barrier.wait() == 0:
                self.calls += 1
            received = [self.sent[source][rank].clone() for source in range(size)]
            self.barrier.wait()
            assert [len(part) for part in received] == due
            return torch.cat(received)

        return Collectives(rank, size, lambda values: None, swap)


def start() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def layouts(size: int, replicated: bool) -> list[list[Layout]]:
    """By tensor, then rank: one tensor for each matrix, whole, or one tensor for all, padded at the end."""
    lengths = [rows * columns for rows, columns in SHAPES.values()]
    if replicated:
        return [[whole(name, numel)] * size for name, numel in zip(ORDER, lengths, strict=True)]
    at = [sum(lengths[:i]) for i in range(len(ORDER))]
    flat = torch.zeros(-(-sum(lengths) // size) + 1)
    parameters = list(zip(ORDER, lengths, at, strict=True))
    return [[_group_flat(flat, parameters, rank).layout for rank in range(size)]]


def updated(size: int, replicated: bool) -> tuple[list[dict[str, Tensor]], list[list[str]], int]:
    """By rank, what each holds of the weights after two steps, and what it orthogonalised; the exchanges in all."""
    cuts, swaps = layouts(size, replicated), SwapOverThreads(size)
    values = start()
    tensors = [[torch.zeros(one[rank].numel).requires_grad_() for one in cuts] for rank in range(size)]
    processed: list[list[str]] = [[] for _ in range(size)]

    def fill(rank: int, target: list[Tensor], source: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for number, one in enumerate(cuts):
                for index, at, length, offset in one[rank].segments:
                    piece = source[one[rank].names[index]].view(-1)[offset : offset + length]
                    target[number][at : at + length] = piece

    def work(rank: int) -> None:
        ours = {id(tensor): one for tensor, one in zip(tensors[rank], cuts, strict=True)}
        group = {"params": tensors[rank], "weight_decay": 0.1, "matrices": True}
        muon = Muon([group], OptimSettings(lr=0.02))
        muon.use_sharding(
            Sharding(lambda tensor: ours[id(tensor)][rank], swaps.of(rank, size), SHAPES, lambda: ours)
        )
        fill(rank, tensors[rank], values)
        for step in range(2):
            gradients = {name: value * (1 + step) + 0.1 for name, value in values.items()}
            for tensor in tensors[rank]:
                tensor.grad = torch.zeros_like(tensor)
            fill(rank, [tensor.grad for tensor in tensors[rank]], gradients)  # type: ignore[misc]
            muon.step()
        exchange = next(iter(muon._exchanges.values()))
        processed[rank] = [matrix.name for matrix in exchange._matrices if matrix.owner == rank]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [
        {
            f"{one[rank].names[index]}@{offset}": tensors[rank][number].detach()[at : at + length]
            for number, one in enumerate(cuts)
            for index, at, length, offset in one[rank].segments
        }
        for rank in range(size)
    ]
    return found, processed, swaps.calls


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_cut_changes_no_bit_and_each_matrix_is_processed_once(size: int, replicated: bool) -> None:
    expected = {key.split("@")[0]: value for key, value in updated(1, replicated=True)[0][0].items()}
    found, processed, calls = updated(size, replicated)
    seen = dict.fromkeys(ORDER, 0)
    for rank in found:
        for key, piece in rank.items():
            name, offset = key.split("@")
            # elementwise operations may round the last elements of a tensor otherwise than those before
            torch.testing.assert_close(
                piece, expected[name].view(-1)[int(offset) : int(offset) + len(piece)], rtol=3e-7, atol=3e-8
            )
            seen[name] += len(piece)
    for name, (rows, columns) in SHAPES.items():
        assert seen[name] == rows * columns * (size if replicated else 1)
    assert sorted(name for names in processed for name in names) == ORDER
    if size == 3 and replicated:
        assert sorted(map(len, processed)) == [1, 1, 2], "the work is shared out"
    if replicated and size > 1:
        assert all(torch.equal(found[0][key], rank[key]) for rank in found for key in rank), (
            "replicas stay equal"
        )
    assert calls == (0 if size == 1 else 2 if replicated else 4), (
        "two exchanges a step, one where nothing is cut"
    )


def test_a_matrix_of_its_parts_alone_is_another() -> None:
    """What the exchange is for: each rank orthogonalising what it holds misses by far."""
    values = start()["a"]
    one = orthogonalize(values, 5, torch.float32)
    halves = torch.cat([orthogonalize(half, 5, torch.float32) for half in values.split(6)])
    assert (one - halves).norm() > 0.1 * one.norm()


def test_owners_hold_a_part_and_the_costliest_come_first() -> None:
    shapes = {f"m{i}": (10 + i, 10 + i) for i in range(9)}
    by_tensor = [[whole(name, rows * rows)] * 3 for name, (rows, _) in shapes.items()]
    matrices = matrices_of(by_tensor, shapes)
    work = [sum(m.cost for m in matrices if m.owner == rank) for rank in range(3)]
    assert max(work) < 1.15 * min(work)
    cut = matrices_of(layouts(3, replicated=False), SHAPES)
    assert all(matrix.parts[matrix.owner] for matrix in cut)

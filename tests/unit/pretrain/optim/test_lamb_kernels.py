"""Triton's kernels of LAMB and StableAdamW, interpreted on the CPU and compiled on a GPU, against torch and float64."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.errors import UserError
from pretrain.config.settings import OptimSettings
from pretrain.optim import lamb as kernels
from pretrain.optim.flat_layout import Coefficients, Layout, Segment, Sharding, Sums
from pretrain.optim.lamb import FlatOptimizer, Lamb, StableAdamW

Check = Callable[..., Any]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def set_environment(values: dict[str, str]) -> None:
    os.environ.update(values)


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Check]:
    """Calls a function in a process where Triton's kernels are interpreted: that is decided when triton is imported."""
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=set_environment, initargs=(environment,)) as pool:
        yield lambda check, *arguments: pool.submit(check, *arguments).result()


# A flat tensor of 9,000 elements, four blocks and a part: gaps of padding, tensors that fill a block to the element,
# straddle one or several, start and end in the middle of one, are empty here, or come in two pieces.
LAYOUT = Layout(
    names=("two blocks and more", "one", "nothing here", "a block", "pieces", "last"),
    segments=(
        Segment(1, 0, 1, 0),
        Segment(4, 5, 700, 0),
        Segment(0, 705, 1343 + 2048 + 2048, 0),
        Segment(3, 6144, 2048, 0),
        Segment(4, 8192, 100, 700),
        Segment(5, 8400, 599, 0),
    ),
    numel=9000,
    split=False,
)
PLAIN = Layout(("bias", "norm"), (Segment(0, 0, 30, 0), Segment(1, 30, 70, 0)), 101, split=False)
NOTHING = Layout(("elsewhere",), (), 16, split=False)
STEPS = 3

VARIANTS: dict[str, dict[str, Any]] = {
    "nvidia": {},
    "google": {"variant": "google"},
    "paper": {"decay_for_all": True},
    "clamped": {"trust_clamp": [0.9, 1.1]},
    "stable": {"optimizer": StableAdamW},
}


def numbers(seed: int, layout: Layout, dtype: torch.dtype = torch.float64) -> Tensor:
    """Values of very different sizes from tensor to tensor; zero in the padding."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.zeros(layout.numel, dtype=dtype)
    for index, start, length, _ in layout.segments:
        drawn = torch.randn(length, generator=generator, dtype=torch.float64).float()
        values[start : start + length] = drawn.to(dtype) * 10.0 ** (index - 2)
    return values


def optimizer_over(
    layouts: list[Layout], kind: str, device: str, **variant: Any
) -> tuple[list[Tensor], FlatOptimizer]:
    decay_for_all = variant.pop("decay_for_all", False)
    flats = [numbers(i, layout, torch.float32).to(device) for i, layout in enumerate(layouts)]
    groups = [
        {"params": [flat], "weight_decay": 0.0 if layout is PLAIN and not decay_for_all else 0.01}
        for flat, layout in zip(flats, layouts, strict=True)
    ]
    optimizer = variant.pop("optimizer", Lamb)(groups, OptimSettings(lr=0.02, **variant), kind)
    held = {id(flat): layout for flat, layout in zip(flats, layouts, strict=True)}
    optimizer.use_sharding(Sharding(lambda tensor: held[id(tensor)]))
    return flats, optimizer


def train(layouts: list[Layout], kind: str, device: str, **variant: Any) -> dict[str, list[Tensor]]:
    """A few steps, garbage in the padding's gradient; weights and moments after each, and the last factors."""
    flats, optimizer = optimizer_over(layouts, kind, device, **variant)
    found: dict[str, list[Tensor]] = {"weights": [], "first": [], "second": []}
    for step in range(STEPS):
        for i, (flat, layout) in enumerate(zip(flats, layouts, strict=True)):
            gradient = numbers(100 + 10 * step + i, layout, torch.float32)
            for start, length in layout.padding():
                gradient[start : start + length] = float("nan") if step == 1 else 4.6e30
            flat.grad = gradient.to(device)
        optimizer.step()
        found["weights"] += [flat.cpu().clone() for flat in flats]
        found["first"] += [optimizer.state[flat]["exp_avg"].cpu().clone() for flat in flats]
        found["second"] += [optimizer.state[flat]["exp_avg_sq"].cpu().clone() for flat in flats]
    found["ratios"] = [factor.cpu() for _, factors in optimizer._latest.values() for factor in factors]
    return found


def textbook(layouts: list[Layout], **variant: Any) -> list[Tensor]:
    """The weights after each step in float64, a parameter at a time."""
    flats = [numbers(i, layout) for i, layout in enumerate(layouts)]
    after: list[Tensor] = []
    firsts, seconds = ([torch.zeros_like(flat) for flat in flats] for _ in range(2))
    for step in range(STEPS):
        for i, (flat, layout) in enumerate(zip(flats, layouts, strict=True)):
            g, m, v = numbers(100 + 10 * step + i, layout), firsts[i], seconds[i]
            m.copy_(0.9 * m + 0.1 * g)
            v.copy_(0.999 * v + 0.001 * g * g)
            corrected = variant.get("variant") != "google"
            m_hat = m / (1 - 0.9 ** (step + 1)) if corrected else m
            v_hat = v / (1 - 0.999 ** (step + 1)) if corrected else v
            decayed = layout is not PLAIN or variant.get("decay_for_all", False)
            update = m_hat / (v_hat.sqrt() + 1e-6) + (0.01 if decayed else 0.0) * flat
            for parameter in range(len(layout.names)):
                pieces = [
                    torch.arange(s.start, s.start + s.length)
                    for s in layout.segments
                    if s.parameter == parameter
                ]
                if not pieces:
                    continue
                at = torch.cat(pieces)
                ratio = flat[at].norm() / update[at].norm() if decayed else torch.tensor(1.0)
                if "optimizer" in variant:
                    ratio = 1 / (g[at] ** 2 / v_hat[at].clamp(min=1e-12)).mean().sqrt().clamp(min=1)
                elif decayed and "trust_clamp" in variant:
                    ratio = ratio.clamp(*variant["trust_clamp"])
                flat[at] -= 0.02 * ratio * update[at]
            after.append(flat.clone())
    return after


def distance(found: Tensor, right: Tensor, layout: Layout) -> float:
    """The largest difference of an element, in parts of the largest element of its piece."""
    off = (found.double() - right.double()).abs()
    pieces = [slice(start, start + length) for _, start, length, _ in layout.segments]
    return max((float(off[at].max() / right[at].abs().max()) for at in pieces), default=0.0)


def compare(device: str, name: str) -> None:
    layouts, variant = [LAYOUT, PLAIN, NOTHING], VARIANTS[name]
    found = train(layouts, "triton", device, **variant)
    twin = train(layouts, "torch", device, **variant)
    again = train(layouts, "triton", device, **variant)
    for key, values in found.items():
        for here, repeated in zip(values, again[key], strict=True):
            assert torch.equal(here, repeated), f"{key} differ from run to run"
    torch.testing.assert_close(found.pop("ratios"), twin["ratios"], rtol=1e-6, atol=0)
    for key, values in found.items():
        for number, (here, there) in enumerate(zip(values, twin[key], strict=True)):
            assert distance(here, there, layouts[number % len(layouts)]) <= 1e-6, key
    for number, (here, right) in enumerate(zip(found["weights"], textbook(layouts, **variant), strict=True)):
        assert distance(here, right, layouts[number % len(layouts)]) <= 1e-6
    for i, layout in enumerate(layouts):
        for start, length in layout.padding():
            for key in ("weights", "first", "second"):
                assert all(not flat[start : start + length].any() for flat in found[key][i :: len(layouts)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_equal_their_twin_and_the_textbook(interpreted: Check, variant: str) -> None:
    interpreted(compare, "cpu", variant)


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_equal_their_twin_and_the_textbook_on_a_gpu(variant: str) -> None:
    compare("cuda", variant)


def norms_of_a_long_tensor(device: str, numel: int) -> tuple[list[float], list[float]]:
    """Squared norms by the kernels, and in float64. The tensor starts in the middle of a block."""
    from pretrain.optim.lamb_triton import update

    generator = torch.Generator().manual_seed(2)
    w, g = (torch.randn(numel + 999, generator=generator).to(device) for _ in range(2))
    layout = Layout(("long",), (Segment(0, 999, numel, 0),), numel + 999, split=False)
    start, zeros = w.double(), torch.zeros_like(w)
    squares = update(
        w, g, zeros, zeros.clone(), layout, Coefficients(0.9, 0.999, 1e-6, 0.3, 0.01), Sums.NORMS
    )
    right = [float(values[999:].double().square().sum()) for values in (start, g)]  # g now holds the update
    assert squares is not None
    return squares.view(-1).tolist(), right


def test_norms_do_not_lose_digits_with_size(interpreted: Check) -> None:
    found, right = interpreted(norms_of_a_long_tensor, "cpu", 700_001)
    assert found == pytest.approx(right, rel=1e-7)


@pytest.mark.gpu
@NEEDS_CUDA
def test_norms_do_not_lose_digits_with_size_on_a_gpu() -> None:
    found, right = norms_of_a_long_tensor("cuda", 40_000_001)
    assert found == pytest.approx(right, rel=1e-7)


def zero_tensors(device: str) -> None:
    """A trust ratio is 1 where the weights or the update are zero, and nothing becomes NaN."""
    layout = Layout(
        ("zero weights", "zero gradient"), (Segment(0, 0, 40, 0), Segment(1, 40, 40, 0)), 80, False
    )
    flat = torch.cat((torch.zeros(40), torch.ones(40))).to(device)
    lamb = Lamb([{"params": [flat], "weight_decay": 0.0, "trust": True}], OptimSettings(lr=0.5), "triton")
    lamb.use_sharding(Sharding(lambda _: layout))
    flat.grad = torch.cat((torch.full((40,), 2.0), torch.zeros(40))).to(device)
    lamb.step()
    assert [float(ratio) for ratio in lamb.trust_ratios().values()] == [1.0, 1.0]
    torch.testing.assert_close(flat.cpu(), torch.cat((torch.full((40,), -0.5), torch.ones(40))))


def test_zero_norms_have_trust_ratio_1(interpreted: Check) -> None:
    interpreted(zero_tensors, "cpu")


@pytest.mark.gpu
@NEEDS_CUDA
def test_zero_norms_have_trust_ratio_1_on_a_gpu() -> None:
    zero_tensors("cuda")


def covered(layout: Layout) -> tuple[list[list[int]], list[int], int]:
    from pretrain.optim.lamb_triton import BLOCK, chunk_table

    table = chunk_table(layout, torch.device("cpu"))
    assert table is chunk_table(layout, torch.device("cpu")), "made at each step anew"
    return table.chunks.tolist(), table.bounds.tolist(), BLOCK.value


def test_chunks_hold_each_element_of_a_segment_once(interpreted: Check) -> None:
    draws = np.random.RandomState(3)
    for _ in range(20):
        names, segments, at, parameter = 6, [], 0, 0
        for parameter in range(names):
            at += int(draws.choice([0, 0, 5, 2048]))
            length = int(draws.choice([0, 1, 2047, 2048, 2049, 7000]))
            if length:
                segments.append(Segment(parameter, at, length, 0))
            at += length
        layout = Layout(tuple("abcdef"), tuple(segments), at + 3, split=True)
        rows, bounds, block = interpreted(covered, layout)
        owner = np.full(layout.numel, -1)
        for number, (start, low, high, parameter) in enumerate(rows):
            assert 0 <= low < high <= block
            assert bounds[parameter] <= number < bounds[parameter + 1]
            assert (owner[start * block + low : start * block + high] == -1).all()
            owner[start * block + low : start * block + high] = parameter
        right = np.full(layout.numel, -1)
        for parameter, start, length, _ in segments:
            right[start : start + length] = parameter
        assert np.array_equal(owner, right)


def test_on_cuda_the_kernels_are_chosen_where_triton_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from pretrain.optim.lamb_triton import TRITON

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    on_cuda: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    assert kernels.choose(on_cuda) is TRITON
    assert kernels.choose(on_cuda, "torch") is kernels.TORCH
    assert kernels.choose(torch.zeros(1)) is kernels.TORCH
    assert kernels.choose(torch.zeros(1), "triton") is TRITON
    assert kernels.choose(SimpleNamespace(is_cuda=True, dtype=torch.float64)) is kernels.TORCH  # type: ignore[arg-type]
    monkeypatch.delenv("TRITON_INTERPRET")
    assert kernels.choose(torch.zeros(1), "triton") is kernels.TORCH, (
        "an optimizer that is offloaded from a GPU"
    )
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    assert kernels.choose(on_cuda) is kernels.TORCH


def test_kernels_that_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for kind in ("auto", "torch"):
        kernels.check_kernels(kind, cpu)
    kernels.check_kernels("triton", torch.device("cuda"))
    with pytest.raises(UserError, match="needs a CUDA device"):
        kernels.check_kernels("triton", cpu)
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    with pytest.raises(UserError, match="not installed"):
        kernels.check_kernels("triton", torch.device("cuda"))

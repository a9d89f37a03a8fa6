"""Soft targets: the divergence from a teacher's softmax by its definition, for any slicing, dtype and padding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.model import vocabulary_losses
from pretrain.model.vocabulary_losses import (
    Targets,
    _soft_with_gradients,
    reference_soft_targets,
    soft_targets,
)

VOCABULARY, PADDED = 90, 128


def drawn(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], Targets]:
    generator = torch.Generator().manual_seed(seed)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.5).to(dtype)

    inputs = [tensor(*shape).requires_grad_() for shape in ((rows, 16), (PADDED, 16), (PADDED,))]
    counted = torch.rand(rows, generator=generator) < 0.7
    return inputs, Targets(tensor(rows, 24), tensor(PADDED, 24), tensor(PADDED), counted, VOCABULARY, 2.0)


def test_the_divergence_of_two_known_rows() -> None:
    """Computed by the distiller of Sanh et al. 2019: KLDivLoss(batchmean) at temperature 2, times its square."""
    student = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0]], dtype=torch.float64)
    teacher = torch.tensor([[2.0, 1.0, 0.0], [0.5, -0.5, 1.5]], dtype=torch.float64)
    eye, zero = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    found = soft_targets(
        student, eye, zero, Targets(teacher, eye, zero, torch.ones(2, dtype=torch.bool), 3, 2.0)
    )
    assert found.loss.item() / 2 == pytest.approx(0.20925843602956296, rel=1e-14)
    assert found.agreements_R.tolist() == [False, True]


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 20), chunk=st.integers(1, 20), temperature=st.floats(0.5, 8), seed=st.integers(0, 99)
)
def test_it_equals_the_plain_form_in_any_slices(rows: int, chunk: int, temperature: float, seed: int) -> None:
    inputs, targets = drawn(rows, seed)
    targets = targets._replace(temperature=temperature)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vocabulary_losses.CHUNK_ELEMENTS, "cpu", chunk * PADDED)
        ours, theirs = (function(*inputs, targets) for function in (soft_targets, reference_soft_targets))
        assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-12, abs=1e-12)
        assert torch.equal(ours.agreements_R, theirs.agreements_R)
        gradients = (torch.autograd.grad(3 * found.loss, inputs) for found in (ours, theirs))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        loss, agreements, *scaled = _soft_with_gradients(*inputs, *targets)
        assert loss.item() == pytest.approx(theirs.loss.item(), rel=1e-12, abs=1e-12)
        assert torch.equal(agreements, theirs.agreements_R)
        for a, b in zip(torch.autograd.grad(loss, inputs), scaled, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_sums_in_float32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vocabulary_losses.CHUNK_ELEMENTS, "cpu", 3 * PADDED)
    monkeypatch.setattr(vocabulary_losses, "GROUP_ELEMENTS", 8 * PADDED)
    inputs, targets = drawn(40, dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    wide = targets._replace(**{n: getattr(targets, n).double() for n in ("hidden_RK", "weight_VK", "bias_V")})
    ours, theirs = soft_targets(*inputs, targets), reference_soft_targets(*exact, wide)
    assert ours.loss.dtype == torch.float32
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-5 if dtype == torch.float32 else 1e-2)
    for a, b in zip(
        torch.autograd.grad(ours.loss, inputs), torch.autograd.grad(theirs.loss, exact), strict=True
    ):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5 if dtype == torch.float32 else 5e-2)


def test_a_student_that_is_its_teacher_diverges_by_nothing() -> None:
    inputs, targets = drawn(12)
    same = Targets(*(x.detach() for x in inputs), targets.counted_R, VOCABULARY, 2.0)
    found = soft_targets(*inputs, same)
    assert found.loss.item() == 0
    assert torch.equal(found.agreements_R, targets.counted_R)
    assert all(not gradient.any() for gradient in torch.autograd.grad(found.loss, inputs))


def test_padding_and_rows_that_do_not_count_change_nothing() -> None:
    inputs, targets = drawn(12)
    before = soft_targets(*inputs, targets)
    gradients = torch.autograd.grad(before.loss, inputs)
    with torch.no_grad():
        inputs[2][VOCABULARY:] = 1e4
        targets.bias_V[VOCABULARY:] = -1e4
        inputs[0][~targets.counted_R] += 3.0
        targets.hidden_RK[~targets.counted_R] -= 3.0
    after = soft_targets(*inputs, targets)
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-13)
    again = torch.autograd.grad(after.loss, inputs)
    assert not again[1][VOCABULARY:].any()
    assert not again[0][~targets.counted_R].any()
    for a, b in zip(gradients, again, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_extreme_logits_stay_finite() -> None:
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.zeros(64, 1)
    weight[0] = 3000.0
    targets = Targets(torch.ones(1, 1), -weight, torch.zeros(64), torch.ones(1, dtype=torch.bool), 60, 2.0)
    loss = soft_targets(hidden, weight, torch.zeros(64), targets).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(hidden.grad).all()

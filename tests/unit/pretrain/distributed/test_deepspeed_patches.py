"""The norm and the clipping of flat sums are those of the tensors in them; looking once decides as looking often."""

from types import SimpleNamespace

import pytest
import torch

from pretrain.distributed.deepspeed_patches import look_once, mark_not_finite, measure_whole

SIZES = ((7, 300, 1), (64,))


def wrapper_of(flats: list[torch.Tensor]) -> SimpleNamespace:
    """What measure_whole looks at of DeepSpeed's optimizer at stage 1 in bf16; flats end with padding."""
    parts = [list(flat[: sum(of)].split(of)) for flat, of in zip(flats, SIZES, strict=True)]
    tensors = [tensor for group in parts for tensor in group]
    return SimpleNamespace(
        accumulate_hp_grads_and_remove_lp=None,
        fp32_groups_actual_gradients_flat=[flat[: sum(of)] for flat, of in zip(flats, SIZES, strict=True)],
        get_grads_for_norm=lambda for_clipping=False: tensors if for_clipping else (tensors, {}),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_flat_sums_have_the_norm_of_their_tensors_and_are_clipped_alike() -> None:
    from deepspeed.runtime.utils import clip_tensors_by_global_norm, get_global_norm_of_tensors

    def clipped(whole: bool) -> tuple[float, list[torch.Tensor], int]:
        generator = torch.Generator().manual_seed(0)
        flats = [torch.randn(sum(of) + 3, generator=generator) for of in SIZES]
        flats[0][-3:] = flats[1][-3:] = 1e6  # padding: nothing may read it
        wrapper = wrapper_of(flats)
        if whole:
            measure_whole(wrapper, torch.device("cuda"))
        measured, experts = wrapper.get_grads_for_norm()
        assert experts == {}
        norm = get_global_norm_of_tensors(input_tensors=measured)
        cut = wrapper.get_grads_for_norm(for_clipping=True)
        clip_tensors_by_global_norm(input_tensors=cut, max_norm=1.0, global_norm=norm)
        return float(norm), flats, len(measured)

    one, two = clipped(whole=False), clipped(whole=True)
    assert two[0] == pytest.approx(one[0], rel=1e-6)
    for flat, expected in zip(two[1], one[1], strict=True):
        torch.testing.assert_close(flat, expected, rtol=1e-6, atol=0)
    assert (one[2], two[2]) == (4, 2)


def test_a_cpu_keeps_the_norms_of_its_tensors() -> None:
    wrapper = wrapper_of([torch.ones(sum(of) + 3) for of in SIZES])
    measure_whole(wrapper, torch.device("cpu"))
    assert len(wrapper.get_grads_for_norm()[0]) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("value", [0.0, 2.5, float("inf"), -float("inf"), float("nan")])
def test_a_norm_is_marked_as_deepspeed_marks_it(value: float) -> None:
    from deepspeed.runtime.utils import mask_nan_or_inf_with_val_inplace

    ours, theirs = torch.tensor(value), torch.tensor(value)
    mark_not_finite(ours, device=ours.device)
    mask_nan_or_inf_with_val_inplace(theirs, device=theirs.device)
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
@pytest.mark.parametrize("true_norm", [0.3, 1.7, 777.7])
def test_gradients_are_unscaled_and_clipped_as_by_deepspeed(
    clip: float, scale: float, true_norm: float
) -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    wrapper = SimpleNamespace(
        single_partition_of_fp32_groups=[], clip_grad=clip, loss_scale=scale, device=torch.device("cpu")
    )
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ours, theirs = gradient.clone(), gradient.clone()
    norm = torch.tensor(true_norm * scale)
    DeepSpeedZeroOptimizer.unscale_and_clip_grads(wrapper, [theirs], norm)
    look_once(wrapper)
    wrapper.unscale_and_clip_grads([ours], norm)
    assert torch.equal(ours, theirs)


def test_an_offloaded_step_looks_as_before() -> None:
    wrapper = SimpleNamespace(single_partition_of_fp32_groups=[], cpu_offload=True)
    look_once(wrapper)
    assert not hasattr(wrapper, "has_overflow")

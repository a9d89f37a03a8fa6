"""The norm and the clipping of flat sums are those of the tensors in them."""

from types import SimpleNamespace

import pytest
import torch

from pretrain.distributed.gradient_fixes import measure_whole

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

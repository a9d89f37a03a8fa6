"""The norm and the clipping of flat sums are those of the tensors in them; looking once decides as looking often."""

import warnings
from functools import reduce
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_pipeline.errors import UserError
from pretrain.distributed.deepspeed_patches import (
    OFFLOADED,
    SOURCES,
    VERSION,
    WRAPPERS,
    check_sources,
    check_wrapper,
    mark_not_finite,
    norm_on_flat_buffer,
    skip_overflow_scan,
)
from tests.command_line import ROOT

SIZES = ((7, 300, 1), (64,))


def wrapper_of(flats: list[torch.Tensor]) -> SimpleNamespace:
    """What norm_on_flat_buffer looks at of DeepSpeed's optimizer at stage 1 in bf16; flats end with padding."""
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
            norm_on_flat_buffer(wrapper, torch.device("cuda"))
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
    norm_on_flat_buffer(wrapper, torch.device("cpu"))
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
    skip_overflow_scan(wrapper)
    wrapper.unscale_and_clip_grads([ours], norm)
    assert torch.equal(ours, theirs)


def test_an_offloaded_step_looks_as_before() -> None:
    wrapper = SimpleNamespace(single_partition_of_fp32_groups=[], cpu_offload=True)
    skip_overflow_scan(wrapper)
    assert not hasattr(wrapper, "has_overflow")


@pytest.fixture
def deepspeed() -> Any:
    """DeepSpeed, whose imports warn of torch's and its own old names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed

        for module in SOURCES:
            import_module(module)
    return deepspeed


def test_the_pinned_release_is_the_installed_one_and_unchanged(deepspeed: Any) -> None:
    assert f"deepspeed=={VERSION}" in (ROOT / "pyproject.toml").read_text()
    check_sources(deepspeed.__version__)


@pytest.mark.parametrize("version", ["0.19.6", "0.19.9", "0.20.0"])
def test_another_release_is_refused(version: str, deepspeed: Any) -> None:
    with pytest.raises(UserError, match=rf"version {version} is installed.*expected {VERSION}.*pip install"):
        check_sources(version)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, functions in SOURCES.items() for name in functions]
)
def test_a_function_with_another_text_is_refused(
    module: str, name: str, deepspeed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed or rewritten: red without the comparison of its text."""
    holder, _, last = f"{module}.{name}".rpartition(".")
    owner = reduce(getattr, name.split(".")[:-1], import_module(module))
    monkeypatch.setattr(owner, last, lambda *arguments: None)
    with pytest.raises(UserError, match=rf"{holder}\.{last} is not that of version {VERSION}"):
        check_sources(VERSION)
    monkeypatch.delattr(owner, last)
    with pytest.raises(UserError, match=rf"{last} is not that of version"):
        check_sources(VERSION)


@pytest.mark.parametrize(
    ("name", "offload"), [*((name, False) for name in WRAPPERS), *((n, True) for n in OFFLOADED)]
)
def test_a_wrapper_that_lacks_what_is_read_of_it_is_refused(name: str, offload: bool) -> None:
    attributes = WRAPPERS[name].split() + (OFFLOADED[name].split() if offload else [])
    values = dict.fromkeys(attributes) | {
        one: offload for one in ("cpu_offload", "offload_optimizer") if one in attributes
    }
    check_wrapper(type(name, (), values)(), None)
    for gone in set(attributes) - {"cpu_offload", "offload_optimizer"}:
        left = {one: value for one, value in values.items() if one != gone}
        with pytest.raises(RuntimeError, match=f"{name} lacks {gone}$"):
            check_wrapper(type(name, (), left)(), None)


def test_an_unknown_wrapper_is_refused() -> None:
    with pytest.raises(RuntimeError, match="wraps the optimizer in ZenFlow"):
        check_wrapper(type("ZenFlow", (), {})(), None)
    optimizer = object()
    check_wrapper(optimizer, optimizer)

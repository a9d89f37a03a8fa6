"""Triton's kernels of LAMB and StableAdamW as compiled for GPUs, without one: what they read, and what they need."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_resources import resources_of

POINTERS = ("weights", "gradients", "firsts", "seconds", "updates", "ratios", "partials")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "LAMB's first pass": ("_update_kernel", {"RMS": False}),
    "StableAdamW's first pass": ("_update_kernel", {"RMS": True}),
    "second pass by trust ratios": ("_apply_kernel", {"HAS_RATIOS": True}),
    "second pass": ("_apply_kernel", {"HAS_RATIOS": False}),
    "sums": ("_sum_kernel", {}),
}
GPUS = [80, 90, 100]
"""Capabilities of an A100, an H100 and a B200."""
MOST_REGISTERS = {"StableAdamW's first pass": 80}
"""Of the 65,536 of a multiprocessor. At 64, the limit of the others, four programs of 256 threads run there at once; at
80 three, which have 96 KiB of loads under way and so need no fourth."""


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(variant: str, capability: int) -> dict[str, Any]:
    """A kernel's PTX and binary, of tensors that start at multiples of 16 bytes. Needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from pretrain.optim import lamb_triton

    name, constants = VARIANTS[variant]
    kernel = getattr(lamb_triton, name)
    types = dict.fromkeys(POINTERS, "*fp32") | {"chunks": "*i32", "bounds": "*i32", "squares": "*fp64"}
    types |= {"count": "i32", **dict.fromkeys(constants, "constexpr")}
    signature = {name: types.get(name, "fp32") for name in kernel.arg_names}
    if "HAS_RATIOS" in constants and not constants["HAS_RATIOS"]:
        signature["ratios"], constants = "constexpr", {**constants, "ratios": None}
    aligned = {(i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values()) if t.startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    return dict(triton.compile(source, target=target, options=lamb_triton.LAUNCH).asm)


@pytest.mark.parametrize("capability", GPUS)
def test_kernels_read_and_write_once(capability: int) -> None:
    def code(variant: str) -> str:
        return str(compiled(variant, capability)["ptx"])

    first, stable = code("LAMB's first pass"), code("StableAdamW's first pass")
    applied = [code("second pass by trust ratios"), code("second pass")]
    # 2 of 16 bytes a thread for each of w, g, m, v and of w, u: nothing is read twice where a block is whole
    for read, written, texts in ((8, 6, (first, stable)), (4, 2, applied)):
        assert [len(re.findall(r"ld\.global\.v4\.b32", ptx)) for ptx in texts] == [read] * 2
        assert [len(re.findall(r"st\.global\.v4\.b32", ptx)) for ptx in texts] == [written] * 2
    assert "div.rn.f32" in first
    assert "sqrt.rn.f32" in first
    assert "fma.rn.f32" not in first
    sums = code("sums")
    assert "add.rn.f64" in sums or "add.f64" in sums
    for ptx in (first, stable, *applied, sums):
        assert not re.search(r"\b(atom|red)\.", ptx), "their order varies"


@pytest.mark.parametrize("capability", GPUS)
def test_kernels_keep_all_in_registers(tmp_path: Path, capability: int) -> None:
    """Spilled registers are local memory, read and written beside the tensors."""
    for variant in VARIANTS:
        binary = tmp_path / "kernel.cubin"
        binary.write_bytes(compiled(variant, capability)["cubin"])
        registers, stack, local = resources_of(binary)
        print(f"sm_{capability}, {variant}: {registers} registers, {stack} bytes of stack, {local} local")
        assert (stack, local) == (0, 0)
        assert registers <= MOST_REGISTERS.get(variant, 64)

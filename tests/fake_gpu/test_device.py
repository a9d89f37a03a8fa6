"""The pretended GPU itself: what torch sees, what is refused as by a real one, and what is counted."""

import pytest
from pretended import HERE, on_gpu

pytestmark = pytest.mark.fake_gpu


def script(*lines: str) -> str:
    start = f"import sys; sys.path.insert(0, {str(HERE)!r})"
    return "\n".join([start, "import torch", "from counts import read_counts", *lines])


def test_torch_sees_one_h100() -> None:
    said = on_gpu(
        "-c",
        "import torch\n"
        "print(torch.cuda.device_count(), torch.cuda.get_device_name(), torch.cuda.get_device_capability())\n"
        "print(torch.arange(3).cuda().cpu().tolist(), torch.ones(2).pin_memory().is_pinned())\n"
        "a = torch.ones(64, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "(a @ a).sum().backward()\n"
        "print(a.grad.dtype, a.grad.device)\n",
    ).stdout
    assert said.splitlines() == [
        "1 NVIDIA H100 80GB HBM3 (9, 0)",
        "[0, 1, 2] True",
        "torch.bfloat16 cuda:0",
    ]


def test_waits_are_counted() -> None:
    said = on_gpu(
        "-c",
        script(
            "pinned, x = torch.ones(8).pin_memory(), torch.zeros(8, device='cuda')",
            "before = read_counts()",
            "y = (x + 1) * 2",
            "z = pinned.to('cuda', non_blocking=True)",
            "print(*read_counts().since(before))",
            "before = read_counts()",
            "y.sum().item()",
            "torch.ones(8).to('cuda')",
            "print(*read_counts().since(before))",
        ),
    ).stdout
    assert said.splitlines()[0] == "0 0 0", "two kernels, and a copy from page-locked memory"
    waits, staged, mistakes = map(int, said.splitlines()[1].split())
    assert (waits, mistakes) == (2, 0)
    assert staged >= 1, "the second copy is from memory that is not page-locked"


def test_a_launch_without_blocks_is_refused() -> None:
    lines = [
        "import ctypes",
        "driver = ctypes.CDLL('libcuda.so.1')",
        "name = ctypes.c_char_p(b'kernel')",
        "print(driver.cuLaunchKernel(name, 0, 1, 1, 32, 1, 1, 0, None, None, None))",
        "print(driver.cuLaunchKernel(name, 1, 1, 1, 32, 1, 1, 0, None, None, None))",
    ]
    done = on_gpu("-c", script(*lines), mistakes=True)
    assert done.stdout.split() == ["1", "0"]
    assert "launch of kernel: grid 0 1 1, block 32 1 1" in done.stderr


def test_a_copy_past_the_end_is_refused() -> None:
    lines = [
        "import ctypes",
        "runtime, start, host = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.create_string_buffer(8192)",
        "runtime.cudaMalloc(ctypes.byref(start), ctypes.c_size_t(4096))",
        "print(runtime.cudaMemcpyAsync(start, host, ctypes.c_size_t(8192), 1, None))",
        "print(runtime.cudaMemcpyAsync(start, host, ctypes.c_size_t(4096), 1, None))",
        "print(runtime.cudaMemcpyAsync(host, host, ctypes.c_size_t(4096), 1, None))",
    ]
    assert on_gpu("-c", script(*lines), mistakes=True).stdout.split() == ["1", "0", "1"]

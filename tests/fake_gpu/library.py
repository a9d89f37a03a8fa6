"""Build the pretended GPU for the CUDA build of torch of this Python.

    . <(python tests/fake_gpu/library.py build/fake_gpu)   builds it there, and sets what a process needs to see it

Needs gcc and nm, and the headers that NVIDIA's packages bring with torch; no CUDA toolkit, no GPU.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SITE = Path(next(iter(find_spec("torch").submodule_search_locations))).parent  # type: ignore[union-attr, arg-type]
INCLUDE = (  # the first has no crt/, which triton has
    SITE / "nvidia/cu13/include",
    SITE / "nvidia/nccl/include",
    SITE / "triton/backends/nvidia/include",
)
LIBRARY = "libfakegpu.so"
REPLACED = re.compile(r"(__cuda|cuda[A-Z]|cublas|nccl|cudnn|cusparse|cusolver|cufft|curand|nvshmem)\w+$")
"""Functions of CUDA's libraries. Those that are not written here become stubs: they do nothing and return 0."""


def symbols(*libraries: Path, undefined: bool) -> set[str]:
    """The functions that libraries define, or need and do not define."""
    kind = "--undefined-only" if undefined else "--defined-only"
    output = subprocess.run(["nm", "-D", kind, *libraries], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines() if len(line.split()) > 1}


def compile_library(output: Path, *sources: Path) -> None:
    include = [f"-I{folder}" for folder in (HERE, *INCLUDE)]
    # half-precision types of C++, whose headers want one that no package brings: as if they had been read
    include += ["-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__"]
    # the warnings that are off: a stand-in has the parameters of the original and need not use them
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-deprecated-declarations", "-Werror"]
    linking = ["-shared", "-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread", "-lrt"]
    command = ["gcc", "-O1", "-fPIC", *warnings, *include, *sources, "-o", output, *linking]
    subprocess.run(command, check=True)


def build(folder: Path) -> Path:
    """Make the library in `folder`; return its path. Twice: the first tells what there need be no stub for."""
    folder.mkdir(parents=True, exist_ok=True)
    library, stubs = folder / LIBRARY, folder / "stubs.c"
    sources = sorted(HERE.glob("*.c"))
    compile_library(library, *sources)
    wanted = {
        name for name in symbols(*(SITE / "torch/lib").glob("*.so"), undefined=True) if REPLACED.match(name)
    }
    missing = sorted(wanted - symbols(library, undefined=False))
    text = (f'long {name}(void) {{ unwritten("{name}"); return 0; }}' for name in missing)
    stubs.write_text("\n".join(['#include "fake_gpu.h"', *text]) + "\n", encoding="utf-8")
    compile_library(library, *sources, stubs)
    for name in (
        "libcuda.so.1",
        "libcuda.so",
    ):  # the driver is the same library, by the names it is looked for
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(LIBRARY)
    return library


def environment(folder: Path) -> dict[str, str]:
    """With these variables a process sees the pretended GPU."""
    folder = folder.resolve()
    return {
        "LD_PRELOAD": str(folder / LIBRARY),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    for name, value in environment(Path(sys.argv[1])).items():
        print(f"export {name}='{value}'")

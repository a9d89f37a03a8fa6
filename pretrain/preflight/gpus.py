"""Look up a GPU: its datasheet by its CUDA name, and its usual node by the name in `--gpu`; nothing is fitted."""

import re
from typing import NamedTuple

from data_pipeline.errors import UserError

GB, GBIT = 1e9, 1e9 / 8
NVLINK, PCIE = "NVLink", "PCIe"


class DataSheet(NamedTuple):
    """The datasheet figures of one GPU."""

    name: str
    """A regular expression for part of the CUDA device name."""
    half_tflops: float
    """Dense bf16 matrix products (V100 and T4: fp16), 1e12 operations per second."""
    watts: int
    """Maximum power (TDP)."""


DATA_SHEETS = (
    DataSheet(r"B200", 2250.0, 1000),
    DataSheet(r"H200 NVL", 835.0, 600),
    DataSheet(r"H200", 989.0, 700),
    DataSheet(r"H100 NVL", 835.0, 400),
    DataSheet(r"H100 PCIe", 756.0, 350),
    DataSheet(r"H100", 989.0, 700),
    DataSheet(r"A100-SXM\d", 312.0, 400),
    DataSheet(r"A100 80GB PCIe", 312.0, 300),
    DataSheet(r"A100-PCIE", 312.0, 250),
    DataSheet(r"V100-SXM\d", 125.0, 300),
    DataSheet(r"V100-PCIE", 112.0, 250),
    DataSheet(r"L40S", 362.0, 350),
    DataSheet(r"RTX 4090", 165.2, 450),
    DataSheet(r"L4", 121.0, 72),
    DataSheet(r"A40", 149.7, 300),
    DataSheet(r"A10", 125.0, 150),
    DataSheet(r"T4", 65.0, 70),
)
"""NVIDIA's figures (RTX 4090: from the Ada white paper, with fp32 sums); the first match counts. Figures "with
sparsity" are halved."""


def data_sheet(device: str) -> DataSheet | None:
    """Return the datasheet of the GPU with the CUDA name `device`; None if it is unknown."""
    return next((sheet for sheet in DATA_SHEETS if re.search(rf"\b{sheet.name}\b", device)), None)


class Gpu(NamedTuple):
    """One GPU and its usual node."""

    name: str
    memory: float  # bytes
    half_flops: float  # dense bf16 (V100: fp16) with fp32 sums, operations per second
    single_flops: float  # fp32 operations per second, without TF32
    memory_bandwidth: float  # bytes per second
    inside: float  # bytes per second per GPU to the other GPUs of its node, one direction
    between: float  # bytes per second per GPU to other nodes, one direction: its share of the node's adapters
    link: str = NVLINK  # inside the node

    @property
    def has_bf16(self) -> bool:
        """Whether it supports bf16: from Ampere on."""
        return "V100" not in self.name


def _half(device: str) -> float:
    sheet = data_sheet(device)
    assert sheet is not None
    return sheet.half_tflops * 1e12


GPUS = {
    "v100": Gpu("V100 32 GB", 32 * GB, _half("V100-SXM2"), 15.7e12, 900 * GB, 150 * GB, 50 * GBIT),
    "a100": Gpu("A100 40 GB", 40 * GB, _half("A100-SXM4"), 19.5e12, 1555 * GB, 300 * GB, 200 * GBIT),
    "a100-80": Gpu("A100 80 GB", 80 * GB, _half("A100-SXM4"), 19.5e12, 2039 * GB, 300 * GB, 200 * GBIT),
    "h100": Gpu("H100 80 GB", 80 * GB, _half("H100"), 67e12, 3350 * GB, 450 * GB, 400 * GBIT),
    "h200": Gpu("H200 141 GB", 141 * GB, _half("H200"), 67e12, 4800 * GB, 450 * GB, 400 * GBIT),
    "b200": Gpu("B200 180 GB", 180 * GB, _half("B200"), 80e12, 8000 * GB, 900 * GB, 400 * GBIT),
    "l40s": Gpu("L40S 48 GB", 48 * GB, _half("L40S"), 91.6e12, 864 * GB, 32 * GB, 50 * GBIT, PCIE),
    "a10": Gpu("A10 24 GB", 24 * GB, _half("A10"), 31.2e12, 600 * GB, 32 * GB, 12.5 * GBIT, PCIE),
    "rtx4090": Gpu(
        "RTX 4090 24 GB", 24 * GB, _half("RTX 4090"), 82.6e12, 1008 * GB, 32 * GB, 3.1 * GBIT, PCIE
    ),
}
"""By the name in `--gpu`. Sources: NVIDIA's datasheets of the V100, A100, H100, H200 and B200 (SXM), the L40S and the
A10; for the RTX 4090 the Ada architecture's white paper (bf16 with fp32 sums). Figures "with sparsity" are halved.
Inside a node: NVLink, or PCIe 4.0 x16 for L40S, A10 and RTX 4090, which have none. Between nodes: DGX-1V, DGX A100, DGX
H100 and DGX B200 have 4 x 100, 8 x 200, 8 x 400 and 8 x 400 Gbit/s of InfiniBand for eight GPUs. The others' machines
differ: 400 (L40S), 100 (A10) and 25 Gbit/s (RTX 4090) for eight GPUs are assumed; --network overrides them."""

CALIBRATED: dict[str, float] = {"H100 80 GB": 0.385, "H200 141 GB": 0.409}
"""By the name of a Gpu: the share of the peak that BERT-large was measured to reach at 128 tokens
(docs/evidence/benchmarks.md). For a GPU that is not here none was measured, and a forecast says that it is not
calibrated."""

LINK_EFFICIENCY = 0.8
"""Share of a link's stated bandwidth that a large collective reaches."""


def counted_memory(reported: float) -> float:
    """Return the bytes to plan with on a GPU that reports `reported` bytes: those of GPUS where they are at most a
    tenth fewer, so that a run counts with what `maskmill plan` counted with (80e9 of an H100's 85.0e9)."""
    known = [gpu.memory for gpu in GPUS.values() if gpu.memory <= reported <= 1.1 * gpu.memory]
    return max(known, default=reported)


def gpu_named(name: str, between_gbit: float = 0.0) -> Gpu:
    """Return the GPU called `name`, ignoring case, blanks and dashes; `between_gbit` overrides the bandwidth between
    nodes, Gbit/s per GPU. Raises UserError for an unknown name."""
    gpu = GPUS[key_of(name)]
    return gpu._replace(between=between_gbit * GBIT) if between_gbit else gpu


def key_of(name: str) -> str:
    """Return the key of GPUS for `name`: "RTX 4090", "H100" and "nvidia A100-80GB" are understood. Raises UserError."""
    keys = {_letters(key): key for key in GPUS} | {"4090": "rtx4090", "a10040": "a100", "v10032": "v100"}
    wanted = _letters(name).removeprefix("nvidia").removeprefix("geforce").removesuffix("gb")
    if wanted not in keys:
        raise UserError(f"unknown GPU {name!r}", where="--gpu", expected=", ".join(GPUS))
    return keys[wanted]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())

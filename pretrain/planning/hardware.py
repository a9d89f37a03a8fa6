"""List what GPUs and their usual links can do, by name: figures of data sheets, nothing fitted."""

from typing import NamedTuple

from data_pipeline.errors import UserError
from pretrain.data_sheets import data_sheet

GB = 1e9


class Gpu(NamedTuple):
    """One device and the node that it usually sits in."""

    name: str
    memory: float  # bytes
    half_flops: float  # dense bf16 (V100: fp16) operations a second
    single_flops: float  # fp32 operations a second, TF32 not counted
    memory_bandwidth: float  # bytes a second
    inside: float  # bytes a second that a GPU sends to the others of its node, one direction
    between: (
        float  # bytes a second that a GPU has to other nodes, one direction: its share of the node's adapters
    )

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bf16: from Ampere on."""
        return "V100" not in self.name


def _half(device: str) -> float:
    sheet = data_sheet(device)
    assert sheet is not None
    return sheet.half_tflops * 1e12


GPUS = {
    "v100": Gpu("V100 32 GB", 32 * GB, _half("V100-SXM2"), 15.7e12, 900 * GB, 150 * GB, 6.25 * GB),
    "a100": Gpu("A100 40 GB", 40 * GB, _half("A100-SXM4"), 19.5e12, 1555 * GB, 300 * GB, 25 * GB),
    "a100-80": Gpu("A100 80 GB", 80 * GB, _half("A100-SXM4"), 19.5e12, 2039 * GB, 300 * GB, 25 * GB),
    "h100": Gpu("H100 80 GB", 80 * GB, _half("H100"), 67e12, 3350 * GB, 450 * GB, 50 * GB),
    "h200": Gpu("H200 141 GB", 141 * GB, _half("H200"), 67e12, 4800 * GB, 450 * GB, 50 * GB),
}
"""By the name in `--gpu`: NVIDIA's data sheets of the SXM parts; NVLink of DGX-1V, DGX A100 and DGX H100, whose
nodes have 4 x 100, 8 x 200 and 8 x 400 Gbit/s InfiniBand for eight GPUs."""

LINK_EFFICIENCY = 0.8
"""Share of a link's stated bandwidth that a large collective moves."""


def gpu_named(name: str, between_gbit: float = 0.0) -> Gpu:
    """The GPU called `name`; `between_gbit` states another bandwidth between nodes, Gbit/s a GPU. Raises UserError
    for an unknown name."""
    if name not in GPUS:
        raise UserError(f"unknown GPU {name!r}", where="--gpu", expected=", ".join(GPUS))
    gpu = GPUS[name]
    return gpu._replace(between=between_gbit * GB / 8) if between_gbit else gpu

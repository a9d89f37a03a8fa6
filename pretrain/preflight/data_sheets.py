"""Look up the datasheet of a GPU by its CUDA device name."""

import re
from typing import NamedTuple


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

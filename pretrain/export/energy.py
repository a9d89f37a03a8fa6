"""Estimate a range of energy from device-hours, and tell in words what it rests on.

kWh = device-hours x highest power of the device x load x PUE. Nothing was measured, so the load and the overhead of
the machine room are ranges, and so is the result. Of a device that is not in the table nothing is said.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pretrain.preflight.data_sheets import data_sheet
from pretrain.run.attempts import Attempt

LOAD = (0.5, 1.0)
"""Share of that power which a training device draws."""
PUE = (1.1, 1.58)
"""Power of the whole room for each watt in the machines: from a cloud's fleet (Patterson et al. 2021) to the world's
average of 2018 (Strubell et al. 2019, section 2)."""
FORMULA = (
    "kWh = GPU-hours x highest power of the GPU (its data sheet) x load x PUE / 1000, with a load of"
    f" {LOAD[0]} to {LOAD[1]:.0f} and a PUE of {PUE[0]} (Patterson et al. 2021) to {PUE[1]} (Strubell et al. 2019)."
    " Nothing was metered. GPUs alone, without the processors, memory and network around them and without the trials"
    " before this run"
)


class Energy(NamedTuple):
    """From the least to the most, in kWh."""

    least: float
    most: float


def watts(device: str) -> int | None:
    """Highest power of the GPU that CUDA calls `device`; None where it is not known."""
    sheet = data_sheet(device)
    return sheet.watts if sheet else None


def estimate(attempts: Iterable[Attempt]) -> Energy | None:
    """Estimate what these attempts took; None where a device is not known, since half of a sum misleads."""
    hours = 0.0  # kW x h, before load and overhead
    for attempt in attempts:
        power = watts(attempt.device) if attempt.device_type == "cuda" else None
        if power is None:
            return None
        hours += attempt.device_hours * power / 1000
    return Energy(hours * LOAD[0] * PUE[0], hours * LOAD[1] * PUE[1])

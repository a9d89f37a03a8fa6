"""Estimate a range of energy from device-hours, and state its assumptions.

kWh = device-hours x maximum power of the device x load x PUE. Nothing is measured, so load and PUE are ranges, and so
is the result. There is no estimate for a device that is not in the table.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pretrain.preflight.gpus import data_sheet
from pretrain.run.folder import Attempt

LOAD = (0.5, 1.0)
"""Share of the maximum power that a device draws in training."""
PUE = (1.1, 1.58)
"""PUE, total power per watt of the machines: from a cloud's fleet (Patterson et al. 2021) to the world average of 2018
(Strubell et al. 2019, section 2)."""
FORMULA = (
    "kWh = GPU-hours x highest power of the GPU (its data sheet) x load x PUE / 1000, with a load of"
    f" {LOAD[0]} to {LOAD[1]:.0f} and a PUE of {PUE[0]} (Patterson et al. 2021) to {PUE[1]} (Strubell et al. 2019)."
    " Nothing was metered. GPUs alone, without the processors, memory and network around them and without the trials"
    " before this run"
)


class Energy(NamedTuple):
    """Minimum and maximum in kWh."""

    least: float
    most: float


def watts(device: str) -> int | None:
    """Return the maximum power of the GPU with the CUDA name `device`; None if unknown."""
    sheet = data_sheet(device)
    return sheet.watts if sheet else None


def estimate(attempts: Iterable[Attempt]) -> Energy | None:
    """Estimate the energy of these attempts; None if a device is unknown, since a partial sum misleads."""
    hours = 0.0  # kW x h, before load and overhead
    for attempt in attempts:
        power = watts(attempt.device) if attempt.device_type == "cuda" else None
        if power is None:
            return None
        hours += attempt.device_hours * power / 1000
    return Energy(hours * LOAD[0] * PUE[0], hours * LOAD[1] * PUE[1])

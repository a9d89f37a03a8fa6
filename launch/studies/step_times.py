"""Keep how long a step of an arm takes beside one of the reference, for studies that compare at equal time.

The reference has the study's steps; every other arm has as many of its own as take the same time.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from data_pipeline.io.files import canonical_json, write_whole
from pretrain.studies.design import Design, Settings

STEP_TIMES = "step_times.json"
"""In the folder of the study."""


@dataclass(frozen=True)
class StepTime:
    """An arm and the reference, measured in turns on one machine; milliseconds a step."""

    arm: str
    step_ms: float
    reference_ms: float
    machine: str
    date: str

    def steps(self, reference_steps: int) -> int:
        """Return how many steps of the arm take as long as so many of the reference.

        >>> StepTime("electra", 30.0, 20.0, "2 cores", "2026-11-26").steps(3000)
        2000
        """
        return max(1, round(reference_steps * self.reference_ms / self.step_ms))


def read_step_times(folder: Path) -> dict[str, StepTime]:
    """Return what was measured, by `step_time_key`."""
    try:
        values = json.loads((folder / STEP_TIMES).read_text("utf-8"))
        return {key: StepTime(**value) for key, value in values.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


def write_step_times(folder: Path, times: Mapping[str, StepTime]) -> None:
    """Write what was measured, whole or not at all."""
    values = {key: asdict(time) for key, time in times.items()}
    write_whole(folder / STEP_TIMES, json.dumps(values, indent=1).encode())


def step_time_key(design: Design, arm: str) -> str:
    """Return a hash of what decides how long a step of the arm and one of the reference take: their recipes and
    settings, but for those of `run`, as the folder and the threads."""
    parts: list[Any] = []
    for name in (arm, design.reference):
        own = design.arms[name]
        settings: Settings = design.settings | own.settings
        parts += [
            own.recipe or design.recipe,
            {key: value for key, value in settings.items() if not key.startswith("run.")},
        ]
    return sha256(canonical_json(parts)).hexdigest()[:16]


def equal_steps(design: Design, arm: str, folder: Path, steps: int) -> int:
    """Return the steps of an arm for which it has the time of `steps` of the reference; `steps` themselves where the
    study does not compare at equal time, or the arm has not been timed yet."""
    if not design.equal_time or arm == design.reference:
        return steps
    known = read_step_times(folder).get(step_time_key(design, arm))
    return known.steps(steps) if known else steps

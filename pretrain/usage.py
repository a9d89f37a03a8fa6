"""What each life of a run spent: where it ran, on how many devices, for how long. Kept in summary.json, life by life,
since ranks and devices may change at a resume and the steps of a killed life are done again but were paid for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

KEY = "usage"
"""The key of summary.json."""


@dataclass
class Life:
    """One life of a run, from the moment its engine stood to its last sign."""

    device: str
    """Name of the first rank's GPU or processor."""
    kind: str
    """cuda or cpu."""
    ranks: int
    threads: int
    """CPU threads of each rank."""
    seconds: float = 0.0

    @property
    def device_hours(self) -> float:
        """GPU-hours; on CPUs the hours of all threads."""
        return self.seconds * self.ranks * (1 if self.kind == "cuda" else self.threads) / 3600


def recorded(summary: Mapping[str, Any]) -> list[Life]:
    """The lives that a summary.json tells of; what is malformed is passed over."""
    found = []
    names = [field.name for field in fields(Life)]
    for entry in summary.get(KEY) or []:
        try:
            device, kind, ranks, threads, seconds = (entry[name] for name in names)
            found.append(Life(str(device), str(kind), int(ranks), int(threads), float(seconds)))
        except (KeyError, TypeError, ValueError):
            continue
    return found


def as_values(lives: list[Life]) -> list[dict[str, Any]]:
    """What goes into summary.json."""
    return [asdict(life) | {"seconds": round(life.seconds, 1)} for life in lives]

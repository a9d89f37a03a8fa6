"""Split a RunConfig into the phases of its run, each with a complete RunConfig of its own.

    phases:
      - {name: short, data: {out: shards/128, sequence_length: 128}, train: {steps: 7038}}
      - {name: long, data: {out: shards/512, sequence_length: 512}, train: {steps: 1563}}

Phases share the model, the optimizer with both moments, the run folder and the count of steps: a run of two phases
of 7,038 and 1,563 steps has 8,601. At the phase boundary the schedule restarts, and so does the update count behind
LAMB's and AdamW's bias correction, as in NVIDIA's BERT between its phases of 128 and 512 tokens
(DeepLearningExamples, `--phase2`: `global_step` and the step of each parameter group are set to 0).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings, settings_affecting_bytes
from pretrain.config.settings import RunConfig

MAY_DIFFER = (
    "data",
    "schedule",
    "optim.lr",
    "train.shards",
    "train.steps",
    "train.global_batch",
    "train.micro_batch",
    "train.eval_every",
    "train.eval_examples",
    "train.checkpoint_every",
    "train.log_every",
)
"""Groups and single settings that a phase may set. All others belong to the model or the engine, which are shared."""
SHARED = ("data.vocab",)
"""Settings of those groups that a phase may not set."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Phase:
    """One phase of a run."""

    number: int
    name: str
    """Empty where the run has no phases."""
    config: RunConfig
    """Every setting as it is in this phase."""
    first: int
    """Number of steps of the run before this phase."""

    @property
    def last(self) -> int:
        """The step of the run at which this phase ends."""
        return self.first + self.config.train.steps


def phases_of(config: RunConfig) -> list[Phase]:
    """Return the phases in order; a single unnamed one if the recipe has none. Raises UserError for missing or
    duplicate names and for a setting that cannot differ between phases."""
    if not config.phases:
        return [Phase(0, "", config, 0)]
    found: list[Phase] = []
    for number, changes in enumerate(config.phases):
        name = str(changes.get("name", ""))
        if not NAME.fullmatch(name) or any(name == phase.name for phase in found):
            raise UserError(
                f"the name {name!r} of phase {number + 1}",
                where="phases",
                expected="another one for each phase, of letters, digits, _ and -",
            )
        first = found[-1].last if found else 0
        found.append(Phase(number, name, _changed(config, changes, name), first))
    return found


def total_steps(config: RunConfig) -> int:
    """Return the number of accepted updates of all phases."""
    return phases_of(config)[-1].last


def phase_at(config: RunConfig, state: dict[str, Any]) -> Phase:
    """Return the phase in which a checkpoint with this JSON state was written."""
    phases = phases_of(config)
    number = int(state.get("position", {}).get("phase", 0))
    return phases[min(max(number, 0), len(phases) - 1)]


def data_of_phases(config: RunConfig) -> list[DataSettings]:
    """Return the data settings of each phase, once per data.out. Raises UserError if two phases would write
    different shards into one folder."""
    found: dict[str, DataSettings] = {}
    for phase in phases_of(config):
        data = phase.config.data
        other = found.setdefault(data.out, data)
        wanted, there = settings_affecting_bytes(data), settings_affecting_bytes(other)
        differing = [f"data.{key}" for key in wanted if wanted[key] != there[key]]
        if differing:
            raise UserError(
                f"phase {phase.name} has the data.out of another phase and other {', '.join(differing)}",
                where=data.out,
                remedy="give it a data.out of its own",
            )
    return list(found.values())


def phase_of_shards(config: RunConfig, folder: str) -> RunConfig:
    """Return the settings of the phase that reads the shards in `folder`. Raises UserError if none does."""
    phases = phases_of(config)
    for phase in phases:
        if len(phases) == 1 or str(phase.config.train.shards or phase.config.data.out).rstrip(
            "/"
        ) == folder.rstrip("/"):
            return phase.config
    names = ", ".join(phase.config.train.shards or phase.config.data.out for phase in phases)
    raise UserError("no phase of the recipe reads these shards", where=folder, expected=f"one of {names}")


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested settings."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _changed(config: RunConfig, changes: dict[str, Any], name: str) -> RunConfig:
    settings = {key: value for key, value in changes.items() if key != "name"}
    for key, _ in leaves(settings):
        if key in SHARED or not (key in MAY_DIFFER or key.partition(".")[0] in MAY_DIFFER):
            raise UserError(
                f"{key} cannot differ between phases",
                where=f"phase {name}",
                expected=f"{', '.join(MAY_DIFFER)}; of data all but {', '.join(SHARED)}",
                remedy="set it outside the phases, for all of them",
            )
    try:
        merged = OmegaConf.merge(OmegaConf.structured(replace(config, phases=[])), settings)
        result = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        key = getattr(error, "full_key", "") or ""
        raise UserError(f"{key}: {line}", where=f"phase {name}") from None
    assert isinstance(result, RunConfig)
    return result

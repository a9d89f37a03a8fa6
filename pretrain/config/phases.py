"""Split a RunConfig into the phases of its run, each with a complete RunConfig, and choose their micro-batches.

    phases:
      - {name: short, data: {out: shards/128, sequence_length: 128}, train: {steps: 7038}}
      - {name: long, data: {out: shards/512, sequence_length: 512}, train: {steps: 1563}}

Phases share the model, the optimizer with both moments, the run folder and the count of steps: a run of two phases
of 7,038 and 1,563 steps has 8,601. At the phase boundary the schedule restarts, and so does the update count behind
LAMB's and AdamW's bias correction, as in NVIDIA's BERT between its phases of 128 and 512 tokens
(DeepLearningExamples, `--phase2`: `global_step` and the step of each parameter group are set to 0). With
`schedule.span=run` both continue instead: one schedule over all phases, times each phase's own peak rate.

Nothing here needs torch.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.fields import declared, marked
from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.settings import (
    AFFECTING_MASKS,
    SEQUENTIAL,
    DataSettings,
    setting_of,
    settings_affecting_bytes,
)
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import merged, schema, typed


def batch_sizes(config: RunConfig) -> BatchSizes:
    """Return the sizes of the global batches, with the number of streams that divides them all."""
    train, sequential = config.train, config.data.order == SEQUENTIAL
    ramp = (train.batch_ramp_from, train.batch_ramp)
    return BatchSizes.of(train.global_batch, config.data.streams, *ramp, sequential=sequential)


def refuse_idle_ranks(config: RunConfig, ranks: int, where: str) -> None:
    """Raise UserError if the smallest global batch has fewer examples than there are ranks; `where`: what says how
    many there are."""
    sizes = batch_sizes(config)
    if ranks > sizes.smallest:
        raise UserError(
            f"{ranks} ranks are more than train.{'batch_ramp_from' if sizes.ramp else 'global_batch'}={sizes.smallest}",
            where=where,
            expected="at least one example a rank",
        )


MAY_DIFFER = (
    *marked(RunConfig, "by_phase"),
    *(key for key, one in declared(RunConfig) if one.metadata.get("by_phase")),
)
"""Groups and single settings that a phase may set. All others belong to the model or the engine, which are shared."""
SHARED = tuple(key for key, one in declared(RunConfig) if one.metadata.get("by_phase") is False)
"""Settings of those groups that a phase may not set."""
LENGTHS = {"steps": "minutes", "minutes": "steps"}
"""The two settings of the group `train` that say how long a phase is; each excludes the other."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Phase:
    """One phase of a run."""

    number: int
    name: str
    """Empty where the run has no phases."""
    config: RunConfig
    """Every setting as it is in this phase."""
    first: int | None
    """Number of steps of the run before this phase; None: it follows a phase with train.minutes, which has as many as
    fit."""
    run_steps: int
    """Number of steps of the whole run; 0: unknown, since a phase has train.minutes."""

    @property
    def last(self) -> int | None:
        """The step of the run at which this phase ends; None: unknown until it does."""
        train = self.config.train
        return None if self.first is None or train.minutes else self.first + train.steps

    @property
    def in_words(self) -> str:
        """How long the phase is."""
        train = self.config.train
        if train.minutes:
            return f"{train.minutes:g} minutes of training"
        if self.first is None:
            return f"{train.steps:,} steps"
        return f"steps {self.first + 1:,} to {self.last:,}"

    @property
    def spans_run(self) -> bool:
        """Whether the schedule and the optimizer's update count continue from phase to phase."""
        return self.config.schedule.span == "run"

    @property
    def schedule_first(self) -> int:
        """The step of the run at which this phase's schedule begins."""
        return 0 if self.spans_run else self.first or 0

    @property
    def schedule_steps(self) -> int:
        """The number of steps of this phase's schedule; 0 with train.minutes, whose share it follows."""
        return self.run_steps if self.spans_run else self.config.train.steps


def one_length(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which train.steps or train.minutes, where they have one of them, replaces the other one of
    what they are merged into; both are kept, and refused later."""
    train = settings.get("train", {})
    given = {key for key in LENGTHS if _is_length(train.get(key))}
    if len(given) != 1:
        return settings
    return settings | {"train": {LENGTHS[given.pop()]: 0} | train}


def _is_length(value: object) -> bool:
    """Return whether a setting, as a number or as it was written, says how long to train; a wrong one does not."""
    try:
        return 0 < float(str(value)) < math.inf
    except ValueError:
        return False


def phases_of(config: RunConfig) -> list[Phase]:
    """Return the phases in order; a single unnamed one if the recipe has none. Raises UserError for missing or
    duplicate names and for a setting that cannot differ between phases."""
    if not config.phases:
        return [Phase(0, "", config, 0, config.train.steps)]
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
        found.append(Phase(number, name, _changed(config, changes, name), first, 0))
    timed = [phase.name for phase in found if phase.config.train.minutes]
    replayed = [phase.config.train.replay for phase in found if phase.config.train.replay]
    if replayed and not timed:
        raise UserError(
            f"train.replay={replayed[0]} repeats the shares of train.minutes, which no phase has",
            where="phases",
            remedy="set the train.minutes of that run's phases, or leave it out",
        )
    for phase in found:  # one of so many steps has no shares to repeat
        if not phase.config.train.minutes:
            phase.config.train.replay = ""
    if timed and found[0].spans_run:
        raise UserError(
            f"schedule.span=run lays one schedule over the steps of all phases, and phase {timed[0]} has train.minutes",
            where="phases",
            remedy="train.steps in all phases, or schedule.span=phase",
        )
    return [replace(phase, run_steps=found[-1].last or 0) for phase in found]


def phase_at(config: RunConfig, state: dict[str, Any]) -> Phase:
    """Return the phase in which a checkpoint with this JSON state was written."""
    phases = phases_of(config)
    number = int(state.get("position", {}).get("phase", 0))
    return phases[min(max(number, 0), len(phases) - 1)]


def data_of_phases(config: RunConfig) -> list[DataSettings]:
    """Return the data settings of each phase, once per data.out. Raises UserError if two phases would write
    different shards into one folder; their masks may differ if both mask dynamically."""
    found: dict[str, DataSettings] = {}
    for phase in phases_of(config):
        data = phase.config.data
        other = found.setdefault(data.out, data)
        wanted, there = settings_affecting_bytes(data), settings_affecting_bytes(other)
        differing = [key for key in wanted if wanted[key] != there[key]]
        masks_only = set(differing) <= set(AFFECTING_MASKS)
        if differing and not (masks_only and data.dynamic_masking and other.dynamic_masking):
            names = ", ".join(map(setting_of, differing))
            dynamic = ", or data.dynamic_masking=true for all phases" if masks_only else ""
            raise UserError(
                f"phase {phase.name} has the data.out of another phase and other {names}",
                where=data.out,
                remedy=f"give it a data.out of its own{dynamic}",
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
        if key.startswith("schedule.") and config.schedule.span == "run":
            raise UserError(
                f"{key} cannot differ between phases that share one schedule, schedule.span=run",
                where=f"phase {name}",
                remedy="set it outside the phases",
            )
        if key in SHARED or not (key in MAY_DIFFER or key.partition(".")[0] in MAY_DIFFER):
            raise UserError(
                f"{key} cannot differ between phases",
                where=f"phase {name}",
                expected=f"{', '.join(MAY_DIFFER)}; of data all but {', '.join(SHARED)}",
                remedy="set it outside the phases, for all of them",
            )
    where = f"phase {name}"
    base = merged(schema(), asdict(replace(config, phases=[])), where)
    result = typed(merged(base, one_length(settings), where), where)
    assert isinstance(result, RunConfig)
    return result


# The micro-batch of each phase, where train.micro_batch is 0.
#
# The largest that fits would be wrong twice: one of 300 examples cuts a share of 8,192 into 27 full passes and a rest,
# and half of one is empty where the share is small. So it also divides what a rank has of each global batch. How many
# examples fit on a GPU is counted in pretrain/preflight/memory.py, and on a CPU here.


CPU_TOKENS = 4096
"""Tokens of a micro-batch on CPUs: the size at which training on CPUs was measured (docs/evidence/benchmarks_cpu.md);
no larger ones were. Memory is no guide: the ranks of a machine share it with all else, and keep what they
freed (docs/operate/faq.md)."""


def rank_shares(config: RunConfig, ranks: int) -> list[int]:
    """Return the sizes of a rank's share of a global batch of this phase, the largest rank's, ascending: one, or one
    per size of a ramp."""
    sizes = batch_sizes(config)
    wholes = range(sizes.first, sizes.full + 1, sizes.streams) if sizes.ramp else [sizes.full]
    return sorted({math.ceil(size / ranks) for size in wholes})


def dividing(shares: Sequence[int], fits: int) -> int:
    """Return the largest number of examples, at most `fits` and at most the smallest share, that divides all shares.
    If it is less than half of that bound (a share of 127 has the divisor 1 alone), the smallest share is cut into as
    few even parts as fit instead: the last pass of a share is then up to one part short."""
    most, common = min(fits, *shares), math.gcd(*shares)
    divisor = next(n for n in range(most, 0, -1) if common % n == 0)
    return divisor if 2 * divisor >= most else math.ceil(shares[0] / math.ceil(shares[0] / most))


def chosen(config: RunConfig, ranks: int, fits: int) -> int:
    """Return the micro-batch of this phase on `ranks` ranks on which `fits` examples fit."""
    return dividing(rank_shares(config, ranks), fits)


def on_cpus(config: RunConfig, ranks: int) -> RunConfig:
    """Return the run with a micro-batch for CPUs in each phase that leaves it to be chosen."""
    values = [
        chosen(phase.config, ranks, max(1, CPU_TOKENS // phase.config.data.sequence_length))
        for phase in phases_of(config)
    ]
    return with_micro_batches(config, values)


def with_micro_batches(config: RunConfig, values: Sequence[int]) -> RunConfig:
    """Return the run with train.micro_batch of each phase from `values`, in their order, where it was 0."""
    phases = [dict(changes) for changes in config.phases]
    for changes, phase, value in zip(phases, phases_of(config), values, strict=False):
        if not phase.config.train.micro_batch:
            changes["train"] = {**changes.get("train", {}), "micro_batch": value}
    train = replace(config.train, micro_batch=config.train.micro_batch or values[0])
    return replace(config, train=train, phases=phases)


def is_open(config: RunConfig) -> bool:
    """Return whether a micro-batch of the run is still to be chosen."""
    return any(not phase.config.train.micro_batch for phase in phases_of(config))

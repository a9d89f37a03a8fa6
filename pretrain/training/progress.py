"""Track a run's progress batch by batch, read it, validated, from a checkpoint's state, and tell where a phase ends."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pretrain.checkpoint.store import Checkpoint, Damaged
from pretrain.config.phases import Phase
from pretrain.distributed.world import World, raise_on_all_ranks
from pretrain.optim.schedule import Progress
from pretrain.preflight.check_run import Plan
from pretrain.run.files import is_count, is_number
from pretrain.run.time_budget import TimeBudget, shares_of
from pretrain.training.batch_counts import BatchCounts


@dataclass
class Position:
    """Progress of a run. `batch`: global batches consumed. `step`: updates accepted."""

    batch: int = 0
    step: int = 0
    skipped: list[int] = field(default_factory=list)
    """Batches whose update was not accepted or was taken back (overflow, NaN, spike, no readable example)."""
    examples: int = 0
    tokens: int = 0
    damaged: int = 0
    """Examples skipped because their blocks are missing or changed (data.on_damage=skip)."""
    losses: list[float] = field(default_factory=list)
    """Losses of the last accepted batches, if train.on_spike is on, so that a resumed run finds the same spikes."""
    phase: int = 0
    """Index of the current phase, from 0; at the end of a phase, still that phase."""
    phase_batch: int = 0
    """Batches consumed before this phase, which starts its own data order."""
    phase_examples: int = 0
    phase_step: int = 0
    """Updates accepted before this phase."""
    elapsed: float = 0.0
    """Seconds of train.minutes that are used in this phase, by the first rank's clock; other ranks do not read it."""
    positions_trained: int = 0
    """How many rows of the tables of learned positions have been trained: the length of the longest examples, or all
    that a folder brought. 0: unknown, as in checkpoints of older versions."""
    spent: bool = False
    """Whether train.minutes of this phase are over: its last update was accepted."""

    def advance(self, applied: bool, counts: BatchCounts, missing: int = 0) -> None:
        """Count a consumed batch, of which `missing` examples could not be read."""
        if applied:
            self.step += 1
            self.spent = counts.ahead.last
        else:
            self.skipped.append(self.batch)
        self.batch += 1
        self.examples += counts.examples
        self.tokens += counts.tokens
        self.damaged += missing

    @property
    def batch_of_phase(self) -> int:
        """Batches consumed in this phase."""
        return self.batch - self.phase_batch


def position_of(checkpoint: Checkpoint) -> Position:
    """Return the position at which a checkpoint was saved. Raises Damaged if resume.save did not write its state."""
    state = checkpoint.state
    wrong = [key for key, right in _STATE.items() if not right(state.get(key))]
    if not wrong:
        kinds: dict[str, Callable[[Any], bool]] = {f.name: is_count for f in fields(Position)}
        kinds |= {"skipped": _counts, "losses": _numbers, "elapsed": is_number, "spent": _flag}
        found = state["position"]
        wrong = [key for key in found if key not in kinds or not kinds[key](found[key])]
    if wrong:
        raise Damaged(
            f"its state does not hold: {', '.join(sorted(map(str, wrong))[:5])}",
            where=checkpoint.folder,
            expected="what a run saves",
        )
    return Position(**state["position"])


def time_budget(plan: Plan, position: Position, world: World) -> TimeBudget:
    """Return the phase's budget of time, from what is used of it on; without train.minutes it measures nothing. All
    ranks call this. Raises UserError if the shares to replay cannot be read."""
    train, phase = plan.phase.config.train, plan.phase

    def read() -> TimeBudget:
        measures = world.rank == 0  # another rank may not see the folder, and its clock is not asked
        replay = shares_of(train.replay, phase.name) if train.replay and measures else ()
        return TimeBudget(train.minutes, position.elapsed, measures, replay, position.batch_of_phase)

    return raise_on_all_ranks(world, read)


def progress(phase: Phase, position: Position, counts: BatchCounts) -> Progress:
    """Return how much of its schedule the run has done before the update of this batch."""
    if phase.config.train.minutes:
        return Progress(counts.ahead.share, 1.0, in_updates=False)
    first = phase.schedule_first if phase.spans_run else position.phase_step
    return Progress(position.step - first, phase.schedule_steps)


def is_over(phase: Phase, position: Position) -> bool:
    """Return whether the run is behind the last update of this phase. All ranks know the same."""
    if position.phase != phase.number:
        return position.phase > phase.number
    if phase.config.train.minutes:
        return position.spent
    return position.step - position.phase_step >= phase.config.train.steps


def run_is_over(plans: list[Plan], position: Position) -> bool:
    """Return whether the run is behind the last update of its last phase."""
    return is_over(plans[-1].phase, position)


def reached(stop_after: int, position: Position) -> bool:
    """Return whether the run is at run.stop_after; 0: it does not stop."""
    return 0 < stop_after <= position.step


def phases_left(plans: list[Plan], position: Position, stop_after: int) -> Iterator[Plan]:
    """Yield the unfinished phases, each after the previous one has finished, unless the run stops before; of a run
    without steps the first, which saves the starting weights."""
    if plans[-1].phase.last == 0:
        yield plans[0]
        return
    for plan in plans:
        if is_over(plan.phase, position):
            continue
        if reached(stop_after, position):
            return
        yield plan
        if not is_over(plan.phase, position):
            return


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(one) in (int, float) for one in value)


def _table(value: object) -> bool:
    return isinstance(value, Mapping)


def _loader(value: object) -> bool:
    if not isinstance(value, Mapping) or not is_count(value.get("batch")) or "data" not in value:
        return False
    return _table(value.get("order")) and isinstance(value.get("masking"), Mapping | None)


_STATE: dict[str, Callable[[Any], bool]] = {
    "identity": _table,
    "position": _table,
    "loader": _loader,
    "updates": is_count,
    "scaler": lambda value: _table(value) and _numbers(list(value.values())),
    "conditions": _table,
    "phase": lambda value: value is None or _table(value),
}

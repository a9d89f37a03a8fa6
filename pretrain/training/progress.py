"""Track a run's progress batch by batch, and read it, validated, from a checkpoint's state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pretrain.checkpoint.marker import Damaged
from pretrain.checkpoint.store import Checkpoint
from pretrain.run.tolerant_json import is_count
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

    def advance(self, applied: bool, counts: BatchCounts, missing: int = 0) -> None:
        """Count a consumed batch, of which `missing` examples could not be read."""
        if applied:
            self.step += 1
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
        kinds = {f.name: _counts if f.name == "skipped" else _numbers if f.name == "losses" else is_count
                 for f in fields(Position)}  # fmt: skip
        found = state["position"]
        wrong = [key for key in found if key not in kinds or not kinds[key](found[key])]
    if wrong:
        raise Damaged(
            f"its state does not hold: {', '.join(sorted(map(str, wrong))[:5])}",
            where=checkpoint.folder,
            expected="what a run saves",
        )
    return Position(**state["position"])


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_count, value))


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

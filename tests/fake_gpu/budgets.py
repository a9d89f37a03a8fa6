"""What a run may launch, copy and wait for in each step: cases of a few settings, and whether a run keeps to one."""

from pathlib import Path
from typing import Any, NamedTuple

from pretended import trained

STEPS = 7
QUIET = [f"train.steps={STEPS}", "train.log_every=6", "train.checkpoint_every=100", "run.ranks=1"]
"""Step 1 and 6 are logged; the third to fifth do nothing but train."""
ROOM = 0.1
"""The share that a run may be off the measured launches and copies: another version of torch has some more or fewer."""


class Case(NamedTuple):
    """A run and what it was measured to take, as docs/evidence/plan_calibration.md has it."""

    precision: str
    stage: int
    more: str
    """Settings, apart by blanks."""
    passes: tuple[int, int, int]
    """Launches, copies and waits in a micro-batch. At stage 3 it is DeepSpeed that waits, for its stream of reductions;
    offloaded at stage 2 it looks at each tensor's gradient in the last micro-batch, whether it is finite."""
    rest: tuple[int, int, int]
    """The same in the rest of a step that is not logged, of tensors in any number. By their Python stacks all waits are
    in DeepSpeed's optimizers, which look whether gradients and norms are finite, at stage 0 in bf16 and with offload
    tensor by tensor; but one at stage 0, which is ours: the norm that decides whether the step is taken."""

    def __str__(self) -> str:
        words = [word.partition(".")[2] for word in self.more.split()]
        return ", ".join([f"stage {self.stage}", self.precision, *words])


def keeps_to(case: Case, tiny: list[str], folder: Path, world: int = 1) -> list[dict[str, Any]]:
    """Train; fail unless the plain steps cost what the case says. Return the counts of these."""
    chosen = [f"train.precision={case.precision}", f"zero.stage={case.stage}", *case.more.split()]
    steps = trained(folder, STEPS, [*tiny, *QUIET, *chosen], world)
    assert len(steps) == STEPS
    assert not any(step["cublas_variable"] for step in steps), "torch 2.11 parses it at each product"
    off = set()
    for step in plain(steps):
        show(str(case), step)
        off |= {*_off(step["passes"], case.passes, step["micro_batches"]), *_off(step["rest"], case.rest)}
        if not case.passes[2]:
            assert step["passes"]["staged"] == 0
    assert not off, sorted(off)
    return plain(steps)


def plain(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that neither compile nor log."""
    return steps[2:5]


def show(name: str, step: dict[str, Any]) -> None:
    number, passes, rest = step["micro_batches"], step["passes"], step["rest"]
    print(
        f"{name}: {passes['launches'] / number:.0f} launches, {passes['copies'] / number:.0f} copies and "
        f"{passes['waits'] / number:.1f} waits a micro-batch of {number}; {rest['launches']} launches, "
        f"{rest['copies']} copies and {rest['waits']} waits in the rest of the step"
    )


def _off(found: dict[str, int], budget: tuple[int, int, int], times: int = 1) -> list[str]:
    """What is not as measured, of so many times the budget: too many waits, or launches and copies beyond the room."""
    launches, copies, waits = (times * value for value in budget)
    within = {"launches": launches, "copies": copies}
    said = [
        f"{found[name]} {name}, measured {value}"
        for name, value in within.items()
        if abs(found[name] - value) > ROOM * value
    ]
    return [*said, *([f"{found['waits']} waits, at most {waits}"] if found["waits"] > waits else [])]

"""Exact continuation: saved at one world size, ZeRO stage and micro-batch, continued at another, the run ends where it
would have ended. Eight pairs, in which every number of ranks and every stage is both left and come to;
MASKMILL_RESHARD=1 (`make reshard`) has all 16 x 16."""

import os
from itertools import product
from pathlib import Path

import pytest
from attempts import Attempt, Seen, run_attempts

from tests.run_ends import assert_same_tensors, final

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

SAVED_AT, STEPS = 4, 24
RUN = [
    f"train.steps={STEPS}",
    "train.checkpoint_every=0",
    f"train.log_every={STEPS}",
    "encoder.dropout=0",
    "encoder.attention_dropout=0",
    "data.dynamic_masking=true",
]
MICRO_BATCHES = (3, 1, 12, 2)

Cell = tuple[int, int]  # ranks, stage
ALL = list(product((1, 2, 3, 4), range(4)))
if os.environ.get("MASKMILL_RESHARD"):
    PAIRS = list(product(ALL, ALL))
else:
    DIAGONAL = [(ranks, ranks - 1) for ranks in (1, 2, 3, 4)]
    PAIRS = [
        ((ranks, stage), (other, (stage + other) % 4))
        for ranks, stage in DIAGONAL
        for other in (ranks % 4 + 1, (ranks + 1) % 4 + 1)
    ]
SOURCES = sorted({source for source, _ in PAIRS})


def settings(tiny: list[str], run: Path, cell: Cell, micro_batch: int) -> list[str]:
    _, stage = cell
    return [*tiny, *RUN, f"run.dir={run}", f"zero.stage={stage}", f"train.micro_batch={micro_batch}"]


def name(source: Cell, target: Cell) -> str:
    return "-".join(map(str, (*source, "to", *target)))


@pytest.fixture(scope="module")
def ended(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Seen]]:
    """The folder of all runs, and what their attempts saw, by name; nothing happened to `undisturbed`."""
    folder = tmp_path_factory.mktemp("reshard")
    attempts = {"undisturbed": Attempt(1, settings(tiny, folder / "undisturbed", (1, 0), 4))}
    for source in SOURCES:
        run = folder / f"source-{source[0]}-{source[1]}"
        stopping = [*settings(tiny, run, source, 4), f"run.stop_after={SAVED_AT}"]
        attempts[run.name] = Attempt(source[0], stopping)
    for number, (source, target) in enumerate(PAIRS):
        run, micro_batch = folder / name(source, target), MICRO_BATCHES[(number + number // 4) % 4]
        before = folder / f"source-{source[0]}-{source[1]}"
        attempts[run.name] = Attempt(target[0], settings(tiny, run, target, micro_batch), copy_of=str(before))
    return folder, dict(
        zip(attempts, run_attempts(list(attempts.values()), timeout=60 * len(attempts)), strict=True)
    )


def test_every_number_of_ranks_and_every_stage_is_left_and_come_to() -> None:
    for end in (0, 1):
        assert {pair[end][0] for pair in PAIRS} == {1, 2, 3, 4}
        assert {pair[end][1] for pair in PAIRS} == {0, 1, 2, 3}


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[name(*pair) for pair in PAIRS])
def test_it_goes_on_as_if_nothing_had_happened(
    ended: tuple[Path, dict[str, Seen]], source: Cell, target: Cell
) -> None:
    folder, seen = ended
    one, two = final(folder / "undisturbed", STEPS), final(folder / name(source, target), STEPS)
    attempts = seen[f"source-{source[0]}-{source[1]}"].batches | seen[name(source, target)].batches
    assert {batch: attempts[batch] for batch in range(STEPS)} == {
        batch: seen["undisturbed"].batches[batch] for batch in range(STEPS)
    }, "the same examples and masks in the same global batches"
    assert two.state["position"] == one.state["position"]
    assert two.state["updates"] == one.state["updates"]
    square = sum(float((one.tensor(n).double() - two.tensor(n).double()).square().sum()) for n in one.shapes)
    size = sum(float(one.tensor(n).double().square().sum()) for n in one.shapes)
    assert square**0.5 <= 1e-6 * size**0.5
    for parameter in one.shapes:
        difference = float((one.tensor(parameter) - two.tensor(parameter)).abs().max())
        rms = float(one.tensor(parameter).square().mean()) ** 0.5
        bound = 1e-5 if parameter.endswith("attention.key.bias") else 1e-6 + 1e-5 * rms
        assert difference <= bound, f"{parameter}: {difference:.2e} > {bound:.2e}"
    said = seen[name(source, target)].output
    for setting, before, after in zip(("ranks", "zero.stage"), source, target, strict=True):
        assert (f"{setting} {before} -> {after}" in said) == (before != after), said


def test_fp16_keeps_its_loss_scale(tiny: list[str], tmp_path: Path) -> None:
    """It starts too high, so that the first batches are skipped: a scale that is forgotten would skip others again."""
    here = [*tiny, "train.steps=6", "train.precision=fp16", "train.log_every=6", "run.seed=3"]
    one, two = tmp_path / "one", tmp_path / "two"
    whole = Attempt(2, [*here, f"run.dir={one}"], fp16=True)
    parts = [Attempt(2, [*here, f"run.dir={two}", *stop], fp16=True) for stop in (["run.stop_after=3"], [])]
    run_attempts([whole, *parts])
    a, b = final(one, 6), final(two, 6)
    assert a.state["position"]["skipped"] != []
    assert a.state["position"] == b.state["position"]
    assert a.state["scaler"] == b.state["scaler"]
    assert a.state["scaler"]["cur_scale"] not in (2**22, 2**16), "it has moved"
    assert_same_tensors(a, b)


def test_other_optimizers_resume_bit_equal(tiny: list[str], tmp_path: Path) -> None:
    attempts = []
    for optimizer in ("muon", "stable_adamw"):
        here = [*tiny, "train.steps=6", "train.log_every=6", "zero.stage=1", f"optim.name={optimizer}"]
        attempts.append(Attempt(2, [*here, f"run.dir={tmp_path}/{optimizer}"]))
        stopped = [*here, f"run.dir={tmp_path}/{optimizer}-resumed"]
        attempts += [Attempt(2, [*stopped, "run.stop_after=3"]), Attempt(2, stopped)]
    seen = run_attempts(attempts)
    assert all("bit-exact" in attempt.output for attempt in seen[2::3])
    for optimizer in ("muon", "stable_adamw"):
        one, two = (final(tmp_path / f"{optimizer}{resumed}", 6) for resumed in ("", "-resumed"))
        assert_same_tensors(one, two)

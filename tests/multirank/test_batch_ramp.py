"""A run whose batch grows: stopped inside the ramp and resumed, on as many or other ranks, it reads the same
batches and ends where it would have ended."""

import json
from pathlib import Path

import pytest
from attempts import Attempt, Seen, run_attempts

from data_pipeline.shards.index import Index
from tests.command_line import setting
from tests.run_ends import assert_bit_equal, final

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

RAMP = [
    "train.steps=7",
    "train.global_batch=12",
    "train.batch_ramp_from=4",
    "train.batch_ramp=5",
    "train.micro_batch=4",
    "train.checkpoint_every=0",
    "train.log_every=1",
    "encoder.dropout=0",
    "encoder.attention_dropout=0",
]
SIZES = [4, 4, 4, 8, 8, 12, 12]
STOP = "run.stop_after=3"


@pytest.fixture(scope="module")
def ended(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Seen]]:
    folder = tmp_path_factory.mktemp("ramp")

    def attempt(name: str, ranks: int, *more: str, copy_of: str = "") -> Attempt:
        source = str(folder / copy_of) if copy_of else ""
        return Attempt(ranks, [*tiny, *RAMP, *more, f"run.dir={folder}/{name}"], copy_of=source)

    attempts = {
        "undisturbed": attempt("undisturbed", 1),
        "stopped-1": attempt("stopped-1", 1, STOP),
        "resumed-1": attempt("resumed-1", 1, copy_of="stopped-1"),
        "resumed-3": attempt("resumed-3", 3, copy_of="stopped-1"),
    }
    seen = run_attempts(list(attempts.values()), timeout=240)
    return folder, dict(zip(attempts, seen, strict=True))


def test_the_batch_grows_as_the_log_says(ended: tuple[Path, dict[str, Seen]], tiny: list[str]) -> None:
    folder, _ = ended
    lines = map(json.loads, (folder / "undisturbed" / "metrics.jsonl").read_text().splitlines())
    shown = [line for line in lines if line["kind"] == "train"]
    assert [line["global_batch"] for line in shown] == SIZES
    examples = Index.load(setting(tiny, "data.out")).train.examples
    assert shown[-1]["epoch"] == pytest.approx(sum(SIZES) / examples)
    assert final(folder / "undisturbed").state["position"]["examples"] == sum(SIZES)


def test_resumed_inside_the_ramp_it_is_bit_equal(ended: tuple[Path, dict[str, Seen]]) -> None:
    folder, _ = ended
    assert final(folder / "stopped-1", 3).state["loader"]["batch"] == 3
    assert_bit_equal(folder / "undisturbed", folder / "resumed-1")


def test_on_other_ranks_it_reads_the_same_batches(ended: tuple[Path, dict[str, Seen]]) -> None:
    folder, seen = ended
    assert seen["stopped-1"].batches | seen["resumed-3"].batches == seen["undisturbed"].batches
    one, two = final(folder / "undisturbed", 7), final(folder / "resumed-3", 7)
    assert two.state["position"] == one.state["position"]
    square = sum(float((one.tensor(n).double() - two.tensor(n).double()).square().sum()) for n in one.shapes)
    size = sum(float(one.tensor(n).double().square().sum()) for n in one.shapes)
    assert square**0.5 <= 1e-6 * size**0.5

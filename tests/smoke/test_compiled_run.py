"""A compiled run on the command line: both phases of it, held-out figures, stopped and resumed: the same weights."""

from pathlib import Path

import pytest

from pretrain.run.metrics_log import read_metrics
from tests.command_line import Maskmill
from tests.run_ends import assert_bit_equal

pytestmark = pytest.mark.slow

RECIPE = """
extends: demo
phases:
  - {name: first, train: {steps: 3, checkpoint_every: 3, micro_batch: 4}}
  - {name: second, train: {steps: 3, checkpoint_every: 2, micro_batch: 2}}
"""
RUN = ["run.ranks=1", "train.eval_every=2", "train.log_every=1", "checkpoint.keep=9"]


@pytest.mark.multirank
def test_compiled_as_eager_and_resumed_as_never_stopped(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    recipe = tmp_path / "phased.yaml"
    recipe.write_text(RECIPE)
    shared = [
        s
        for s in tiny
        if not s.startswith(("train.steps", "train.checkpoint_every", "train.eval", "train.micro_batch"))
    ]

    def trained(name: str, *settings: str) -> tuple[Path, str]:
        run = tmp_path / name
        command = ["train", str(recipe), *shared, *RUN, *settings, f"run.dir={run}"]
        return run, maskmill(*command).stdout

    whole, said = trained("whole", "train.compile=on", "encoder.dropout=0.1")
    assert said.count("compiled in") == 2, "one shape a phase"
    stopped = ["train.compile=on", "encoder.dropout=0.1"]
    trained("stopped", *stopped, "run.stop_after=5")
    run, said = trained("stopped", *stopped)
    assert "bit-exact" in said
    assert_bit_equal(whole, run)

    losses = []
    for name, compile_ in (("compiled", "on"), ("eager", "off")):
        run, _ = trained(
            name, f"train.compile={compile_}", "encoder.dropout=0", "encoder.attention_dropout=0"
        )
        lines = read_metrics(run)
        assert [line["step"] for line in lines if line["kind"] == "eval"] == [0, 2, 3, 4, 6]
        losses.append([line.get("loss", line.get("held_out_loss")) for line in lines])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)

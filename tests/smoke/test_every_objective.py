"""Every objective at every ZeRO stage: stopped and resumed, a run ends bit-equal to one that was not stopped."""

import json
from pathlib import Path

import pytest

from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.factories.teachers import teacher_settings
from tests.run_ends import assert_bit_equal


@pytest.mark.multirank
@pytest.mark.parametrize("stage", [3, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 2))])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_resumes_bit_equal_at_every_stage(
    objective: str, stage: int, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    data, whole, parts = (tmp_path / name for name in ("shards", "whole", "parts"))
    settings = [
        *tiny,
        *member_settings(objective, maskmill, tmp_path),
        f"data.out={data}",
        f"zero.stage={stage}",
        "run.ranks=2",
    ]
    settings += ["train.checkpoint_every=0", "encoder.dropout=0.1"]
    maskmill("prepare", "demo", *settings)
    settings += teacher_settings(settings, tmp_path / "teacher")
    maskmill("train", "demo", *settings, f"run.dir={whole}")
    maskmill("train", "demo", *settings, f"run.dir={parts}", "run.stop_after=2")
    assert "bit-exact" in maskmill("train", "demo", *settings, f"run.dir={parts}").stdout
    assert_bit_equal(whole, parts)
    first, last = (final_line(parts, step)["loss"] for step in (1, 4))
    assert last < first, "it learns"


def final_line(run: Path, step: int) -> dict:
    """The last line of metrics.jsonl about training at this step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if (line["kind"], line["step"]) == ("train", step)][-1]

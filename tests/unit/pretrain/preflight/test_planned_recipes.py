"""The table of docs/benchmarks.md of what recipes would do on eight GPUs is what `maskmill plan` says today."""

import re

import pytest

from launch.recipe import load_config
from pretrain.preflight.forecast import Forecast, forecast_phases
from pretrain.preflight.gpus import gpu_named
from pretrain.preflight.step_time import Cluster
from tests.command_line import ROOT

EIGHT = Cluster(1, 8, gpu_named("h100"))
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)((?: [\w.]+=\S+)*)`(?:, phase `(\w+)`)? \| (.+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    """(recipe, its overrides, phase, the other cells) of each row."""
    _, found, text = PAGE.partition("### Recipes on eight GPUs, as planned\n")
    assert found
    return ROW.findall(re.split(r"^#+ ", text, flags=re.MULTILINE)[0])


def told(batch: int, found: Forecast) -> str:
    """What a row says behind its name."""
    step = found.step
    parts = (step.arithmetic, step.launching, step.optimizer, step.communication, step.total)
    times = " | ".join(f"{1e3 * part:,.1f}" for part in parts)
    return f"{batch:,} | {found.micro_batches} x {found.micro_batch} | {times} | {batch / step.total:,.0f}"


def test_there_are_rows() -> None:
    assert len(rows()) > 8
    assert len(set(rows())) == len(rows())


@pytest.mark.slow
def test_each_row_is_what_the_plan_says() -> None:
    wrong = []
    for recipe, overrides, name, cells in rows():
        phases = forecast_phases(load_config(recipe, overrides.split()), EIGHT)
        ((batch, found),) = [
            (phase.config.train.global_batch, found) for phase, found in phases if phase.name == name
        ]
        if cells != told(batch, found):
            wrong.append(f"{recipe}{overrides} {name}: {told(batch, found)}")
    assert not wrong, "\n".join(wrong)

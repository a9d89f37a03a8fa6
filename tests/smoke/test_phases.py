"""A run of two phases in one command: killed and stopped in each and between them, it ends with the same weights."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_pipeline.shards.index import Index
from launch.settings.recipe import load_config
from pretrain.checkpoint.store import open_checkpoint
from pretrain.config.phases import phases_of
from pretrain.optim.schedule import learning_rate
from tests.command_line import Maskmill, described, until
from tests.run_ends import assert_bit_equal, assert_same_tensors, final
from tests.smoke.test_resume import start

pytestmark = pytest.mark.slow

RECIPE = """
extends: demo
phases:
  - name: short
    data: {{out: {folder}/short, sequence_length: 16, max_predictions: 3}}
    train: {{steps: 4, global_batch: 12, micro_batch: 4, checkpoint_every: 2}}
    optim: {{lr: 1e-2}}
    schedule: {{name: nvidia, warmup: 0.5, power: 0.5}}
  - name: long
    data: {{out: {folder}/long, sequence_length: 32, max_predictions: 5}}
    train: {{steps: 4, global_batch: 8, micro_batch: 2, checkpoint_every: 2}}
    optim: {{lr: 5e-3}}
    schedule: {{warmup: 2}}
"""
OF_PHASES = ("data.out", "data.sequence_length", "data.max_predictions", "train.", "optim.lr")
DROPOUT = ["run.ranks=2", "encoder.dropout=0.1", "encoder.attention_dropout=0.1"]
PLAIN = ["encoder.dropout=0", "encoder.attention_dropout=0", "run.ranks=1"]


@pytest.fixture(scope="module")
def phased(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A recipe of two phases, with its settings; the shards of both are ready, made by one command."""
    folder = tmp_path_factory.mktemp("phased")
    recipe = folder / "phased.yaml"
    recipe.write_text(RECIPE.format(folder=folder))
    shared = [s for s in tiny if not s.startswith(OF_PHASES)]
    command = [str(recipe), *shared, "checkpoint.keep=9", f"data.tokens={folder}/tokens"]
    said = maskmill("prepare", *command).stdout
    assert f"in {folder}/short" in said.replace("\n", "")
    assert f"in {folder}/long" in said.replace("\n", "")
    assert maskmill("prepare", *command).stdout.count("already prepared") == 2
    return command


@pytest.fixture(scope="module")
def undisturbed(phased: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    said = maskmill("train", *phased, *DROPOUT, f"run.dir={run}").stdout
    assert "phase short: steps 1 to 4" in said
    assert "phase long: steps 5 to 8" in said
    return run


def lines(run: Path) -> Iterator[dict]:
    return map(json.loads, (run / "metrics.jsonl").read_text().splitlines())


@pytest.mark.multirank
def test_steps_go_on_and_the_schedule_starts_anew(
    phased: list[str], undisturbed: Path, maskmill: Maskmill
) -> None:
    shown = [line for line in lines(undisturbed) if line["kind"] == "train"]
    assert [(line["step"], line["batch"]) for line in shown] == [(n, n) for n in (2, 4, 6, 8)]
    assert [line["phase"] for line in shown] == ["short", "short", "long", "long"]
    for line, phase in zip(shown[1::2], phases_of(load_config(phased[0], phased[1:])), strict=True):
        config = phase.config
        assert line["lr"] == learning_rate(3, config.optim.lr, 4, config.schedule)
        examples = Index.load(config.data.out).train.examples
        assert line["epoch"] == pytest.approx(4 * config.train.global_batch / examples)
    evaluated = [line for line in lines(undisturbed) if line["kind"] == "eval"]
    assert [(line["step"], line["phase"]) for line in evaluated] == [(0, "short"), (4, "short"), (8, "long")]
    for step, name, updates in ((2, "short", 2), (4, "short", 4), (6, "long", 2), (8, "long", 4)):
        state = open_checkpoint(undisturbed / "checkpoints" / f"step-{step:08d}").state
        assert (state["phase"]["name"], state["updates"]) == (name, updates)
        assert state["position"]["step"] == step
    facts = described(maskmill, undisturbed)
    assert (facts["status"], facts["step"], facts["steps"], facts["phase"]) == ("finished", 8, 8, "long")
    assert [p["last"] for p in facts["phases"]] == [4, 8]
    assert described(maskmill, undisturbed / "checkpoints" / "step-00000004")["phase"] == "short"
    assert "short up to step 4, long up to step 8" in maskmill("inspect", str(undisturbed)).stdout
    assert "phase long" in (undisturbed / "report.html").read_text()
    proof = maskmill("export", str(undisturbed), "--out", str(undisturbed.parent / "model")).stdout
    assert "in float64: mlm" in proof
    assert "long, up to step 8: batch 8" in (undisturbed.parent / "model" / "README.md").read_text()


@pytest.mark.multirank
def test_killed_in_a_phase_and_stopped_at_the_border_is_bit_equal(
    phased: list[str], undisturbed: Path, maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [*phased, *DROPOUT, f"run.dir={run}"]
    process = start(command)
    until((run / "checkpoints" / "step-00000002").exists, process=process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (run / "checkpoints" / "step-00000008").exists(), "too late to show anything"
    maskmill("train", *command, "run.stop_after=4")
    assert final(run).state["phase"]["name"] == "short", "between the phases"
    assert described(maskmill, run)["status"] == "stopped"
    maskmill("train", *command, "run.stop_after=6")
    resumed = maskmill("train", *command).stdout
    assert "resuming from step 6 of phase long (bit-exact" in resumed
    assert_bit_equal(undisturbed, run)
    assert [line["step"] for line in lines(run) if line["kind"] == "train"] == [2, 4, 6, 8]
    assert "nothing to do" in maskmill("train", *command).stdout


@pytest.mark.multirank
def test_moments_are_kept_and_bias_correction_starts_anew(
    phased: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """As in two runs of which the second starts from the first one's weights and moments."""
    maskmill("train", *phased, *PLAIN, f"run.dir={tmp_path}/both")
    phases = phases_of(load_config(phased[0], phased[1:]))
    for phase in phases:
        config, name = phase.config, phase.name
        settings = [
            f"data.out={config.data.out}",
            f"data.sequence_length={config.data.sequence_length}",
            f"data.max_predictions={config.data.max_predictions}",
            "train.steps=4",
            f"train.global_batch={config.train.global_batch}",
            f"train.micro_batch={config.train.micro_batch}",
            f"optim.lr={config.optim.lr}",
            f"schedule.name={config.schedule.name}",
            f"schedule.warmup={config.schedule.warmup}",
            f"schedule.power={config.schedule.power}",
        ]
        start = [f"init_from={tmp_path}/short", "init_moments=true"] if phase.number else []
        shared = phased[1:]
        maskmill("train", "demo", *shared, *settings, *start, *PLAIN, f"run.dir={tmp_path}/{name}")
    assert_same_tensors(final(tmp_path / "both"), final(tmp_path / "long"))


def test_the_data_of_both_phases_are_checked_before_the_first_step(
    phased: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    missing = maskmill("train", *phased, f"phases.long.data.out={tmp_path}/none", code=2)
    assert missing.stderr.count("maskmill: ") == 1
    assert f"{tmp_path}/none" in missing.stderr
    other = maskmill("train", *phased, "phases.long.data.max_predictions=4", f"run.dir={tmp_path}/r", code=2)
    assert "data.max_predictions=4 (shards: 5)" in other.stderr
    assert not (tmp_path / "r").exists()
    same = maskmill("prepare", *phased, f"phases.long.data.out={Path(phased[0]).parent}/short", code=2)
    assert "phase long has the data.out of another phase" in same.stderr


def test_the_plan_has_a_part_for_each_phase(phased: list[str], maskmill: Maskmill) -> None:
    shown = maskmill("plan", *phased, "--gpus-per-node", "2").stdout
    assert "phase short: steps 1 to 4" in shown
    assert "8 steps" in shown
    values = json.loads(maskmill("plan", *phased, "--gpus-per-node", "2", "--json").stdout)
    assert [phase["name"] for phase in values["phases"]] == ["short", "long"]
    assert values["tokens"] == sum(phase["tokens"] for phase in values["phases"])

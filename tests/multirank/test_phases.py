"""A run of two phases in one command: stopped in each and between them, it ends with the same weights."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts import Attempt, run_attempts

from data_pipeline.shards.index import Index
from launch.recipe import load_config
from pretrain.checkpoint.store import open_checkpoint
from pretrain.config.phases import phases_of
from pretrain.optim.schedule import Progress, learning_rate
from tests.command_line import Maskmill, described
from tests.run_ends import assert_bit_equal, assert_same_tensors, final

pytestmark = [
    pytest.mark.slow,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

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
        assert line["lr"] == learning_rate(Progress(3, 4), config.optim.lr, config.schedule)
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
def test_stopped_in_each_phase_and_at_the_border_is_bit_equal(
    phased: list[str], undisturbed: Path, maskmill: Maskmill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    recipe, *settings = [*phased, *DROPOUT, f"run.dir={run}"]
    stops = [["run.stop_after=3"], ["run.stop_after=4"], ["run.stop_after=6"], []]
    seen = run_attempts([Attempt(2, [*settings, *stop], recipe) for stop in stops])
    for attempt, place in zip(
        seen[1:], ("3 of phase short", "4 of phase short", "6 of phase long"), strict=True
    ):
        assert f"resuming from step {place} (bit-exact" in attempt.output
    assert_bit_equal(undisturbed, run)
    assert [line["step"] for line in lines(run) if line["kind"] == "train"] == [2, 3, 4, 6, 8]
    assert "nothing to do" in maskmill("train", *phased, *DROPOUT, f"run.dir={run}").stdout


def test_moments_are_kept_and_bias_correction_starts_anew(
    here: None, phased: list[str], maskmill: Maskmill, tmp_path: Path
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


@pytest.mark.multirank
@pytest.mark.parametrize(
    ("settings", "fresh"),
    [
        (["zero.stage=0", "train.precision=bf16"], False),
        (["zero.stage=1"], False),
        (["zero.stage=3", "train.precision=bf16"], False),
        (["zero.stage=1", "init_positions=fresh"], True),
    ],
)
def test_longer_examples_begin_with_the_trained_positions(
    phased: list[str], maskmill: Maskmill, tmp_path: Path, settings: list[str], fresh: bool
) -> None:
    still = [*settings, "run.ranks=2", "phases.long.optim.lr=1e-30", f"run.dir={tmp_path}/run"]
    said = maskmill("train", *phased, *still).stdout
    assert ("phase long: 16 positions extended to 32 (init_positions=repeat)" in said) is not fresh
    name = "encoder.embeddings.position.weight"
    short, long = (
        open_checkpoint(tmp_path / f"run/checkpoints/step-{step:08d}").tensor(name, "master")
        for step in (4, 8)
    )
    assert short[:16].equal(long[:16])
    assert short[32:].equal(long[32:])
    assert long[16:32].equal(short[16:32] if fresh else short[:16])
    assert not short[16:32].equal(short[:16])


def test_one_schedule_and_one_count_of_updates_span_the_phases(
    here: None, phased: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    """Also if the run is stopped at the boundary: the count comes from the checkpoint of the phase before."""
    recipe = tmp_path / "spanned.yaml"
    kept = [line for line in Path(phased[0]).read_text().splitlines() if not line.startswith("    schedule:")]
    recipe.write_text("\n".join([*kept, "schedule: {name: wsd, span: run, warmup: 2, decay: 3}"]))
    command = [
        str(recipe),
        *phased[1:],
        *PLAIN,
        "phases.short.train.log_every=1",
        "phases.long.train.log_every=1",
    ]
    maskmill("train", *command, f"run.dir={tmp_path}/stopped", "run.stop_after=4")
    maskmill("train", *command, f"run.dir={tmp_path}/stopped")
    shown = [line["lr"] for line in lines(tmp_path / "stopped") if line["kind"] == "train"]
    decay = [5e-3 * (1 - (n / 3) ** 0.5) for n in range(3)]
    assert shown == pytest.approx([0, 5e-3, 1e-2, 1e-2, 5e-3, *decay])
    assert final(tmp_path / "stopped").state["updates"] == 8
    maskmill("train", *command, f"run.dir={tmp_path}/whole")
    assert_bit_equal(tmp_path / "whole", tmp_path / "stopped")


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

"""What is checked with all ranks there, before the first step: room, links, and what may not be meant."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Shares
from launch.recipe import load_config
from pretrain.config.phases import phases_of
from pretrain.distributed.world import World
from pretrain.preflight.check_run import Plan, check_room, check_run, most_kept
from pretrain.preflight.forecast import forecast
from pretrain.preflight.gpus import GPUS
from pretrain.preflight.memory import parameters_of
from pretrain.preflight.step_time import Cluster
from pretrain.training.start import check_links, phase_lines, plan_on_rank, plan_warnings
from tests.command_line import Maskmill, setting


def plan_of(tiny: list[str], *overrides: str) -> Plan:
    return check_run(load_config("demo", [*tiny, "run.dir=somewhere", *overrides]), 1)[0]


def test_room_for_the_checkpoints_that_are_kept_and_one_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ["checkpoint.keep=3", "checkpoint.keep_best=false", "train.checkpoint_every=10"]
    config = load_config("demo", [f"run.dir={tmp_path}/new/run", *kept])
    size = 1000 * 12 * 1.02
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(4 * size) + 1))
    assert check_room(config, 1000) == "checkpoints of at most 12 kB, 3 kept; 49 kB free"  # Muon
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(4 * size) - 1))
    with pytest.raises(UserError, match="no room for checkpoints: 3 of 12 kB"):
        check_room(config, 1000)
    for step in (2, 4):  # they are there already
        folder = tmp_path / "new" / "run" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "checkpoint.json").write_text("{}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(2 * size) + 1))
    check_room(config, 1000)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ([], 3),
        (["train.eval_every=50"], 4),
        (["train.eval_every=50", "checkpoint.keep_best=false"], 3),
        (["checkpoint.keep_every=4"], 3 + 10 // 4),
        (["train.steps=150"], 2),
        (["train.checkpoint_every=0"], 1),
        (["phases=[{name: one, train: {steps: 400}}, {name: two, train: {steps: 100, eval_every: 5}}]"], 4),
        (
            [
                "checkpoint.keep_every=2",
                "train.checkpoint_every=0",
                "phases=[{name: one, train: {steps: 450, checkpoint_every: 100}}, {name: two, train: {steps: 100}}]",
            ],
            3 + (5 + 1) // 2,
        ),
    ],
)
def test_how_many_checkpoints_stay(settings: list[str], kept: int) -> None:
    base = ["checkpoint.keep=3", "train.steps=1000", "train.checkpoint_every=100", "train.eval_every=0"]
    assert most_kept(load_config("demo", [*base, *settings])) == kept


# what DeepSpeed's imports give rise to in a process of pytest's
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_size_of_a_checkpoint_is_told_right(
    here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    plan = plan_of(tiny)
    said = maskmill("train", "demo", *tiny, f"run.dir={tmp_path}/run", "run.stop_after=1").stdout
    count = parameters_of(plan.phase.config, plan.index.vocabulary.size)
    assert f"{count:,} parameters in fp32, ZeRO stage 1" in said
    assert "1 rank (cpu), 1 threads" in said
    (folder,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.suffix == ".safetensors")
    assert size == pytest.approx(12 * count, rel=0.1)  # the rest are the names of small tensors


def test_a_full_disk_is_refused_before_the_first_step(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    huge = ["encoder.hidden=65536", "encoder.intermediate=262144", "encoder.heads=1024"]
    done = maskmill("train", "demo", *tiny, f"run.dir={tmp_path}/run", "run.ranks=2", *huge, code=2)
    assert done.stderr.count("maskmill: ") == 1
    assert "no room for checkpoints" in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.global_batch=13", "does not divide among 2 ranks"),
        ("train.micro_batch=64", "of train.micro_batch=64"),
        ("train.steps=100000", "times through the shards: prepare more text"),
        ("schedule.warmup=0.9", "the warm-up takes 4 of 4 steps"),
    ],
)
def test_what_may_not_be_meant(tiny: list[str], override: str, words: str) -> None:
    assert plan_warnings(plan_of(tiny), 2) == []
    found = plan_warnings(plan_of(tiny, override), 2)
    assert len(found) == 1
    assert words in found[0]


def test_one_rank_has_no_links() -> None:
    assert check_links(World()).startswith("1 rank (cpu)")


def test_a_phase_in_words(tiny: list[str]) -> None:
    plan = plan_of(tiny)
    shown = "\n".join(phase_lines(plan, World()))
    assert f"{plan.index.train.examples:,} examples of" in shown
    assert "4 steps of 12 examples, 12 a rank in about" in shown
    assert setting(tiny, "optim.lr") == "1e-2"
    assert "rate up to 0.01 in 0 steps" in shown


def test_masks_differ_by_phase_on_the_same_shards(tiny: list[str]) -> None:
    phases = "phases=[{name: one, data: {masked_lm_prob: 0.3}}, {name: two, data: {masked_lm_prob: 0.05}}]"
    more = ["run.dir=somewhere", "data.dynamic_masking=true", "data.max_predictions=0", phases]
    one, two = check_run(load_config("demo", [*tiny, *more]), 1)
    assert one.index.identity == two.index.identity
    shares = []
    for plan in (one, two):
        config = plan.phase.config
        reader = Shares(
            plan.index, plan.order(config), plan.caps(plan.index.train, config), masking=plan.masking
        )
        shares.append(reader.read(0))
    assert shares[0].numbers.tolist() == shares[1].numbers.tolist()
    assert shares[0].masked > 3 * shares[1].masked > 0
    with pytest.raises(UserError, match=r"prepared with other settings: data\.masked_lm_prob"):
        plan_of(tiny, "data.masked_lm_prob=0.3")


def test_a_ramp_counts_its_examples(tiny: list[str]) -> None:
    ramp = ["train.global_batch=12", "train.batch_ramp_from=4", "train.batch_ramp=5", "train.steps=7"]
    plan = plan_of(tiny, *ramp, "data.streams=0")
    assert (plan.streams, plan.examples) == (4, 4 + 4 + 4 + 8 + 8 + 12 + 12)
    shown = "\n".join(phase_lines(plan, World()))
    assert f"4 at first, growing over 5 batches; {52 / plan.index.train.examples:,.2f} epochs" in shown
    with pytest.raises(UserError, match=r"5 ranks are more than train\.batch_ramp_from=4"):
        check_run(load_config("demo", [*tiny, "run.dir=somewhere", *ramp]), 5)
    (found,) = phases_of(load_config("demo", [*tiny, "run.dir=somewhere", *ramp]))
    planned = forecast(found, Cluster(1, 2, GPUS["h100"]))
    assert planned.tokens == 52 * planned.text.length
    with pytest.raises(UserError, match=r"6 ranks are more than train\.batch_ramp_from=4"):
        forecast(found, Cluster(1, 6, GPUS["h100"]))


def test_an_encoder_without_a_class_is_told_before_training(tiny: list[str]) -> None:
    odd = [*tiny, "encoder.gated=true"]
    [told] = [
        line
        for line in plan_warnings(plan_of(tiny, "encoder.gated=true"), 1)
        if "no class of transformers" in line
    ]
    assert "encoder.gated is True, BertForPreTraining has False" in told
    assert "`maskmill export` will refuse it" in told
    phase = phases_of(load_config("demo", [*odd, "run.dir=somewhere"]))[0]
    assert told in forecast(phase, Cluster(1, 1, GPUS["a100-80"])).warnings
    assert not [line for line in plan_warnings(plan_of(tiny), 1) if "no class" in line]


@pytest.mark.parametrize(
    ("rank", "environment", "checks"),
    [
        (0, {}, True),
        (1, {}, False),
        (0, {"RANK": "0", "WORLD_SIZE": "2"}, True),
        (0, {"RANK": "0", "WORLD_SIZE": "2", "MASKMILL_SUPERVISOR": "1"}, False),
        (0, {"MASKMILL_SUPERVISOR": "1"}, True),
    ],
)
def test_a_run_is_checked_once(
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    environment: dict[str, str],
    checks: bool,
) -> None:
    """By `maskmill train` before it starts ranks, else by the first rank; shards once for each other machine."""
    for name in ("RANK", "WORLD_SIZE", "MASKMILL_SUPERVISOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen: list[object] = []
    monkeypatch.setattr("pretrain.training.start.check_start", lambda config, ranks: seen.append(ranks))
    monkeypatch.setattr("pretrain.training.start.verify_shards", lambda plans: seen.append("shards"))
    config = load_config("demo", [*tiny, "run.dir=somewhere"])
    for local_rank, verified in ((rank, []), (0, ["shards"] if rank else [])):
        seen.clear()
        plans = plan_on_rank(config, World(rank=rank, size=2, local_rank=local_rank))
        assert plans[0].index.train.examples > 0
        assert seen == ([2] if checks else []) + verified

"""train.micro_batch=0: what is chosen, from what, and what becomes of it in a run that resumes."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from launch.jobs import node_gib
from launch.recipe import load_config
from pretrain.checkpoint import mirror
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import chosen, dividing, is_open, phases_of, rank_shares, with_micro_batches
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.preflight.check_run import check_run
from pretrain.preflight.forecast import fitting, forecast
from pretrain.preflight.gpus import GPUS, counted_memory
from pretrain.preflight.memory import RESERVED_SHARE
from pretrain.preflight.show import as_values
from pretrain.preflight.step_time import Cluster
from pretrain.run.folder import read_config
from pretrain.training.before_ranks import check_start, choose, settled, smallest
from tests.command_line import Maskmill


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=4).map(sorted), st.integers(1, 3000))
def test_it_divides_or_is_even(shares: list[int], fits: int) -> None:
    found, most, common = dividing(shares, fits), min(fits, *shares), math.gcd(*shares)
    assert 1 <= found <= most
    if common % found == 0 and 2 * found >= most:
        assert not any(common % n == 0 for n in range(found + 1, most + 1)), "the largest divisor"
    else:
        assert math.ceil(shares[0] / found) == math.ceil(shares[0] / most), "as few passes as fit"


@pytest.mark.parametrize(
    ("shares", "fits", "found"),
    [
        ([8192], 619, 512),
        ([4096], 150, 128),
        ([32], 1588, 32),
        ([86], 40, 29),
        ([127], 100, 64),
        ([127], 127, 127),
        ([96, 128, 160], 96, 96),
        ([64, 128, 192], 100, 64),
        ([5], 1, 1),
    ],
)
def test_choices(shares: list[int], fits: int, found: int) -> None:
    assert dividing(shares, fits) == found


def test_it_divides_what_a_rank_has_of_each_batch_of_a_ramp() -> None:
    ramp = ["train.global_batch=4608", "train.batch_ramp_from=768", "train.batch_ramp=19080"]
    config = load_config("bert_tiny", [*ramp, "train.micro_batch=0"])
    assert rank_shares(config, 8) == list(range(96, 577, 32))
    assert (chosen(config, 8, 60), chosen(config, 8, 1000)) == (32, 96)
    assert rank_shares(load_config("bert_tiny", ["train.global_batch=100"]), 3) == [34]


@pytest.mark.parametrize(
    ("recipe", "found"),
    [("bert_base", [256]), pytest.param("bert_large", [512, 128], marks=pytest.mark.slow)],
)
def test_what_plan_shows_fits_beside_the_reserve(recipe: str, found: list[int]) -> None:
    cluster = Cluster(1, 1 if recipe == "bert_base" else 8, GPUS["h100"])
    config = load_config(recipe, [])
    assert is_open(config)
    forecasts = [forecast(phase, cluster) for phase in phases_of(config)]
    assert [one.micro_batch for one in forecasts] == found
    for one, phase in zip(forecasts, phases_of(config), strict=True):
        memory = one.memory[phase.config.zero.stage]
        assert memory.total <= (1 - RESERVED_SHARE) * cluster.gpu.memory
        assert one.micro_batch * one.micro_batches * cluster.ranks == phase.config.train.global_batch
        assert as_values(one)["micro_batch"] == one.micro_batch
        assert not [line for line in one.warnings if "micro_batch" in line]
    values, lines = choose(config, cluster.ranks, counted_memory(85.0e9))
    assert values == found, "the run chooses what plan showed"
    assert all("that fit 80 GB" in line for line in lines)


def test_a_smaller_gpu_and_a_higher_stage_count() -> None:
    small, large = (choose(load_config("bert_large", []), 8, memory)[0] for memory in (24e9, 80e9))
    assert all(one < two for one, two in zip(small, large, strict=True))
    (phase, _) = phases_of(load_config("bert_large", []))
    fits = fitting(phase.config, 8, 24e9).largest_micro_batch
    assert small[0] <= fits < 2 * small[0], "8192 has the divisors 2, 4, 8 ..."


def test_the_smallest_gpu_decides() -> None:
    assert smallest([85.0e9, 42.3e9]) == 40e9
    assert smallest([None]) is None
    assert smallest([9e9]) == 9e9, "a part of a GPU that no table has"
    assert counted_memory(150.1e9) == 141e9


def test_no_example_fits_is_one_error(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("bert_large", [])
    with pytest.raises(
        UserError, match=r"phase phase1.*not one example of 128 tokens fits a GPU of 4 GB beside 6"
    ):
        choose(config, 1, 4e9)
    monkeypatch.setattr("pretrain.training.before_ranks.sees_gpus", lambda: True)
    monkeypatch.setattr("pretrain.training.before_ranks._check_gpus", lambda ranks: None)
    monkeypatch.setattr("pretrain.training.before_ranks.visible_memory", lambda ranks: 1e5)
    here = [*tiny, f"run.dir={tmp_path}/run"]
    check_start(load_config("demo", here), 1)
    with pytest.raises(UserError, match=r"at zero\.stage=1"):  # before any rank starts
        check_start(load_config("demo", [*here, "train.micro_batch=0"]), 1)


def test_on_cpus_it_has_as_many_tokens_as_were_measured() -> None:
    for length, found in ((128, 32), (512, 8), (8192, 1)):
        at = [f"data.sequence_length={length}", f"encoder.max_positions={length}", "train.global_batch=256"]
        config = load_config("bert_base", at)
        assert choose(config, 2, None)[0] == [found]
    assert node_gib(load_config("bert_base", []), 0, 1, 1) == node_gib(
        load_config("bert_base", ["train.micro_batch=32"]), 0, 1, 1
    )


def test_phases_that_say_a_number_keep_it() -> None:
    config = load_config("bert_large", ["phases.phase2.train.micro_batch=7"])
    values, lines = choose(config, 8, 80e9)
    assert values == [512, 7]
    assert [line.partition(":")[0] for line in lines] == ["phase phase1"]
    after = with_micro_batches(config, values)
    assert [phase.config.train.micro_batch for phase in phases_of(after)] == values
    assert not is_open(after)
    assert [p["train"].get("micro_batch") for p in config.phases] == [0, 7], (
        "the given settings stay as they were"
    )


@pytest.mark.slow
def test_a_run_keeps_its_choice(tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    """At another number of ranks too, where a new run would choose 6; and the folder has the number."""
    run = tmp_path / "run"
    here = [*tiny, f"run.dir={run}", "train.micro_batch=0"]
    said = maskmill("train", "demo", *here, "run.ranks=1", "run.stop_after=2").stdout
    assert "train.micro_batch=12, chosen: on CPUs, at most 4,096 tokens" in said
    assert "12 a rank in about 1 micro-batch;" in said
    assert read_config(run).train.micro_batch == 12
    assert checkpoints(run)
    said = maskmill("train", "demo", *here, "run.ranks=2").stdout
    assert "train.micro_batch=12, chosen: as the run began with" in said
    assert "train.micro_batch 12 ->" not in said
    assert read_config(run).train.micro_batch == 12


def test_a_run_that_saved_nothing_chooses_again(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("demo", [*tiny, f"run.dir={tmp_path}/run", "train.micro_batch=0"])
    assert choose(config, 2, None)[0] == [6]
    then = RunConfig()
    then.train.micro_batch = 5
    monkeypatch.setattr(mirror, "mirrored_config", lambda config: then)
    assert choose(config, 2, None)[0] == [6]
    config.checkpoint.mirror = "s3://bucket/run"
    assert choose(config, 2, None)[0] == [5], "the run may be brought back from there"


class TwoRanks(World):
    """Two ranks, the other one with the smaller GPU, seen from either; what the first rank sends is in `sent`."""

    sent: list[Any] = []  # noqa: RUF012 (of the two)

    def gather(self, value: Any) -> list[Any]:
        return [85.0e9, 42.3e9]

    def broadcast(self, value: Any = None) -> Any:
        if self.rank == 0:
            self.sent.append(value)
        return self.sent[-1]

    def together(self, action: Callable[[], Any]) -> list[Any]:
        return [action()]


def test_all_ranks_have_what_the_first_one_chose_for_the_smallest_gpu() -> None:
    config = load_config("bert_base", ["train.global_batch=8192"])
    (first, said), (other, _) = (settled(config, TwoRanks(rank=rank, size=2)) for rank in (0, 1))
    assert first.train.micro_batch == other.train.micro_batch == choose(config, 2, 40e9)[0][0]
    assert first.train.micro_batch < choose(config, 2, 80e9)[0][0]
    assert "that fit 40 GB" in said[0]


def test_shards_can_be_checked_before_it_is_chosen(tiny: list[str], tmp_path: Path) -> None:
    (plan,) = check_run(load_config("demo", [*tiny, f"run.dir={tmp_path}", "train.micro_batch=0"]), 1)
    assert plan.phase.config.train.micro_batch == 12

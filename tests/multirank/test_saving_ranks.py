"""Saves of several ranks: what one cannot write none believes to be saved, and training is not disturbed."""

import io
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.shards.index import Index
from pretrain.checkpoint import fragments
from pretrain.checkpoint import store as checkpoint
from pretrain.checkpoint.save import Saver
from pretrain.checkpoint.store import checkpoints, damage_of, newest_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.distributed.watchdog import Watchdog
from pretrain.distributed.world import World
from pretrain.optim.flat_layout import Fragment
from pretrain.training import before_ranks
from tests.command_line import setting

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

SHAPES = {"a": [10]}


def pieces(world: World, step: int) -> list[Fragment]:
    """This rank's half of a tensor that tells the step."""
    half = torch.arange(10.0).split(5)[world.rank] + step
    return [Fragment("master", "a", 5 * world.rank, half)]


def right(found: checkpoint.Checkpoint | None) -> bool:
    return found is not None and found.tensor("a").equal(torch.arange(10.0) + found.step)


def saves(folder: str) -> dict[str, Any]:
    world = World.from_environment().start()
    config, output, said = RunConfig(), io.StringIO(), {}
    config.run.dir = folder
    saver = Saver(config, world, Console(file=output, width=500), 0)

    # the writers wait while the ranks go on with collectives of training
    write, sums, may_write = fragments.write_fragments, [], threading.Event()

    def slow(*arguments: Any) -> Any:
        assert may_write.wait(120)
        return write(*arguments)

    fragments.write_fragments = slow
    saver.save(1, pieces(world, 1), SHAPES, {})
    for number in range(50):
        total = torch.tensor(float(number * (world.rank + 1)))
        dist.all_reduce(total)
        sums += [float(total), world.gather(number)]
    said["went on"] = saver._thread.is_alive() and checkpoints(Path(folder)) == []
    world.gather(None)  # both have looked
    may_write.set()
    saver.wait()
    said["sums"] = sums == [value for n in range(50) for value in (3.0 * n, [n, n])]
    said["first"] = (saver.saved, right(newest_checkpoint(Path(folder), world)))

    def full(*arguments: Any) -> Any:
        if world.rank == 1:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    fragments.write_fragments = full
    saver.save(2, pieces(world, 2), SHAPES, {})
    try:
        saver.finish()
    except UserError as error:
        said["refused"] = str(error)
    said["second"] = (saver.saved, [p.name for p in checkpoints(Path(folder))])
    said["told"] = output.getvalue()
    fragments.write_fragments = write
    saver.save(3, pieces(world, 3), SHAPES, {})
    saver.finish()
    found = newest_checkpoint(Path(folder), world)
    said["third"] = (saver.saved, found.step, right(found))

    # each rank hashes its own share of the files, and all know what one found
    hashed, hash_of = [], checkpoint.file_sha256
    checkpoint.file_sha256 = lambda path: hashed.append(path.name) or hash_of(path)
    said["whole"] = damage_of(found.folder, world)
    said["hashed"] = list(hashed)
    if world.rank == 0:
        path = found.folder / "fragments-00001.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    world.gather(None)  # it is done
    said["damage"] = damage_of(found.folder, world)
    said["before it"] = newest_checkpoint(Path(folder), world).step

    def fails() -> None:
        if world.rank == 1:
            raise ZeroDivisionError("here")

    try:
        world.together(fails)
    except (ZeroDivisionError, RuntimeError) as error:
        said["together"] = f"{type(error).__name__}: {error}"

    # folders of their own, as on two machines that share none
    own = Path(folder) / f"machine-{world.rank}"
    own.mkdir()
    about = {"format": 2, "identity": {}, "id": "abc", "attempts": 1}
    if world.rank == 0:
        (own / "run.json").write_text(json.dumps(about))
    try:
        before_ranks.seen_by_all(own, about, world, wait=0.5)
    except UserError as error:
        said["blind"] = str(error)
    late = threading.Timer(1.0, (own / "run.json").write_text, [json.dumps(about)])
    late.start()  # as a network folder shows it
    before_ranks.seen_by_all(own, about, world, wait=60)
    said["seen late"] = True
    world.stop()
    return said


def starts_apart(settings: list[str], folder: str) -> str:
    """`maskmill train` in a folder of this rank's own, as on machines that share none; what it ends with."""
    from launch.recipe import load_config
    from pretrain.train import train

    own = Path(folder) / os.environ["RANK"]
    own.mkdir()
    os.chdir(own)
    try:
        config = load_config("demo", [*settings, "run.dir=run", "run.ranks=2", "run.folder_wait=0.5"])
        train(config, Console(quiet=True), "test", Watchdog(config.run))
    except UserError as error:
        return str(error)
    except SystemExit as end:
        return f"exit code {end.code}"
    return "it trained"


def test_ranks_that_do_not_share_the_run_folder_are_refused_at_the_start(
    tiny: list[str], tmp_path: Path
) -> None:
    first, second = run(starts_apart, 2, tiny, str(tmp_path))
    assert "run: ranks [1] do not see what the first rank wrote (expected a folder on storage" in first
    assert second == "exit code 2"
    assert not list(tmp_path.rglob("step-*"))


def leaves(settings: list[str], folder: str) -> tuple[float, float]:
    """When this rank is through with its phases, and when it leaves; the first one takes its time in between."""
    from launch.recipe import load_config
    from pretrain.monitoring.run_log import RunLog
    from pretrain.train import train

    through, left, stop, ended = [], [], World.stop, RunLog.ended

    def late(run_log: RunLog, status: str, exit_code: int) -> None:
        if os.environ["RANK"] == "0":
            time.sleep(2)
        ended(run_log, status, exit_code)
        through.append(time.time())

    def leave(world: World) -> None:
        left.append(time.time())
        stop(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "ended", late)
        patch.setattr(World, "stop", leave)
        config = load_config("demo", [*settings, f"run.dir={folder}", "run.ranks=2"])
        train(config, Console(quiet=True), "test", Watchdog(config.run))
    return through[-1], left[-1]


def test_no_rank_leaves_before_all_are_through(tiny: list[str], tmp_path: Path) -> None:
    """One that leaves while another still connects to it ends the run: an attempt may find nothing left to do."""
    (first, _), (second, left) = run(leaves, 2, tiny, str(tmp_path / "run"))
    assert second < first < left


def attempts(settings: dict[str, list[str]], ports: list[int]) -> dict[str, str]:
    """What `maskmill train` ends with on this rank: where the first cannot cut the history, as the run begins and as
    it is rolled back; and with shards that only the second finds damaged."""
    from launch.recipe import load_config
    from pretrain import train
    from pretrain.run import metrics_log
    from pretrain.training import resume
    from pretrain.training.guard import Guard

    first = os.environ["RANK"] == "0"

    def full(*_arguments: Any) -> int:
        raise UserError("cannot be written: No space left on device", where="metrics.jsonl")

    def attempt(port: int, given: list[str]) -> str:
        os.environ["MASTER_PORT"] = str(port)
        try:
            config = load_config("demo", given)
            train.train(config, Console(quiet=True), "test", Watchdog(config.run))
        except UserError as error:
            return str(error)
        except SystemExit as end:
            return f"exit code {end.code}"
        return "it trained"

    ends = {}
    for port, (name, given) in zip(ports, settings.items(), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            if name == "begins" and first:
                patch.setattr(resume, "cut_metrics", full)
            elif name == "rolls-back":
                patch.setattr(Guard, "accepts", lambda _guard: False)
                if first:
                    patch.setattr(metrics_log, "cut_metrics", full)
            ends[name] = attempt(port, given)
    return ends


def test_what_one_rank_alone_is_refused_ends_all_in_one_line(tiny: list[str], tmp_path: Path) -> None:
    """Raised by one alone, it would leave the other in a collective, to crash over it or to wait."""
    index = Index.load(shutil.copytree(setting(tiny, "data.out"), tmp_path / "shards"))
    shard = index.held_out.shards[-1]
    table, path = index.block_table(shard), tmp_path / "shards" / shard.file
    before_last = index.held_out.examples - int(table.examples[-1])
    assert before_last >= index.held_out.examples // 2, "the first rank's half is whole"
    data = bytearray(path.read_bytes())
    data[int(table.offsets[-1] + table.sizes[-1] // 2)] ^= 1
    path.write_bytes(data)
    more = {
        "held-out": [f"train.shards={tmp_path}/shards"],
        "begins": [],
        "rolls-back": ["train.on_nan=rollback"],
    }
    settings = {
        name: [*tiny, "run.ranks=2", f"run.dir={tmp_path}/{name}", *given] for name, given in more.items()
    }
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in settings]
    told, quiet = run(attempts, 2, settings, [store.port for store in stores])
    assert quiet == dict.fromkeys(settings, "exit code 2")
    assert f"{shard.file}, block {len(table.examples) - 1}" in told["held-out"]
    assert "(on rank 1 of 2)" in told["held-out"]
    assert told["begins"] == told["rolls-back"] == "metrics.jsonl: cannot be written: No space left on device"


def test_ranks_agree_on_what_is_saved(tmp_path: Path) -> None:
    first, second = run(saves, 2, str(tmp_path))
    for said in (first, second):
        assert said["went on"]
        assert said["sums"]
        assert said["first"] == (1, True)
        assert "No space left on device" in said["refused"]
        assert said["second"] == (1, ["step-00000001"])
        assert said["third"] == (3, 3, True)
        assert said["whole"] == ""
        assert "fragments-00001" in said["damage"]
        assert said["before it"] == 1
    assert [first["hashed"], second["hashed"]] == [
        ["fragments-00000.safetensors"],
        ["fragments-00001.safetensors"],
    ]
    assert "step 2 not saved" in first["told"]
    assert "the latest checkpoint is still step 1" in first["told"]
    assert second["told"] == "", "one rank tells"
    assert first["together"] == "RuntimeError: ZeroDivisionError: here (on rank 1 of 2)"
    assert "ranks [1] do not see what the first rank wrote" in first["blind"]
    assert "ranks [1] do not see what the first rank wrote" in second["blind"]
    assert first["seen late"]
    assert second["seen late"]
    assert second["together"] == "ZeroDivisionError: here"

"""Copies of checkpoints in an object store, on a real S3 server: whole or not there, and enough to go on from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from data_pipeline.io.files import write_whole
from data_pipeline.io.object_store import object_names, read_object, write_object
from pretrain.checkpoint import mirror
from pretrain.checkpoint.mirror import Mirror, bring_back
from pretrain.checkpoint.retention import drop_leftovers
from pretrain.checkpoint.save import Saver
from pretrain.checkpoint.store import Checkpoint, newest_checkpoint
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.run.folder import lock, read_run
from pretrain.run.metrics_log import read_metrics
from pretrain.training import before_ranks
from pretrain.training import start as start_run
from pretrain.training.resume import checkpoint_to_resume
from tests.command_line import BUCKET
from tests.factories.checkpoints import Killed, is_right, killed_at, run_config, save

IDENTITY = {"optim.lr": 0.1}


def made(tmp_path: Path, name: str, run_id: str = "abc", keep: int = 2) -> RunConfig:
    """A run with a history, and the address of its mirror."""
    run = tmp_path / name
    run.mkdir()
    (run / "run.json").write_text(
        json.dumps({"format": 2, "identity": IDENTITY, "id": run_id, "attempts": 1})
    )
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    return run_config(run, mirror=f"s3://{BUCKET}/{name}", keep=keep)


def elsewhere(config: RunConfig, tmp_path: Path, name: str) -> RunConfig:
    """The same run on a machine that has nothing of it."""
    return run_config(tmp_path / name, mirror=config.checkpoint.mirror)


def steps(config: RunConfig) -> list[str]:
    return sorted(
        name.partition(".")[0]
        for name in object_names(f"{config.checkpoint.mirror}/checkpoints")
        if name.startswith("step-")
    )


def test_killed_at_any_moment_the_last_good_copy_is_found(endpoint: str, tmp_path: Path) -> None:
    """At every object that is written or removed, from the first fragment to the last of an old copy."""
    at, found = 0, set()
    while True:
        config = made(tmp_path, f"killed-{at}", keep=1)
        run = Path(config.run.dir)
        Mirror(config).copy(save(run, 5), World())
        folder = save(run, 10)
        (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 10}\n')
        try:
            with killed_at(at):
                Mirror(config).copy(folder, World())
            break
        except Killed:
            pass
        for copy in (n for n in object_names(f"{config.checkpoint.mirror}/checkpoints") if n != "latest"):
            files = object_names(f"{config.checkpoint.mirror}/checkpoints/{copy}")
            assert "checkpoint.json" not in files or len(files) == 2, "with a marker it is whole"
        latest = read_object(f"{config.checkpoint.mirror}/checkpoints/latest").decode()
        assert "checkpoint.json" in object_names(f"{config.checkpoint.mirror}/checkpoints/{latest}"), at
        fresh = elsewhere(config, tmp_path, f"fresh-{at}")
        line = bring_back(fresh, IDENTITY)
        newest = newest_checkpoint(Path(fresh.run.dir))
        assert newest is not None
        assert is_right(newest), at
        assert f"step {newest.step} " in line
        history = [line["step"] for line in read_metrics(Path(fresh.run.dir))]
        assert newest.step == 5 or history == [1, 10], "what has a marker has its history"
        found.add(newest.step)
        Mirror(config).copy(folder, World())  # the next attempt copies it again, and tidies up
        assert steps(config) == ["step-00000010"], at
        at += 1
    assert at == 7, "fragment, run, history, marker, latest; then the old one"
    assert found == {5, 10}


def test_a_run_whose_folder_is_gone_has_its_history_and_its_name(endpoint: str, tmp_path: Path) -> None:
    config = made(tmp_path, "gone")
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    fresh = elsewhere(config, tmp_path, "elsewhere")
    assert "step 5" in bring_back(fresh, IDENTITY)
    folder = Path(fresh.run.dir)
    run = read_run(folder)
    assert run is not None
    assert run["id"] == "abc"
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert bring_back(fresh, IDENTITY) == "", "what is there is not fetched again"
    latest = read_object(f"{config.checkpoint.mirror}/checkpoints/latest").decode()
    assert latest.startswith("step-00000005.")


def test_a_damaged_copy_is_passed_over(endpoint: str, tmp_path: Path) -> None:
    config = made(tmp_path, "damaged")
    for step in (5, 10, 15):
        Mirror(config).copy(save(Path(config.run.dir), step), World())
    store = fsspec.filesystem("s3")
    newest = [name for name in store.find(f"{BUCKET}/damaged") if "step-00000015" in name]
    fragments = next(name for name in newest if name.endswith(".safetensors"))
    write_object(f"s3://{fragments}", b"x" * len(read_object(f"s3://{fragments}")))
    fresh = elsewhere(config, tmp_path, "fresh")
    assert "step 10" in bring_back(fresh, IDENTITY)
    names = sorted(p.name for p in (tmp_path / "fresh" / "checkpoints").iterdir())
    assert names == ["latest", "step-00000010"]


def mirrored(tmp_path: Path, name: str, *steps: int) -> RunConfig:
    """A run whose checkpoints are all in its mirror as well."""
    config = made(tmp_path, name, keep=len(steps))
    for step in steps:
        Mirror(config).copy(save(Path(config.run.dir), step), World())
    return config


def recover(config: RunConfig) -> tuple[Checkpoint | None, str]:
    """What the run goes on from, and what is said."""
    drop_leftovers(Path(config.run.dir))  # as each start does
    assert bring_back(config, IDENTITY) == "", "its folder is there"
    said: list[str] = []
    return checkpoint_to_resume(config, World(), said.append), "\n".join(said)


def harm(config: RunConfig, step: int) -> None:
    """A changed byte in the checkpoint of `step` here."""
    path = Path(config.run.dir) / "checkpoints" / f"step-{step:08d}" / "fragments-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def names(config: RunConfig) -> list[str]:
    return sorted(p.name for p in (Path(config.run.dir) / "checkpoints").glob("step-*"))


def test_a_damaged_newest_one_is_fetched_from_the_mirror(endpoint: str, tmp_path: Path) -> None:
    config = mirrored(tmp_path, "heals", 5, 10)
    harm(config, 10)
    found, said = recover(config)
    assert found is not None
    assert found.step == 10
    assert is_right(found)
    assert (
        f"fetched the checkpoint of step 10, which is not whole here, from {config.checkpoint.mirror}" in said
    )
    assert "step-00000010 is damaged (" in said
    assert "set aside as step-00000010.damaged, its copy in the mirror is whole" in said
    assert names(config) == ["step-00000005", "step-00000010", "step-00000010.damaged"]
    assert recover(config)[1] == "", "nothing is left to do"


@pytest.mark.parametrize("gone", ["folder", "marker", "all damaged", "all but one file"])
def test_what_is_gone_or_damaged_here_is_there(endpoint: str, tmp_path: Path, gone: str) -> None:
    config = mirrored(tmp_path, gone.replace(" ", "-"), 5, 10)
    newest = Path(config.run.dir) / "checkpoints" / "step-00000010"
    if gone == "folder":
        shutil.rmtree(newest)
    elif gone == "marker":
        (newest / "checkpoint.json").unlink()
    elif gone == "all damaged":
        harm(config, 5)
        harm(config, 10)
    else:
        (newest / "fragments-00000.safetensors").unlink()
    found, said = recover(config)
    assert found is not None
    assert found.step == 10
    assert is_right(found)
    assert "fetched the checkpoint of step 10" in said
    assert ("step-00000005 is damaged" in said) == (gone == "all damaged")


def test_a_copy_that_lacks_a_file_or_whose_marker_is_damaged_is_passed_over(
    endpoint: str, tmp_path: Path
) -> None:
    config = mirrored(tmp_path, "lacking", 5, 10, 15)
    store = fsspec.filesystem("s3")
    found = sorted(store.find(f"{BUCKET}/lacking/checkpoints"))
    store.rm_file(next(name for name in found if "step-00000010" in name and name.endswith(".safetensors")))
    store.pipe_file(
        next(name for name in found if "step-00000015" in name and "checkpoint.json" in name), b"{"
    )
    fresh = elsewhere(config, tmp_path, "fresh")
    assert "step 5 " in bring_back(fresh, IDENTITY)
    assert names(fresh) == ["step-00000005"]
    Mirror(config).copy(save(Path(config.run.dir), 20), World())
    assert steps(config) == ["step-00000005", "step-00000010", "step-00000020"], (
        "what is no copy is tidied up"
    )


def test_of_two_copies_of_a_step_the_newer_one_stays(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = made(tmp_path, "twice")
    folder = save(Path(config.run.dir), 5)
    for token in ("ffffffff", "00000000"):
        monkeypatch.setattr("pretrain.checkpoint.mirror.secrets.token_hex", lambda _bytes, token=token: token)
        Mirror(config).copy(folder, World())
    assert object_names(f"{config.checkpoint.mirror}/checkpoints") == ["latest", "step-00000005.00000000"]


def test_the_history_that_led_there_comes_with_it(endpoint: str, tmp_path: Path) -> None:
    config = mirrored(tmp_path, "history", 5)
    run = Path(config.run.dir)
    behind = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 10}\n')
    Mirror(config).copy(save(run, 10), World())
    shutil.rmtree(run / "checkpoints" / "step-00000010")  # as on a machine that was left at step 5
    (run / "metrics.jsonl").write_bytes(behind)
    found, _ = recover(config)
    assert found is not None
    assert found.step == 10
    assert (run / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 10}\n'


def test_a_history_that_leads_further_here_stays(endpoint: str, tmp_path: Path) -> None:
    config = mirrored(tmp_path, "further", 5, 10)
    history = Path(config.run.dir) / "metrics.jsonl"
    history.write_text('{"step": 1}\n{"step": 10, "loss": 2.5}\n{"step": 12}\n')
    before = history.read_bytes()
    harm(config, 10)
    recover(config)
    assert history.read_bytes() == before


def test_a_run_without_a_history_comes_back(endpoint: str, tmp_path: Path) -> None:
    """As with monitor.tracker=none."""
    config = made(tmp_path, "untold")
    (Path(config.run.dir) / "metrics.jsonl").unlink()
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    fresh = elsewhere(config, tmp_path, "fresh")
    assert "step 5" in bring_back(fresh, IDENTITY)
    assert not (Path(fresh.run.dir) / "metrics.jsonl").exists()


def test_a_mirror_that_is_not_better_changes_nothing(endpoint: str, tmp_path: Path) -> None:
    config = mirrored(tmp_path, "older", 5, 10)
    save(Path(config.run.dir), 15)  # not copied
    found, said = recover(config)
    assert found is not None
    assert (found.step, said) == (15, "")
    harm(config, 15)
    found, said = recover(config)
    assert found is not None
    assert found.step == 10
    assert "fetched" not in said
    assert "set aside as step-00000015.damaged, falling back to step-00000010" in said


def test_damage_here_and_there_is_refused_and_nothing_is_set_aside(endpoint: str, tmp_path: Path) -> None:
    config = mirrored(tmp_path, "lost", 5)
    harm(config, 5)
    store = fsspec.filesystem("s3")
    copy = next(name for name in store.find(f"{BUCKET}/lost") if name.endswith(".safetensors"))
    write_object(f"s3://{copy}", b"x" * len(read_object(f"s3://{copy}")))
    with pytest.raises(UserError, match="all 1 checkpoints are damaged"):
        recover(config)
    assert names(config) == ["step-00000005"]


Start = Callable[[RunConfig], Checkpoint | None]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """What `maskmill train` does before it trains: the supervisor looks at the run folder, the first rank takes hold
    of it, brings back what it lacks and mends what is damaged. Returns what the run goes on from."""
    for module in (before_ranks, start_run):
        monkeypatch.setattr(module, "run_identity", lambda plans: IDENTITY)
    holds: list[Any] = []

    def noted(folder: Path) -> Any:
        holds.append(lock(folder))
        return holds[-1]

    monkeypatch.setattr(start_run, "lock", noted)

    def started(config: RunConfig) -> Checkpoint | None:
        try:
            before_ranks.check_folder(config, [])
            start_run.open_on_all_ranks(config, [], World(), Console(quiet=True))
            return checkpoint_to_resume(config, World(), lambda line: None)
        finally:
            while holds:  # the process ends, killed or not, and with it its hold
                holds.pop().close()

    return started


def is_all_there(config: RunConfig, found: Checkpoint | None) -> bool:
    """The checkpoint of step 10, the history that led there and the name of the run, and nothing that is left over."""
    folder = Path(config.run.dir)
    run = read_run(folder)
    whole = found is not None and found.step == 10 and is_right(found)
    history = (folder / "metrics.jsonl").read_text() == '{"step": 1}\n'
    return whole and history and run is not None and run["id"] == "abc" and names(config) == ["step-00000010"]


@pytest.mark.slow
def test_the_way_back_killed_at_any_moment_is_gone_on_with(
    endpoint: str, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command, at everything that is fetched and every change of the disk, from the first folder on."""
    config, at, held = mirrored(tmp_path, "way-back", 5, 10), 0, set()
    while True:
        fresh = elsewhere(config, tmp_path, f"fresh-{at}")
        try:
            with killed_at(at):
                start(fresh)
            break
        except Killed:
            pass
        folder = Path(fresh.run.dir)
        held.add(((folder / "run.json").is_file(), len(names(fresh))))
        with monkeypatch.context() as patch:
            if list(folder.glob("checkpoints/*/checkpoint.json")):
                patch.setattr(mirror, "download", away)  # what is whole is not fetched again
            assert is_all_there(fresh, start(fresh)), at
        at += 1
    assert at > 15
    assert held == {(False, 0), (True, 0), (True, 1)}, "never a checkpoint, or a part of one, of no run"
    assert is_all_there(fresh, start(fresh))


def away(uri: str, file: Path) -> None:
    """A store that has sent a part when it goes away, and stays away."""
    file.write_bytes(b"a part")
    raise UserError("cannot be read: no answer", where=uri)


def full(path: Path, data: bytes) -> None:
    """A disk whose last byte the checkpoint's files have taken."""
    if path.name == "checkpoint.json":
        raise UserError("cannot be written: No space left on device", where=path)
    write_whole(path, data)


@pytest.mark.parametrize("failing", ["download", "write_whole"])
def test_a_way_back_that_fails_leaves_room_and_a_folder_to_go_on_with(
    endpoint: str, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    config = mirrored(tmp_path, f"failing-{failing}", 5, 10)
    fresh = elsewhere(config, tmp_path, "fresh")
    with monkeypatch.context() as patch:
        patch.setattr(mirror, failing, {"download": away, "write_whole": full}[failing])
        with pytest.raises(UserError, match=r"no answer|No space"):
            start(fresh)
    assert names(fresh) == []
    assert is_all_there(fresh, start(fresh))


def test_mending_killed_at_any_moment_is_gone_on_with(endpoint: str, tmp_path: Path) -> None:
    """As above, where the newest here is damaged and its copy is fetched."""
    config = mirrored(tmp_path, "mending", 5, 10)
    harm(config, 10)
    at = 0
    while True:
        run = elsewhere(config, tmp_path, f"run-{at}")
        shutil.copytree(config.run.dir, run.run.dir)
        try:
            with killed_at(at):
                checkpoint_to_resume(run, World(), lambda line: None)
            break
        except Killed:
            pass
        found, _ = recover(run)
        assert found is not None
        assert found.step == 10, at
        assert is_right(found), at
        assert names(run) == ["step-00000005", "step-00000010", "step-00000010.damaged"], at
        at += 1
    assert at > 5


def test_a_store_that_goes_away_while_it_mends_leaves_what_is_whole_here(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing whole here it is refused; else the run goes on, and ends where it would have ended."""
    config = mirrored(tmp_path, "mending-away", 5, 10)
    harm(config, 10)
    alone = mirrored(tmp_path, "mending-alone", 10)
    harm(alone, 10)
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "download", away)
        with pytest.raises(UserError, match="no answer"):
            recover(alone)
        found, said = recover(config)
    assert names(alone) == ["step-00000010"]
    assert names(config) == ["step-00000005", "step-00000010.damaged"]
    assert found is not None
    assert (found.step, is_right(found)) == (5, True)
    assert "WARNING: " in said
    assert "no answer; resuming from step-00000005, which is whole here" in said
    found, said = recover(config)
    assert found is not None
    assert (found.step, is_right(found)) == (10, True)
    assert "fetched the checkpoint of step 10" in said


def test_the_copy_just_made_stays_though_there_is_one_of_a_later_step(endpoint: str, tmp_path: Path) -> None:
    """That one may be damaged: the run fell back behind it."""
    config = made(tmp_path, "fallen-back", keep=1)
    run = Path(config.run.dir)
    Mirror(config).copy(save(run, 10), World())
    Mirror(config).copy(save(run, 7), World())
    assert steps(config) == ["step-00000007", "step-00000010"]


def test_what_retention_keeps_stays_in_the_mirror_too(endpoint: str, tmp_path: Path) -> None:
    config = made(tmp_path, "kept", keep=1)
    run, mirror = Path(config.run.dir), Mirror(config)
    for step, loss in ((1, 2.0), (2, 1.0), (3, 1.5)):
        mirror.copy(save(run, step, loss), World())
    assert steps(config) == ["step-00000002", "step-00000003"]
    Mirror(config).copy(save(run, 4, 0.5), World())  # an attempt that has seen none of them
    assert steps(config) == ["step-00000004"]


def test_another_runs_mirror_is_refused(endpoint: str, tmp_path: Path) -> None:
    config = made(tmp_path, "theirs", "other")
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    fresh = elsewhere(config, tmp_path, "mine")
    with pytest.raises(UserError, match=r"holds another run: optim.lr=0.2 \(there: 0.1\)"):
        bring_back(fresh, {"optim.lr": 0.2})
    assert not Path(fresh.run.dir).exists()
    mine = made(tmp_path, "same-settings")
    mine.checkpoint.mirror = config.checkpoint.mirror
    save(Path(mine.run.dir), 1)
    with pytest.raises(UserError, match="mirrors another run of these settings"):
        bring_back(mine, IDENTITY)


def test_a_mirror_that_cannot_be_asked_ends_no_run_that_has_a_checkpoint_here(
    endpoint: str, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mirrored(tmp_path, "no-answer", 5)
    fresh = elsewhere(config, tmp_path, "fresh")

    def silent(uri: str) -> bytes:
        raise UserError("cannot be read: no answer", where=uri)

    with monkeypatch.context() as patch:
        patch.setattr(mirror, "read_object", silent)
        assert "resuming from the checkpoints here" in bring_back(config, IDENTITY)
        found = start(config)
        with pytest.raises(UserError, match="no answer"):
            start(fresh)
    assert found is not None
    assert found.step == 5


def test_nothing_is_written_over_another_runs_copies(endpoint: str, tmp_path: Path) -> None:
    """At the start the mirror may not have been there to be asked."""
    theirs = mirrored(tmp_path, "another", 5)
    mine = made(tmp_path, "mine", "def")
    mine.checkpoint.mirror = theirs.checkpoint.mirror
    with pytest.raises(UserError, match="mirrors another run of these settings, abc"):
        Mirror(mine).copy(save(Path(mine.run.dir), 10), World())
    assert steps(theirs) == ["step-00000005"]


def test_a_run_lost_before_its_first_copy_was_whole_is_in_nobodys_way(endpoint: str, tmp_path: Path) -> None:
    config = made(tmp_path, "anew", "def")
    write_object(
        f"{config.checkpoint.mirror}/run.json",
        json.dumps({"format": 2, "identity": IDENTITY, "id": "abc", "attempts": 1}).encode(),
    )
    assert bring_back(config, IDENTITY) == ""
    Mirror(config).copy(save(Path(config.run.dir), 5), World())
    assert steps(config) == ["step-00000005"]


def test_a_checkpoint_whose_copy_was_killed_is_copied_by_the_next_attempt(
    endpoint: str, tmp_path: Path
) -> None:
    config = mirrored(tmp_path, "caught-up", 5)
    config.checkpoint.keep = 2
    save(Path(config.run.dir), 10)  # whole here, and the process is killed
    for _ in range(2):
        with Saver(config, World(), Console(quiet=True), 10) as saver:
            saver.finish(for_good=True)
        assert steps(config) == ["step-00000005", "step-00000010"], "once"


def test_an_empty_mirror_changes_nothing(endpoint: str, tmp_path: Path) -> None:
    assert bring_back(run_config(tmp_path / "run", mirror=f"s3://{BUCKET}/nothing"), IDENTITY) == ""
    assert not (tmp_path / "run").exists()

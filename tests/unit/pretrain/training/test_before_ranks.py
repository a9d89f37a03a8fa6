"""What is refused, or already done, is said before any rank starts, and without importing torch."""

import fcntl
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.checkpoint.store import Marker, marked
from pretrain.distributed import launch_env
from pretrain.distributed.world import World
from pretrain.preflight.check_run import check_run, run_identity
from pretrain.run import folder as run_folder
from pretrain.run.folder import FORMAT, read_config, refuse_another, sealed_config, write_summary
from pretrain.training import before_ranks
from pretrain.training.before_ranks import check_start, open_run
from tests.command_line import Maskmill, environ, setting


@pytest.fixture
def finished(tiny: list[str], tmp_path: Path) -> list[str]:
    """Settings of a run of four steps that has made them."""
    settings = [*tiny, f"run.dir={tmp_path}/run", "run.ranks=2"]
    config = load_config("demo", settings)
    plans = check_run(config, 2)
    open_run(config, plans)
    write_summary(tmp_path / "run", {"status": "finished", "step": 4})
    folder = tmp_path / "run" / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    marker = Marker(4, {"identity": run_identity(plans)}, {}, [])
    (folder / "checkpoint.json").write_bytes(marked(marker))
    return settings


def check(*settings: str) -> str:
    config = load_config("demo", list(settings))
    return check_start(config, config.run.ranks)


def test_a_finished_run_is_said_to_be_and_starts_nothing(
    finished: list[str], maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(*given: object) -> int:
        started.append("ranks")
        return 0

    monkeypatch.setattr("launch.ranks.start_ranks", start)
    assert (
        maskmill("train", "demo", *finished).stdout == f"{tmp_path}/run: finished at step 4; nothing to do\n"
    )
    assert started == []
    maskmill("train", "demo", *finished, f"run.dir={tmp_path}/new")
    assert started == ["ranks"]
    assert not (tmp_path / "new").exists()


def test_more_steps_of_a_finished_run_say_how(finished: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "run-2").mkdir()
    with pytest.raises(UserError) as error:
        check(*finished, "train.steps=10")
    assert "finished at train.steps=4" in str(error.value)
    assert f"run.dir={run}-3 init_from={run} init_moments=true train.steps=6" in str(error.value)
    check(*finished, "train.steps=6", f"run.dir={run}-3", f"init_from={run}", "init_moments=true")
    with pytest.raises(UserError, match=r"holds another run: train.steps=10 .*optim.lr=0.5"):
        check(*finished, "train.steps=10", "optim.lr=0.5")
    write_summary(run, {"status": "stopped", "step": 2})
    with pytest.raises(UserError, match=r"holds another run: train.steps=10"):
        check(*finished, "train.steps=10")


def test_init_from_is_read_before_any_rank_starts(finished: list[str], tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    new = [*finished, f"run.dir={tmp_path}/new"]
    with pytest.raises(UserError, match=r"encoder.layers=3"):
        check(*new, f"init_from={run}", "encoder.layers=3")
    with pytest.raises(UserError, match="typo: no such folder"):
        check(*new, f"init_from={tmp_path}/typo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no checkpoint"):
        check(*new, f"init_from={tmp_path}/empty")
    model.mkdir()
    config = {"model_type": "bert", "num_hidden_layers": 12, "hidden_size": 768}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"encoder.layers=2 \(there: 12\)"):
        check(*new, f"init_from={model}")
    config |= {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config |= {"hidden_act": "gelu_new", "max_position_embeddings": 64}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="vocab_size is None"):
        check(*new, f"init_from={model}")
    resumed = load_config("demo", [*new, f"init_from={model}"])
    open_run(resumed, check_run(resumed, 2))
    shutil.copytree(run / "checkpoints", tmp_path / "new" / "checkpoints")
    shutil.rmtree(model)
    check(*new, f"init_from={model}")  # the run has weights of its own by now


def test_another_window_is_another_model(tiny: list[str], tmp_path: Path) -> None:
    """As of a Hugging Face folder; the bases of RoPE may change, since longer texts want others."""
    local = [*tiny, "encoder.global_every=2", "encoder.positions=rope", "encoder.local_attention=8"]
    folder = tmp_path / "local" / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    plans = check_run(load_config("demo", local), 1)
    (folder / "checkpoint.json").write_bytes(marked(Marker(4, {"identity": run_identity(plans)}, {}, [])))
    new = [*local, f"run.dir={tmp_path}/new", f"init_from={tmp_path}/local"]
    check(*new)
    check(*new, "encoder.rope_theta=160000")
    with pytest.raises(UserError, match=r"encoder.local_attention=16 \(there: 8\)"):
        check(*new, "encoder.local_attention=16")


def test_moments_that_muon_does_not_keep_are_refused(tiny: list[str], tmp_path: Path) -> None:
    plans = check_run(load_config("demo", [*tiny, "optim.name=muon"]), 1)
    folder = tmp_path / "muon" / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_bytes(marked(Marker(4, {"identity": run_identity(plans)}, {}, [])))
    new = [*tiny, f"run.dir={tmp_path}/new", f"init_from={tmp_path}/muon"]
    check(*new, "optim.name=muon", "init_moments=true")
    check(*new, "optim.name=adamw")
    with pytest.raises(
        UserError,
        match=r"optim\.name=adamw needs moments that optim\.name=muon does not keep of every parameter: exp_avg_sq",
    ):
        check(*new, "optim.name=adamw", "init_moments=true")


def test_a_setting_of_the_optimizer_that_a_run_is_older_than_had_its_default() -> None:
    now = {"optim.name": "lamb", "optim.decoupled_decay": False}
    refuse_another({"optim.name": "lamb"}, now, "here", "choose another")
    with pytest.raises(UserError, match=r"optim.decoupled_decay=True \(there: False\)"):
        refuse_another(
            {"optim.name": "lamb"}, now | {"optim.decoupled_decay": True}, "here", "choose another"
        )


def test_a_run_at_work_and_a_full_disk_are_refused(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*tiny, f"run.dir={tmp_path}/run"]
    check(*settings)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process"):
            check(*settings)
    check(*settings)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
    with pytest.raises(UserError, match="no room for checkpoints"):
        check(*settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("train.precision=fp16 zero.stage=0", "does not scale the loss"),
        ("train.compile=on zero.stage=3", "inside the graph"),
    ],
)
def test_settings_that_the_engine_would_refuse_are_refused_before(settings: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_config("demo", settings.split())


def test_a_precision_that_was_removed_names_another(tiny: list[str], tmp_path: Path) -> None:
    """Of a recipe, and of the config.yaml of an older run, which is still read."""
    words = r"train\.precision: fp8 was removed: .*\(train\.precision=bf16"
    with pytest.raises(UserError, match=words):
        load_config("demo", ["train.precision=fp8"])
    config = load_config("demo", [*tiny, f"run.dir={tmp_path}/run"])
    config.train.precision = "fp8"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_bytes(sealed_config(config))
    assert read_config(tmp_path / "run").train.precision == "fp8"
    with pytest.raises(UserError, match=words):
        load_config(str(tmp_path / "run/config.yaml"), [])


def test_more_ranks_than_gpus_are_refused(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_ranks, "sees_gpus", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UserError, match="2 ranks on a machine with 1 GPU"):
        check(*tiny, f"run.dir={tmp_path}/run", "run.ranks=2")


def test_gpus_are_looked_for_where_a_driver_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert launch_env.sees_gpus([str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "platform", "linux")
    assert not launch_env.sees_gpus([str(tmp_path / "nvidiactl")])


WITHOUT_TORCH = """
import sys
from launch import cli
sys.argv = ["maskmill", "train", "demo", *sys.argv[1:]]
try:
    cli.main()
finally:
    print([name for name in ("torch", "deepspeed", "transformers", "wandb") if name in sys.modules])
"""


def test_a_finished_run_and_refusals_need_no_torch(finished: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    for more, code, words in (
        ((), 0, "nothing to do"),
        ((f"run.dir={tmp_path}/new", f"init_from={run}", "encoder.layers=3"), 2, "encoder.layers=3"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, *finished, *more],
            capture_output=True, text=True, env=environ(), check=False,
        )  # fmt: skip
        assert (done.returncode, words in done.stdout + done.stderr) == (code, True), done.stderr
        assert done.stdout.splitlines()[-1] == "[]"


def test_a_process_that_is_being_killed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = run_folder.lock(tmp_path)
    monkeypatch.setattr(run_folder.time, "sleep", lambda _: held.close())  # it is gone at the second look
    run_folder.refuse_locked(tmp_path)
    monkeypatch.setattr(run_folder, "LOCK_WAIT_SECONDS", 0.0)
    with run_folder.lock(tmp_path), pytest.raises(UserError, match="another process is training here"):
        run_folder.refuse_locked(tmp_path)


def test_pairs_of_another_task_than_the_settings_name_are_refused(tiny: list[str], tmp_path: Path) -> None:
    """Figures are named after the task of data.sequences: pairs of next sentences are none of sentence order."""
    shards = f"train.shards={setting(tiny, 'data.out')}"
    other = [*tiny, shards, f"run.dir={tmp_path / 'run'}", "data.sequences=sentence_order"]
    with pytest.raises(UserError, match=r"hold segment_pair, whose pairs are of another task"):
        check_run(load_config("demo", other), 1)
    assert check_run(load_config("demo", [*other, "data.sequences=doc_sentences", "objective.name=mlm"]), 1)


def test_a_memory_of_streams_is_held_against_what_there_is(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float | None]] = []
    monkeypatch.setattr(
        "pretrain.preflight.memory.check_stream_memory", lambda _, ranks, room: seen.append((ranks, room))
    )
    check(*tiny, f"run.dir={tmp_path}/without")
    assert seen == []
    monkeypatch.setattr("pretrain.training.before_ranks.keeps_memory", lambda _: True)
    check(*tiny, f"run.dir={tmp_path}/run", "run.ranks=2")
    assert seen == [(2, None)]


def test_a_probe_that_lacks_its_files_is_refused(tiny: list[str], tmp_path: Path) -> None:
    run = [*tiny, f"run.dir={tmp_path}/run"]
    for changes, words in (
        (["train.probe=blimp", f"train.probe_data={tmp_path}/missing"], "missing: no such folder"),
        (["train.probe=blimp", f"train.probe_data={tmp_path}"], r"has no \*\.jsonl"),
        (["train.probe=squad1", f"train.probe_data={tmp_path}"], "no such probe: squad1"),
        (["train.probe=blimp"], "train.probe=blimp without train.probe_data"),
        (["train.probe_every=5"], "train.probe_every without train.probe"),
    ):
        with pytest.raises(UserError, match=words):
            check(*run, *changes)
        assert not (tmp_path / "run").exists()


def test_a_run_json_that_is_shown_late_is_waited_for(finished: list[str], tmp_path: Path) -> None:
    run, known = tmp_path / "run" / "run.json", tmp_path / "hidden"
    run.rename(known)
    timer = threading.Timer(0.5, known.rename, [run])
    timer.start()
    assert "finished at step 4" in check(*finished)
    timer.join()
    run.unlink()
    with pytest.raises(UserError, match="holds other files"):
        check(*finished, "run.folder_wait=0.1")


def test_an_attempt_that_is_shown_nothing_does_not_take_the_run_for_a_new_one(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("demo", [*tiny, f"run.dir={tmp_path}/run", "run.ranks=1", "run.folder_wait=5"])
    plans = check_run(config, 1)
    first = open_run(config, plans)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 1.0}\n')
    shown, is_file, exists = time.monotonic() + 1, Path.is_file, Path.exists

    def hidden(path: Path) -> bool:
        return path.parent == tmp_path / "run" and time.monotonic() < shown

    monkeypatch.setattr(Path, "is_file", lambda path: not hidden(path) and is_file(path))
    monkeypatch.setattr(Path, "exists", lambda path: not hidden(path) and exists(path))
    monkeypatch.setattr(before_ranks, "_holds_other_files", lambda folder: False)
    second = open_run(config, plans)
    assert (second["id"], second["attempts"]) == (first["id"], 2)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["id"] == first["id"]


@pytest.mark.parametrize(
    "shown", [FileNotFoundError(2, "gone"), OSError(116, "Stale file handle"), b"", b"{"]
)
def test_a_run_json_that_is_being_replaced_is_not_there_yet(
    shown: OSError | bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no error of one rank alone, on which the others would wait."""
    about = {"format": FORMAT, "identity": {}, "id": "abc", "attempts": 2}
    (tmp_path / "run.json").write_text(json.dumps(about))
    read, seen = Path.read_bytes, []

    def replaced(path: Path) -> bytes:
        seen.append(path.name)
        if len(seen) > 1:
            return read(path)
        if isinstance(shown, bytes):
            return shown
        raise shown

    monkeypatch.setattr(Path, "read_bytes", replaced)
    before_ranks.seen_by_all(tmp_path, about, World(), wait=30)
    assert len(seen) == 2

"""`maskmill status`: what the files of a run tell, whatever state a kill, a full disk or another node left them in."""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pretrain.monitoring.wandb_run import warn
from pretrain.report.status import (
    CRASHED,
    FINISHED,
    FIRST_STAGES,
    NOT_STARTED,
    REQUEUED,
    RUNNING,
    STALLED,
    STARTING,
    STOPPED,
    Status,
    command_again,
    in_words,
    read_status,
    what_next,
)
from pretrain.run.files import HEARTBEAT, REPORT, STATE
from pretrain.run.folder import EVALUATING, TRAINING, Heartbeat, read_heartbeat
from tests.command_line import ROOT, Maskmill

NOW = time.time()


class Folder:
    """A run folder as a run on another machine leaves it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "logs").mkdir(parents=True)

    def write(self, name: str, text: str, ago: float = 0.0) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (NOW - ago, NOW - ago))
        return path

    def run(
        self, status: str = "running", ago: float = 1.0, began: float = 1000.0, attempts: int = 1, **more: Any
    ) -> None:
        """Twenty steps of a hundred, one every two seconds."""
        evaluated = more.pop("evaluated", {})
        identity = {"format": 2, "identity": {}, "attempts": attempts, "id": "x"}
        self.write("run.json", json.dumps(identity), began)
        lines = [
            {
                "kind": "train",
                "step": step,
                "loss": 9 - step / 10,
                "tokens_per_s": 1000 + step,
                "seconds": 2.0 * step,
            }
            for step in range(1, 21)
        ]
        lines = [line | ({"phase": more["phase"]} if "phase" in more else {}) for line in lines]
        lines.insert(
            10, {"kind": "eval", "step": 10, "held_out_loss": 8.25, "held_out_mlm_loss": 7.5, **evaluated}
        )
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.write("metrics.jsonl", text + '{"kind": "train", "step": 21, "lo', ago)  # half-written
        words = {"status": status, "step": 20, "steps": 100, "command": "maskmill train demo", **more}
        self.write("summary.json", json.dumps(words), ago)

    def heartbeat(self, ago: float, step: int = 20, doing: str = TRAINING, **who: Any) -> None:
        words = {"step": step, "doing": doing, "host": "elsewhere", "pid": 1, "job": "17"}
        self.write(HEARTBEAT, json.dumps(words | who), ago)

    def status(self) -> Status:
        return read_status(self.path, NOW)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run")


def test_the_newest_probe_is_said(folder: Folder) -> None:
    folder.run()
    assert folder.status().probe == ""
    with (folder.path / "metrics.jsonl").open("a") as file:
        for step in (10, 20):
            words = {
                "kind": "probe",
                "step": step,
                "probe/blimp_accuracy": 50.0 + step,
                "probe/blimp_trivial": 50.0,
            }
            file.write(f"\n{json.dumps(words)}")
    assert "probe       blimp accuracy 70.0 (trivial 50.0) at step 20" in in_words(folder.status(), "")


def test_figures_of_a_run_that_is_going_on(folder: Folder) -> None:
    folder.run(attempts=3)
    folder.heartbeat(ago=2, step=23)
    folder.write("checkpoints/step-00000010/checkpoint.json", "{}", ago=60)
    folder.write("checkpoints/step-00000020.0badf00d.partial/checkpoint.json", "{}")
    folder.write("checkpoints/step-00000018.damaged/checkpoint.json", "{}")
    event = {"event": "skip", "step": 7, "text": "the loss is not finite"}
    folder.write("events.jsonl", json.dumps(event) + '\n{"event": "ski')
    status = folder.status()
    assert status.health == RUNNING
    assert (status.step, status.steps, status.attempts) == (23, 100, 3), "the heartbeat is ahead of the log"
    assert (status.loss, status.held_out_loss) == (7.0, 8.25)
    assert status.step_seconds == pytest.approx(2.0)
    assert status.seconds_left == pytest.approx(77 * 2.0)
    assert 1000 < (status.tokens_per_s or 0) < 1021
    assert (status.checkpoint, status.checkpoint_age) == ("step-00000010", pytest.approx(60, abs=1))
    assert status.last_event == "step 7: skip: the loss is not finite"
    text = in_words(status, "maskmill train demo")
    assert "running, step 23 of 100 (23.0%)" in text
    assert "step 10, 1 min old, 13 steps behind" in text or "step 10, 60 s old, 13 steps behind" in text
    assert "restarted 2 times; on elsewhere, Slurm job 17" in text
    assert "2 min 34 s, until " in text


AT_MASK = {
    "held_out_mask_loss": 3.0, "held_out_mask_unigram_loss": 5.88, "held_out_mask_accuracy": 0.47,
    "held_out_mask_majority": 0.05, "held_out_mask_top_share": 0.1, "held_out_mask_top_token": ",",
    "held_out_nsp_accuracy": 0.576, "held_out_nsp_loss": 0.68,
}  # fmt: skip


def test_what_was_learnt_stands_beside_what_word_frequencies_give(folder: Folder) -> None:
    data = {"held_out": {"pair_labels": {"is_next": 424, "not_next": 576}}}
    folder.run(evaluated=AT_MASK, mask_loss=2.9, mlm_loss=2.7, headline="mask_loss", data=data)
    status = folder.status()
    text = in_words(status, "again")
    assert (
        "  at [MASK]   loss 3.000 (unigram 5.880), accuracy 47.0% (most frequent token 5.0%), perplexity 20.1 "
        "(unigram 358), NSP accuracy 57.6% (commoner label 57.6%), held out; loss 2.900 in training\n"
    ) in text
    assert "  loss        7.000 in training, 8.250 held out (MLM + NSP)\n" in text
    assert len(status.findings) == 1, "pairs at their majority"
    assert "  look at     The pair task has not been learnt yet" in text
    assert status.figures["held_out_mask_top_token"] == ","


def test_a_run_that_learnt_nothing_is_not_praised(folder: Folder) -> None:
    folder.run("finished", evaluated={**AT_MASK, "held_out_mask_loss": 6.0, "held_out_nsp_accuracy": 0.9})
    (finding,) = folder.status().findings
    assert finding.startswith("No context has been learnt yet: at [MASK] the held-out loss is 6.000")
    assert f"  look at     {finding}" in in_words(folder.status(), "again")
    folder.run("finished", evaluated={**AT_MASK, "held_out_mask_loss": 6.0, "step": 0})
    assert folder.status().findings == [], "step 0 is no ground to judge by"
    lines = [
        {"kind": "train", "step": step, "loss": 30.0 if step else 9.0, "pad": "x" * 4000}
        for step in range(200)
    ]
    folder.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    (finding,) = folder.status().findings
    assert "30.000, and 9.000 at the beginning" in finding, "the beginning of a long file is read too"


def test_later_phases_count_by_their_tokens(folder: Folder) -> None:
    phases = [
        {"name": "a", "first": 0, "last": 50, "global_batch": 8, "sequence_length": 128},
        {"name": "b", "first": 50, "last": 100, "global_batch": 4, "sequence_length": 512},
    ]
    folder.run(phases=phases, phase="a")
    folder.heartbeat(ago=2)
    assert folder.status().seconds_left == pytest.approx(30 * 2.0 + 50 * 2.0 * 2)
    folder.heartbeat(ago=2, step=55)  # the second phase has not logged a line yet
    assert folder.status().seconds_left == pytest.approx(45 * 2.0 * 2)


@pytest.mark.parametrize(
    ("told", "heartbeat_ago", "doing", "health"),
    [
        ("running", 5, TRAINING, RUNNING),
        ("running", 100, TRAINING, RUNNING),  # twenty of its steps are less than two minutes
        ("running", 300, TRAINING, STALLED),
        ("running", 300, EVALUATING, RUNNING),  # an evaluation says nothing until it is done
        ("running", 4000, EVALUATING, STALLED),
        ("finished", 9000, TRAINING, FINISHED),
        ("stopped", 9000, TRAINING, STOPPED),
        ("failed", 9000, TRAINING, CRASHED),
    ],
)
def test_health(folder: Folder, told: str, heartbeat_ago: float, doing: str, health: str) -> None:
    folder.run(told, ago=heartbeat_ago, began=10_000)
    folder.heartbeat(heartbeat_ago, doing=doing)
    assert folder.status().health == health
    assert "  to do " in in_words(folder.status(), "again")


def test_a_long_step_is_no_stall(folder: Folder) -> None:
    folder.run(ago=500)
    slow = [{"kind": "train", "step": step, "loss": 1.0, "seconds": 60.0 * step} for step in (1, 2, 3)]
    folder.write("metrics.jsonl", "\n".join(map(json.dumps, slow)), ago=500)
    folder.heartbeat(ago=500)
    assert folder.status().health == RUNNING


def test_a_killed_process_of_this_machine_is_known_at_once(folder: Folder) -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    folder.run(ago=3)
    here = {"host": socket.gethostname(), "pid_namespace": os.readlink("/proc/self/ns/pid")}
    folder.heartbeat(ago=3, **here, pid=done.pid)
    status = folder.status()
    assert status.health == CRASHED
    assert "it was killed" in status.why
    folder.heartbeat(ago=3, **here, pid=os.getpid())
    assert folder.status().health == RUNNING
    folder.heartbeat(ago=3, **here | {"pid_namespace": "pid:[1]"}, pid=done.pid)
    assert folder.status().health == RUNNING, "another container on this machine has processes of its own"


def test_a_copy_of_a_finished_run_is_finished(folder: Folder) -> None:
    folder.run("finished", ago=100, began=1)
    assert folder.status().health == FINISHED


def test_a_warning_is_no_error(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    warn("W&B cannot be reached, continuing offline: timed out")
    folder.write("logs/slurm.json", "{}", ago=60)
    folder.write("logs/finish-2.log", capsys.readouterr().out, ago=10)
    assert folder.status().health == NOT_STARTED


def test_gaps_between_lines_weigh_as_their_steps(folder: Folder) -> None:
    folder.run()
    lines = [
        {"kind": "train", "step": s, "loss": 1.0, "seconds": t} for s, t in ((0, 0), (98, 98), (100, 120))
    ]
    folder.write("metrics.jsonl", "\n".join(map(json.dumps, lines)))
    assert folder.status().step_seconds == pytest.approx(1.2)


def test_a_crash_tells_the_last_line_of_its_error(folder: Folder) -> None:
    folder.run(ago=200, attempts=2)
    folder.heartbeat(ago=200)
    folder.write("logs/rank-0.log", "step 3\nmaskmill: WARNING: no room\nall is well\n", ago=190)
    folder.write(
        "logs/rank-1.log", "Traceback:\n  x\ntorch.OutOfMemoryError: CUDA out of memory\nbye\n", ago=199
    )
    folder.write("logs/rank-2.log", "RuntimeError: connection closed by peer\n", ago=195)
    folder.write("logs/rank-3.log", "ValueError: of an attempt long ago\n", ago=9000)
    status = folder.status()
    assert (status.health, status.error) == (CRASHED, "torch.OutOfMemoryError: CUDA out of memory")
    assert status.log.endswith("rank-1.log"), "the first one that ended is the cause"
    text = in_words(status, "maskmill train demo")
    assert "CUDA out of memory" in text
    assert "then rerun to start over\n  next        maskmill train demo" in text
    folder.run("failed", error="ValueError: told by itself")
    assert folder.status().error == "ValueError: told by itself"


def test_between_start_and_first_step(folder: Folder) -> None:
    assert folder.status().health == NOT_STARTED
    folder.run("stopped", ago=900, began=20, attempts=2)  # this attempt has not written anything yet
    folder.heartbeat(ago=900)
    assert folder.status().health == STARTING
    folder.write("logs/rank-0.log", "maskmill: runs/x: no room for checkpoints\n", ago=10)
    assert folder.status().health == STARTING, "the others are being ended"
    folder.run("stopped", ago=900, began=50, attempts=2)
    folder.write("logs/rank-0.log", "maskmill: runs/x: no room for checkpoints\n", ago=49)
    assert (folder.status().health, folder.status().error) == (
        CRASHED,
        "maskmill: runs/x: no room for checkpoints",
    )


def test_a_start_is_judged_by_its_newest_stage(folder: Folder) -> None:
    """Not by how long all of it has taken; and an error before that stage, on another rank, is still one."""
    folder.run("stopped", ago=9000, began=4000, attempts=2)
    folder.heartbeat(ago=9000)
    assert folder.status().health == STALLED
    line = "[2026-03-04 05:06:07] {} (run.stage_limit: 1800 s)\n"
    stages = line.format("connecting") + line.format("loading a checkpoint or init_from")
    folder.write("logs/rank-0.log", stages, ago=600)
    assert folder.status().health == STARTING
    assert folder.status().why == "loading a checkpoint or init_from began 600 s ago"
    folder.write("logs/rank-0.log", stages, ago=1900)
    assert folder.status().health == STALLED
    folder.write("logs/rank-1.log", "RuntimeError: no memory\n", ago=3000)
    assert (folder.status().health, folder.status().error) == (CRASHED, "RuntimeError: no memory")


def test_jobs_that_wait_and_fail(folder: Folder) -> None:
    jobs = {"command": "maskmill slurm demo --submit", "jobs": [{"job": "12", "name": "read"}]}
    folder.write("logs/slurm.json", json.dumps(jobs), ago=50)
    status = folder.status()
    assert status.health == NOT_STARTED
    assert "squeue --jobs=12" in in_words(status, status.command)
    folder.write("logs/read-12_0.log", "maskmill: data.sources: no such file\n", ago=20)
    status = folder.status()
    assert status.health == CRASHED
    assert "rerun to start over\n  next        maskmill slurm demo --submit" in in_words(
        status, status.command
    )


def test_a_name_is_said_as_it_is(maskmill: Maskmill, tmp_path: Path) -> None:
    (tmp_path / "a :rocket: [b]").mkdir()
    assert (
        f"{tmp_path}/a :rocket: [b]: not started" in maskmill("status", f"{tmp_path}/a :rocket: [b]").stdout
    )


def test_a_job_that_was_requeued_is_not_submitted_again(folder: Folder) -> None:
    folder.run("stopped", ago=50)
    assert "  to do       rerun to resume\n  next        again" in in_words(folder.status(), "again")
    folder.write("logs/slurm.json", json.dumps({"jobs": [{"job": "12"}, {"job": "13"}]}), ago=500)
    for told in ("stopped", "failed"):
        folder.run(told, ago=50)
        words = in_words(folder.status(), "again")
        assert "  to do       squeue --jobs=12,13 says whether Slurm restarts it; if not, " in words


def stages(*names: str) -> str:
    return "".join(f"[2026-11-28 10:00:00] {name} (run.stage_limit: 1800 s)\n" for name in names)


OLD_ERROR = "RuntimeError: of the attempt before\n"


@pytest.mark.parametrize("stage", FIRST_STAGES)
@pytest.mark.parametrize("told", ["", "stopped", "failed", "running"])
def test_a_start_is_a_start_before_it_writes_anything(folder: Folder, told: str, stage: str) -> None:
    if told:
        folder.run(told, ago=500, began=2000, error=OLD_ERROR)
        folder.heartbeat(ago=500)
    lines = stages("importing torch", "connecting", "leaving the other ranks") + OLD_ERROR
    folder.write("logs/rank-0.log", lines + stages("importing torch", stage), ago=40)
    status = folder.status()
    assert (status.health, status.error) == (STARTING, "")
    assert status.why == f"{stage} began 40 s ago"
    assert what_next(status, "again") == ""


@pytest.mark.parametrize("last", ["building the model and the engine", "leaving the other ranks"])
def test_the_stages_of_an_end_are_no_start(folder: Folder, last: str) -> None:
    folder.run("stopped", ago=500, began=2000)
    folder.write("logs/rank-0.log", stages("importing torch", last), ago=499)
    assert folder.status().health == STOPPED
    folder.write("logs/rank-0.log", stages("importing torch"), ago=600)
    assert folder.status().health == STOPPED, "an older start"


def test_an_error_of_an_attempt_before_is_not_the_newest(folder: Folder) -> None:
    folder.run(ago=400, began=2000)
    folder.heartbeat(ago=400)
    old = stages("importing torch") + OLD_ERROR
    folder.write(
        "logs/rank-0.log", old + stages("importing torch", "building the model and the engine"), ago=400
    )
    status = folder.status()
    assert (status.health, status.error) == (STALLED, "")
    now = stages("importing torch", "building the model and the engine")
    folder.write("logs/rank-0.log", old + now + "ValueError: now\n", ago=400)
    status = folder.status()
    assert (status.health, status.error) == (CRASHED, "ValueError: now")


@pytest.mark.parametrize("told", ["stopped", "failed", "running"])
def test_a_job_that_waits_to_be_started_again_is_requeued(folder: Folder, told: str) -> None:
    folder.run(told, ago=100, began=2000)
    folder.heartbeat(ago=100)
    asks = "== attempt\nnewest checkpoint: step 5\nasks to be requeued\n"
    folder.write("logs/srun-17-0.log", asks, ago=90)
    status = folder.status()
    assert (status.health, status.why) == (REQUEUED, "Slurm starts job 17 again when its turn comes")
    assert what_next(status, "again") == ""
    assert "requeued, step 20 of 100" in in_words(status, "again")
    folder.write("logs/srun-17-1.log", "== attempt 1\n", ago=50)
    folder.write("logs/rank-0.log", stages("importing torch"), ago=45)
    assert folder.status().health == STARTING, "its turn has come"
    (folder.path / "logs/rank-0.log").unlink()
    (folder.path / "logs/srun-17-1.log").unlink()
    folder.run(told, ago=1, began=2000)
    assert folder.status().health != REQUEUED, "somebody has gone on without Slurm"


@pytest.mark.parametrize(
    ("runs", "sent", "health", "said"),
    [
        (
            ["offline-run-20261128_100000-a"],
            None,
            "running",
            "offline: all of it is here alone; maskmill sync ",
        ),
        (
            ["run-20261128_100000-a", "offline-run-20261128_110000-a"],
            {"lines": 12, "points": 12, "cut": 0, "settled": True},
            "stopped",
            "offline: all after line 12 of metrics.jsonl is here alone",
        ),
        (
            ["run-20261128_100000-a", "offline-run-20261128_110000-a"],
            {"lines": 12, "points": 12, "cut": 0, "settled": False},
            "stopped",
            "offline: all after line 12 of metrics.jsonl may be here alone",
        ),
        (
            ["offline-run-20261128_100000-a", "run-20261128_110000-a"],
            {"lines": 12, "points": 12, "cut": 0, "settled": True},
            "stopped",
            "",
        ),
        (
            ["run-20261128_110000-a"],
            {"lines": 12, "points": 12, "cut": 0, "settled": False},
            "failed",
            "the server may lack the end of it; maskmill sync ",
        ),
        (["run-20261128_110000-a"], {"lines": 12, "points": 12, "cut": 0, "settled": False}, "running", ""),
        ([], None, "stopped", ""),
    ],
)
def test_what_wandb_lacks_is_said(
    folder: Folder, runs: list[str], sent: dict[str, Any] | None, health: str, said: str
) -> None:
    folder.run(health)
    folder.heartbeat(ago=1)
    for name in runs:
        (folder.path / "wandb" / name).mkdir(parents=True)
    if sent:
        folder.write("events.jsonl", json.dumps({"event": "uploaded", "to": "wandb", **sent}))
    status = folder.status()
    assert status.wandb.startswith(said) if said else not status.wandb
    assert ("  W&B         " in in_words(status, "again")) == bool(said)


@pytest.mark.parametrize(
    ("recorded", "wanted"),
    [
        (
            "maskmill train demo run.dir={moved} run.stop_after=5 optim.lr=1",
            "maskmill train demo run.dir={here} optim.lr=1",
        ),
        (
            "maskmill train demo 'data.sources=[a b]'",
            "maskmill train demo 'data.sources=[a b]' run.dir={here}",
        ),
        ("maskmill train demo run.dir={here}", "maskmill train demo run.dir={here}"),
        ("", "maskmill train 'my recipe.yaml' 'data.sources=a b'"),
        ("maskmill train 'no end", "maskmill train 'my recipe.yaml' 'data.sources=a b' run.dir={here}"),
    ],
)
def test_the_next_command_can_be_pasted(folder: Folder, recorded: str, wanted: str) -> None:
    here, moved = folder.path.resolve(), folder.path.parent / "before"
    folder.run("stopped", command=recorded.format(here=here, moved=moved))
    again = command_again(folder.status(), "my recipe.yaml", ["data.sources=a b", "run.stop_after=3"])
    assert again == wanted.format(here=here)


@pytest.mark.parametrize(
    "name", ["summary.json", "run.json", "metrics.jsonl", "events.jsonl", HEARTBEAT, "logs/slurm.json"]
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        '{"status": 3, "steps": "many", "jobs": 7, "phases": 7, "phase": 7, "at": []}',
        "\0\xff",
    ],
)
def test_no_file_is_trusted(folder: Folder, name: str, text: str) -> None:
    folder.run()
    folder.heartbeat(ago=1)
    folder.write(name, text)
    assert in_words(folder.status(), "again")


def test_a_heartbeat_is_whole_and_at_most_every_five_seconds(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, first_rank=True)
    heartbeat.write(1, TRAINING)
    assert read_heartbeat(tmp_path)["pid"] == os.getpid()
    before = (tmp_path / HEARTBEAT).stat().st_mtime_ns
    heartbeat.write(2, TRAINING)
    assert (tmp_path / HEARTBEAT).stat().st_mtime_ns == before, "the folder may be a slow one"
    heartbeat.write(2, EVALUATING)
    assert (read_heartbeat(tmp_path)["step"], read_heartbeat(tmp_path)["doing"]) == (2, EVALUATING)
    assert [path.name for path in tmp_path.iterdir()] == [HEARTBEAT]
    Heartbeat(tmp_path / "gone", first_rank=True).write(1, TRAINING)
    Heartbeat(tmp_path, first_rank=False).write(9, TRAINING)
    assert read_heartbeat(tmp_path)["step"] == 2


# what DeepSpeed's imports give rise to in a process of pytest's
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_real_run(here: None, tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    run = [*tiny, f"run.dir={tmp_path}/run", "train.eval_every=2"]
    said = maskmill("status", "demo", *run).stdout
    assert "not started" in said
    assert f"  next        {shlex.join(['maskmill', 'train', 'demo', *run])}\n" in said
    maskmill("train", "demo", *run, "run.stop_after=2")
    found = json.loads(maskmill("status", f"{tmp_path}/run", "--json").stdout)
    assert (found["health"], found["step"], found["steps"]) == (STOPPED, 2, 4)
    assert found["figures"]["held_out_mlm_loss"] > 0
    assert found["loss"] > 0
    assert found["to_do"] == "rerun to resume"
    assert shlex.split(found["next"]) == ["maskmill", "train", "demo", *run], "without run.stop_after"
    assert read_heartbeat(tmp_path / "run")["step"] == 2
    moved = tmp_path / "moved here; rm -r x"
    (tmp_path / "run").rename(moved)
    again = json.loads(maskmill("status", str(moved), "--json").stdout)["next"]
    maskmill(*shlex.split(again)[1:])
    assert json.loads(maskmill("status", str(moved), "--json").stdout)["health"] == FINISHED
    moved.rename(tmp_path / "run")
    found = json.loads(maskmill("status", f"{tmp_path}/run", "--json").stdout)
    assert (found["health"], found["step"], found["attempts"]) == (FINISHED, 4, 2)
    assert found["checkpoint"] == "step-00000004"
    files = {path.name for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert files == {*STATE, REPORT}, "seven files of state, and the report"


def test_status_and_completion_do_without_torch(tmp_path: Path) -> None:
    at_tab = {
        "_MASKMILL_COMPLETE": "complete_bash",
        "COMP_WORDS": "maskmill train demo tr",
        "COMP_CWORD": "3",
    }
    for environment in ({}, at_tab):
        code = (
            "import sys, launch.cli\n"
            f"sys.argv = ['maskmill', 'status', 'demo', 'run.dir={tmp_path}/run']\n"
            "try: launch.cli.main()\n"
            "except SystemExit: pass\n"
            "heavy = {'torch', 'transformers', 'deepspeed', 'wandb', 'pyarrow'} & set(sys.modules)\n"
            "sys.exit(f'{heavy}' if heavy else 0)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("train.steps=" if environment else "not started") in done.stdout

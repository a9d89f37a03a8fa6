"""slurm/train.sbatch with stand-ins for Slurm's commands, which only write down what they were told: which command the
ranks get, and what follows their end. tests/cluster has the real ones."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from launch.jobs import GPU_RANK_CORES
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World, own_cores, unstated_threads
from tests.command_line import ROOT, SECRETS, until

STAND_INS = {
    "srun": '[[ -z ${SAVES:-} ]] || { mkdir -p "$SAVES"; touch "$SAVES/checkpoint.json"; }; '
    '[[ -z ${LOG:-} ]] || echo "$LOGGED" >>"$LOG"; '
    'echo "srun $*" >>"$TOLD"; trap \'echo "srun got USR1" >>"$TOLD"; exit 3\' USR1; '
    'touch "$TOLD.started"; echo "$SAYS" >&2; for _ in $(seq "$TENTHS"); do sleep 0.1; done; exit "$CODE"',
    "scontrol": 'if [[ "$1 $2" == "show job" ]]; then [[ -n $RESTARTED ]] || exit 1; '
    'echo "   Requeue=1 Restarts=$RESTARTED BatchFlag=1"; exit; fi; '
    'echo "scontrol $*" >>"$TOLD"; if [[ $1 == show ]]; then tr , "\\n" <<<"$3"; fi',
    "squeue": 'if [[ "$*" == *--format=%l ]]; then echo "$LIMIT"; else echo "$EXCLUDED"; fi',
    # only the folder of the run is asked for
    "maskmill": '[[ "$*" == "settings run.dir --recipe demo run.dir=r" ]] && echo "$RUN_DIR"',
    "sinfo": """if [[ "$*" == *--dead* ]]; then echo "$DEAD"; else printf 'n1\\nn2\\nn3\\n'; fi""",
}


class Script:
    """The script in a folder, with an environment as Slurm gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, body in STAND_INS.items():
            path = folder / "bin" / name
            path.write_text(f"#!/usr/bin/env bash\n{body}\n")
            path.chmod(0o755)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "TOLD": str(folder / "told"),
            "CODE": "0",
            "SAYS": "",
            "TENTHS": "0",
            "EXCLUDED": "n/a",
            "LIMIT": "1-00:00:00",
            "RESTARTED": "0",
            "DEAD": "",
            "RUN_DIR": "",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1,n2",
            "SLURM_NTASKS": "2",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_PARTITION": "main",
            "WANDB_API_KEY": "canary-of-a-key",
            "SLURM_JWT": "canary-of-a-token",
        }

    def start(self, *settings: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(ROOT / "slurm/train.sbatch"), "demo", "run.dir=r", *settings],
            env=self.environment | variables,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *settings: str, **variables: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(*settings, **variables)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def told(self) -> list[str]:
        """What Slurm's commands were told, in order."""
        return (self.folder / "told").read_text().splitlines()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_the_ranks_get_the_command_and_a_log_each(script: Script) -> None:
    code, output = script.run()
    assert code == 0
    command = next(line for line in script.told() if line.startswith("srun"))
    assert command.endswith("maskmill train demo run.dir=r")
    assert f"--output={script.folder}/maskmill-train-7.logs/rank-%t.log" in command
    assert "--open-mode=append" in command
    assert output.count("SLURM_JOB_ID=7") == 1
    assert "MASTER_ADDR=n1" in output
    assert "canary" not in output
    assert "scontrol requeue 7" not in script.told()
    assert "SLURM_JOB_ID=7" not in script.run(SLURM_RESTART_COUNT="1")[1], "once"


def test_the_ranks_get_the_cores_that_the_job_asked_for(script: Script) -> None:
    """srun does not take --cpus-per-task over from sbatch; what SRUN_OPTIONS say comes after it, and wins."""
    script.run(SLURM_CPUS_PER_TASK="6", SRUN_OPTIONS="--cpu-bind=cores")
    script.run()
    asked, default = (line for line in script.told() if line.startswith("srun"))
    assert " --cpus-per-task=6 --cpu-bind=cores maskmill" in asked
    assert "--cpus-per-task" not in default
    header = (ROOT / "slurm/train.sbatch").read_text().partition("\nset -euo")[0]
    assert f"#SBATCH --cpus-per-task={GPU_RANK_CORES}\n" in header
    assert "#SBATCH --mem" not in header, "sbatch refuses two ways of asking for memory"


@pytest.mark.parametrize(("attempt", "skipped"), [(0, 0), (1, 1), (3, 3), (4, 0), (6, 2)])
def test_the_ranks_of_an_attempt_are_another_step_than_those_before(
    attempt: int, skipped: int, script: Script
) -> None:
    """Slurm counts steps from 0 in each attempt, and an srun that was cut off ends the one of its number."""
    assert script.run(SLURM_RESTART_COUNT=str(attempt))[0] == 0
    *before, ranks = (line for line in script.told() if line.startswith("srun"))
    assert before == ["srun --nodes=1 --ntasks=1 true"] * skipped
    assert ranks.endswith("maskmill train demo run.dir=r")


def test_a_rank_computes_on_the_cores_that_srun_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert own_cores({"SLURM_CPUS_PER_TASK": "4"}, 8) == 4
    assert own_cores({"SLURM_CPUS_PER_TASK": "48"}, 8) == 6, "no more than it can run on"
    assert own_cores({}, 2) == own_cores({"SLURM_CPUS_PER_TASK": "6", "RANK": "0"}, 2) == 3
    assert own_cores({}, 8) == 1


SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7"}
"""What srun sets for a rank, plain or in the batch script."""


@pytest.mark.parametrize(
    ("more", "local_size", "threads", "says"),
    [
        ({"SLURM_CPUS_ON_NODE": "1"}, 1, 1, True),  # srun -N2 -n2
        ({"SLURM_CPUS_ON_NODE": "4"}, 4, 1, True),  # srun -N1 -n4
        ({"SLURM_CPUS_ON_NODE": "6"}, 2, 3, True),  # two hyperthreads a core
        ({"SLURM_CPUS_ON_NODE": "96"}, 1, 6, True),
        (
            {"SLURM_CPUS_ON_NODE": "6", "SLURM_CPUS_PER_TASK": "2"},
            3,
            2,
            False,
        ),  # srun -n3 -c2, and train.sbatch
        ({}, 2, 3, False),  # a Slurm that says nothing
        ({"SLURM_CPUS_ON_NODE": "4", "RANK": "0"}, 2, 3, False),  # torchrun in a job
    ],
)
def test_plain_srun_computes_with_the_cores_of_its_step(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str], local_size: int, threads: int, says: bool
) -> None:
    """On a node that binds no task, where it can run on six cores; as train.sbatch does, which states the number."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert own_cores({**SRUN, **more}, 2, local_size) == threads
    world, config = World(size=2, local_size=local_size), RunConfig()
    assert ("srun has no --cpus-per-task" in unstated_threads(config, world, {**SRUN, **more})) is says
    config.run.threads = 1
    assert not unstated_threads(config, world, {**SRUN, **more})


def test_credentials_in_settings_are_not_logged(script: Script) -> None:
    code, output = script.run(*SECRETS, SRUN_OPTIONS="--export=ALL,WANDB_API_KEY=canary")
    assert code == 0
    assert "canary" not in output
    assert "maskmill train demo run.dir=r data.sources=[s3://***@host/c.txt]" in output
    assert "checkpoint.mirror=s3://bucket/run?***" in output
    command = next(line for line in script.told() if line.startswith("srun"))
    assert command.endswith(" ".join(SECRETS)), "the ranks get them as they are"


def test_logs_go_to_the_folder_of_the_run(script: Script) -> None:
    assert script.run(RUN_DIR="run.dir = my 50% r")[0] == 0
    assert (script.folder / "my 50% r" / "logs" / "faults-7").exists()
    command = next(line for line in script.told() if line.startswith("srun"))
    assert f"--output={script.folder}/my 50%% r/logs/rank-%t.log" in command, "%% is srun's word for %"
    script.run(RUN_DIR="run.dir = r", LOGS=str(script.folder / "elsewhere"))
    assert (script.folder / "elsewhere" / "faults-7").exists()
    assert not (script.folder / "r").exists()


def test_pyxis_and_apptainer(script: Script) -> None:
    script.run(CONTAINER="/images/m.sqsh", MOUNTS="/data:/data")
    script.run(CONTAINER="/images/m.sif", RUNTIME="apptainer", MASKMILL="/opt/bin/maskmill")
    pyxis, apptainer = (line for line in script.told() if line.startswith("srun"))
    assert "--container-image=/images/m.sqsh --container-mounts=/data:/data --container-workdir=" in pyxis
    assert pyxis.endswith(" --no-container-entrypoint maskmill train demo run.dir=r")
    here = script.folder
    inside = f"apptainer exec --nv --bind {here}:{here} --pwd {here} /images/m.sif /opt/bin/maskmill train"
    assert apptainer.endswith(f"{inside} demo run.dir=r")
    code, output = script.run(CONTAINER="x", RUNTIME="docker")
    assert code == 2
    assert "expected pyxis or apptainer" in output


def test_the_signal_of_the_time_limit_reaches_srun_and_requeues(script: Script) -> None:
    process = script.start(TENTHS="300", RESTARTS="0")
    until((script.folder / "told.started").exists)
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert script.told()[-2:] == ["srun got USR1", "scontrol requeue 7"]


def test_a_fault_requeues_without_its_node(script: Script) -> None:
    said = "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 1"
    code, output = script.run(CODE="137", SAYS=said)
    assert code == 0
    assert "requeued: a fault on n2, rank 1: Killed; the next attempt goes on from the newest" in output
    assert script.told()[-3:-1] == ["scontrol requeue 7", "scontrol show hostnames n2"]
    assert script.told()[-1] == "scontrol update JobId=7 ExcNodeList=n2"
    assert script.run(CODE="137", SAYS=said, EXCLUDED="n3")[0] == 0
    assert script.told()[-2] == "scontrol requeue 7", "two of three excluded: too few would be left"
    assert script.run(CODE="137", SAYS=said, EXCLUDE="0")[0] == 0
    assert script.told()[-1] == "scontrol requeue 7"
    before = len(script.told())
    code, output = script.run(CODE="137", SAYS=said)
    assert code == 137
    assert "that is enough" in output
    assert "scontrol requeue 7" not in script.told()[before:]


ABORTED = """\
srun: First task exited 120s ago
srun: StepId=7.0 task 1: running
srun: StepId=7.0 task 0: exited abnormally
srun: launch/slurm: _step_signal: Terminating StepId=7.0
srun: Job step aborted: Waiting up to 32 seconds for job step to finish."""
"""Of srun 22.05, with --wait=120: a rank that is stopped, or stuck in the kernel, does not end by its own alarm."""
LIMITS = "took longer than run.step_timeout or run.stage_limit, the stack of each rank is in its log; the next attempt"
ALL_ENDED = "no node is excluded: every rank ended by itself at its limit, and srun names none that is stuck"


@pytest.mark.parametrize(
    ("ends", "fault", "consequence"),
    [
        (
            ["n1: task 0: Alarm clock", ABORTED, "n2: task 1: Killed"],
            f"a fault on n2, rank 1: stuck, srun had to end it; a step or a stage {LIMITS}",
            "n2 is excluded",
        ),
        (
            [
                "n1: tasks 0-7: Exited with exit code 142",
                ABORTED,
                "n2: task 9: Killed",
                "n2: task 12: Terminated",
            ],
            f"a fault on n2, rank 9,12: stuck, srun had to end it; a step or a stage {LIMITS}",
            "n2 is excluded",
        ),
        (
            ["n1: task 0: Alarm clock", "n2: task 1: Alarm clock"],
            f"a fault on some node: a step or a stage {LIMITS}",
            ALL_ENDED,
        ),
        (
            ["n2: tasks 4-7: Alarm clock", "n1: tasks 0-3: Exited with exit code 1"],
            f"a fault on some node: a step or a stage {LIMITS}",
            ALL_ENDED,
        ),
        (["n[1-2]: tasks 0-15: Alarm clock"], f"a fault on some node: a step or a stage {LIMITS}", ALL_ENDED),
        (
            ["n3: task 2: Alarm clock", ABORTED, "n1: task 0: Killed", "n2: task 1: Killed"],
            f"a fault on some node: a step or a stage {LIMITS}",
            "no node is excluded: ranks were stuck on more than one node: n1,n2",
        ),
        (
            ["n3: task 2: Alarm clock", ABORTED, "n[1-2]: tasks 0-1: Killed"],
            f"a fault on some node: a step or a stage {LIMITS}",
            "no node is excluded: ranks were stuck on more than one node: n[1-2]",
        ),
        (
            ["n2: task 1: Killed", ABORTED, "n1: task 0: Killed"],
            "a fault on n2, rank 1: Killed; the next attempt",
            "n2 is excluded",
        ),
        (
            ["n2: task 1: Segmentation fault", "n1: task 0: Alarm clock"],
            "a fault on n2, rank 1: Segmentation fault; the next attempt",
            "n2 is excluded",
        ),
        (
            ["n[1-2]: tasks 0-15: Killed"],
            "a fault on some node; the next attempt",
            "no node is excluded: srun names no single node",
        ),
        (
            [ABORTED, "n1: task 0: Killed"],
            "a fault on some node; the next",
            "no node is excluded: srun names no",
        ),
        ([], "a fault on some node; the next attempt", "no node is excluded: srun names no single node"),
    ],
)
def test_a_fault_excludes_the_node_that_srun_names(
    script: Script, ends: list[str], fault: str, consequence: str
) -> None:
    """Of a hang not the node whose rank reports it: that one waited for the other."""
    said = "\n".join(end if end == ABORTED else f"srun: error: {end}" for end in ends)
    code, output = script.run(CODE="142", SAYS=said)
    assert code == 0
    assert f"\nrequeued: {fault}" in output
    assert f"\n{consequence}" in output
    excluded = [words for words in script.told() if "ExcNodeList" in words]
    assert excluded == (["scontrol update JobId=7 ExcNodeList=n2"] if "n2 is excluded" in output else [])


class Attempts:
    """A job that is requeued, whose ranks save these steps."""

    def __init__(self, script: Script, **variables: str) -> None:
        self.script, self.variables, self.number = script, variables, 0
        self.saved = script.folder / "r/checkpoints"

    def next(self, save: int = 0, **variables: str) -> tuple[int, str]:
        """The next attempt, in which the ranks save this step: exit code and output."""
        variables = {"RUN_DIR": "run.dir = r", "CODE": "137", **self.variables, **variables}
        if save:
            variables["SAVES"] = str(self.saved / f"step-{save:08d}")
        number = (
            {"SLURM_RESTART_COUNT": str(self.number), "RESTARTED": str(self.number)} if self.number else {}
        )
        self.number += 1
        return self.script.run(**variables, **number)


NO_PROGRESS = (
    "not requeued: two attempts have not come to a checkpoint beyond step {} (time limit: 1-00:00:00)"
)


def test_two_attempts_without_a_newer_checkpoint_end_the_job(script: Script) -> None:
    attempts = Attempts(script, RESTARTS="9")
    assert attempts.next(save=90)[0] == 0
    assert attempts.next()[0] == 0, "one attempt may go wrong"
    assert attempts.next(save=100)[0] == 0
    assert attempts.next()[0] == 0
    code, output = attempts.next()
    assert code == 137
    assert NO_PROGRESS.format(100) in output
    assert script.told().count("scontrol requeue 7") == 4


def test_an_unfinished_checkpoint_is_no_progress(script: Script) -> None:
    attempts = Attempts(script)
    (attempts.saved / "step-00000008").mkdir(parents=True)
    assert attempts.next()[0] == 0
    assert NO_PROGRESS.format(0) in attempts.next()[1]


def test_an_attempt_that_slurm_ended_is_not_one_of_the_two(script: Script) -> None:
    """A node that died, a preemption: nothing of the run's own."""
    attempts = Attempts(script)
    assert attempts.next(CODE="0")[0] == 0, "as if Slurm had ended it: it asks for nothing"
    assert attempts.next()[0] == 0
    assert attempts.next()[0] == 137


@pytest.mark.parametrize(
    ("logged", "ends"),
    [
        (["", ""], True),
        (["resuming from step 1,200 (bit-exact)", "resuming from step 1,200 (bit-exact)"], True),
        (["resuming from step 1,200 (bit-exact)", "resuming from step 1,300 (bit-exact)"], False),
        (["stopped at step 40; the same command", "stopped at step 80; the same command"], False),
    ],
)
def test_in_a_container_the_first_ranks_log_says_what_was_saved(
    script: Script, logged: list[str], ends: bool
) -> None:
    """Whose run folder may have another path there."""
    attempts = Attempts(script, CONTAINER="/images/m.sqsh", RUN_DIR="", CODE="137")
    log = script.folder / "maskmill-train-7.logs/rank-0.log"
    log.parent.mkdir()
    log.write_text(f"{logged[0]}\n" if "resuming" in logged[0] else "")
    for line in logged:
        code, output = attempts.next(LOGGED=f"{line}", LOG=str(log))
    assert (code != 0, NO_PROGRESS.partition("{")[0] in output) == (ends, ends)


@pytest.mark.parametrize(
    ("limit", "ends"), [("4:00", True), ("0:30", True), ("10:00", False), ("4:00:00", False)]
)
def test_a_time_limit_below_the_signals_lead_ends_the_job(script: Script, limit: str, ends: bool) -> None:
    """Slurm sends the signal at once then, and would in every attempt."""
    process = script.start(TENTHS="300", LIMIT=limit)
    until((script.folder / "told.started").exists)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert ("scontrol requeue 7" in script.told()) is not ends
    assert process.returncode == (3 if ends else 0), output
    assert (f"not requeued: the signal of the time limit ({limit}) came " in output) is ends


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "slurm").glob("*.sbatch")))
@pytest.mark.parametrize("given", [[], ["SLURM_JOB_ID"], ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]])
def test_without_slurm_is_one_line(name: str, given: list[str], script: Script) -> None:
    """Also in an allocation of salloc, which sets some of its variables."""
    variables = {key: value for key, value in script.environment.items() if not key.startswith("SLURM")}
    done = subprocess.run(
        ["bash", str(ROOT / "slurm" / name), "demo", "rte", "--data", "x"],
        env=variables | dict.fromkeys(given, "7"),
        cwd=script.folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if given and name != "train.sbatch":
        assert "no batch job" not in done.stderr
        return
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        rf"slurm/{name}: this is no batch job of Slurm, SLURM_\w+ is not set \(sbatch slurm/{name} .*\)\n",
        done.stderr,
    )
    assert not (script.folder / "told").exists()
    assert [path.name for path in script.folder.iterdir()] == ["bin"], "nothing is written"


LOST = (
    "attempt 0 was ended by Slurm since {} failed or was cut off; this one goes on from the newest checkpoint"
)


def test_an_attempt_says_which_node_slurm_lost_before_it(script: Script) -> None:
    """By srun's words, or where srun was lost itself, by which of the nodes do not answer now."""
    again = {"SLURM_RESTART_COUNT": "1", "RESTARTED": "1"}
    script.run(SAYS="srun: error: Node failure on n2")
    assert LOST.format("n2") in script.run(**again)[1]
    script.run()
    assert LOST.format("n1") in script.run(**again, DEAD="n1")[1]
    assert "attempt 0 was ended by Slurm (preempted, requeued by somebody" in script.run(**again)[1]


def test_an_attempt_that_the_one_before_asked_for_needs_no_explanation(script: Script) -> None:
    assert "was ended by Slurm" not in script.run(CODE="137")[1]
    assert "was ended by Slurm" not in script.run(SLURM_RESTART_COUNT="1", RESTARTED="1", DEAD="n1")[1]


@pytest.mark.parametrize("attempt", ["", "1"])
def test_a_node_that_was_cut_off_does_not_requeue_what_runs_elsewhere(script: Script, attempt: str) -> None:
    """Slurm has done so, and counted one more restart; this attempt's fault is none of the job's."""
    variables = {"SLURM_RESTART_COUNT": attempt} if attempt else {}
    restarted = str(int(attempt or "0") + 1)
    code, output = script.run(CODE="137", RUN_DIR="run.dir = r", RESTARTED=restarted, **variables)
    assert code == 137
    assert f"attempt {attempt or 0} ends: attempt {restarted} is under way" in output
    assert not any(told.startswith("scontrol requeue") for told in script.told())
    assert (script.folder / "r/logs/faults-7").read_text() == ""
    assert script.run(CODE="137", RESTARTED=attempt or "0", **variables)[0] == 0
    assert "scontrol requeue 7" in script.told()


def test_a_controller_that_does_not_answer_for_a_moment_ends_nothing(script: Script) -> None:
    code, output = script.run(CODE="137", RESTARTED="")
    assert code == 0, output
    assert "requeued: a fault on some node" in output


def test_faults_of_an_earlier_job_of_the_run_do_not_count(script: Script) -> None:
    run = {"RUN_DIR": "run.dir = r", "CODE": "137", "RESTARTS": "1"}
    assert script.run(**run)[0] == 0
    assert script.run(**run)[0] == 137, "this job has been requeued once"
    assert script.run(**run, SLURM_JOB_ID="8")[0] == 0
    assert script.told().count("scontrol requeue 8") == 1
    assert script.run(**run, SLURM_JOB_ID="8")[0] == 137


@pytest.mark.parametrize("code", [2, 3])
def test_what_would_come_again_or_was_wanted_is_not_requeued(script: Script, code: int) -> None:
    assert script.run(CODE=str(code))[0] == code
    assert "scontrol requeue 7" not in script.told()

"""`maskmill slurm`: which jobs a recipe becomes, how they are quoted, what is refused. With stand-ins for Slurm's
commands that write down what they were told; tests/cluster has the real ones."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.prepare import NAMES, stages_of
from data_pipeline.settings import DataSettings
from launch import jobs as job_size
from launch import slurm
from launch.jobs import STAGES, Job, Request, Size
from launch.recipe import load_config
from launch.slurm import SCRIPTS, Chain, arguments, chain, submit, with_options
from pretrain.run.files import HEARTBEAT
from tests.command_line import ROOT, SECRETS, Maskmill, as_only_rank, setting

NASTY = 'it\'s $(touch planted) `touch planted` "q" 50% a,b\nline'


class Cluster:
    """A folder with commands that note their arguments, an argument a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        words = '"${0##*/}" "$@" "MASKMILL_STAGE=${MASKMILL_STAGE:-}"'
        note = f'printf "%s\\0" {words} >>{folder}/told; echo >>{folder}/told'
        count = f"n=$(wc -l <{folder}/number); echo >>{folder}/number"
        refuse = 'if [[ "$*" == *partition=refused* ]]; then echo "invalid partition" >&2; exit 1; fi'
        never = (
            'if [[ "$*" == *nodes=99* ]]; then echo "allocation failure: Requested node configuration is not '
        )
        never += f'available" >&2; exit 1; fi; echo "$*" >>{folder}/tested; exit'
        test_only = f'if [[ "$1" == --test-only ]]; then {never}; fi'
        self._write("sbatch", f"{test_only}; {note}; {refuse}; {count}; echo $((n + 100))")
        self._write("sinfo", 'echo "$AWAY"')
        self._write("scancel", note)
        self.squeue("")
        (folder / "number").write_text("")

    def _write(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{body}\n")
        path.chmod(0o755)

    def squeue(self, says: str, error: str = "") -> None:
        """What squeue answers from now on, to who asks for jobs by number."""
        fails = f'echo "{error}" >&2; exit 1' if error else ""
        self._write("squeue", f'[[ "$*" == *--jobs=* ]] || exit 1; printf "{says}"; {fails}')

    def told(self) -> list[list[str]]:
        """The calls so far, each a list of words; forgets them."""
        path = self.folder / "told"
        calls = path.read_bytes().decode().split("\0\n")[:-1] if path.exists() else []
        path.unlink(missing_ok=True)
        (self.folder / "number").write_text("")
        return [call.split("\0") for call in calls]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{cluster.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("MASKMILL", "maskmill")
    monkeypatch.delenv("CONTAINER", raising=False)
    return cluster


def settings(tmp_path: Path, *more: str) -> list[str]:
    text = tmp_path / "text.txt"
    text.write_text("A text.\n")
    return [
        f"data.sources={text}",
        f"data.vocab={tmp_path}/vocab",
        f"data.out={tmp_path}/shards",
        f"run.dir={tmp_path}/run",
        "train.global_batch=64",
        "data.dupe_factor=1",
        "data.duplicates=keep",
        *more,
    ]


def request_for(overrides: list[str], size: Size | None = None, recipe: str = "demo") -> Request:
    return Request(load_config(recipe, overrides), recipe, overrides, size or Size())


def names(jobs: list[Job]) -> list[str]:
    return [job.name for job in jobs]


def test_printed_and_submitted_are_the_same_words(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path
) -> None:
    words = [
        "slurm",
        "demo",
        *settings(tmp_path, f"monitor.project={NASTY}", f"run.dir={tmp_path}/a 50% 'run'"),
    ]
    words += ["--nodes", "4", "--gpus-per-node", "2", "--tasks", "3", f"--sbatch=--comment={NASTY}"]
    script = maskmill(*words).stdout
    assert not cluster.told(), "nothing is submitted by printing"
    assert not (tmp_path / "a 50% 'run'").exists()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    printed = cluster.told()
    said = maskmill(*words, "--submit").stdout
    submitted = cluster.told()
    assert printed == submitted
    assert not (tmp_path / "planted").exists()
    assert all(f"monitor.project={NASTY}" in call for call in submitted[:-1])
    assert all(f"--comment={NASTY}" in call for call in submitted)
    assert (tmp_path / "a 50% 'run'" / "logs").is_dir(), "Slurm does not make the folder of a job's log"
    assert f"--output={tmp_path}/a 50%% 'run'/logs/train-%j.log" in submitted[-2]
    assert "export: job 108" in said
    assert "export: job 108" in done.stdout


def test_each_waits_for_the_one_before_and_goes_when_that_fails(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path
) -> None:
    told = json.loads(
        maskmill(
            "slurm", "demo", *settings(tmp_path), "--nodes", "4", "--tasks", "2", "--submit", "--json"
        ).stdout
    )
    calls = cluster.told()
    jobs = ["vocab", "discover", "read", "plan", "gather", "write", "finish", "train", "export"]
    assert [job["name"] for job in told["jobs"]] == jobs
    assert [word for call in calls for word in call if word.startswith("--job-name")] == [
        f"--job-name=maskmill-{name}" for name in jobs
    ]
    assert not any("--dependency" in word for word in calls[0])
    for number, call in enumerate(calls[1:]):
        assert f"--dependency=afterok:{100 + number}" in call
        assert "--kill-on-invalid-dep=yes" in call
    training = calls[-2]
    assert {"--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--cpus-per-task=6"} <= set(training)
    for call in calls:
        assert any(word.startswith("--cpus-per-task=") for word in call), (
            "what a site gives unasked may be one core"
        )
        assert any(word.startswith("--mem") for word in call), "and 100 MB"
    script = training.index(str(ROOT / "slurm/train.sbatch"))
    assert training[script + 1 : -1] == ["demo", *settings(tmp_path)]
    verb = calls[-1].index(str(ROOT / "slurm/verb.sbatch"))
    assert calls[-1][verb + 1 : -1] == ["export", f"{tmp_path}/run"], "a folder named demo is another one"
    kept = json.loads((tmp_path / "run/logs/slurm.json").read_text())
    assert kept["jobs"] == told["jobs"]
    assert kept["command"].startswith("maskmill slurm demo")


def prepared_by_the_script(
    cluster: Cluster, stages: str, *settings: str, units: int | None = 3
) -> tuple[list[list[str]], str]:
    """What slurm/prepare.sbatch submits where discover finds that these stages have something to do; what it says."""
    found = "already prepared: out" if units is None else f"{units} parts to read, in the stages {stages}"
    cluster._write("maskmill", f"echo '{found}'")
    done = subprocess.run(
        ["bash", str(ROOT / "slurm/prepare.sbatch"), "demo", *settings],
        env=os.environ | {"SLURM_JOB_ID": "7", "LOGS": f"{cluster.folder}/50%"},
        cwd=cluster.folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return cluster.told(), done.stdout + done.stderr


def test_the_batch_script_submits_what_there_is_to_do(cluster: Cluster, tmp_path: Path) -> None:
    calls, said = prepared_by_the_script(cluster, ", ".join(stages_of(DataSettings())), *SECRETS)
    submitted = [word for call in calls for word in call if word.startswith("--job-name")]
    assert submitted == [f"--job-name=maskmill-{n}-7" for n in ("read", "plan", "gather", "write", "finish")]
    assert f"--output={tmp_path}/50%%/plan.log" in calls[1], "sbatch puts something else in for a lone %"
    assert f"logs in {tmp_path}/50%\n" in said
    assert all(set(SECRETS) < set(call) for call in calls), "the jobs get them as they are"
    assert "finishes demo data.sources=[s3://***@host/c.txt] checkpoint.mirror=s3://bucket/run?***\n" in said
    assert "canary" not in said


def test_the_preparation_is_that_of_the_batch_script(cluster: Cluster, tmp_path: Path) -> None:
    """slurm/prepare.sbatch submits the same stages, with the same options, when it is called by itself."""
    overrides = settings(tmp_path, "data.duplicates=documents")
    mine = chain(request_for(overrides, Size(tasks=3)), ["vocab", "prepare"]).jobs
    theirs, _ = prepared_by_the_script(cluster, ", ".join(NAMES[1:]))
    sizes = ("--cpus-per-task", "--mem", "--mem-per-cpu", "--array", "--time")
    stages = ["fingerprint", "repeats", "read", "plan", "gather", "write", "finish"]
    assert names(mine) == ["vocab", "discover", *stages]
    for job in mine[2:]:
        call = next(call for call in theirs if f"--job-name=maskmill-{job.name}-7" in call)
        ours = {word for word in job.options if word.split("=")[0] in sizes}
        assert ours == {word for word in call if word.split("=")[0] in sizes}, job.name
        shares = job.environment["MASKMILL_SHARES"]
        assert f"--export=ALL,MASKMILL_STAGE={job.name},MASKMILL_SHARES={shares}" in call


@pytest.mark.parametrize(("units", "tasks"), [(0, 1), (3, 3), (400, 16)])
def test_the_batch_script_has_no_more_tasks_than_units(cluster: Cluster, units: int, tasks: int) -> None:
    calls, _ = prepared_by_the_script(cluster, "read, plan, gather, write, finish", units=units)
    arrays = [word for call in calls for word in call if word.startswith("--array")]
    assert arrays == [f"--array=0-{tasks - 1}"] * 3


def test_the_batch_script_submits_nothing_for_shards_that_are_there(cluster: Cluster) -> None:
    calls, said = prepared_by_the_script(cluster, "", units=None)
    assert not calls
    assert "already prepared" in said


def test_little_text_is_prepared_by_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = settings(tmp_path)
    (prepare,) = chain(request_for(overrides, Size(cpus=2)), ["vocab", "prepare"]).jobs[1:]
    assert (prepare.script, prepare.arguments[-1]) == ("verb.sbatch", "data.workers=2")
    assert prepare.options == ["--cpus-per-task=2", "--mem=6G"]
    given = chain(request_for([*overrides, "data.workers=5"]), ["vocab", "prepare"]).jobs[1]
    assert given.arguments == ["prepare", "demo", *overrides, "data.workers=5"]
    monkeypatch.setattr(job_size, "MAX_BYTES_WITHOUT_ARRAYS", 8)  # the text has 8 bytes
    assert names(chain(request_for(overrides), ["vocab", "prepare"]).jobs) == ["vocab", "prepare"]
    for more in (
        "data.dupe_factor=2",
        "data.weights=[2]",
        f"data.sources=[{tmp_path}/text.txt, s3://bucket/a.txt]",
    ):
        jobs = chain(request_for([*overrides, more]), ["vocab", "prepare"]).jobs
        assert "--array=0-15" in next(job for job in jobs if job.name == "read").options, more


def test_a_source_that_is_not_there_is_refused_before_anything_is_printed(
    maskmill: Maskmill, tmp_path: Path
) -> None:
    words = ["slurm", "demo", *settings(tmp_path), f"data.sources=[{tmp_path}/text.txt, {tmp_path}/none.txt]"]
    for stages in ("vocab,prepare,train,export", "vocab"):
        done = maskmill(*words, "--stages", stages, code=2)
        assert done.stdout == ""
        assert f"{tmp_path}/none.txt: there is no such file or folder" in done.stderr
    assert "no such file" in maskmill(*words, "--tasks", "3", code=2).stderr
    assert "vocab" in maskmill(*words[:-1], "data.sources=s3://bucket/none.txt").stdout, (
        "stores are not asked"
    )


def test_the_training_asks_for_what_its_ranks_need(tmp_path: Path) -> None:
    small, large = (load_config(name, []) for name in ("demo", "bert_3b"))
    assert job_size.node_gib(small, 8, 8, 8) == pytest.approx(8 * 6, abs=2)
    # 3.2 billion parameters in fp32 are 12 GiB, and a rank's eighth of masters and moments 4.5
    assert job_size.node_gib(large, 8, 8, 8) == pytest.approx(8 * (6 + 12 + 4.5), rel=0.05)
    offloaded = load_config("bert_3b", ["zero.offload=cpu"])
    assert job_size.node_gib(offloaded, 8, 8, 8) == pytest.approx(8 * (6 + 12 + 4.5 + 6), rel=0.05)
    assert job_size.node_gib(small, 0, 2, 2) < 8 < job_size.node_gib(load_config("bert_mini", []), 0, 8, 8)
    assert job_size.rank_cores(small, 0, 3) == 3
    assert job_size.rank_cores(load_config("demo", ["run.threads=7"]), 0, 3) == 7
    assert job_size.rank_cores(small, 1, 3) == job_size.GPU_RANK_CORES


# what DeepSpeed's imports give rise to in a process of pytest's
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_what_is_there_is_not_made_again(tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    own = [*tiny, f"run.dir={tmp_path}/run"]
    size = Size(nodes=2, gpus_per_node=0)
    found = chain(request_for(own, size), list(STAGES))
    assert names(found.jobs) == ["train", "export"]
    assert setting(tiny, "data.out") in found.skipped["prepare"]
    with pytest.raises(UserError, match="were prepared with other settings"):
        chain(request_for([*own, "data.seed=9"], size), list(STAGES))
    with as_only_rank():
        maskmill("train", "demo", *own, "train.steps=2")
    found = chain(request_for([*own, "train.steps=2"], size), list(STAGES))
    assert names(found.jobs) == ["export"]
    note = tmp_path / "run/export/maskmill.json"
    note.parent.mkdir()
    (note.parent / "config.json").write_text("{}")
    note.write_text('{"step": 1}')  # exported, then trained to the end
    assert names(chain(request_for([*own, "train.steps=2"], size), list(STAGES)).jobs) == ["export"]
    assert f"maskmill export {tmp_path}/run" in maskmill("status", f"{tmp_path}/run").stdout
    note.write_text('{"step": 2}')
    assert not chain(request_for([*own, "train.steps=2"], size), list(STAGES)).jobs
    assert f"the model is in {tmp_path}/run/export" in maskmill("status", f"{tmp_path}/run").stdout
    summary = tmp_path / "run/summary.json"
    summary.write_text(summary.read_text().replace('"finished",', '"running",'))
    assert json.loads(summary.read_text())["status"] == "running"
    heartbeat = tmp_path / "run" / HEARTBEAT
    heartbeat.write_text(json.dumps(json.loads(heartbeat.read_text()) | {"host": "elsewhere"}))
    with pytest.raises(UserError, match="this run is in progress"):
        chain(request_for([*own, "train.steps=2"], size), ["train"])


def test_one_process_where_the_preparation_is_one(tmp_path: Path) -> None:
    exact = settings(
        tmp_path, "data.mode=exact", "data.held_out=0", "data.sentences=lines", "data.duplicates=keep"
    )
    for overrides in (exact, settings(tmp_path, "data.executor=dask", "data.scheduler=slurm")):
        jobs = chain(request_for(overrides), ["vocab", "prepare"]).jobs
        assert names(jobs) == ["vocab", "prepare"]
        assert jobs[1].script == "verb.sbatch"
        assert jobs[1].arguments[:2] == ["prepare", "demo"]


@pytest.mark.parametrize(
    ("size", "more", "stages", "said"),
    [
        (Size(nodes=3), ["run.ranks=16"], "train", "run.ranks=16 does not divide over 3 nodes with 8 ranks each"),
        (Size(nodes=2), ["run.ranks=8"], "train", "expected 16 ranks"),
        (Size(nodes=9), [], "train", "72 ranks, more than train.global_batch=64"),
        (Size(gpus_per_node=8, ranks_per_node=3), [], "train", "expected one rank a GPU"),
        (Size(), [], "trian", "no stage 'trian' (expected some of vocab,prepare,train,export)"),
        (Size(), [], "", "no stage"),
        (Size(), [], "prepare", "no vocabulary is there (add vocab to --stages)"),
        (Size(), [], "train", "no shards are there (add prepare to --stages)"),
        (Size(), [], "export", "there is no checkpoint to export (add train to --stages)"),
        (Size(), ["data.sources=[]"], "vocab", "data.sources: is empty"),
        (Size(), ["train.shards=/nowhere"], "prepare", "/nowhere: a folder without shards"),
        (Size(), ["run.dir="], "vocab,prepare,train", "run.dir: is empty"),
    ],
)  # fmt: skip
def test_what_does_not_add_up_is_one_line(
    size: Size, more: list[str], stages: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        chain(request_for(settings(tmp_path, *more), size), [s for s in stages.split(",") if s])
    assert said in str(caught.value)


def test_a_job_that_is_refused_takes_back_those_before_it(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path
) -> None:
    words = [
        "slurm",
        "demo",
        *settings(tmp_path),
        "--tasks=2",
        "--sbatch=plan:--partition=refused",
        "--submit",
    ]
    line = maskmill(*words, code=2).stderr
    assert "sbatch refused the job maskmill-plan: invalid partition" in line
    assert cluster.told()[-1][:-1] == ["scancel", "100", "101", "102"]
    assert not (tmp_path / "run/logs/slurm.json").exists()


@pytest.mark.parametrize("earlier", [None, b'{"command": "of last week", "jobs": []}'])
@pytest.mark.parametrize("ends", ["interrupted", "disk full"])
def test_what_is_submitted_is_known_at_once_and_taken_back_whatever_happens(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, earlier: bytes | None
) -> None:
    request = request_for(settings(tmp_path), Size(tasks=2))
    run, real_sbatch, real_write = tmp_path / "run", slurm._sbatch, slurm.write_whole
    place = run / "logs/slurm.json"
    if earlier is not None:
        place.parent.mkdir(parents=True)
        place.write_bytes(earlier)
    known: list[int] = []

    def sbatch(command: list[str], environment: Mapping[str, str]) -> str:
        known.append(len(json.loads(place.read_text())["jobs"]) if place.exists() else 0)
        if ends == "interrupted" and len(known) == 3:
            raise KeyboardInterrupt
        return real_sbatch(command, environment)

    def write(path: Path, data: bytes) -> None:
        if ends == "disk full" and len(known) == 2 and data != earlier:
            raise UserError("cannot be written: No space left on device")
        real_write(path, data)

    monkeypatch.setattr(slurm, "_sbatch", sbatch)
    monkeypatch.setattr(slurm, "write_whole", write)
    with pytest.raises(KeyboardInterrupt if ends == "interrupted" else UserError):
        submit(chain(request, list(STAGES)), os.environ, run, "maskmill slurm demo")
    assert known == ([0, 1, 2] if ends == "interrupted" else [0, 1])
    assert cluster.told()[-1][:-1] == ["scancel", "100", "101"]
    assert (place.read_bytes() if place.exists() else None) == earlier


@pytest.mark.parametrize("scancel", ["hangs", "fails", "is missing"])
def test_jobs_that_cannot_be_taken_back_are_named_beside_the_real_error(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scancel: str
) -> None:
    real = subprocess.run
    raised = {"hangs": subprocess.TimeoutExpired("scancel", 60.0), "is missing": FileNotFoundError("scancel")}
    cluster._write("scancel", "exit 1")

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "scancel" and scancel in raised:
            raise raised[scancel]
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", run)
    jobs = with_options(
        chain(request_for(settings(tmp_path), Size(tasks=2)), list(STAGES)).jobs, ["read:--partition=refused"]
    )
    with pytest.raises(UserError) as caught:
        submit(Chain(jobs, {}), os.environ, tmp_path / "run", "maskmill slurm demo")
    line = str(caught.value)
    assert "sbatch refused the job maskmill-read: invalid partition" in line
    assert "could not be cancelled: 100, 101 (scancel 100 101)" in line
    kept = json.loads((tmp_path / "run/logs/slurm.json").read_text())
    assert [job["job"] for job in kept["jobs"]] == ["100", "101"], (
        "whoever submits again is told that they live"
    )


def test_nothing_is_submitted_while_jobs_of_the_run_live(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path
) -> None:
    words = ["slurm", "demo", *settings(tmp_path), "--tasks=2", "--submit"]
    maskmill(*words)
    kept = (tmp_path / "run/logs/slurm.json").read_text()
    assert len(cluster.told()) == 9
    cluster.squeue("100 COMPLETED\\n107 PENDING\\n107 RUNNING\\n108 PENDING\\n")  # 107 was requeued
    line = maskmill(*words, code=2).stderr
    assert "jobs of this run are waiting or running: 107, 108 (wait for them, or scancel 107 108)" in line
    cluster.squeue("", error="slurm_load_jobs error: Unable to contact slurm controller")
    assert "squeue does not say whether jobs of this run live" in maskmill(*words, code=2).stderr
    assert not cluster.told()
    assert (tmp_path / "run/logs/slurm.json").read_text() == kept, "the numbers of the jobs that live"
    for says, error in (("107 COMPLETED\\n108 CANCELLED\\n", ""), ("", "error: Invalid job id specified")):
        cluster.squeue(says, error)
        maskmill(*words)
        assert len(cluster.told()) == 9


def test_shards_of_other_text_are_not_trained_on(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    """A file that was added, or changed, since the shards were made."""
    (tmp_path / "corpus").mkdir()
    shutil.copy(setting(tiny, "data.sources"), tmp_path / "corpus/a.txt")
    own = [*tiny, f"data.sources={tmp_path}/corpus", f"data.out={tmp_path}/shards", f"run.dir={tmp_path}/run"]
    maskmill("prepare", "demo", *own)
    size = Size(gpus_per_node=0)
    assert names(chain(request_for(own, size), list(STAGES)).jobs) == ["train", "export"]
    (tmp_path / "corpus/b.txt").write_text("More of it.\n")
    with pytest.raises(UserError, match=r"its sources had other names, .*b\.txt"):
        chain(request_for(own, size), list(STAGES))
    assert "its sources had" in maskmill("prepare", "demo", *own, "--stage", "discover", code=2).stderr
    (tmp_path / "corpus").rename(tmp_path / "elsewhere")
    found = chain(request_for(own, size), list(STAGES))
    assert names(found.jobs) == ["train", "export"], "whoever submits need not see the text"


def test_a_folder_without_a_vocabulary_in_it_is_no_vocabulary(tmp_path: Path) -> None:
    """A .gitkeep, or what a writer that was killed has left."""
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab/.gitkeep").touch()
    (tmp_path / "vocab/vocab.txt.partial").write_text("[PAD]")
    assert names(chain(request_for(settings(tmp_path)), ["vocab"]).jobs) == ["vocab"]


NEVER = "Slurm would not start the job maskmill-train: allocation failure: Requested node configuration is not avail"


@pytest.mark.parametrize("away", ["", "3\n2"])
@pytest.mark.parametrize("option", [["--nodes", "99"], ["--sbatch=train:--nodes=99"]])
def test_what_slurm_would_never_start_is_not_submitted(
    cluster: Cluster,
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    away: str,
    option: list[str],
) -> None:
    monkeypatch.setenv("AWAY", away)
    batch = "train.global_batch=1024"
    words = ["slurm", "demo", *settings(tmp_path, batch), "--tasks=2", "--submit"]
    line = maskmill(*words, *option, code=2).stderr
    assert NEVER in line
    assert ("5 nodes are back that are down or drained now" in line) is bool(away)
    assert not cluster.told(), "nothing is submitted, so nothing is to be cancelled"
    assert not (tmp_path / "run/logs/slurm.json").exists()
    maskmill(*words)
    tested = (tmp_path / "tested").read_text().splitlines()
    assert len(tested) >= 9, "all jobs of the chain"
    assert not any("--dependency" in line for line in tested)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (["--time=4"], 240), (["--time=4:59"], 299), (["--time=00:05:00"], 300), (["--time=0-0:02"], 120),
        (["--time=1-0", "--signal=B:USR1@90000"], 86400), (["--time=10", "--signal=B:USR1@600"], 600),
    ],
)  # fmt: skip
def test_a_time_limit_below_the_signals_lead_is_refused(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path, options: list[str], limit: int
) -> None:
    words = [
        "slurm",
        "demo",
        *settings(tmp_path),
        *(f"--sbatch=train:{option}" for option in options),
        "--submit",
    ]
    line = maskmill(*words, code=2).stderr
    assert f"the time limit of the job maskmill-train is {limit} s, and its signal comes " in line
    assert not cluster.told()


@pytest.mark.parametrize(
    "option", ["--time=6", "--time=5:01", "--time=UNLIMITED", "--time=1-0", "--time=0-1:00:00"]
)
def test_a_time_limit_with_time_for_steps_is_submitted(
    cluster: Cluster, maskmill: Maskmill, tmp_path: Path, option: str
) -> None:
    maskmill("slurm", "demo", *settings(tmp_path), f"--sbatch=train:{option}", "--submit")
    assert len(cluster.told()) == 4


def test_no_sbatch_is_one_line(maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = maskmill("slurm", "demo", *settings(tmp_path), "--submit", code=2).stderr
    assert "sbatch is not found" in line
    assert not (tmp_path / "run").exists()


def test_options_of_sbatch_for_all_for_a_stage_for_a_job(tmp_path: Path) -> None:
    jobs = chain(request_for(settings(tmp_path), Size(tasks=2)), list(STAGES)).jobs
    found = with_options(jobs, ["--account=lab", "prepare:--qos=low", "plan:--mem=64G"])
    assert all("--account=lab" in job.options for job in found)
    assert names([job for job in found if "--qos=low" in job.options]) == names(jobs)[1:-2]
    assert names([job for job in found if "--mem=64G" in job.options]) == ["plan"]
    plan = arguments(next(job for job in found if job.name == "plan"), "")
    assert plan.index("--mem=64G") > plan.index("--mem=8G"), "the last one wins"
    for own in ("--mem-per-cpu=1G", "--mem-per-gpu=9G"):  # sbatch refuses two ways of asking for memory
        train = next(job for job in with_options(jobs, [f"train:{own}"]) if job.name == "train")
        assert [o for o in train.options if o.startswith("--mem")] == [own]
    for option in ("account=lab", "nothing:--mem=1G", "-"):
        with pytest.raises(UserError, match="--sbatch"):
            with_options(jobs, [option])


def test_the_scripts_are_package_data() -> None:
    """launch/sbatch is where an installed package has them, and the folder slurm/ here."""
    scripts = {path.name for path in SCRIPTS.glob("*.sbatch")}
    assert scripts == {path.name for path in (ROOT / "slurm").glob("*.sbatch")}
    assert {job.script for job in _every_job()} <= scripts
    assert (
        'launch = ["recipes/*.yaml", "studies/*.yaml", "recipes/corpus/*", "sbatch/*.sbatch"]'
        in (ROOT / "pyproject.toml").read_text()
    )


def _every_job() -> list[Job]:
    request = Request(load_config("demo", []), "demo", [])
    return [job for stage in STAGES.values() for job in stage.jobs(request)]


def test_verb_sbatch_runs_a_verb(tmp_path: Path) -> None:
    script = ["bash", str(ROOT / "slurm/verb.sbatch")]
    environment = os.environ | {"MASKMILL": "echo said", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    done = subprocess.run(
        [*script, "inspect", SECRETS[0], "a b"], env=environment, capture_output=True, text=True, check=True
    )
    head, said = done.stdout.splitlines()
    assert said == f"said inspect {SECRETS[0]} a b"
    assert "attempt 1" in head
    assert "canary" not in head
    assert (
        subprocess.run([*script, "export"], env=environment, capture_output=True, check=False).returncode == 2
    )


def test_the_batch_script_can_ask_for_the_run_folder(maskmill: Maskmill) -> None:
    """slurm/train.sbatch puts the ranks' logs there."""
    said = maskmill("settings", "run.dir", "--recipe", "demo", "train.steps=3", "run.dir=a 50% [b]").stdout
    assert said.splitlines()[0] == "run.dir = a 50% [b]"
    assert "--recipe RECIPE beside it" in maskmill("settings", "run.", "run.dir=x", code=2).stderr
    whole = maskmill("settings", "--recipe", "demo", "train.steps=3").stdout.splitlines()
    assert {"train.steps = 3", "optim.name = muon"} <= set(whole), "a setting is no word to look for"

"""The CPU image, built as its Dockerfile says and run as a user would: `make test-docker`, as root."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from images import Images
from packaging.utils import canonicalize_name
from safetensors.numpy import load_file

from tests.command_line import ROOT, TINY, until, write_text
from tests.factories.dockerfiles import DOCKER, base_names

pytestmark = pytest.mark.docker

IMAGE = "maskmill:cpu"
USER = 1000
RUN = ["data.sources=text.txt", "data.vocab=vocabulary", "data.out=shards", "train.checkpoint_every=2", *TINY]
"""A tiny run in /work."""
FULL_DEMO = "MASKMILL_DEMO_STEPS" not in os.environ  # else so many steps, at least 20: two lines of the log


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    with Images() as images:
        for name in base_names(DOCKER / "Dockerfile.cpu"):
            images.add_base(name)
        torch = {"TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}  # empty: as `make env` does
        images.build("docker/Dockerfile.cpu", IMAGE, torch | {"REVISION": "of-the-test"})
        yield images


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Path:
    """A folder of the container's user, with a text, its vocabulary and its shards."""
    folder = tmp_path_factory.mktemp("work")
    folder.chmod(0o755)
    os.chown(folder, USER, USER)
    write_text(folder / "text.txt")
    for verb in ("vocab", "prepare"):
        images.run(IMAGE, verb, "demo", *RUN, options=mounted(folder))
    return folder


def mounted(folder: Path, *more: str) -> list[str]:
    """The folder as /work, and no network."""
    return ["--volume", f"{folder}:/work", "--network=none", *more]


def shell(images: Images, script: str, *options: str) -> str:
    """What a bash script says inside."""
    return images.run(IMAGE, "-c", script, options=["--entrypoint=bash", "--network=none", *options]).stdout


def weights(run: Path, step: int) -> dict[str, np.ndarray]:
    """Everything in the checkpoint of a step: each rank's fragments, by name."""
    found: dict[str, np.ndarray] = {}
    for path in sorted((run / f"checkpoints/step-{step:08d}").glob("*.safetensors")):
        found |= {f"{path.name}/{name}": tensor for name, tensor in load_file(path).items()}
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_the_image_says_what_it_is(images: Images) -> None:
    told = images.described(IMAGE)
    assert told["User"] == f"{USER}:{USER}"
    assert told["Entrypoint"] == ["tini", "--", "maskmill"]
    assert told["WorkingDir"] == "/work"
    assert told["Labels"]["org.opencontainers.image.revision"] == "of-the-test"
    assert told["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert told["Healthcheck"]["Test"][-1].endswith("healthcheck.sh")
    assert "Usage" in images.run(IMAGE).stdout


def test_the_image_is_one_for_cpus(images: Images) -> None:
    """NVIDIA's libraries would take 4 GB more."""
    assert images.size(IMAGE) < 2.5e9
    assert shell(images, "python -c 'import torch; print(torch.version.cuda)'") == "None\n"


def test_nothing_of_the_program_is_the_users_to_change(images: Images) -> None:
    assert shell(images, "id -u; id -un; pwd; echo $HOME").split() == [
        str(USER), "maskmill", "/work", "/home/maskmill",
    ]  # fmt: skip
    assert shell(images, "find /opt/maskmill /usr/local -writable -not -type l") == ""
    assert shell(images, "find / -xdev -type d -perm -0002 -not -perm -1000 2>/dev/null || true") == ""
    assert shell(images, "stat --format='%a %u' /work /home/maskmill").split("\n")[0] == f"755 {USER}"
    assert "No such file" in shell(images, "ls /source 2>&1; ls /var/lib/apt/lists")
    # a new volume takes after the folder that it is mounted over
    assert (
        shell(images, "touch /work/file && stat --format=%U /work/file", "--volume=fresh:/work")
        == "maskmill\n"
    )


def test_the_packages_are_those_of_the_lock(images: Images) -> None:
    listed = shell(images, "python -m pip list --format=freeze --disable-pip-version-check").split()
    installed = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in listed}
    lock = (DOCKER / "requirements.lock").read_text()
    others = {name for name, version in installed.items() if f"\n{name}=={version} " not in lock}
    assert others == {"torch", "maskmill"}
    assert len(installed) > 80


def test_the_demo_runs(images: Images, tmp_path: Path) -> None:
    """All of `make demo`, from the recipe and the text in the image, without a network."""
    os.chown(tmp_path, USER, USER)
    steps = [] if FULL_DEMO else [f"train.steps={os.environ['MASKMILL_DEMO_STEPS']}"]
    for words in (["vocab", "demo"], ["prepare", "demo"], ["train", "demo", *steps], ["export", "demo"]):
        images.run(IMAGE, *words, options=mounted(tmp_path))
    blank = ["Port of Spain is the capital of Trinidad and [MASK].", "--held-out"]
    said = images.run(IMAGE, "fill", "runs/demo", *blank, options=mounted(tmp_path)).stdout
    assert said.count("%") >= 5 + 3
    assert "right; blanks in held-out text" in said
    lines = (tmp_path / "runs/demo/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["mlm_loss"] for line in lines if "mlm_loss" in json.loads(line)]
    assert losses[-1] < losses[0]
    assert "<style>" in (tmp_path / "runs/demo/report.html").read_text()
    made = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_uid for path in made} == {USER}
    assert not [path for path in made if path.stat().st_mode & 0o022], "writable for others"


def test_two_containers_are_as_good_as_one(images: Images, work: Path) -> None:
    """A rank in each, as compose.yaml starts them, over loopback: the weights and moments of two ranks in one."""
    images.run(IMAGE, "train", "demo", *RUN, "run.ranks=2", "run.dir=one", options=mounted(work))
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    nodes = []
    for name in ("node-0", "node-1"):
        variables = compose["services"][name]["environment"] | {"MASTER_ADDR": "127.0.0.1"}
        options = ["--volume", f"{work}:/work", "--network=host"]
        options += [f"--env={key}={value}" for key, value in variables.items() if "WANDB" not in key]
        nodes.append(images.start(IMAGE, "train", "demo", *RUN, "run.dir=two", options=options))
    for node in nodes:
        output, _ = node.communicate(timeout=600)
        assert node.returncode == 0, output
    one, two = weights(work / "one", 4), weights(work / "two", 4)
    assert {name.partition("/")[0] for name in one} == {
        "fragments-00000.safetensors",
        "fragments-00001.safetensors",
    }
    assert same(one, two)


def test_torchrun_starts_the_ranks(images: Images, work: Path) -> None:
    """As docs/guides/large_machines.md does on several machines, here on one."""
    command = ["--standalone", "--nproc-per-node=2", "--no-python", "maskmill", "train", "demo", *RUN]
    options = [*mounted(work), "--entrypoint=torchrun"]
    images.run(IMAGE, *command, "train.steps=2", "run.dir=torchrun", options=options)
    assert len(list((work / "torchrun/checkpoints/step-00000002").glob("fragments-*"))) == 2


def test_a_stopped_container_saves_and_the_same_command_goes_on(images: Images, work: Path) -> None:
    """What a spot machine's notice comes down to: SIGTERM to the container."""
    command = ["train", "demo", *RUN, "run.ranks=2", "train.steps=400", "train.checkpoint_every=1000"]
    name = "stopped"
    process = images.start(
        IMAGE, *command, f"run.dir={name}", options=mounted(work, f"--name={name}", "--env=COLUMNS=80")
    )
    wait_for(process, (work / name / "metrics.jsonl").exists)
    images.tell("stop", "--time=120", name, code=None)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 3, output
    (saved,) = (path.name for path in (work / name / "checkpoints").glob("step-*"))
    assert 0 < int(saved.removeprefix("step-")) < 400
    ends = int(saved.removeprefix("step-")) + 3
    images.run(IMAGE, *command, f"run.dir={name}", f"run.stop_after={ends}", options=mounted(work))
    lines = (work / name / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(ends + 1)]


def wait_for(process: subprocess.Popen[str], holds: Callable[[], object]) -> None:
    """Fails with what the process wrote."""

    def said() -> str:
        process.kill()
        return process.communicate()[0]

    until(holds, 300, process, said)


def test_a_verb_that_knows_no_signals_ends_by_one(images: Images) -> None:
    """As the first process of a container it would not, and `docker stop` would wait in vain."""
    process = images.start(IMAGE, "vocab", "demo", options=["--name=deaf", "--network=none"])
    wait_for(process, lambda: "deaf" in images.tell("ps", "--format={{.Names}}").stdout)
    time.sleep(1)
    images.tell("stop", "--time=60", "deaf", code=None)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, "not SIGKILL, at the end of the minute"


def test_it_runs_as_launchers_of_clusters_run_it(images: Images, work: Path, tmp_path: Path) -> None:
    """pyxis and apptainer: the whole command in place of the entry point, another user without a name, the program's
    folders read-only, the job's folder under its own path, Slurm's variables."""
    stranger = 4242
    os.chown(tmp_path, stranger, stranger)
    script = (ROOT / "slurm/train.sbatch").read_text()
    assert "--no-container-entrypoint" in script
    settings = [word.replace("=text.txt", "=/work/text.txt") for word in RUN]
    settings = [word.replace("=vocabulary", "=/work/vocabulary") for word in settings]
    settings = [word.replace("=shards", "=/work/shards") for word in settings]
    slurm = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_NTASKS": 1, "SLURM_LOCALID": 0}
    images.run(
        IMAGE,
        *("train", "demo", *settings, "run.ranks=1", "run.dir=run"),
        options=[
            *mounted(work, "--read-only", f"--user={stranger}:{stranger}", f"--env=HOME={tmp_path}"),
            *(f"--volume={tmp_path}:{tmp_path}", f"--workdir={tmp_path}", "--entrypoint=maskmill"),
            *(f"--env={key}={value}" for key, value in slurm.items()),
        ],
    )
    assert (tmp_path / "run/checkpoints/step-00000004/checkpoint.json").stat().st_uid == stranger
    assert [*(work / ".cache/numba").iterdir()], "compiled once for all containers"


def test_the_health_check_tells_sick_from_well(images: Images, tmp_path: Path) -> None:
    os.chown(tmp_path, USER, USER)
    metrics, summary = tmp_path / "run/metrics.jsonl", tmp_path / "run/summary.json"
    metrics.parent.mkdir()
    sleeping = images.start(
        IMAGE,
        *("-c", "sleep 600"),
        options=mounted(
            tmp_path,
            "--name=patient",
            "--entrypoint=bash",
            "--env=HEALTH_RUN=run",
            "--env=HEALTH_SECONDS=3600",
        ),
    )
    try:
        wait_for(sleeping, lambda: "patient" in images.tell("ps", "--format={{.Names}}").stdout)

        def check(*options: str) -> tuple[int, str]:
            (*_, script) = images.described(IMAGE)["Healthcheck"]["Test"]
            result = images.tell("exec", *options, "patient", "bash", script, code=None)
            return result.returncode, result.stdout

        assert images.tell("healthcheck", "run", "patient").returncode == 0
        assert check() == (0, "healthy\n")
        metrics.write_text("{}\n")
        os.utime(metrics, (0, 0))
        assert check() == (0, "healthy\n"), "the container has only started"
        code, said = check("--env=HEALTH_SECONDS=-1")
        assert (code, said.startswith("unhealthy: nothing new in run for ")) == (1, True)
        summary.write_text('{"status": "running"}')
        assert check("--env=HEALTH_SECONDS=-1")[0] == 1
        summary.write_text('{\n  "status": "finished"\n}')
        assert check("--env=HEALTH_SECONDS=-1")[0] == 0
        os.chown(tmp_path, 0, 0)
        assert check() == (1, "unhealthy: /work takes no files\n")
        assert images.tell("healthcheck", "run", "patient", code=None).returncode == 1
    finally:
        images.tell("kill", "patient", code=None)
        sleeping.communicate(timeout=60)

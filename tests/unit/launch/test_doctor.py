"""`maskmill doctor`: each probe with what a machine would answer, and the whole on this one."""

import json
import os
import resource
import threading
from pathlib import Path

import pytest

from launch import doctor
from launch.doctor import (
    MISSING,
    NOTE,
    OK,
    Finding,
    allocator,
    conclusions,
    disk,
    gpus,
    keys,
    limits,
    memory,
    packages,
    processor,
    run_command,
    shared_memory,
    slurm,
    torch_build,
)
from tests.command_line import Maskmill

H100 = "NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0\n"
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\x1b[0m\n"
    "GPU0\t X \t{0}\tPIX\t0-31\nGPU1\t{0}\t X \tSYS\t0-31\nNIC0\tPIX\tSYS\t X \n"
)
SECRET = "canary-of-a-key"


class Programs:
    """Executables that answer what they are told to, first in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plant(self, name: str, **answers: str) -> None:
        """A program that, by its first argument (`_`: any other), prints an answer; `!`: fails with it."""
        cases = []
        for number, (argument, answer) in enumerate(answers.items()):
            text = self.folder / f".{name}-{number}"
            text.write_text(answer.removeprefix("!"))
            pattern = "*" if argument == "_" else f"*{argument}*"
            cases.append(f"{pattern}) cat {text}; exit {int(answer.startswith('!'))};;")
        path = self.folder / name
        path.write_text(f'#!/bin/sh\ncase "$*" in\n{chr(10).join(cases)}\nesac\n')
        path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Programs(folder)


def levels(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.subject, finding.level) for finding in found]


def test_a_processor_that_multiplies_bf16_is_worth_a_word(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx512f avx512_bf16 sse\n")
    assert "Some CPU" in processor(info)[0].text
    assert "train.precision=bf16" in processor(info)[0].text
    info.write_text("model name\t: Some CPU\nflags\t\t: fpu avx512f sse\n")
    assert "bf16" not in processor(info)[0].text
    assert processor(tmp_path / "none")[0].level == OK


def test_gpus_and_links(programs: Programs) -> None:
    programs.plant("nvidia-smi", query=2 * H100, topo=TOPOLOGY.format("NV18"))
    found = gpus(run_command)
    assert levels(found) == [("gpu", OK), ("links", OK)]
    assert "2 x NVIDIA H100 80GB HBM3 of 80 GiB, driver 550.54.15" in found[0].text
    assert "NV18" in found[1].text
    programs.plant("nvidia-smi", query=2 * H100, topo=TOPOLOGY.format("SYS"))
    found = gpus(run_command)
    assert levels(found)[1] == ("links", NOTE)
    assert "SYS" in found[1].text
    programs.plant("nvidia-smi", query="Tesla V100, 32510, 550, 7.0\n")
    assert "no bf16" in gpus(run_command)[1].text
    programs.plant("nvidia-smi", _="!NVIDIA-SMI has failed: driver/library version mismatch\n")
    broken = gpus(run_command)
    assert levels(broken) == [("gpu", MISSING)]
    assert "version mismatch" in broken[0].text
    assert broken[0].remedy


def test_no_gpu_is_no_fault() -> None:
    found = gpus(lambda command: (127, "no such file"))
    assert levels(found) == [("gpu", NOTE)]


def test_torch_as_it_is_and_as_it_may_be() -> None:
    def answering(**more: object):  # type: ignore[no-untyped-def]
        about = {"version": "2.13", "cuda": None, "gpus": 0, "nccl": False, "gloo": True, "sum": 3.0}
        return lambda command: (0, "a warning\n" + json.dumps(about | more))

    assert levels(torch_build(answering())) == [("torch", OK)]
    found = torch_build(answering(cuda="12.8", gpus=8, nccl=True))
    assert levels(found) == [("torch", OK), ("cuda", OK)]
    assert "8 GPUs" in found[1].text
    for broken in (answering(sum=2.0), answering(gloo=False), lambda c: (1, "ImportError: libcudart.so.12")):
        found = torch_build(broken)
        assert conclusions(found)[0].level == MISSING
        assert conclusions(found)[0].essential
        assert found[-1].remedy


def test_conclusions() -> None:
    gpu, cuda = Finding("gpu", OK, ""), Finding("cuda", OK, "")
    assert "on the GPUs" in conclusions([gpu, cuda])[0].text
    assert conclusions([gpu])[0].level == NOTE, "torch without CUDA beside a GPU"
    assert "on the CPU" in conclusions([])[0].text


def test_a_package_that_is_missing_stops_all() -> None:
    found = packages(lambda name: "" if name == "deepspeed" else "1.0")
    assert ("package", MISSING) in levels(found)
    assert "deepspeed" in next(finding.text for finding in found if finding.essential)
    found = packages(lambda name: "" if name == "triton" else "1.0")
    assert ("triton", NOTE) in levels(found)
    assert not any(finding.essential for finding in found)


def test_slurm(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sbatch", "srun", "squeue", "sinfo", "scontrol"):
        programs.plant(name, _="")
    programs.plant("scontrol", ping="Slurmctld(primary) at head is UP\n")
    programs.plant("sinfo", _="main* 4 gpu:h100:8 up\ncpu 9 (null) up\n")
    found = slurm(run_command)
    assert levels(found) == [("Slurm", OK)]
    assert "main* of 4 nodes, gpu:h100:8; cpu of 9 nodes, no GPUs" in found[0].text
    programs.plant("scontrol", ping="Slurmctld(primary) at head is DOWN\n")
    assert levels(slurm(run_command)) == [("Slurm", MISSING)]
    monkeypatch.setenv("PATH", "/nowhere")
    assert levels(slurm(run_command)) == [("Slurm", NOTE)]


def test_keys_are_told_of_and_never_told(tmp_path: Path) -> None:
    assert levels(keys({}, tmp_path)) == [("W&B key", NOTE), ("Hugging Face token", NOTE)]
    found = keys({"WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET}, tmp_path)
    assert levels(found) == [("W&B key", OK), ("Hugging Face token", OK)]
    assert SECRET not in str(found)
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {SECRET}")
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text(SECRET)
    found = keys({}, tmp_path)
    assert levels(found) == [("W&B key", OK), ("Hugging Face token", OK)]
    assert SECRET not in str(found)


def test_the_allocator_of_ranks() -> None:
    assert levels(allocator({"LD_PRELOAD": "libtcmalloc_minimal.so.4"})) == [("allocator", OK)]
    assert levels(allocator({"LD_PRELOAD": ""})) == levels(allocator({})) == [("allocator", NOTE)]


def test_memory_of_a_container(tmp_path: Path) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:       32000000 kB\nMemAvailable:   16000000 kB\n")
    assert memory(info, tmp_path)[0] == Finding("memory", OK, "32.8 GB, 16.4 GB free")
    (tmp_path / "memory.max").write_text("1000000000\n")
    assert levels(memory(info, tmp_path)) == [("memory", NOTE)]
    assert "limited to 1.0 GB here" in memory(info, tmp_path)[0].text
    (tmp_path / "memory.max").write_text("max\n")
    assert levels(memory(info, tmp_path)) == [("memory", OK)]
    assert levels(memory(tmp_path / "nothing", tmp_path)) == [("memory", NOTE)]


def test_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = disk(tmp_path / "not" / "there yet", seconds=0.02)
    assert f"{tmp_path}: " in found[0].text
    assert "/s, reads " in found[0].text
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert levels(disk(tmp_path / "file", seconds=0.02)) == [("disk", MISSING)]


def test_limits_and_shared_memory() -> None:
    plenty = resource.RLIM_INFINITY
    assert levels(limits(lambda kind: (plenty, plenty))) == [("limits", OK)]
    few = {resource.RLIMIT_NOFILE: 256, resource.RLIMIT_MEMLOCK: 65_536, resource.RLIMIT_NPROC: 100}
    found = limits(lambda kind: (few[kind], plenty))
    assert [subject for subject, _ in levels(found)] == ["open files", "processes", "locked memory"]
    assert all(finding.remedy for finding in found)
    assert shared_memory(Path("/dev/shm"))[0].subject == "shared memory"
    assert levels(shared_memory(Path("/nowhere"))) == [("shared memory", NOTE)]


def test_the_whole_on_this_machine(
    programs: Programs, maskmill: Maskmill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.plant("nvidia-smi", query=H100)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    done = maskmill("doctor", str(tmp_path))
    assert "note    gpu" not in done.stdout
    assert "ok      gpu: 1 x NVIDIA H100" in done.stdout
    assert "torch does not see the GPUs" in done.stdout or "torch sees" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    found = json.loads(maskmill("doctor", str(tmp_path), "--json").stdout)
    assert {"cpu", "memory", "gpu", "torch", "compiler", "disk", "training"} <= {
        one["subject"] for one in found
    }
    assert {one["level"] for one in found} <= {OK, NOTE, MISSING}
    assert all(one["remedy"] for one in found if one["level"] == MISSING)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


def test_exit_code_2_where_nothing_can_be_trained(maskmill: Maskmill, tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.touch()
    said = maskmill("doctor", str(path), code=2).stdout
    assert "missing training: cannot work here: disk" in said
    assert os.path.exists(path)


def test_torch_is_imported_while_the_disk_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits here until the other has begun; the lines keep their order."""
    importing, measuring = threading.Event(), threading.Event()

    def torch_build(_run: object) -> list[Finding]:
        importing.set()
        return [Finding("torch", OK if measuring.wait(5) else MISSING, "")]

    def disk(_folder: Path) -> list[Finding]:
        measuring.set()
        return [Finding("disk", OK if importing.wait(5) else MISSING, "")]

    def compilers(_run: object) -> list[Finding]:
        return [Finding("compiler", OK, "")]

    for probe in (torch_build, disk, compilers):
        monkeypatch.setattr(doctor, probe.__name__, probe)
    told: list[str] = []
    found = [
        one for one in doctor.examine(tmp_path, told.append) if one.subject in ("torch", "compiler", "disk")
    ]
    assert [(one.subject, one.level) for one in found] == [("torch", OK), ("compiler", OK), ("disk", OK)]
    assert told[-1] == "torch"

"""docker/ as far as it goes without building: the graph of the stages, the lock file, compose, the build context.
tests/docker builds the CPU image and runs it."""

import importlib.metadata
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from launch.recipe import load_config
from pretrain.distributed.world import World
from tests.command_line import ROOT
from tests.factories.dockerfiles import DOCKER, IMAGES, defaults, environment_of, stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("dask", "s3")
"""Those that the images hold (make lock)."""
PYTHONS = ("3.11", "3.12")
"""Of the images: Debian 12's and Ubuntu 24.04's."""


@pytest.mark.parametrize("name", IMAGES)
def test_every_copy_is_from_a_stage_or_a_file_that_is_there(name: str) -> None:
    _, found = stages(DOCKER / name)
    known: set[str] = set()
    copied = 0
    for stage in found:
        for text in stage.all("COPY"):
            words = text.split()
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in known, text
                copied += 1
            else:
                assert all((ROOT / word).exists() for word in words[:-1]), text
        known.add(stage.name)
    assert copied, "nothing is taken over from the stage that builds"
    assert len(found) == 2


@pytest.mark.parametrize("name", IMAGES)
def test_the_last_stage_has_a_user_an_entry_point_and_a_health_check(name: str) -> None:
    """And labels, and no build tools."""
    last = stages(DOCKER / name)[1][-1]
    assert last.all("USER") == ["${USER_ID}:${GROUP_ID}"]
    assert int(defaults(last.instructions)["USER_ID"]) > 0
    order = [keyword for keyword, _ in last.instructions]
    assert "RUN" not in order[order.index("USER") :]
    assert last.all("ENTRYPOINT") == ['["tini", "--", "maskmill"]']
    assert last.all("WORKDIR") == ["/work"]
    (check,) = last.all("HEALTHCHECK")
    script = re.search(r'"(/\S+/healthcheck\.sh)"', check)
    assert script
    assert any(text.endswith(f" {Path(script[1]).parent}/") for text in last.all("COPY"))
    labels = " ".join(last.all("LABEL"))
    for label in ("title", "description", "licenses", "version", "revision", "created"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert defaults(last.instructions)["VERSION"] == PROJECT["version"]
    assert "devel" not in last.base
    assert not [text for text in last.all("RUN") if " environment" in text]


def test_both_images_are_of_one_script_and_one_lock() -> None:
    steps = {}
    for name in IMAGES:
        _, (build, last) = stages(DOCKER / name)
        commands = " ".join([*build.all("RUN"), *last.all("RUN")])
        assert "pip" not in commands
        assert "apt-get" not in commands
        steps[name] = re.findall(r"/install\.sh\W+(\w+)", commands)
        assert "docker/requirements.lock" in build.all("COPY")[0]
        spec = defaults(build.instructions)["TORCH_SPEC"]
        (torch,) = (Requirement(r) for r in PROJECT["dependencies"] if r.startswith("torch"))
        assert Version(spec.removeprefix("torch==")) in torch.specifier
    for path in ("Makefile", "docker/install.sh", "docker/lock.sh"):
        assert re.findall(r"torch==[\d.]+", (ROOT / path).read_text())[0] == spec, (
            f"{path}: another torch by default"
        )
    assert steps["Dockerfile"] == steps["Dockerfile.cpu"]
    assert set(steps["Dockerfile"]) == {"system", "environment", "maskmill", "user"}


def test_torchrun_waits_longer_than_any_stop_of_the_page() -> None:
    """So that who stops a container decides how long ranks may save."""
    waits = {int(environment_of(DOCKER / name)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) for name in IMAGES}
    assert len(waits) == 1
    stops = re.findall(
        r"stop(?:-timeout| --time) (\d+)", (ROOT / "docs/guides/large_machines.md").read_text()
    )
    assert len(stops) > 2
    assert min(waits) > max(map(int, stops))


def test_the_cuda_image_compiles_for_ampere_and_hopper() -> None:
    _, (build, last) = stages(DOCKER / "Dockerfile")
    arguments = defaults(build.instructions)
    assert {"8.0", "8.6", "9.0"} <= set(arguments["TORCH_CUDA_ARCH_LIST"].split(";"))
    assert {f"DS_BUILD_{op}" for op in arguments["DS_OPS"].split()} <= operators_of_deepspeed()
    assert not arguments["TORCH_INDEX"].strip('"'), "whose builds fit CUDA is for who builds the image to say"
    assert "-devel-" in build.base
    assert "-base-" in last.base
    assert not [text for text in last.all("ENV") if "NCCL" in text], "what suits one cloud slows down another"


def operators_of_deepspeed() -> set[str]:
    """The variables that have it compile its operators for CUDA, from its source: imported, it knows those of this
    machine's accelerator."""
    spec = importlib.util.find_spec("deepspeed")
    assert spec
    assert spec.origin
    texts = [path.read_text() for path in (Path(spec.origin).parent / "ops/op_builder").glob("*.py")]
    return {name for text in texts for name in re.findall(r'BUILD_VAR = [\'"](\w+)', text)}


def entries(lock: str = "requirements.lock") -> dict[str, list[tuple[Requirement, list[str]]]]:
    """A lock: name -> (requirement, hashes), of each of its versions."""
    text = re.sub(r"\\\n", " ", (DOCKER / lock).read_text())
    found: dict[str, list[tuple[Requirement, list[str]]]] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement, *hashes = line.split(" --hash=")
            parsed = Requirement(requirement.strip())
            entry = (parsed, [h.strip() for h in hashes])
            found.setdefault(canonicalize_name(parsed.name), []).append(entry)
    return found


@pytest.mark.parametrize(("lock", "least"), [("requirements.lock", 50), ("torch.lock", 10)])
def test_every_line_of_the_lock_is_pinned_and_hashed(lock: str, least: int) -> None:
    locked = entries(lock)
    assert len(locked) > least
    for requirement, hashes in (entry for versions in locked.values() for entry in versions):
        name = requirement.name
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), name
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), name
    text = (DOCKER / lock).read_text()
    assert not re.search(
        r"://|^\s*-", re.sub(r"^\s+--hash=\S+.*$", "", text, flags=re.MULTILINE), re.MULTILINE
    )


def test_the_lock_satisfies_the_project() -> None:
    locked = entries()
    wanted = [*PROJECT["dependencies"]]
    for extra in EXTRAS:
        wanted += PROJECT["optional-dependencies"][extra]
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == "torch":
            continue
        assert name in locked, f"{text}: make lock"
        for python in PYTHONS:
            (pinned,) = (p for p, _ in locked[name] if p.marker is None or p.marker.evaluate(place(python)))
            assert requirement.specifier.contains(str(pinned.specifier)[2:]), f"{text}: make lock"


def place(python: str) -> dict[str, str]:
    """What markers are told in an image."""
    return {"python_version": python, "python_full_version": f"{python}.5", "sys_platform": "linux"}


def test_what_comes_with_torch_has_a_lock_of_its_own() -> None:
    """Versions for whichever index has the build that TORCH_SPEC and TORCH_INDEX choose; nvidia-ml-py is DeepSpeed's
    wish, on CUDA."""
    everywhere, of_cuda = entries(), entries("torch.lock")
    theirs = {
        name for name in everywhere if name in ("torch", "triton") or name.startswith(("nvidia-", "cuda-"))
    }
    assert theirs == {"nvidia-ml-py"}
    assert {"triton", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "cuda-bindings"} < set(
        of_cuda
    )
    assert all(name == "triton" or name.startswith(("nvidia-", "cuda-")) for name in of_cuda)
    brought = [Requirement(text) for text in importlib.metadata.requires("torch") or []]
    needed = {canonicalize_name(r.name) for r in brought if r.marker is None or "extra" not in str(r.marker)}
    assert {"sympy", "networkx", "jinja2", "filelock"} <= needed <= {*everywhere, *of_cuda}, "make lock"


STAND_IN = """#!/usr/bin/env bash
# python3: makes the virtual environment; its python: notes pip's words
if [[ $1 == -m && $2 == venv ]]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
elif [[ $1 == -c ]]; then
  echo "$BUILT_FOR"
else
  echo "$*" >>"$NOTED"
  for word in "$@"; do
    [[ ! -f $word ]] || { echo "-- $word" && cat "$word"; } >>"$NOTED"
  done
fi
"""


@pytest.mark.parametrize(
    ("built_for", "allowed", "goes_on"),
    [("", "", True), ("13.0", "", False), ("12.6", "0", False), ("13.0", "1", True), ("", "1", True)],
)
def test_a_build_for_cuda_in_the_cpu_image_ends_the_build(
    tmp_path: Path, built_for: str, allowed: str, goes_on: bool
) -> None:
    """Before NVIDIA's libraries are fetched: torch comes first, without what it needs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").write_text(STAND_IN)
    (tmp_path / "bin/python3").chmod(0o755)
    done = subprocess.run(
        ["bash", str(DOCKER / "install.sh"), "environment"],
        env={
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "NOTED": f"{tmp_path}/noted", "BUILT_FOR": built_for,
            "ALLOW_CUDA": allowed, "VENV": f"{tmp_path}/venv", "TORCH_INDEX": "an index",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    noted = (tmp_path / "noted").read_text()
    calls = [line for line in noted.splitlines() if " install " in line and "torch==" in line]
    assert "--index-url an index --no-deps torch==2.13.0" in calls[0]
    if goes_on:
        assert (done.returncode, done.stderr) == (0, "")
        assert "--index-url an index --constraint " in calls[1]
        given = noted.partition(calls[1])[2].partition("\n-m pip ")[0]
        (triton,) = (r for r, _ in entries("torch.lock")["triton"])
        assert f"\ntriton{triton.specifier} ; " in given
        assert re.search(r"\nsympy==[\d.]+\n", given)
        assert "--hash" not in given
    else:
        assert done.returncode == 1
        assert re.fullmatch(
            rf"install.sh: this torch is a build for CUDA {built_for}, .*ALLOW_CUDA=1\n", done.stderr
        )
        assert len(calls) == 1


@pytest.mark.parametrize("built_for", ["13.0", None, "the real one"])
def test_the_cuda_of_torch_is_read_without_its_libraries(tmp_path: Path, built_for: str | None) -> None:
    script = (DOCKER / "install.sh").read_text()
    begins = script.index("cuda_of_torch()")
    function = script[begins : script.index("\n}\n", begins) + 3]
    environment = dict(os.environ)
    expected = torch.version.cuda
    if built_for != "the real one":
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/__init__.py").write_text("raise OSError('libcudart.so.13: no such file')\n")
        (tmp_path / "torch/version.py").write_text(
            f"from typing import Optional\ncuda: Optional[str] = {built_for!r}\n"
        )
        environment["PYTHONPATH"], expected = str(tmp_path), built_for
    command = f"venv={sys.prefix}\n{function}\ncuda_of_torch"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{expected or ''}\n"


def test_only_the_cpu_image_refuses_a_build_for_cuda() -> None:
    allows = {name: "ALLOW_CUDA=1 " in " ".join(stages(DOCKER / name)[1][0].all("RUN")) for name in IMAGES}
    assert allows == {"Dockerfile": True, "Dockerfile.cpu": False}
    assert defaults(stages(DOCKER / "Dockerfile.cpu")[1][0].instructions)["ALLOW_CUDA"] == ""
    for page in ("docs/start/install.md", "docs/guides/large_machines.md"):
        (command,) = re.findall(
            r"^ *(docker build .*Dockerfile\.cpu .*)", (ROOT / page).read_text(), re.MULTILINE
        )
        assert '--build-arg TORCH_INDEX="$TORCH_INDEX"' in command, page


def test_what_builds_wheels_is_locked() -> None:
    script = (DOCKER / "install.sh").read_text()
    (builders,) = re.findall(r'^BUILDERS="([^"]+)"', script, re.MULTILINE)
    assert {*builders.split(), "deepspeed"} <= set(entries())


def test_the_scripts_awk_splits_the_lock(tmp_path: Path) -> None:
    """`entries` of install.sh, by name, with all their hashes."""
    script = (DOCKER / "install.sh").read_text()
    function = script[script.index("entries()") : script.index("\n}\n", script.index("entries()")) + 3]
    lock = DOCKER / "requirements.lock"

    def chosen(want: str) -> str:
        command = f'lock={lock}\n{function}\nentries {want} "pip setuptools deepspeed"'
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout

    def names(text: str) -> set[str]:
        return set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))

    inside, outside = chosen("yes"), chosen("no")
    assert names(inside) == {"pip", "setuptools", "deepspeed"}
    assert names(inside) | names(outside) == set(entries())
    assert not names(inside) & names(outside)
    hashes = lock.read_text().count("--hash=")
    assert inside.count("--hash=") + outside.count("--hash=") == hashes


def test_two_nodes_of_compose_are_one_world() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    services = compose["services"]
    nodes = [services[name] for name in ("node-0", "node-1")]
    worlds = [World.from_environment(node["environment"]) for node in nodes]
    assert [(w.rank, w.size, w.node, w.local_rank, w.local_size) for w in worlds] == [
        (0, 2, 0, 0, 1),
        (1, 2, 1, 0, 1),
    ]
    assert {w.address for w in worlds} == {"node-0"}
    assert nodes[0]["command"] == nodes[1]["command"]
    verb, recipe, *overrides = with_defaults(nodes[0]["command"])
    config = load_config(recipe, overrides)
    assert (verb, recipe, config.run.dir) == ("train", "demo", nodes[0]["environment"]["HEALTH_RUN"])
    for name in ("vocab", "prepare"):
        assert with_defaults(services[name]["command"]) == [name, recipe]
    assert {name for name, s in services.items() if "build" in s} == set(services) - {"wandb"}
    for service in services.values():
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"]
        assert service["profiles"], "nothing starts unasked"
    assert services["wandb"]["ports"] == ["127.0.0.1:8080:8080"], "for this machine only"


def with_defaults(words: list[str]) -> list[str]:
    """As compose fills them in where the environment says nothing."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in words]


def test_the_build_context_is_what_a_wheel_is_built_from() -> None:
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / path).exists() for path in let_in)
    copied = {
        word
        for name in IMAGES
        for stage in stages(DOCKER / name)[1]
        for text in stage.all("COPY")
        for word in text.split()[:-1]
        if not word.startswith("--") and word not in (".", "/opt/maskmill")
    }
    packages = {"launch", "pretrain", "data_pipeline", "slurm"}  # slurm: the wheel's batch scripts
    assert copied | packages | {"pyproject.toml", "README.md", "LICENSE", "maskmill.py"} == let_in


def test_the_guide_says_what_there_is() -> None:
    """Its build arguments are the Dockerfiles', and its commands can be read."""
    text = (ROOT / "docs/guides/large_machines.md").read_text()
    told = {
        name for row in re.findall(r"^\|((?: `[A-Z_]+`,?)+) \|", text, re.MULTILINE) for name in row.split()
    }
    arguments: set[str] = set()
    for name in IMAGES:
        before, found = stages(DOCKER / name)
        arguments |= set(defaults(before)).union(*(defaults(stage.instructions) for stage in found))
    assert {name.strip("`,") for name in told} == arguments
    commands = re.findall(
        r"^.*?\bmaskmill(?::cpu)? +((?:vocab|prepare|plan|train) .+)$", joined(text), re.MULTILINE
    )
    shipped = [words for command in commands if (words := shlex.split(command, comments=True))[1] != "RECIPE"]
    assert len(shipped) > 8
    for _, recipe, *rest in shipped:
        settings = itertools.takewhile(lambda word: not word.startswith("--"), rest)  # options come last
        load_config(recipe, list(settings))


def joined(text: str) -> str:
    """With the lines that a backslash continues in one."""
    return re.sub(r" *\\\n *", " ", text)

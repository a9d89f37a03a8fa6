"""The arrows and the one-door rule: who may import whom."""

import ast
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERBS = ROOT / "launch" / "verbs"
PACKAGES = ("data_pipeline", "pretrain", "launch")

DOORS = {
    "webdataset": {"data_pipeline/shards/writer.py"},
    "deepspeed": {"pretrain/distributed/deepspeed_config.py", "pretrain/distributed/partition_map.py"},
    "wandb": {"pretrain/monitoring/wandb/connection.py"},
    "wandb_workspaces": {"pretrain/monitoring/wandb/dashboard.py"},
    "typer": {"launch/app.py", "launch/cli.py", *(f"launch/verbs/{p.name}" for p in VERBS.glob("*.py"))},
    "triton": {"pretrain/optim/lamb_triton.py"},
    "dask": {"data_pipeline/stages/dask_workers.py"},
    "distributed": {"data_pipeline/stages/dask_workers.py"},
    "dask_jobqueue": {"data_pipeline/stages/dask_workers.py"},
    "numba": {
        "data_pipeline/compiled/jit.py",
        "data_pipeline/compiled/intrinsics.py",
        "data_pipeline/sequences/random_reads.py",
    },
    "xxhash": {"data_pipeline/shards/writer.py"},
    "huggingface_hub": {"pretrain/export/hub.py"},
    "sentencepiece": {"data_pipeline/vocabulary/train.py"},
}


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("data_pipeline", {"pretrain", "launch", "torch", "deepspeed", "transformers"}),
        ("pretrain", {"launch"}),
    ],
)
def test_data_flows_one_way(package: str, forbidden: set[str]) -> None:
    offenders = {str(p.relative_to(ROOT)): imports(p) & forbidden for p in sources(package)}
    assert {path: names for path, names in offenders.items() if names} == {}


def test_each_engine_has_one_door() -> None:
    for library, doors in DOORS.items():
        users = {
            str(p.relative_to(ROOT))
            for package in PACKAGES
            for p in sources(package)
            if library in imports(p)
        }
        assert users <= doors, f"{library} is imported in {sorted(users - doors)}"


def test_the_mill_runs_without_torch() -> None:
    code = (
        "import sys; import data_pipeline.prepare, data_pipeline.loader.loader;"
        "sys.exit(bool({'torch', 'wandb', 'distributed'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_top_level_is_the_owners() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {line.split("/")[0] for line in tracked.splitlines() if "/" in line}
    assert folders <= {*PACKAGES, "tests", "docker", "slurm", "docs", ".ci", ".github"}


def test_nothing_pulls_another_torch() -> None:
    """Requirements that name torch must admit the installed one, or installing them would replace it."""
    import importlib.metadata as metadata

    from packaging.requirements import Requirement

    installed = metadata.version("torch")
    names = [re.split(r"[ ;<>=!~\[(]", requirement)[0] for requirement in requires("maskmill") or []]
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            needed = requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform, or an extra that is not installed
        for text in needed:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            if requirement.name == "torch":
                assert requirement.specifier.contains(installed, prereleases=True), f"{name} needs {text}"
            names.append(requirement.name)
    assert {"deepspeed", "transformers", "webdataset"} <= seen
    assert not {"torchvision", "torchaudio"} & seen


@pytest.mark.parametrize(
    "name",
    ["safe_get_", "safe_set_", "_hp_mapping", "universal_checkpoint", "groups_padding", "prescale_gradients"],
)
def test_what_deepspeed_gets_wrong_is_not_used(name: str) -> None:
    """Its own ways to fragments, states and checkpoints by name are wrong at some stages, silently."""
    users = [str(path) for path in sources("pretrain") if re.search(rf"\b{name}", path.read_text())]
    assert users == []

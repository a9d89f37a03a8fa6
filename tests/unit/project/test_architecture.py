"""Check what each folder imports, and that each outside library has one place."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERBS = ROOT / "launch" / "verbs"
PACKAGES = ("data_pipeline", "pretrain", "launch")

PLACES = {
    "webdataset": {"data_pipeline/shards/shard.py"},
    "deepspeed": {"pretrain/distributed/deepspeed_patches.py"},
    "wandb": {"pretrain/monitoring/wandb_run.py"},
    "tensorboardX": {"pretrain/monitoring/tensorboard.py"},
    "wandb_workspaces": {"pretrain/monitoring/wandb_dashboard.py"},
    "typer": {"launch/app.py", "launch/cli.py", *(f"launch/verbs/{p.name}" for p in VERBS.glob("*.py"))},
    "triton": {"pretrain/optim/lamb_triton.py"},
    "dask": {"data_pipeline/stages/executors.py"},
    "distributed": {"data_pipeline/stages/executors.py"},
    "dask_jobqueue": {"data_pipeline/stages/executors.py"},
    "numba": {"data_pipeline/jit.py", "data_pipeline/sequences/base.py"},
    "xxhash": {"data_pipeline/shards/shard.py"},
    "huggingface_hub": {"pretrain/export/hub.py"},
    "sentencepiece": {"data_pipeline/vocabulary/train.py"},
    "sklearn": {"pretrain/tasks/metrics.py"},
    "scipy": {"pretrain/tasks/metrics.py", "pretrain/studies/compare.py"},
    "udtools": {"pretrain/tasks/metrics.py"},
    "ufal": {"pretrain/tasks/dependencies.py"},
    "seqeval": {"pretrain/tasks/metrics.py"},
    "llvmlite": {"data_pipeline/jit.py"},
    "sentencex": {"data_pipeline/tokenize/sentences.py"},
    "zstandard": {"data_pipeline/io/decompress.py"},
    "pyarrow": {"data_pipeline/sources/tables.py"},
}

FLOORS = (
    "data_pipeline/errors",
    "data_pipeline/fields data_pipeline/io",
    "data_pipeline/jit data_pipeline/settings",
    "data_pipeline/records data_pipeline/rng",
    "data_pipeline/sources",
    "data_pipeline/vocabulary",
    "data_pipeline/sequences data_pipeline/tokenize",
    "data_pipeline/masking",
    "data_pipeline/shards",
    "data_pipeline/loader data_pipeline/stages",
    "data_pipeline/prepare",
    "pretrain/config",
    "pretrain/model pretrain/optim",
    "pretrain/distributed",
    "pretrain/run",
    "pretrain/checkpoint pretrain/huggingface",
    "pretrain/objectives",
    "pretrain/preflight",
    "pretrain/export",
    "pretrain/report pretrain/tasks",
    "pretrain/evaluate pretrain/studies",
    "pretrain/training",
    "pretrain/monitoring",
    "pretrain/train",
    "launch/progress launch/ranks launch/recipes",
    "launch/doctor launch/jobs launch/recipe",
    "launch/completion launch/slurm launch/studies",
    "launch/app",
    "launch/inspection",
    "launch/verbs",
    "launch/cli",
)
"""The folders of the packages, and the modules beside them: each imports only what is on a line above its own."""

SMALL = {
    "data_pipeline/vocabulary/extend.py": "loads tokenizers, which new_words.py does without",
    "launch/inspection.py": "loads what its verb needs only when it is called",
    "launch/verbs/slurm.py": "a verb, as the modules beside it",
    "pretrain/studies/segment_edits.py": "changes models; the other modules of the folder read results",
}
"""Modules of less than 100 lines with one importer, and why each is a module of its own."""


@cache
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


def test_each_outside_library_is_imported_in_one_place() -> None:
    for library, places in PLACES.items():
        users = {
            str(p.relative_to(ROOT))
            for package in PACKAGES
            for p in sources(package)
            if library in imports(p)
        }
        assert users <= places, f"{library} is imported in {sorted(users - places)}"


LOADERS = {"pretrain/huggingface/load.py"}
"""Modules that load models and tokenizers of folders through transformers."""
LOADING = re.compile(r"^(Auto|pipeline$|CONFIG_MAPPING$|TOKENIZER_MAPPING$|\*$)")


def loaders(path: Path) -> set[str]:
    """How a module could load any folder: what it takes of transformers, its loaders and itself apart from types, and
    the calls of `from_pretrained`, `pipeline` and of the classes of a name."""
    tree = ast.parse(path.read_text())
    skipped, found = types_only(tree), set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("transformers", "peft"):
            found |= {alias.name for alias in node.names if LOADING.match(alias.name)}
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("pipeline", "transformers.pipeline", "from_pretrained") or (
                name.endswith((".from_pretrained", ".from_config", ".load_adapter"))
                and not name.startswith(("nn.Embedding", "FewRows"))
            ):
                found.add(name)
            if name == "getattr" and ast.unparse(node.args[0]) == "transformers":
                found.add("getattr(transformers)")
    return found


def test_models_and_tokenizers_are_loaded_through_one_module() -> None:
    """Which takes safetensors alone, runs no code of a folder, and raises one line."""
    users = {
        str(path.relative_to(ROOT)) for package in PACKAGES for path in sources(package) if loaders(path)
    }
    assert users == LOADERS


@pytest.mark.parametrize(
    "source",
    [
        "from transformers import AutoModel", "from transformers import pipeline", "from peft import AutoPeftModel",
        "transformers.AutoTokenizer.from_pretrained(x)", "BertModel.from_pretrained(x)", "pipeline('fill-mask')",
        "getattr(transformers, name)(x)", "transformers.pipeline(x)", "AutoModel.from_config(x)",
    ],
)  # fmt: skip
def test_the_scan_sees_loaders(source: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(source)
    assert loaders(tmp_path / "module.py")


def test_the_data_pipeline_runs_without_torch() -> None:
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


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sources(package):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def types_only(tree: ast.AST) -> set[ast.AST]:
    """What is under `if TYPE_CHECKING`: never imported when the program runs."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    return {node for block in blocks for statement in block.body for node in ast.walk(statement)}


@cache
def imported(*, types: bool = False) -> dict[str, set[str]]:
    """Each module with the modules of ours that it imports, at its top or inside a function; with `types` those under
    TYPE_CHECKING too."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        skipped, found = set() if types else types_only(tree), set()
        for node in ast.walk(tree):
            if node in skipped:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                submodules = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
                found |= submodules
                if len(submodules) < len(node.names):
                    found.add(node.module)
        graph[name] = (found & known.keys()) - {name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle of imports, in order; empty where there is none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := walk(name, []))), [])


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle(imported()) == []


def folder(module: str) -> str:
    """The folder of a package that a module is in, or the module beside the folders."""
    return "/".join(module.split(".")[:2])


def test_each_folder_imports_only_those_above_it() -> None:
    """So no two import each other; not even for annotations."""
    level = {name: number for number, line in enumerate(FLOORS) for name in line.split()}
    graph = imported(types=True)
    here = {folder(name) for name in graph if "." in name}
    assert here == set(level)
    wrong = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if folder(name) != folder(other)
        and level.get(folder(other), -1) >= level.get(folder(name), len(FLOORS))
    ]
    assert wrong == []


def test_no_module_is_deeper_than_three_levels() -> None:
    deep = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sources(package)
        if len(path.relative_to(ROOT).parts) > 3
    ]
    assert deep == []


def test_a_small_module_has_several_users_or_a_reason() -> None:
    graph, known = imported(types=True), modules()
    users = {name: sum(name in others for others in graph.values()) for name in known}
    small = {
        str(path.relative_to(ROOT))
        for name, path in known.items()
        if path.name != "__init__.py" and users[name] == 1 and len(path.read_text().splitlines()) < 100
    }
    assert small == set(SMALL)

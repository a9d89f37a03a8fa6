"""What a command imports: the light ones must not wait for libraries that they do not use."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environ

TRAINING = {"torch", "deepspeed", "transformers", "tokenizers", "triton", "wandb", "safetensors"}
DATA = {"numba", "llvmlite", "pyarrow", "pandas", "fsspec", "webdataset", "dask", "scipy"}
RECIPES = {"numpy", "omegaconf", "yaml"}
"""What it takes to read a recipe, too, is nothing that help or completion needs."""

COMPILER = {"torch._dynamo", "torch._inductor", "sympy", "networkx", "jinja2"}
"""torch.compile, two seconds and more that only a compiled run needs."""

HUGGING_FACE = {"transformers", "tokenizers", "huggingface_hub"}

RUN = r"""
import sys
from launch.cli import main
code = 0
for line in "\0".join(sys.argv[1:]).split("\0+\0"):
    sys.argv = ["maskmill", *filter(None, line.split("\0"))]
    try:
        main()
    except SystemExit as ended:
        code = code or ended.code or 0
print(*sys.modules, sep="\n", file=sys.stderr)
raise SystemExit(code)
"""


def imported_by(*arguments: str, code: int = 0, **variables: str) -> tuple[str, set[str]]:
    """The output of `maskmill ARGUMENTS`, and the modules that its process has imported. A + among them begins another
    command line, for the same process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *arguments],
        env=environ(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    modules = set(done.stderr.split())
    assert "launch.cli" in modules  # it is a list of names
    return done.stdout, modules


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["plan", "--help"]])
def test_help_imports_no_library_but_the_command_lines(arguments: list[str]) -> None:
    output, modules = imported_by(*arguments)
    assert "Usage: maskmill" in output
    assert modules & (TRAINING | DATA | RECIPES | {"rich.table"}) == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("maskmill tr", "train"),
        ("maskmill train bert_b", "bert_base"),
        ("maskmill train demo train.precision=b", "bf16"),
        ("maskmill settings encoder.hid", "encoder.hidden"),
        ("maskmill plan demo --gpu h2", "h200"),
    ],
)
def test_completion_imports_no_library_but_the_command_lines(line: str, found: str) -> None:
    variables = {
        "_MASKMILL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    output, modules = imported_by(**variables)
    assert found in output.split("\n")[0]
    assert modules & (TRAINING | DATA | RECIPES) == set()


def test_settings_reads_a_recipe_only_where_one_is_named() -> None:
    output, modules = imported_by("settings", "train.steps")
    assert "train.steps = 1000" in output
    assert modules & (TRAINING | DATA | RECIPES) == set()
    output, modules = imported_by("settings", "train.steps", "--recipe", "demo", "train.steps=7")
    assert "train.steps = 7" in output
    assert modules & (TRAINING | DATA | {"numpy"}) == set()


@pytest.mark.parametrize("named", ["by its folder", "by its recipe"])
def test_status_imports_nothing_of_training(tmp_path: Path, named: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 2.5}\n')
    source = [str(tmp_path)] if named == "by its folder" else ["demo", f"run.dir={tmp_path}"]
    output, modules = imported_by("status", *source)
    assert "2.5" in output
    assert modules & (TRAINING | DATA | {"numpy"}) == set()


def test_doctor_tries_torch_in_another_process_only(tmp_path: Path) -> None:
    _, modules = imported_by("doctor", str(tmp_path))
    assert modules & (TRAINING | DATA | RECIPES) == set()


def test_plan_imports_torch_and_nothing_of_data_or_export() -> None:
    output, modules = imported_by("plan", "bert_tiny", "--nodes", "2")
    assert "H100" in output
    assert modules & (DATA | HUGGING_FACE | {"deepspeed", "wandb"}) == set()


@pytest.mark.slow
def test_plan_imports_torch_compile_once_for_a_model(tmp_path: Path) -> None:
    """torch needs it to count what a pass takes; the counts are kept."""
    imported = [
        imported_by("plan", "bert_tiny", *more, XDG_CACHE_HOME=str(tmp_path))[1] & COMPILER
        for more in ((), ("--nodes", "2", "train.micro_batch=8"), ("encoder.layers=3",))
    ]
    assert "torch._dynamo" in imported[0]
    assert imported[1] == set()
    assert "torch._dynamo" in imported[2]


def test_export_refuses_a_folder_that_is_there_before_it_imports_anything(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    _, modules = imported_by("export", str(tmp_path), "--out", str(tmp_path), code=2)
    assert modules & (TRAINING | DATA) == set()


@pytest.mark.slow
def test_export_imports_nothing_that_only_training_needs() -> None:
    code = "import sys, pretrain.export.export, pretrain.monitoring.wandb_run; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environ(), capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    assert "transformers" in modules
    assert modules & {"deepspeed", "wandb", "webdataset", "dask", "pyarrow.dataset"} == set()
    ours = {
        "pretrain.train",
        "pretrain.distributed.engine",
        "data_pipeline.loader.loader",
        "data_pipeline.prepare",
    }
    assert modules & ours == set()


@pytest.mark.slow
def test_a_rank_trains_without_torch_compile(tiny: list[str], tmp_path: Path) -> None:
    """torch and DeepSpeed import it at many a call, whether or not anything is compiled."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    runs = []
    for number, settings in enumerate((["zero.stage=1"], ["zero.stage=0", "optim.name=adamw"])):
        settings = [*tiny, "train.steps=1", *settings, f"run.dir={tmp_path}/{number}"]
        runs += [*(["+"] if runs else []), "train", "demo", *settings]
    output, modules = imported_by(*runs, **rank)
    assert output.count("step 1/1") == 2
    assert modules & (COMPILER | {"transformers", "wandb", "pandas", "dask"}) == set()

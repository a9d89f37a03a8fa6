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

HUGGING_FACE = {"transformers", "tokenizers", "huggingface_hub"}

RUN = """
import sys
from launch.cli import main
sys.argv = ["maskmill", *sys.argv[1:]]
code = 0
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
print(*sys.modules, sep="\\n", file=sys.stderr)
raise SystemExit(code)
"""


def imported_by(*arguments: str, **variables: str) -> tuple[str, set[str]]:
    """The output of `maskmill ARGUMENTS`, and the modules that its process has imported."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *arguments],
        env=environ(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["plan", "--help"]])
def test_help_imports_no_library_but_the_command_lines(arguments: list[str]) -> None:
    output, modules = imported_by(*arguments)
    assert "Usage: maskmill" in output
    assert modules & (TRAINING | DATA | RECIPES) == set()


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
    assert modules & (TRAINING | DATA) == set()


@pytest.mark.parametrize("named", ["by its folder", "by its recipe"])
def test_status_imports_nothing_of_training(tmp_path: Path, named: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "loss": 2.5}\n')
    source = [str(tmp_path)] if named == "by its folder" else ["demo", f"run.dir={tmp_path}"]
    output, modules = imported_by("status", *source)
    assert "2.5" in output
    assert modules & (TRAINING | DATA) == set()


def test_doctor_tries_torch_in_another_process_only(tmp_path: Path) -> None:
    _, modules = imported_by("doctor", str(tmp_path))
    assert modules & (TRAINING | DATA | RECIPES) == set()


def test_plan_imports_torch_and_nothing_of_data_or_export() -> None:
    output, modules = imported_by("plan", "bert_tiny", "--nodes", "2")
    assert "H100" in output
    assert modules & (DATA | HUGGING_FACE | {"deepspeed", "wandb"}) == set()


def test_export_imports_nothing_that_only_training_needs() -> None:
    code = "import sys, pretrain.export.export_run, pretrain.monitoring.wandb.artifacts; print(*sys.modules)"
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


def test_a_model_without_values_is_built_without_torch_compile() -> None:
    """The draw of nn.Embedding itself would import it, which takes more than a second."""
    code = """
import sys
import torch
from pretrain.config.settings import RunConfig
from pretrain.model.encoder import Encoder
with torch.device(sys.argv[1]):
    Encoder(RunConfig().encoder, 100)
sys.exit("torch._dynamo" in sys.modules)
"""
    for device in ("meta", "cpu"):
        done = subprocess.run([sys.executable, "-P", "-c", code, device], env=environ(), check=False)
        assert done.returncode == 0, device

"""Fill a folder with all that a machine without a network needs for day.py: wheels, and shards with their vocabularies.

    python -m tests.gpu_day.carry [--out build/gpu_day] [--source TEXT] [--tasks FOLDER] [--texts FOLDER]

Refuses to leave more than 64 MiB, or more than 45 MB of shards.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.command_line import ROOT, command, environ
from tests.gpu_day.members import prepare_members

PURE = "deepspeed hjson py-cpuinfo seqeval udtools".split()  # noqa: SIM905
"""Packages whose wheel fits any machine; some are built here, since there is only source to be had. This one comes too,
for its version."""
COMPILED = """pydantic pydantic-core annotated-types typing-inspection webdataset braceexpand omegaconf zstandard xxhash
typer annotated-doc rich shellingham einops msgpack psutil pytest pluggy iniconfig hypothesis sortedcontainers
fsspec sentencex ufal.chu-liu-edmonds""".split()  # noqa: SIM905
"""Packages as they are published for the other Python. What training needs and a CUDA image of torch may lack."""
IMAGE = """torch triton numpy numba llvmlite safetensors tokenizers packaging tqdm pyyaml sympy typing-extensions ninja
huggingface-hub pyarrow markdown-it-py pygments attrs setuptools""".split()  # noqa: SIM905
"""What a CUDA image of torch has."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
LIMIT, SHARDS_LIMIT = 64 * 2**20, 45_000_000
SHORT = ("data.sequence_length=64", "data.masked_lm_prob=0.25", "data.max_predictions=0")
LONG = ("data.sequence_length=512", "encoder.max_positions=512", "data.max_predictions=0")
WORDS = 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu_day")
    parser.add_argument("--source", default="", help="the text; default: the demo's")
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    for name, what in (("tasks", "files of tasks"), ("texts", "files named by language")):
        parser.add_argument(f"--{name}", type=Path, help=f"a folder with {what}, for studies that read them")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    fetch_wheels(arguments.out / "wheels", arguments.python)
    prepare(arguments.out, arguments.source)
    prepare_members(arguments.out / "members", maskmill)
    for name in ("tasks", "texts"):
        if folder := getattr(arguments, name):
            shutil.copytree(folder, arguments.out / name)
    whole = size(arguments.out)
    shards = whole - size(arguments.out / "wheels")
    print(f"{arguments.out}: {whole / 2**20:.1f} MiB, of it {shards / 1e6:.1f} MB shards")
    if whole > LIMIT or shards > SHARDS_LIMIT:
        raise SystemExit(
            f"more than {LIMIT >> 20} MiB, or {SHARDS_LIMIT / 1e6:.0f} MB of shards: take less text"
        )


def fetch_wheels(folder: Path, python: str) -> None:
    """Download or build the wheels, each without what it depends on, in the versions of this environment: they work
    together, and pyproject.toml allows them."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms]
    built = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT), *pinned(PURE)]
    published = [*pip, "download", "--no-deps", "--dest", str(folder), *target, *pinned(COMPILED)]
    for each in (built, published):
        subprocess.run(each, check=True)


def pinned(names: list[str]) -> list[str]:
    """Return packages with the versions that are installed here. Raises SystemExit where one is not."""
    try:
        return [f"{name}=={version(name)}" for name in names]
    except PackageNotFoundError as error:
        raise SystemExit(
            f"{error.name}: is not installed here (expected: all that `make env` brings)"
        ) from None


def prepare(out: Path, source: str) -> None:
    """Learn a vocabulary and write the shards of both lengths, the long ones of the demo's text."""
    text = [f"data.sources={Path(source).resolve()}"] if source else []
    with tempfile.TemporaryDirectory() as scratch:
        common = [f"data.vocab={scratch}/vocabulary", f"vocabulary.size={WORDS}"]
        recipe = "bert_mini" if source else "demo"
        maskmill("vocab", recipe, *text, *common)
        maskmill("prepare", recipe, *text, *common, f"data.out={out}/short", *SHORT)
        maskmill("prepare", "demo", *common, f"data.out={out}/long", "data.dupe_factor=1", *LONG)


def maskmill(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*arguments), env=environ(), check=True, text=True)


def size(folder: Path) -> int:
    """Bytes of all files in the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()

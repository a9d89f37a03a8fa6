"""What travels to a machine with a GPU is all that training imports there; and what comes back is read."""

import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from pretrain.preflight import gpus
from tests.command_line import ROOT, Maskmill, environ, setting
from tests.factories.tasks import write_pairs
from tests.gpu_day import bring_home, day, parts, runs, stages
from tests.gpu_day.carry import COMPILED, IMAGE, PURE

pytestmark = pytest.mark.slow

OPTIONAL = {"maskmill", "scipy", "cffi", "pycparser", "colorama", "charset-normalizer"}
"""Imported where they are installed, by packages that do without them."""
OURS = {"data_pipeline", "pretrain", "launch"}
LIST_IMPORTS = """
import sys
from launch.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_a_run_imports_what_is_carried_or_in_the_image(tiny: list[str], tmp_path: Path) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    settings = [*tiny, "train.steps=2", f"run.dir={tmp_path}/run", "monitor.tracker=jsonl"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIST_IMPORTS, "train", "demo", *settings],
        env=environ(**rank),
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stderr.splitlines()[-1].split()) - sys.stdlib_module_names - OURS
    packages = packages_distributions()
    needed = {package.lower().replace("_", "-") for name in modules for package in packages.get(name, ())}
    there = {package.partition("==")[0] for package in (*PURE, *COMPILED, *IMAGE)}
    assert "torch" in needed
    assert "deepspeed" in needed
    assert needed - there == OPTIONAL & needed


def bench_case(row: str, engine: str, deterministic: str, utilisation: float) -> dict[str, Any]:
    speeds = {"examples_per_second": 1650.4, "step_seconds": 0.31, "utilisation": utilisation}
    memory = {"peak_bytes": 20_000_000_000, "planned_bytes": 19_000_000_000}
    kind = {"row": row, "engine": engine, "deterministic": deterministic}
    return {**kind, **speeds, **memory}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """What a day leaves."""
    folder = tmp_path / "out"
    folder.mkdir()
    cases = [bench_case("large-128", engine, d, s) for engine, d, s in BENCH]
    results = {
        "machine": {
            "gpu": "NVIDIA H100 80GB HBM3",
            "torch": "2.11.0",
            "python": "3.12.3",
            "deepspeed": "0.19",
            "date": "2026-01-01",
        },
        "parts": {
            "tests": {"status": "done", "seconds": 80.2, "figures": {"passed": 13, "failed": []}},
            "bench": {"status": "cut short", "seconds": 570.0, "figures": {"rows": cases}},
            "peers": {
                "status": "done",
                "seconds": 60.0,
                "figures": {
                    "rows": [
                        {
                            "row": "large-512",
                            "attention": "sdpa",
                            "micro_batch": 32,
                            "examples_per_second": 301.4,
                            "step_seconds": 0.4,
                            "peak_bytes": 30_000_000_000,
                        }
                    ]
                },
            },
            "lamb": {"status": "no time left", "seconds": 0.0, "figures": {}},
        },
    }
    (folder / "results.json").write_text(json.dumps(results))
    return folder


BENCH = [("deepspeed", "on", 0.4321), ("deepspeed", "off", 0.5), ("plain", "on", 0.6)]


def come_home(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["bring_home", *map(str, arguments)])
    bring_home.main()


def test_rows_and_calibration(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(gpus.__file__, tmp_path / "gpus.py")
    come_home(monkeypatch, out, f"--calibrated={tmp_path}/gpus.py")
    printed = capsys.readouterr().out
    assert "NVIDIA H100 80GB HBM3, Python 3.12.3, torch 2.11.0, DeepSpeed 0.19, 2026-01-01" in printed
    assert "| tests | done | 80 | passed 13 |" in printed
    assert "| large-128 | deepspeed | on | 1,650 | 43.2% | 20.00 GB | 1.053 |" in printed
    assert "| large-512 | sdpa | 32 | 301 | 30.00 GB |" in printed
    assert "| lamb |" not in printed
    names: dict[str, Any] = {"__name__": "copied"}
    exec((tmp_path / "gpus.py").read_text(), names)
    assert names["CALIBRATED"] == {**gpus.CALIBRATED, "H100 80 GB": 0.432}


def test_the_trained_run_comes_back_whole(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mini"
    (run / "export").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("x" * 50_000)
    with tarfile.open(tmp_path / "mini.tar", "w") as archive:
        archive.add(run, "mini")
    packed = (tmp_path / "mini.tar").read_bytes()
    for number in range(12):  # more than nine: 10 comes after 9, not after 1
        (out / f"mini.tar.{number}").write_bytes(packed[number * 5000 : (number + 1) * 5000])
    (out / "mini.tar.11").write_bytes(packed[55_000:])
    shutil.copy(gpus.__file__, tmp_path / "gpus.py")
    come_home(monkeypatch, out, f"--runs={tmp_path}/runs", f"--calibrated={tmp_path}/gpus.py")
    assert (tmp_path / "runs/mini/metrics.jsonl").read_text() == "x" * 50_000
    (command,) = commands_in(capsys.readouterr().out)
    assert command[:3] == ["maskmill", "evaluate", f"{tmp_path}/runs/mini"]


def commands_in(printed: str) -> list[list[str]]:
    """The command lines for the trained run, in words."""
    lines = printed.partition("the run:\n")[2].splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_a_run_that_was_not_exported_there_is_exported_and_scored_here(
    tiny: list[str],
    maskmill: Maskmill,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the commands that are printed, from a machine without transformers, whose shards lay in another folder."""
    hidden, there, here = tmp_path / "hidden", tmp_path / "there", tmp_path / "here"
    (hidden / "transformers").mkdir(parents=True)
    (hidden / "transformers/__init__.py").write_text("raise ImportError('transformers')")
    shutil.copytree(setting(tiny, "data.out"), there / "short")
    without = environ(PYTHONPATH=f"{hidden}:{ROOT}")
    soon = time.monotonic() + 300
    given = runs.Day(out, there, without, tiny=True, ends=soon, part_ends=soon)
    parts.PARTS["mini"].work(given, {})
    there.rename(here)
    shutil.copy(gpus.__file__, tmp_path / "gpus.py")
    come_home(
        monkeypatch,
        *(out, f"--runs={tmp_path}/runs", f"--carried={here}", f"--calibrated={tmp_path}/gpus.py"),
    )
    export, evaluate = commands_in(capsys.readouterr().out)
    maskmill(*export[1:])
    write_pairs(tmp_path / "blimp")
    scored = maskmill(*evaluate[1:], cwd=tmp_path)
    assert "blimp  accuracy" in scored.stdout


def test_results_of_two_machines_are_not_one_table(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(out, other)
    results = json.loads((other / "results.json").read_text())
    results["machine"]["gpu"] = "NVIDIA H200"
    (other / "results.json").write_text(json.dumps(results))
    with pytest.raises(SystemExit, match="different machines"):
        come_home(monkeypatch, out, other)


def test_without_a_gpu_it_says_so_and_lists_its_parts(tmp_path: Path) -> None:
    script = str(ROOT / "tests/gpu_day/day.py")
    listed = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [
        "tests",
        "twice",
        "resume",
        "family",
        "stages",
        "ranks",
        "bench",
        "peers",
        "lamb",
        "mini",
        "studies",
    ]
    nothing = [str(tmp_path / "out"), f"--carried={tmp_path}"]
    refused = subprocess.run([sys.executable, script, *nothing], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "no GPU that torch sees" in refused.stderr


def test_a_part_that_breaks_does_not_stop_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(day: runs.Day, figures: dict[str, Any]) -> None:
        figures["before"] = 1
        raise FileNotFoundError("latest")

    monkeypatch.setitem(parts.PARTS, "twice", parts.Part(broken, 60.0))
    given = runs.Day(tmp_path, tmp_path, {}, tiny=True, ends=time.monotonic() + 60)
    found = day.outcome("twice", given)
    assert (found["status"], found["figures"]) == ("failed: FileNotFoundError: latest", {"before": 1})


def test_a_command_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    soon = time.monotonic() + 60
    given = runs.Day(tmp_path, tmp_path, {}, tiny=True, ends=soon, part_ends=soon)
    with pytest.raises(runs.Failed, match=r"exit code 2 .*: no room"):
        given.python("-c", "import sys; print('first'); print('no room'); sys.exit(2)")


def test_studies_run_side_by_side_as_far_as_they_can(tiny: list[str], tmp_path: Path) -> None:
    """What was measured comes back; a study that fails does not stop the other, one whose files were not carried is
    not begun."""
    given_of = dict(each.split("=", 1) for each in [*tiny, "train.steps=2", "run.ranks=1"])
    settings = "\n".join(f"  {key}: {value}" for key, value in given_of.items())
    head = f"title: T\nquestion: Q?\nrecipe: demo\nsettings:\n{settings}\n"
    (tmp_path / "one.yaml").write_text(head + "arms: {a: {}, b: {settings: {optim.lr: 1e-3}}}\n")
    (tmp_path / "other.yaml").write_text(head + "arms: {a: {settings: {no.such: 1}}}\n")
    soon = time.monotonic() + 300
    names = (str(tmp_path / "one.yaml"), str(tmp_path / "other.yaml"), "languages")
    given = runs.Day(tmp_path, tmp_path, environ(), tiny=True, ends=soon, part_ends=soon, studies=names)
    figures: dict[str, Any] = {}
    with pytest.raises(runs.Failed, match=r"^other$"):
        parts.PARTS["studies"].work(given, figures)
    assert figures == {"one": "done, 2 runs", "other": "failed, 0 runs"}
    assert (tmp_path / "studies/one/README.md").is_file()
    assert not (tmp_path / "studies/one/runs").exists()


def test_stages_and_ranks_end_on_a_cpu(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of the parts, of two GPUs as two processes. fp16 is for GPUs; the stages that differ most."""
    monkeypatch.setattr(stages, "KINDS", {"host": stages.KINDS["stage 3 on the host"]})
    monkeypatch.setattr(stages, "MOVES", ((1, 3),))
    monkeypatch.setattr(stages, "STAGES", (3,))
    monkeypatch.setattr(stages, "COUNTS", (2,))
    (tmp_path / "members").mkdir()
    (tmp_path / "members/settings.json").write_text(json.dumps({"bert": tiny}))
    (tmp_path / "long").symlink_to(setting(tiny, "data.out"))
    soon = time.monotonic() + 600
    given = runs.Day(tmp_path, tmp_path, environ(), tiny=True, ends=soon, part_ends=soon, gpus=2)
    figures: dict[str, Any] = {}
    parts.PARTS["stages"].work(given, figures)
    assert figures == {"trained": 2, "failed": {}}
    figures = {}
    parts.PARTS["ranks"].work(given, figures)
    assert len(figures["stage 3"]) == 64
    assert figures["examples/s, 2"] > 0

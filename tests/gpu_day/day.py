"""Measure what a GPU shows, part by part, on a machine without a network.

    python tests/gpu_day/day.py OUT [--carried build/gpu_day] [--minutes 35] [--parts tests bench ...] [--list]

Needs Python, a CUDA build of torch, and the folder that `make gpu-day` filled. Installs its wheels beside those of the
machine, then runs the parts in order of their worth. Each part's result is in OUT/results.json as soon as it ends, its
output in OUT/log.txt, beside those of earlier calls with the same OUT. A part that fails does not stop the next. Exits
with 1 if one has failed or had no time. With several GPUs take --minutes 45.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # a plain script, from any working directory

from tests.gpu_day import results  # noqa: E402
from tests.gpu_day.parts import PARTS  # noqa: E402
from tests.gpu_day.runs import Day, Failed, LeftOut, in_words  # noqa: E402

STUDIES = sorted(path.stem.replace("_", "-") for path in (ROOT / "launch/studies").glob("*.yaml"))
MINUTES = 35.0
LEFT_OUT = "left out"
LEAST = 20.0
"""Seconds under which no part is begun."""


def main() -> None:
    arguments = parse()
    if arguments.list:
        for name, part in PARTS.items():
            print(f"{name:8} at most {part.seconds / 60:.0f} minutes: {part.work.__doc__}")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    day = Day(
        out=arguments.out.resolve(),
        carried=arguments.carried.resolve(),
        environment=environment(arguments.carried.resolve(), arguments.out.resolve()),
        tiny=arguments.tiny,
        at_once=max(1, (os.cpu_count() or 1) // 2),
        ends=time.monotonic() + 60 * arguments.minutes,
        studies=tuple(arguments.studies),
    )
    all_parts = results.begun(day.out, machine(day))
    day.gpus = all_parts["machine"]["gpus"]
    here: dict[str, Any] = {}
    for name in arguments.parts:
        here[name] = outcome(name, day)
        results.merge(all_parts["parts"], {name: here[name]})
        results.write(day.out, all_parts)
        print(line(name, here[name]), flush=True)
    print("\n" + "\n".join(line(name, result) for name, result in here.items()))
    well = ("done", LEFT_OUT)
    sys.exit(any(not result["status"].startswith(well) for result in here.values()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("gpu_day"), help="where results go")
    parser.add_argument(
        "--carried", type=Path, default=ROOT / "build/gpu_day", help="what make gpu-day filled"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--studies", nargs="+", default=STUDIES, help="of the part of that name")
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument("--tiny", action="store_true", help="next to nothing of each: that it works")
    return parser.parse_args()


def environment(carried: Path, out: Path) -> dict[str, str]:
    """Install the carried wheels beside the machine's packages; return the variables under which they are found."""
    site = out.parent / f"{out.name}-site"
    wheels = sorted(carried.glob("wheels/*.whl"))
    names, noted = "\n".join(wheel.name for wheel in wheels), site / "wheels.txt"
    if wheels and not (noted.is_file() and noted.read_text() == names):
        shutil.rmtree(site, ignore_errors=True)  # of an earlier call, which had others, or which did not end
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", str(site), *map(str, wheels)], check=True)
        noted.write_text(names)
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "160",
    }


def machine(day: Day) -> dict[str, Any]:
    """Return the names and versions that every figure needs beside it, and the number of GPUs. Raises SystemExit if
    there is none."""
    code = (
        "import json, platform, torch; from importlib.metadata import version;"
        "print(json.dumps({'gpu': torch.cuda.get_device_name(0), 'gpus': torch.cuda.device_count(),"
        "'torch': torch.__version__,"
        "'deepspeed': version('deepspeed'), 'python': platform.python_version()}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=day.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"no GPU that torch sees, or no DeepSpeed:\n{done.stderr[-2000:]}")
    return {**json.loads(done.stdout.splitlines()[-1]), "date": time.strftime("%Y-%m-%d")}


def outcome(name: str, day: Day) -> dict[str, Any]:
    """Run a part; return its status, seconds and figures."""
    part, started = PARTS[name], time.monotonic()
    left = day.ends - started
    if left < LEAST:
        return {"status": results.NO_TIME, "seconds": 0.0, "figures": {}}
    figures: dict[str, Any] = {}
    results.clear(day.out, part.leaves)
    day.part_ends = started + (left if day.tiny else min(left, part.seconds))
    try:
        part.work(day, figures)
        status = "done"
    except subprocess.TimeoutExpired:
        status = "cut short"
    except LeftOut as lacking:
        status = f"{LEFT_OUT}: {lacking}"
    except Failed as failed:
        status = f"failed: {failed}"
    except Exception as error:  # of whatever kind: the parts after it still have their turn
        status = f"failed: {type(error).__name__}: {error}"
    return {"status": status, "seconds": round(time.monotonic() - started, 1), "figures": figures}


def line(name: str, result: dict[str, Any]) -> str:
    """Return a line of the table."""
    figures = in_words(result["figures"])
    return f"{name:8} {result['seconds']:6.0f} s  {result['status']}{': ' if figures else ''}{figures}"


if __name__ == "__main__":
    main()

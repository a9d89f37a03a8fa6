"""Make of what day.py left: rows for docs/evidence/benchmarks.md, the utilisation that plan uses, and the trained run.

    python -m tests.gpu_day.bring_home OUT [OUT ...] [--runs runs] [--carried build/gpu_day]

A part that several folders hold counts where it was done last. Prints Markdown; notes the utilisation in
pretrain/preflight/gpus.py; unpacks the run of `mini` and says how to score it. Where that run was not exported there,
its shards are looked for in the folder that `make gpu-day` filled.
"""

import argparse
import ast
import json
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from pretrain.preflight import gpus
from pretrain.run.files import CONFIG, EXPORT
from pretrain.run.folder import sealed_lines
from tests.benchmarks.studies import markdown
from tests.command_line import ROOT
from tests.gpu_day import results
from tests.gpu_day.runs import in_words

BLIMP = "blimp"
SHARDS = re.compile(r"^(  shards: ).*$", re.MULTILINE)
CALIBRATED = re.compile(r"^(CALIBRATED: dict\[str, float\] = )(\{.*\})$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trained run goes")
    parser.add_argument(
        "--carried", type=Path, default=ROOT / "build/gpu_day", help="what make gpu-day filled"
    )
    parser.add_argument("--calibrated", type=Path, default=Path(gpus.__file__), help="where it is noted")
    arguments = parser.parse_args()
    machine, parts = together(arguments.out)
    print(f"{named(machine)}, DeepSpeed {machine['deepspeed']}, {machine['date']}\n")
    print(markdown(["part", "result", "seconds", "figures"], rows(parts)) + "\n")
    if measured := parts.get("bench", {}).get("figures", {}).get("rows"):
        print(markdown(BENCH_HEAD, bench_rows(measured)) + "\n")
        print(calibrate(machine["gpu"], measured, arguments.calibrated))
    if measured := parts.get("peers", {}).get("figures", {}).get("rows"):
        print(markdown(PEER_HEAD, peer_rows(measured)) + "\n")
    for out in arguments.out:
        for folder in sorted(out.glob("studies/*/cells")):
            name = folder.parent.name
            print(
                f"{name}: copy {folder} into runs/study-{name}; maskmill study {name} does the rest, then its page"
            )
        if (out / "mini.tar.0").is_file():
            unpack(out, arguments.runs)
            print("the run:\n" + "\n".join(next_commands(arguments.runs / "mini", arguments.carried)))


def named(machine: dict[str, Any]) -> str:
    """Return the GPUs and the versions of Python and torch."""
    several = f"{machine['gpus']} x " if machine.get("gpus", 1) > 1 else ""
    return f"{several}{machine['gpu']}, Python {machine['python']}, torch {machine['torch']}"


def next_commands(run: Path, carried: Path) -> list[str]:
    """Return the commands that score the trained run. One that was not exported there is exported here first, and its
    config.yaml then names its shards where they are here."""
    score = f"    maskmill evaluate {run} {BLIMP} --data {BLIMP}     # with the folder of its files as --data"
    if (run / EXPORT).is_dir():
        return [score]
    config, shards = run / CONFIG, carried.resolve() / "short"
    text, found = SHARDS.subn(lambda line: line[1] + json.dumps(str(shards)), config.read_text("utf-8"))
    assert found == 1, f"{config} names the shards {found} times"
    config.write_bytes(sealed_lines(text))
    return [f"    maskmill export {run}     # reads {shards}", score]


def together(folders: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the machine and the parts of all folders. Raises SystemExit where they are of different machines."""
    found = [results.read(folder) for folder in folders]
    machines = [results.of_machine(each) for each in found]
    if any(machine != machines[0] for machine in machines):
        raise SystemExit(f"of different machines: {machines}")
    parts: dict[str, Any] = {}
    for each in found:
        parts |= {name: part for name, part in each["parts"].items() if part["status"] != results.NO_TIME}
    return found[-1]["machine"], parts


def rows(parts: dict[str, Any]) -> list[list[str]]:
    """A row for each part."""
    return [
        [name, part["status"], f"{part['seconds']:,.0f}", in_words(part["figures"])]
        for name, part in parts.items()
    ]


BENCH_HEAD = [
    "row",
    "engine",
    "deterministic",
    "examples/s",
    "share of the peak",
    "memory",
    "of the plan's",
]


def bench_rows(measured: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each measurement of bench_gpu.py."""
    return [
        [
            *(case[name] for name in ("row", "engine", "deterministic")),
            f"{case['examples_per_second']:,.0f}",
            f"{case['utilisation']:.1%}",
            f"{case['peak_bytes'] / 1e9:.2f} GB",
            f"{case['peak_bytes'] / case['planned_bytes']:.3f}",
        ]
        for case in measured
    ]


PEER_HEAD = ["row", "transformers' attention", "micro-batch", "examples/s", "memory"]


def peer_rows(measured: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each measurement of bench_gpu_peer.py."""
    return [
        [
            *(case["row"], case["attention"], str(case["micro_batch"])),
            f"{case['examples_per_second']:,.0f}",
            f"{case['peak_bytes'] / 1e9:.2f} GB",
        ]
        for case in measured
    ]


def calibrate(gpu: str, measured: list[dict[str, Any]], path: Path) -> str:
    """Note the utilisation of BERT-large as a run has it by default: DeepSpeed, deterministic kernels."""
    shares = [
        case["utilisation"]
        for case in measured
        if (case["row"], case["engine"], case["deterministic"]) == ("large-128", "deepspeed", "on")
    ]
    known = gpu_of(gpu)
    if not shares or known is None:
        return (
            f"plan stays as it is: no large-128 with DeepSpeed, deterministic, on a GPU that it knows ({gpu})"
        )
    source = path.read_text(encoding="utf-8")
    (found,) = CALIBRATED.finditer(source)
    noted = ast.literal_eval(found[2]) | {known.name: round(shares[-1], 3)}
    literal = json.dumps(noted, sort_keys=True)
    path.write_text(f"{source[: found.start(2)]}{literal}{source[found.end(2) :]}", encoding="utf-8")
    return f"plan reckons with {shares[-1]:.1%} of the peak on {known.name}"


def gpu_of(device: str) -> gpus.Gpu | None:
    """Return the GPU whose CUDA name this is; None if `maskmill plan` does not know it."""
    letters = re.sub(r"[^a-z0-9]", "", device.lower())
    found = [key for key in gpus.GPUS if re.sub(r"[^a-z0-9]", "", key) in letters]
    return gpus.GPUS[max(found, key=len)] if found else None


def unpack(out: Path, runs: Path) -> None:
    """Put the pieces together and unpack them, plain files alone."""
    pieces = sorted(out.glob("mini.tar.*"), key=lambda path: int(path.suffix[1:]))
    with tempfile.TemporaryFile() as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole) as archive:
            archive.extractall(runs, filter="data")


if __name__ == "__main__":
    main()

"""Large batches: three arms at equal examples, each at the best of one grid of learning rates. Text in, a picture out.

    python -m tests.benchmarks.study_large_batch --folder FOLDER [--seeds 3] [--source TEXT]
    python -m tests.benchmarks.study_large_batch --draw FOLDER/result.json

AdamW on small batches, LAMB and AdamW on batches eight times as large: the same model, text, order of the examples and
number of examples, `maskmill train` in each; what is compared is the held-out loss at [MASK] at the end, on the same
held-out examples. The grid is one for all arms. Further seeds are run at each arm's best rate of the first.

Warm-up is each arm's own, by the rule of You et al. 2020 (appendix, linear-epoch warm-up): its share of the run grows
as the batch does, which makes it as many updates in all arms. Then the rate falls in a straight line to 0.

Examples are equal, not time: a machine that does something else as well makes the study slower and changes nothing.
Each finished run is kept in FOLDER/result.json; the same command after an interruption goes on with the rest.
"""

import argparse
import math
import os
import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.run.metrics_file import read_metrics
from tests.benchmarks.pictures import Line, Panel, svg
from tests.benchmarks.studies import (
    RECIPE,
    Failed,
    Results,
    data_settings,
    encoder_settings,
    load,
    markdown,
    prepare,
    run,
    study_parser,
)
from tests.command_line import ROOT, command

RATES = (6.4e-4, 1.6e-3, 4e-3, 1e-2, 2.5e-2, 6.3e-2)
"""The grid, by factors of 2.5: from below the demo's rate of AdamW (4e-3) to beyond where LAMB is best."""
LARGE = 8
"""Times the small batch."""
WARMUP = 0.02
"""Share of the run at the small batch; LARGE times that at the large one."""
EVALUATIONS = 8
PICTURE = ROOT / "docs/images/study_large_batch.svg"


class Arm(NamedTuple):
    """What is compared."""

    optimizer: str
    times: int
    """The small batch."""

    def label(self, batch: int) -> str:
        return f"{ {'adamw': 'AdamW', 'lamb': 'LAMB'}[self.optimizer] }, batch {batch * self.times}"


ARMS = {
    "small": Arm("adamw", 1),
    "lamb": Arm("lamb", LARGE),
    "adamw": Arm("adamw", LARGE),
}


class Cell(NamedTuple):
    """One run of the study."""

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.rate:g}-{self.seed}"


def main() -> None:
    arguments = parse()
    if arguments.draw:
        report(load(arguments.draw), arguments.picture)
        return
    folder = arguments.folder.resolve()
    shared = data_settings(arguments, folder)
    prepare(folder, shared, arguments.vocabulary)
    results = Results(folder / "result.json", setup(arguments))
    run_all([Cell(arm, rate, 1) for rate in arguments.rates for arm in ARMS], arguments, results, shared)
    chosen = best_rates(grid_of(list(results.measured.values())))
    further = range(2, arguments.seeds + 1)
    run_all([Cell(arm, chosen[arm], seed) for seed in further for arm in ARMS], arguments, results, shared)
    report(results.values, arguments.picture)


def run_all(cells: list[Cell], arguments: argparse.Namespace, results: Results, shared: list[str]) -> None:
    """Runs the cells that `results` lacks, some at a time."""
    folder = arguments.folder.resolve()
    missing = [cell for cell in cells if cell.name not in results.measured]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = {pool.submit(measured, cell, arguments, folder, shared): cell for cell in missing}
        for future in as_completed(found):
            results.add(found[future].name, future.result())
            print(f"{found[future].name}: {future.result()['loss']:.3f}", flush=True)


def parse() -> argparse.Namespace:
    parser = study_parser(__doc__, "study_large_batch", PICTURE, layers=2, hidden=128, rates=RATES)
    parser.add_argument("--seeds", type=int, default=1, help="of weights and order, at the best rates")
    parser.add_argument("--examples", type=int, default=122_880, help="each run learns from")
    parser.add_argument("--batch", type=int, default=32, help="the small one, in examples")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time, one thread each")
    return parser.parse_args()


def setup(arguments: argparse.Namespace) -> dict[str, Any]:
    """What decides the figures, but for the seeds and rates, of which more may be measured later."""
    names = ("examples", "batch", "vocabulary", "length", "layers", "hidden", "held_out")
    source = Path(arguments.source).name
    return {"source": source, "warmup": WARMUP, **{name: getattr(arguments, name) for name in names}}


def run_settings(cell: Cell, arguments: argparse.Namespace) -> list[str]:
    """Where a run differs from the demo's recipe."""
    arm = ARMS[cell.arm]
    batch = arguments.batch * arm.times
    steps = max(EVALUATIONS, arguments.examples // batch)
    return [
        *encoder_settings(arguments),
        f"train.steps={steps}",
        f"train.global_batch={batch}",
        f"train.micro_batch={min(batch, 64)}",
        f"train.eval_every={steps // EVALUATIONS}",
        "train.eval_examples=2048",
        f"train.checkpoint_every={max(1, steps // 4)}",
        f"train.log_every={max(1, steps // 40)}",
        "train.compile=off",
        f"optim.name={arm.optimizer}",
        f"optim.lr={cell.rate:g}",
        f"schedule.warmup={WARMUP * arm.times:g}",
        f"run.seed={cell.seed}",
        "run.ranks=1",
        "run.threads=1",
        "run.restarts=0",
        "checkpoint.keep_best=false",
    ]


def measured(cell: Cell, arguments: argparse.Namespace, folder: Path, shared: list[str]) -> dict[str, Any]:
    """Trains; the held-out figures of the run at each evaluation. One that does not stay finite has infinite loss."""
    where = folder / "runs" / cell.name
    trains = command("train", RECIPE, *shared, *run_settings(cell, arguments), f"run.dir={where}")
    finite = True
    try:
        run(trains, folder / "logs" / f"{cell.name}.log", {"OMP_NUM_THREADS": "1"})
    except Failed as failed:
        if "batch in a row that was skipped" not in failed.output:
            raise
        finite = False
    lines = read_metrics(where)
    evaluations = [line for line in lines if line["kind"] == "eval" and line["step"]]
    batch = arguments.batch * ARMS[cell.arm].times
    losses = [loss_of(line) for line in evaluations]
    shutil.rmtree(where / "checkpoints", ignore_errors=True)
    return {
        **cell._asdict(),
        "examples": [line["step"] * batch for line in evaluations],
        "losses": losses,
        "loss": losses[-1] if finite and losses else math.inf,
        "accuracies": [line.get("held_out_mask_accuracy") for line in evaluations],
        "unigram_loss": evaluations[-1]["held_out_mask_unigram_loss"] if evaluations else None,
        "seconds": next((line["seconds"] for line in reversed(lines) if "seconds" in line), None),
    }


def loss_of(line: dict[str, Any]) -> float:
    loss = line.get("held_out_mask_loss")  # metrics.jsonl has nothing in place of what is not finite
    return math.inf if loss is None else loss


def report(result: dict[str, Any], picture: Path) -> None:
    """Prints the tables and draws the picture of what has been measured so far."""
    cells = list(result["measured"].values())
    batch = result["setup"]["batch"]
    rates = sorted({cell["rate"] for cell in cells})
    losses = grid_of(cells)
    print(markdown(["learning rate", *(arm.label(batch) for arm in ARMS.values())], by_rate(rates, losses)))
    best = best_rates(losses)
    rows = [best_row(arm, best[arm], rates, cells, batch) for arm in ARMS]
    print(
        "\n" + markdown(["arm", "best rate", "held-out loss at [MASK]", "accuracy at [MASK]", "runs"], rows)
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(drawn(result, cells, losses, best), encoding="utf-8")
    print(f"\n{len(cells)} runs; picture: {picture}")


def grid_of(cells: list[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """The last loss of the first seed, by arm and rate: what each arm's rate is chosen by."""
    return {(c["arm"], c["rate"]): c["loss"] for c in cells if c["seed"] == 1}


def best_rates(losses: dict[tuple[str, float], float]) -> dict[str, float]:
    """Each arm's rate with the lowest loss."""
    return {arm: min((r for a, r in losses if a == arm), key=lambda r: losses[arm, r]) for arm in ARMS}


def by_rate(rates: list[float], losses: dict[tuple[str, float], float]) -> list[list[str]]:
    return [
        [f"{rate:g}", *(f"{losses[arm, rate]:.3f}" if (arm, rate) in losses else "not run" for arm in ARMS)]
        for rate in rates
    ]


def best_row(arm: str, rate: float, rates: list[float], cells: list[dict[str, Any]], batch: int) -> list[str]:
    """An arm at its best rate: mean and range over the seeds; said where the rate is the grid's first or last."""
    runs = [cell for cell in cells if (cell["arm"], cell["rate"]) == (arm, rate)]
    losses = [cell["loss"] for cell in runs]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(losses) > 1 else ""
    edge = ", at the edge of the grid" if rate in (rates[0], rates[-1]) else ""
    accuracy = statistics.fmean(cell["accuracies"][-1] for cell in runs)
    loss = f"{statistics.fmean(losses):.3f}{spread}"
    return [ARMS[arm].label(batch), f"{rate:g}{edge}", loss, f"{accuracy:.1%}", str(len(runs))]


def drawn(
    result: dict[str, Any],
    cells: list[dict[str, Any]],
    losses: dict[tuple[str, float], float],
    best: dict[str, float],
) -> str:
    """Two panels: the best of each arm on its way, and the end of all."""
    batch, entropy = result["setup"]["batch"], cells[0]["unigram_loss"]
    ways, ends = [], []
    for colour, (name, arm) in enumerate(ARMS.items()):
        runs = [cell for cell in cells if (cell["arm"], cell["rate"]) == (name, best[name])]
        columns = zip(*(cell["losses"] for cell in runs), strict=True)
        mean = list(zip(runs[0]["examples"], map(statistics.fmean, columns), strict=True))
        label = arm.label(batch)
        ways.append(Line(f"{label}, rate {best[name]:g}", mean, colour))
        if len(runs) > 1:
            each = (list(zip(c["examples"], c["losses"], strict=True)) for c in runs)
            ways += [Line(label, points, colour, faint=True) for points in each]
        ends.append(Line(label, [(r, losses[a, r]) for a, r in sorted(losses) if a == name], colour))
    levels = {"frequencies of words alone": entropy}
    loss, ceiling = "held-out loss at [MASK] (nats)", entropy + 0.5
    panels = [
        Panel("The best of each arm", "examples", loss, ways, levels, ceiling=ceiling),
        Panel(
            "At the end, by learning rate", "learning rate", loss, ends, levels, log_x=True, ceiling=ceiling
        ),
    ]
    words = "; ".join(f"{ARMS[a].label(batch)}: {losses[a, r]:.3f} at rate {r:g}" for a, r in best.items())
    return svg(panels, f"Held-out loss at [MASK] over examples and by learning rate. {words}.")


if __name__ == "__main__":
    main()

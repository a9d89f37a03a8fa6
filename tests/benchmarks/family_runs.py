"""Train the tiny recipe of every objective on the demo's text with several seeds, and draw how each learns.

A run has so many steps, not so much time: what else the machine does changes nothing but how long this takes. The same
command continues what was interrupted; `--draw` shows what there is.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from launch.recipe import load_config
from pretrain.report.charts import Line, Panel, svg
from pretrain.run.metrics import HELD_OUT, metric
from pretrain.run.metrics_log import EVAL, read_metrics
from tests.benchmarks.studies import markdown, run
from tests.command_line import command

PICTURE = Path("docs/images/family.svg")
RECIPES = {
    **dict.fromkeys(["demo", "mlm_tiny", "roberta_tiny", "xlmr_tiny", "spanbert_tiny", "albert_tiny"], ""),
    **dict.fromkeys(["ernie_tiny", "modernbert_tiny", "xlnet_tiny", "causal_tiny", "electra_tiny"], ""),
    "distilbert_tiny": "objective.distilbert.teacher=demo",
    "distilroberta_tiny": "objective.distilroberta.teacher=roberta_tiny",
    "electra_two_stage_tiny": "objective.electra_two_stage.generator=mlm_tiny",
}
"""Each with the setting that names a finished model, and the recipe of that one."""

EVERY = 250
"""Steps from one evaluation to the next."""


class Curve(NamedTuple):
    """The held-out figures of one run at the metric that its objective leads with."""

    recipe: str
    seed: int
    headline: str
    evaluations: list[dict[str, Any]]
    minutes: float
    """Of training on a quiet machine: its steps, at the shortest time of one that its log has, since other
    work can only add to it."""

    @property
    def kind(self) -> str:
        """What it predicts: the first part of the metric's name."""
        return self.headline.rpartition("_")[0]

    def points(self) -> list[tuple[float, float]]:
        """(step, nats below the unigram on the same positions), or the area under the curve of a discriminator."""
        return [(line["step"], self._figure(line)) for line in self.evaluations]

    def _figure(self, line: dict[str, Any]) -> float:
        value = line[f"{HELD_OUT}{self.headline}"]
        return line[f"{HELD_OUT}{self.kind}_unigram_loss"] - value if self.is_loss else value

    @property
    def is_loss(self) -> bool:
        """Words are predicted."""
        return self.headline.endswith("_loss")


def train(folder: Path, recipe: str, seed: int) -> None:
    """Train and export one run, unless that is done."""
    there = folder / f"{recipe}-{seed}"
    if (there / "export").exists():
        return
    log = folder / f"{recipe}-{seed}.log"
    key, _, of = RECIPES[recipe].partition("=")
    settings = [f"{key}={folder.resolve()}/{of}-{seed}/export"] if key else []
    alone = ["run.ranks=1", "run.threads=1", f"run.seed={seed}", f"train.eval_every={EVERY}"]
    alone.append("optim.name=adamw")  # the demo too, beside its members
    run(command("train", recipe, f"run.dir={there.resolve()}", *alone, *settings), log)
    run(command("export", str(there.resolve())), log)


def prepare(folder: Path, recipe: str) -> None:
    """Learn the vocabulary and write the shards of a recipe, where they are missing."""
    if not Path(load_config(recipe, []).data.vocab).exists():
        run(command("vocab", recipe), folder / "prepare.log")
    run(command("prepare", recipe), folder / "prepare.log")


def read(folder: Path) -> list[Curve]:
    """Return the curves of the finished runs, in the order of RECIPES and of their seeds."""
    curves = []
    for recipe in RECIPES:
        for there in sorted(folder.glob(f"{recipe}-[0-9]*/summary.json")):
            summary = json.loads(there.read_text(encoding="utf-8"))
            if summary["status"] == "finished":
                lines = read_metrics(there.parent)
                step = min(line["step_ms"] for line in lines if "step_ms" in line)
                curves.append(
                    Curve(
                        recipe,
                        seed=int(there.parent.name.rpartition("-")[2]),
                        headline=summary["headline"],
                        evaluations=[line for line in lines if line["kind"] == EVAL],
                        minutes=summary["step"] * step / 60e3,
                    )
                )
    return curves


def table(curves: list[Curve], losses: bool) -> str:
    """Return the last figures of each recipe: the median over its seeds, and their range."""
    rows = []
    for recipe in RECIPES:
        of = [curve for curve in curves if curve.recipe == recipe and curve.is_loss == losses]
        if not of:
            continue
        ends, kind = [curve.evaluations[-1] for curve in of], of[0].kind
        names = [of[0].headline, f"{kind}_accuracy"]
        baselines = [f"{kind}_unigram_loss" if losses else "", f"{kind}_majority"]
        row = [
            f"`{recipe}`",
            str(len(of)),
            f"{ends[0]['step']:,}",
            f"{min(curve.minutes for curve in of):.1f}",
            metric(names[0]).label,
        ]
        for name, baseline in zip(names, baselines, strict=True):
            share = name.endswith("accuracy")
            values = sorted(end[f"{HELD_OUT}{name}"] for end in ends)
            row.append(_spread(values, share))
            row.append(_number(ends[0][f"{HELD_OUT}{baseline}"], share) if baseline else "0.5")
        rows.append(row)
    head = [
        "recipe",
        "seeds",
        "steps",
        "minutes",
        "figure",
        "held out",
        "unigram" if losses else "chance",
        "accuracy",
        "always the commonest",
    ]
    return markdown(head, rows)


def _number(value: float, share: bool) -> str:
    return f"{value:.1%}".replace("%", " %") if share else f"{value:.3f}"


def _spread(values: list[float], share: bool) -> str:
    low, high = _number(values[0], share), _number(values[-1], share)
    middle = _number(statistics.median(values), share)
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def drawn(curves: list[Curve]) -> str:
    """Return the picture: words at [MASK], words elsewhere or from a teacher, and replaced tokens."""
    masked = [c for c in curves if c.kind == "mask" and not RECIPES[c.recipe]]
    words = [c for c in curves if c.is_loss and c not in masked]
    below = "nats below the unigram, held out"
    panels = [
        Panel("words at [MASK]", "updates", below, _lines(masked), {"1 nat": 1.0}),
        Panel("other words, and students", "updates", below, _lines(words), {"1 nat": 1.0}),
        Panel(
            "replaced tokens",
            "updates",
            "area under the curve, held out",
            _lines([c for c in curves if not c.is_loss]),
            {"chance": 0.5},
        ),
    ]
    return svg(
        [panel for panel in panels if panel.lines], "How far each recipe comes from what needs no context."
    )


def _lines(curves: list[Curve]) -> list[Line]:
    shown = list(dict.fromkeys(curve.recipe for curve in curves))
    return [Line(c.recipe, c.points(), shown.index(c.recipe), faint=c.seed > 1) for c in curves]


def main() -> None:
    """Train what is missing, then print the tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/family"), help="where the runs are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where the SVG goes")
    given = parser.parse_args()
    if not given.draw:
        given.folder.mkdir(parents=True, exist_ok=True)
        for recipe in RECIPES:
            prepare(given.folder, recipe)
        for seed in range(1, given.seeds + 1):
            for named in (False, True):  # those that need the models of others come after them
                with ThreadPoolExecutor(given.jobs) as pool:
                    these = [recipe for recipe, of in RECIPES.items() if bool(of) == named]
                    list(pool.map(lambda recipe, seed=seed: train(given.folder, recipe, seed), these))
    curves = read(given.folder)
    if not curves:
        raise SystemExit(f"{given.folder}: no finished run")
    print(table(curves, losses=True), table(curves, losses=False), sep="\n\n")
    given.picture.write_text(drawn(curves), encoding="utf-8")
    print(f"\npicture: {given.picture}")


if __name__ == "__main__":
    main()

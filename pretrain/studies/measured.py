"""Keep what was measured of each run of a study, and check by hash that arms which must be equal are.

A run is an arm, a seed and, where a setting is tuned, its value. Its JSON file is written when all of it is done, so
that a study that was interrupted continues with the others. A run has learnt context if it predicts words better than
their frequencies do.

Arms may have to be equal in the examples that they train on, the masks, the first weights. What a run reads is a pure
function of its settings, so it is hashed before anything is trained: batches spread evenly over the run.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.io.files import write_whole
from data_pipeline.loader.loader import Shares
from data_pipeline.loader.packing import separator_places
from pretrain.config.settings import RunConfig
from pretrain.preflight.check_run import Plan, plan_phases
from pretrain.run.files import table
from pretrain.run.metrics import HELD_OUT, PREDICTIONS
from pretrain.run.metrics_log import read_metrics
from pretrain.run.task_scores import study_metric

if TYPE_CHECKING:
    from data_pipeline.loader.packing import PackedMicroBatch


# Hash what a run reads and its first weights, and compare arms by these hashes.


BATCHES = 16
"""Batches of a run that are hashed, the first and the last among them."""
Hashes = dict[str, Any]
"""Kind (EQUALITIES) -> hash; of `weights`, tensor -> hash."""


def hashes_of(config: RunConfig, wanted: tuple[str, ...]) -> Hashes:
    """Return the hashes of the wanted kinds for the run that `config` describes, whose shards are prepared."""
    plans = plan_phases(config, 1)
    found: Hashes = {}
    if {"weights", "shared_weights"} & set(wanted):
        found["weights"] = _weights(plans[0])
    if set(wanted) - {"weights", "shared_weights"}:
        found |= _batches(plans)
    return found


def _weights(plan: Plan) -> dict[str, str]:
    model = plan.objective.fresh_model(plan.index.vocabulary)
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in model.named_parameters()
    }


def _batches(plans: list[Plan]) -> dict[str, str]:
    """Hash the examples of all phases in the order in which they are read; within a batch by the keys of their
    draws."""
    sums = {name: hashlib.sha256() for name in ("examples", "masks", "content", "content_masks")}
    for plan in plans:
        _add_batches(plan, plan.phase.config, sums)
    return {name: found.hexdigest() for name, found in sums.items()}


def _add_batches(plan: Plan, config: RunConfig, sums: dict[str, Any]) -> None:
    caps = plan.caps(plan.index.train, config)
    shares = Shares(plan.index, plan.order(config), caps, masking=plan.masking, separators=plan.separators)
    special = np.array([plan.index.vocabulary.cls, plan.index.vocabulary.sep])
    framed = config.data.separators == "period"  # as [SEP] would frame the segments
    steps = config.train.steps
    for batch in sorted(set(np.linspace(0, steps - 1, min(BATCHES, steps)).round().astype(int).tolist())):
        rows: list[tuple[int, dict[str, bytes]]] = []
        for packed in shares.read(batch).micro_batches:
            rows += zip(packed.keys.tolist(), _examples(packed, special, framed), strict=True)
        for _, parts in sorted(rows, key=lambda row: row[0]):
            for name, part in parts.items():
                sums[name].update(part)


def _examples(packed: "PackedMicroBatch", special: NDArray[np.int64], framed: bool) -> list[dict[str, bytes]]:
    """Return the parts of each example: `examples` is its text as it was, with segments and label; `masks` are the
    places, what is shown there and what is to be found; both again with tokens counted that are no [CLS] or [SEP], or,
    where examples are `framed` by other tokens, what is in the places of [SEP]."""
    text = packed.input_ids.copy()
    text[packed.masked_index] = packed.masked_ids
    is_content = ~np.isin(text, special)
    if framed:
        borders = packed.cu_seqlens.astype(np.int64)
        firsts = np.add.reduceat(packed.segment_ids == 0, borders[:-1])
        is_content[np.concatenate(separator_places(borders, firsts))] = False
    found = []
    for number, (start, stop) in enumerate(pairwise(packed.cu_seqlens.tolist())):
        own = (packed.masked_index >= start) & (packed.masked_index < stop)
        places, content = packed.masked_index[own], is_content[start:stop]
        label, wanted = packed.labels[number : number + 1], packed.masked_ids[own]
        counted = np.cumsum(content)[places - start]
        shown = packed.input_ids[places]
        found.append(
            {
                "examples": _bytes(text[start:stop], packed.segment_ids[start:stop], label),
                "masks": _bytes(places - start, shown, wanted),
                "content": _bytes(text[start:stop][content], label),
                "content_masks": _bytes(counted, shown, wanted),
            }
        )
    return found


def _bytes(*arrays: NDArray[np.integer]) -> bytes:
    """Join arrays, each behind its length."""
    return b"".join(len(a).to_bytes(8, "little") + np.asarray(a, np.int64).tobytes() for a in arrays)


def check_equal(
    hashes: Mapping[str, Hashes], equal: Mapping[str, Sequence[str]], seed: int, where: object
) -> dict[str, str]:
    """Return a short hash of each kind that is declared to be equal. Raises UserError, with the arms and a tensor, for
    one that is not. `hashes`: of each arm, by name; `equal`: kind -> the arms in which it must be the same."""
    said = {}
    for kind, (first, *others) in equal.items():
        for arm in others:
            if what := _difference(kind, hashes[first], hashes[arm]):
                raise UserError(
                    f"arms {first} and {arm} must have the same {kind}, and differ in {what} with seed {seed}",
                    where=where,
                    remedy=f"take {kind} out of `equal`, or from the arms what makes them differ",
                )
        said[kind] = _short(kind, [hashes[arm] for arm in equal[kind]])
    return said


def by_arms(equal: Mapping[str, Sequence[str]]) -> dict[tuple[str, ...], list[str]]:
    """Return the kinds that are the same in each group of arms, from the arms of each kind."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kind, arms in equal.items():
        found.setdefault(tuple(arms), []).append(kind)
    return found


def _difference(kind: str, one: Hashes, other: Hashes) -> str:
    if kind == "shared_weights":
        both = one["weights"].keys() & other["weights"].keys()
        return next((name for name in sorted(both) if one["weights"][name] != other["weights"][name]), "")
    if kind == "weights":
        names = sorted(one[kind].keys() | other[kind].keys())
        return next((name for name in names if one[kind].get(name) != other[kind].get(name)), "")
    return "" if one[kind] == other[kind] else "it"


def _short(kind: str, hashes: Sequence[Hashes]) -> str:
    tables = [found["weights" if "weights" in kind else kind] for found in hashes]
    if isinstance(tables[0], str):
        return tables[0][:12]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    return hashlib.sha256("".join(f"{n} {tables[0][n]}" for n in shared).encode()).hexdigest()[:12]


# Measure runs, keep what was measured, and tell which is better.


CONTEXT_MARGIN = 0.5
"""Nats below the unigram's loss at which context has begun to be learnt, for `tokens_to_context`."""
TOKENS_TO_CONTEXT, CONTEXT_GAIN = "tokens_to_context", "context_gain"
"""Figures that follow from the others: tokens until the loss is CONTEXT_MARGIN below the unigram's, by a straight line
between evaluations; and how far below it the loss ended, in nats."""


class Cell(NamedTuple):
    """A run of a study."""

    arm: str
    seed: int
    tuned: tuple[tuple[str, Any], ...] = ()
    """Settings that are tuned, with this run's values."""

    @property
    def name(self) -> str:
        """Its name in files and logs."""
        values = "".join(f"-{key.rpartition('.')[2]}{value:g}" for key, value in self.tuned)
        return f"{self.arm}{values}-{self.seed}"


@dataclass(frozen=True)
class Measured:
    """What was measured of one run."""

    arm: str
    seed: int
    tuned: list[list[Any]]
    figures: dict[str, float]
    """By name: those of the last held-out evaluation, and of tasks (`TASK.METRIC`). A run that did not stay finite has
    infinite losses; what was not reached is absent."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """An entry for each evaluation: step, tokens, and the held-out figures."""
    seconds: float = 0.0
    """Of training, in all its attempts, and of scoring what no process before had scored."""
    finite: bool = True
    identity: str = ""
    """Hash of the settings and data that it was measured with."""
    notes: list[str] = field(default_factory=list)
    by_epoch: dict[str, list[float]] = field(default_factory=dict)
    """Figures of tasks after each epoch of fine-tuning."""
    machine: str = ""
    """What it ran on."""
    date: str = ""
    """The day on which it ended, in UTC."""
    trivial: dict[str, float] = field(default_factory=dict)
    """What the best answer that needs no input has in the figures of tasks."""

    @property
    def cell(self) -> Cell:
        """Which run it is."""
        return Cell(self.arm, self.seed, tuple((key, value) for key, value in self.tuned))

    @property
    def has_learnt_context(self) -> bool | None:
        """Whether its last loss of predicted words is below that of word frequencies; None where it has none."""
        loss, unigram = word_losses(self.figures)
        return None if loss is None or unigram is None else loss < unigram


def word_losses(figures: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the loss of the first prediction of words that has one, at [MASK] before others, and the unigram's."""
    for prediction in PREDICTIONS.values():
        loss, unigram = (
            figures.get(f"{HELD_OUT}{prediction.name}_{what}") for what in ("loss", "unigram_loss")
        )
        if prediction.words and loss is not None:
            return loss, unigram
    return None, None


def measure_run(
    run: Path, tokens_by_step: Callable[[float], float], finite: bool
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Return the curve and the last figures of a trained run folder, those that follow from them included."""
    lines = [line for line in read_metrics(run) if line.get("kind") == "eval"]
    curve = [{"step": n["step"], "tokens": tokens_by_step(n["step"]), **_figures(n)} for n in lines]
    figures = (
        {name: value for name, value in curve[-1].items() if name not in ("step", "tokens")} if curve else {}
    )
    if not finite:
        figures |= {name: math.inf for name in figures if name.endswith("_loss") and "unigram" not in name}
    loss, unigram = word_losses(figures)
    if loss is not None and unigram is not None and math.isfinite(loss):
        figures[CONTEXT_GAIN] = unigram - loss
    if (reached := tokens_to_context(curve)) is not None:
        figures[TOKENS_TO_CONTEXT] = reached
    return curve, figures


def _figures(line: dict[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in line.items()
        if name.startswith(HELD_OUT) and isinstance(value, int | float)
    }


def tokens_to_context(curve: list[dict[str, float]]) -> float | None:
    """Return after how many tokens the loss was first CONTEXT_MARGIN below the unigram's; None if never."""
    before: tuple[float, float] | None = None
    for point in curve:
        loss, unigram = word_losses(point)
        if loss is None or unigram is None:
            continue
        gain, tokens = unigram - loss, point["tokens"]
        if gain >= CONTEXT_MARGIN:
            if before is None:
                return tokens
            share = (CONTEXT_MARGIN - before[1]) / (gain - before[1])
            return before[0] + share * (tokens - before[0])
        before = tokens, gain
    return None


def write_measured(folder: Path, found: Measured) -> None:
    """Write what was measured of a run, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{found.cell.name}.json", json.dumps(asdict(found), indent=1).encode())


def read_measured(folder: Path, cell: Cell) -> Measured | None:
    """Return what was measured of a run; None if it has not been. Raises UserError for another file of that name."""
    path = folder / f"{cell.name}.json"
    if not path.is_file():
        return None
    try:
        return Measured(**table(path))
    except TypeError:
        raise UserError(
            "is not what a study wrote", where=path, remedy="remove it: its run is measured again"
        ) from None


def best_values(found: Iterable[Measured], figure: str) -> dict[str, tuple[tuple[str, Any], ...]]:
    """Return each arm's best values of what is tuned, by the figure of its first seed."""
    best: dict[str, Measured] = {}
    for one in sorted(found, key=lambda one: one.seed):
        known = best.get(one.arm)
        if known is None or (one.seed == known.seed and better(figure, one, known)):
            best[one.arm] = one
    return {arm: one.cell.tuned for arm, one in best.items()}


def better(figure: str, one: Measured, other: Measured) -> bool:
    """Return whether a run is better than another in a figure; one that lacks it is the worst."""
    sign = 1 if study_metric(figure).lower_is_better else -1
    values = (sign * run.figures[figure] if figure in run.figures else math.inf for run in (one, other))
    return next(values) < next(values)

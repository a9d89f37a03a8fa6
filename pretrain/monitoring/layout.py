"""Lay out what the dashboard shows, section by section, from names of metrics. No W&B here: a plain table of panels.

Every key is one that a training logs: those of every run are named here, those of the objectives come from the
objectives themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pretrain.monitoring.points import BY_RANK, TRUST_BY_LAYER, TRUST_SPREAD
from pretrain.objectives import OBJECTIVES, load

HELD_OUT = "held_out_"
PAIR_LABELS = ("_is_next", "_not_next", "_in_order", "_swapped")
"""How the figures of one pair label end."""


@dataclass(frozen=True)
class Panel:
    """One chart over the steps."""

    title: str
    keys: tuple[str, ...] = ()
    pattern: str = ""
    """Of keys, where their number is the run's: a regular expression."""
    unit: str = ""
    log: bool = False
    """A logarithmic y-axis."""


@dataclass(frozen=True)
class Section:
    """Charts that answer one question."""

    name: str
    question: str
    panels: tuple[Panel, ...]


def sections(objective: str = "") -> list[Section]:
    """The dashboard of runs of `objective`; empty: of any."""
    return [_learning(objective), _speed(), _optimizer(), _health()]


def keys_of(found: list[Section]) -> set[str]:
    """All keys that are named; not those that patterns find."""
    return {key for section in found for panel in section.panels for key in panel.keys}


def _learning(objective: str) -> Section:
    known = [load(name) for name in ([objective] if objective else OBJECTIVES)]
    losses = _unique(f"{term}_loss" for one in known for term in one.terms)
    metrics = _unique(name for one in known for name in one.metrics)
    labelled = [name for name in metrics if name.endswith(PAIR_LABELS)]
    accuracies = [name for name in metrics if "accuracy" in name and name not in labelled]
    by_label = [name for name in labelled if "accuracy" in name]
    other = [name for name in labelled if name not in by_label]
    panels = [
        Panel("Loss", ("loss", f"{HELD_OUT}loss")),
        Panel("Losses", tuple(losses)),
        Panel("Held-out losses", (*_held_out(losses), "unigram_entropy")),
        Panel("Accuracies", tuple(accuracies)),
        Panel("Held-out accuracies", _held_out(accuracies)),
    ]
    if by_label:
        panels += [
            Panel("Accuracy by pair label", tuple(by_label)),
            Panel("Held-out accuracy by pair label", _held_out(by_label)),
            Panel("Loss by pair label", tuple(other)),
        ]
    question = (
        "Is it learning? The held-out masked-token loss must fall below the unigram entropy: a model above it knows "
        "no more than how often each word comes. A pair label whose accuracy is 1 while the other's is 0 has not been "
        "learnt at all."
    )
    return Section("Learning", question, tuple(panels))


def _speed() -> Section:
    panels = (
        Panel("Tokens per second", ("tokens_per_s",), unit="tokens/s"),
        Panel("Examples per second", ("examples_per_s",), unit="examples/s"),
        Panel("Model FLOPs utilisation", ("mfu",), unit="share of the peak"),
        Panel("Fill and padding", ("fill", "padding_share"), unit="share of the slots"),
        Panel("Waiting for data", ("data_wait_share",), unit="share of the time"),
        Panel("Step time", ("step_ms", "slowest_step_ms"), unit="ms", log=True),
        *(
            panel
            for field, curve in BY_RANK.items()
            for panel in (
                Panel(f"{_title(field)}: rank upwards, time as colour", (field,), unit="rank"),
                Panel(f"{_title(field)}: curves", pattern=rf"{curve}\d+", unit="ms"),
            )
        ),
    )
    question = (
        "Is the hardware used? Wall-clock time goes where the utilisation is low: a wait for data above 5 % is a "
        "stall, a rank whose forward pass takes longer than the others' holds all of them up."
    )
    return Section("Speed", question, panels)


def _optimizer() -> Section:
    panels = (
        Panel("Learning rate", ("lr",)),
        Panel("Gradient norm before clipping", ("grad_norm",), log=True),
        Panel("Mean trust ratio", ("trust_ratio",)),
        Panel("Trust ratio by layer: layer upwards, ratio as colour", (TRUST_BY_LAYER,), unit="layer"),
        Panel("Trust ratios of all tensors: ratio upwards, how many as colour", (TRUST_SPREAD,)),
        Panel("Skipped batches", ("skipped_batches",)),
    )
    question = (
        "Are the updates sound? A gradient norm that grows for hundreds of steps comes before a divergence. The trust "
        "ratio by layer (monitor.trust_ratios_every) shows which layers move: row -1 is the embeddings, the last row "
        "the heads."
    )
    return Section("Optimizer", question, panels)


def _health() -> Section:
    panels = (
        Panel("Skipped batches and damaged examples", ("skipped_batches", "damaged_examples")),
        Panel("Memory of the fullest rank", ("memory_gb",), unit="GB"),
        Panel("Slowest rank, as a multiple of the others", ("slowest_rank_ratio",)),
        Panel("Which rank is slowest", ("slowest_rank",)),
        Panel("Epoch", ("epoch",)),
        Panel("Batches consumed", ("batch",)),
    )
    question = (
        "Does it run as it should? Damaged examples are left out and counted (data.on_damage=skip); events.jsonl in "
        "the run folder has a line for each. The same rank slowest for hours is a machine to look at."
    )
    return Section("Health", question, panels)


def _title(field: str) -> str:
    return {"step_ms_by_rank": "Step time by rank", "forward_ms_by_rank": "Forward time by rank"}[field]


def _held_out(names: list[str]) -> tuple[str, ...]:
    return tuple(f"{HELD_OUT}{name}" for name in names)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))

"""Lay out what the dashboard shows, section by section, from names of metrics. No W&B here: a plain table of panels.

Every key is one that a training logs: those of every run are named here, those of the objectives come from the
objectives themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pretrain.evaluate.baselines import MAJORITY
from pretrain.evaluate.scores import HELD_OUT, MASK_LOSS, UNIGRAM
from pretrain.monitoring.wandb.points import BY_RANK, TRUST_BY_LAYER, TRUST_SPREAD
from pretrain.objectives.registry import OBJECTIVES, with_defaults

LAMB = "lamb"
"""The optimizer that has trust ratios."""
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


def sections(objective: str = "", optimizer: str = "") -> list[Section]:
    """The dashboard of runs of `objective` with `optimizer`; empty: of any."""
    return [_learning(objective), _speed(), _optimizer(optimizer), _health()]


def keys_of(found: list[Section]) -> set[str]:
    """All keys that are named; not those that patterns find."""
    return {key for section in found for panel in section.panels for key in panel.keys}


def _learning(objective: str) -> Section:
    known = [with_defaults(name) for name in ([objective] if objective else OBJECTIVES)]
    losses = _unique(f"{term}_loss" for one in known for term in one.terms)
    metrics = _unique(name for one in known for name in one.metrics)
    at_mask = MASK_LOSS in metrics
    labelled = [name for name in metrics if name.endswith(PAIR_LABELS)]
    by_label = [name for name in labelled if "accuracy" in name]
    by_kind = [name for name in metrics if name.startswith(("mask_", "kept_", "random_"))]
    accuracies = [name for name in metrics if "accuracy" in name and name not in {*labelled, *by_kind}]
    panels = [
        *(_at_mask() if at_mask else ()),
        Panel("Accuracies", (*accuracies, *_held_out(accuracies), *_majority(metrics))),
    ]
    if by_label:
        panels += [
            Panel("Accuracy by pair label", tuple(by_label)),
            Panel("Held-out accuracy by pair label", _held_out(by_label)),
            Panel("Loss by pair label", tuple(name for name in labelled if name not in by_label)),
        ]
    if at_mask:
        panels += _where_a_word_is_shown()
    panels += [
        Panel(f"Loss that is minimised: {' + '.join(losses)}", ("loss", f"{HELD_OUT}loss")),
        Panel("Its terms", (*losses, *_held_out(losses))),
    ]
    question = (
        "Is it learning? The held-out loss at [MASK] must fall below what word frequencies alone give there "
        f"({UNIGRAM}), and no one answer may be given at more than half of the positions: until then no context has "
        "been learnt. Losses over all predicted tokens fall by copying the words that stay visible. A pair label "
        "whose accuracy is 1 while the other's is 0 has not been learnt at all."
        if at_mask
        else "Is it learning?"
    )
    return Section("Learning", question, tuple(panels))


def _at_mask() -> tuple[Panel, ...]:
    """What leads: predictions at [MASK], each beside its baseline."""
    accuracy = ("mask_accuracy", "held_out_mask_accuracy", "held_out_mask_majority")
    return (
        Panel(
            "Loss at [MASK], and of word frequencies alone", (MASK_LOSS, f"{HELD_OUT}{MASK_LOSS}", UNIGRAM)
        ),
        Panel("Accuracy at [MASK], and of the most frequent token", accuracy),
        Panel("Perplexity at [MASK]", ("mask_perplexity", "held_out_mask_perplexity"), log=True),
        Panel("Share of the commonest answer at [MASK]", ("held_out_mask_top_share",)),
    )


def _where_a_word_is_shown() -> list[Panel]:
    """Secondary: copying does well at kept words."""
    return [
        Panel(f"{what.capitalize()} where a word is shown", (*names, *_held_out(names)))
        for what in ("accuracy", "loss")
        for names in [[f"{kind}_{what}" for kind in ("kept", "random")]]
    ]


def _majority(metrics: list[str]) -> tuple[str, ...]:
    return (MAJORITY,) if "nsp_accuracy" in metrics else ()


def _speed() -> Section:
    panels = (
        Panel("Tokens per second", ("tokens_per_s",), unit="tokens/s"),
        Panel("Examples per second", ("examples_per_s",), unit="examples/s"),
        Panel("Model FLOPs utilisation", ("mfu",), unit="share of the peak"),
        Panel("Token budget used, and padding", ("fill", "padding_share"), unit="share"),
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


def _optimizer(optimizer: str) -> Section:
    trust = (
        Panel("Mean trust ratio", ("trust_ratio",)),
        Panel("Trust ratio by layer: layer upwards, ratio as colour", (TRUST_BY_LAYER,), unit="layer"),
        Panel("Trust ratios of all tensors: ratio upwards, how many as colour", (TRUST_SPREAD,)),
    )
    has_trust = optimizer in ("", LAMB)
    panels = (
        Panel("Learning rate", ("lr",)),
        Panel("Gradient norm before clipping", ("grad_norm",), log=True),
        *(trust if has_trust else ()),
        Panel("Skipped batches", ("skipped_batches",)),
    )
    question = (
        "Are the updates sound? A gradient norm that grows for hundreds of steps comes before a divergence."
    )
    if has_trust:
        question += (
            " The trust ratio by layer (monitor.trust_ratios_every) shows which layers move: row -1 is the embeddings, "
            "the last row the heads."
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

"""A RunRecord in, its pictures out: learning, optimizer, speed. What the run did not log is left out."""

import math

from pretrain.report.charts import Chart, Level, Series, draw
from pretrain.report.record import RunRecord, number
from pretrain.report.scales import text
from pretrain.report.statistics import not_next_share

LEARNING, OPTIMIZER, SPEED = "Learning", "Optimizer", "Speed"


def charts(run: RunRecord) -> dict[str, list[str]]:
    """Section title -> its figures, as HTML."""
    sections = {LEARNING: _learning(run), OPTIMIZER: _optimizer(run), SPEED: _speed(run)}
    figures = {
        title: [figure for chart in parts if (figure := draw(chart))] for title, parts in sections.items()
    }
    return {title: drawn for title, drawn in figures.items() if drawn}


def ceiling(run: RunRecord) -> str:
    """What the hardware could do at most, in a sentence, where the run measured its share of the peak."""
    speed, share = run.final("tokens_per_s"), run.final("mfu")
    if not speed or not share or share <= 0:
        return ""
    return (
        f"At its peak, the hardware would do {text(speed / share)} tokens/s; "
        f"{text(share, share=True)} of that was reached (MFU)."
    )


def _learning(run: RunRecord) -> list[Chart]:
    entropy = run.final("unigram_entropy")
    share = not_next_share(run, "train") or 0.5
    return [
        Chart(
            "mlm-loss",
            "Masked-token loss",
            "Nats a masked token; lower is better. Word frequencies alone would give the unigram entropy.",
            _series(run, [("train", "mlm_loss", 1)], [("held-out", "held_out_mlm_loss", 2)]),
            [Level("unigram entropy", entropy)] if entropy is not None else [],
        ),
        Chart(
            "mlm-accuracy",
            "Masked-token accuracy",
            "Share of masked tokens whose most probable word is the right one.",
            _series(run, [("train", "mlm_accuracy", 1)], [("held-out", "held_out_mlm_accuracy", 2)]),
            [],
            share=True,
            zero=True,
        ),
        Chart(
            "nsp-loss",
            "Next-sentence loss",
            "Nats a pair; lower is better. Knowing only how many pairs are NotNext would give the dashed line.",
            _series(
                run,
                [
                    ("train", "nsp_loss", 1),
                    ("IsNext", "nsp_loss_is_next", 3),
                    ("NotNext", "nsp_loss_not_next", 4),
                ],
                [("held-out", "held_out_nsp_loss", 2)],
            ),
            [Level("knowing only the shares", _entropy(share))],
        ),
        Chart(
            "nsp-accuracy",
            "Next-sentence accuracy, by pair label",
            "Share of pairs judged right.",
            _series(
                run,
                [
                    ("train", "nsp_accuracy", 1),
                    ("IsNext", "nsp_accuracy_is_next", 3),
                    ("NotNext", "nsp_accuracy_not_next", 4),
                ],
                [("held-out", "held_out_nsp_accuracy", 2)],
            ),
            [Level("one answer for all", max(share, 1 - share))],
            share=True,
        ),
        Chart(
            "loss",
            "Total loss",
            "The sum that is minimised.",
            _series(run, [("train", "loss", 1)], [("held-out", "held_out_loss", 2)])
            if "nsp_loss" in run.train
            else [],
            [],
        ),
    ]


def _entropy(share: float) -> float:
    """Entropy in nats of a label that is true for this share."""
    return -sum(part * math.log(part) for part in (share, 1 - share) if part > 0)


def _optimizer(run: RunRecord) -> list[Chart]:
    clip = number(run.setting("train.clip"))
    return [
        Chart(
            "lr",
            "Learning rate",
            "As the schedule set it.",
            _series(run, [("learning rate", "lr", 1)], noisy=False),
            [],
            zero=True,
        ),
        Chart(
            "grad-norm",
            "Gradient norm",
            "Before clipping, over all parameters.",
            _series(run, [("gradient norm", "grad_norm", 1)]),
            [Level("clipped at", clip)] if clip else [],
            zero=True,
        ),
        Chart(
            "trust-ratio",
            "Mean trust ratio",
            "LAMB: norm of a tensor over norm of its update, averaged over tensors.",
            _series(run, [("trust ratio", "trust_ratio", 1)]),
            [],
            zero=True,
        ),
    ]


def _speed(run: RunRecord) -> list[Chart]:
    return [
        Chart(
            "tokens-per-s",
            "Throughput",
            f"Tokens a second over all ranks, padding not counted. {ceiling(run)}".strip(),
            _series(run, [("tokens/s", "tokens_per_s", 1)]),
            [],
            zero=True,
        ),
        Chart(
            "shares",
            "Where the time and the room go",
            "Fill: batch slots that hold tokens. Data wait: time spent waiting for batches. MFU: of the peak.",
            _series(
                run,
                [
                    ("fill", "fill", 3),
                    ("data wait", "data_wait_share", 2),
                    ("MFU", "mfu", 1),
                    ("padding", "padding_share", 4),
                ],
            ),
            [],
            share=True,
            whole=True,
        ),
        Chart(
            "memory",
            "Memory",
            "Highest use of one rank, in GB.",
            _series(run, [("memory", "memory_gb", 1)], noisy=False),
            [],
            zero=True,
        ),
    ]


def _series(
    run: RunRecord,
    train: list[tuple[str, str, int]],
    held_out: list[tuple[str, str, int]] | None = None,
    noisy: bool = True,
) -> list[Series]:
    """(name, metric, colour) of what was logged; NotNext and padding are dashed, not told by colour alone."""
    found = [
        Series(name, points, colour, dashed=colour == 4, noisy=noisy)
        for name, metric, colour in train
        if (points := run.train.get(metric))
    ]
    found += [
        Series(name, points, colour, dots=True)
        for name, metric, colour in held_out or []
        if (points := run.held_out.get(metric))
    ]
    return found

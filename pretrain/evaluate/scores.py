"""Put a run's figures into words, each beside what a model reaches that has learnt no context.

What leads is what is predicted at [MASK]. Positions that keep their word or show a random one are told apart: copying
what is visible scores well on kept ones and is no knowledge. Neither torch nor numpy is needed here.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrain.run.tolerant_json import number

HELD_OUT = "held_out_"
MASK_LOSS = "mask_loss"
UNIGRAM = "held_out_mask_unigram_loss"
NAMED = frozenset(
    (
        *(f"{kind}_{what}" for kind in ("mask", "kept", "random", "mlm") for what in ("loss", "accuracy")),
        *("loss", "mask_perplexity", "mask_unigram_loss", "mask_majority", "mask_top_share"),
        *("mask_top_token", "nsp_loss", "nsp_accuracy", "nsp_majority", "pairs"),
    )
)
"""Figures, without `held_out_`, that this module has words for."""


class Score(NamedTuple):
    """A figure, and what to hold it against."""

    what: str
    value: str
    baseline: str = ""
    """What a model without any knowledge of context has there, in figures; empty where that is not known."""
    than: str = ""
    """What that model does."""

    def __str__(self) -> str:
        beside = f" ({' '.join((self.than, self.baseline)).strip()})" if self.baseline else ""
        return f"{self.what} {self.value}{beside}"


def leading(figures: Mapping[str, Any], prefix: str = HELD_OUT, headline: str = MASK_LOSS) -> list[Score]:
    """Loss, accuracy and perplexity at [MASK], then the pairs, as far as they are known. `prefix`: empty for those of
    training, which have no baselines. `headline`: the metric that leads, for an objective without [MASK]."""
    value = {name: number(figures.get(f"{prefix}{name}")) for name in NAMED}
    loss, unigram = value["mask_loss"], value["mask_unigram_loss"]
    scores = []
    if loss is not None:
        scores.append(Score("loss", f"{loss:.3f}", nats(unigram), "unigram"))
    if value["mask_accuracy"] is not None:
        most = share(value["mask_majority"])
        scores.append(Score("accuracy", share(value["mask_accuracy"]), most, "most frequent token"))
    if loss is not None:
        scores.append(Score("perplexity", perplexity(loss), perplexity(unigram), "unigram"))
    if not scores and (own := number(figures.get(f"{prefix}{headline}"))) is not None:
        scores.append(Score(headline.replace("_", " "), f"{own:.3f}"))
    if value["nsp_accuracy"] is not None:
        label = share(value["nsp_majority"])
        scores.append(Score("NSP accuracy", share(value["nsp_accuracy"]), label, "commoner label"))
    return scores


def secondary(figures: Mapping[str, Any], prefix: str = HELD_OUT) -> list[tuple[str, str]]:
    """(what, figures) of the positions that show a word, of all predicted ones, and of the loss that is minimised."""
    rows = []
    for kind, words in (
        ("kept", "positions that keep their word"),
        ("random", "positions that show a random word"),
        ("mlm", "all predicted positions, visible words included"),
    ):
        loss, right = (number(figures.get(f"{prefix}{kind}_{what}")) for what in ("loss", "accuracy"))
        parts = [f"loss {nats(loss)}" if loss is not None else ""]
        parts.append(f"accuracy {share(right)}" if right is not None else "")
        if told := ", ".join(part for part in parts if part):
            rows.append((words, told))
    if (total := number(figures.get(f"{prefix}loss"))) is not None:
        rows.append((f"loss that is minimised, {sum_of(figures)}", nats(total)))
    return rows


def sum_of(figures: Mapping[str, Any]) -> str:
    """What `loss` adds up, by the terms that stand beside it."""
    known = {name.removeprefix(HELD_OUT) for name in figures}
    terms = [words for name, words in (("mlm_loss", "MLM"), ("nsp_loss", "NSP")) if name in known]
    others = sorted(
        name.removesuffix("_loss")
        for name in known
        if name.endswith("_loss") and name not in NAMED and name.count("_") == 1
    )
    return " + ".join([*terms, *others]) or "total"


def nats(value: float | None) -> str:
    """A loss, empty where it is not known."""
    return f"{value:.3f}" if value is not None else ""


def share(value: float | None) -> str:
    """An accuracy, empty where it is not known."""
    return f"{value:.1%}" if value is not None else ""


def perplexity(loss: float | None) -> str:
    """exp(loss): among how many equally likely words the model chooses; empty where the loss is not known."""
    if loss is None:
        return ""
    among = math.exp(min(loss, 50.0))
    return f"{among:.1f}" if among < 100 else f"{among:,.0f}" if among < 1e6 else f"{among:.2g}"

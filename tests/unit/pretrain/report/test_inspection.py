"""What `maskmill inspect`, the dashboard and the model card show of a run, beside its baselines and never more."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from pretrain.export import card as card_facts
from pretrain.export.card import BLANK, SENTENCES, sentence_for
from pretrain.monitoring.wandb_dashboard import keys_of, sections
from pretrain.report.inspection import run_headlines
from pretrain.run.metrics_log import wrong_figure
from tests.unit.pretrain.run.test_run_metrics import COPIER, DEMO

RUN: dict[str, Any] = {"status": "finished", "step": 900, "steps": 900, "checkpoints": [], "where": {}}


def shown(figures: dict[str, Any], lines: list[dict[str, Any]] | None = None) -> dict[str, str]:
    return dict(run_headlines({**RUN, **figures}, lines or []))


def test_inspect_leads_with_what_is_predicted_at_mask() -> None:
    rows = shown(DEMO)
    assert list(rows)[1:5] == [
        "held-out loss at [MASK]", "held-out accuracy at [MASK]", "held-out perplexity at [MASK]",
        "held-out next-sentence accuracy",
    ]  # fmt: skip
    assert rows["held-out loss at [MASK]"] == "3.000 (unigram 5.880)"
    assert rows["  positions that keep their word"] == "loss 0.810, accuracy 90.0%"
    assert rows["  loss that is minimised, MLM + NSP"] == "3.100"
    assert "look at" not in rows


def test_inspect_says_that_nothing_was_learnt() -> None:
    assert "No context has been learnt yet" in shown(COPIER)["look at"]
    at_start = [{"kind": "eval", "step": 0, **COPIER}]
    rows = shown(COPIER, at_start)
    assert "look at" not in rows
    assert rows["held-out loss at [MASK], untrained"].startswith("6.485")
    rose = [{"kind": "train", "step": step, "loss": 9.0 + 9 * (step > 0)} for step in range(9)]
    assert "18.000, and 9.000 at the beginning" in shown(DEMO, rose)["look at"]


def test_inspect_of_an_older_run_claims_nothing() -> None:
    old = {"held_out_mlm_loss": 5.97, "unigram_entropy": 6.4, "held_out_nsp_accuracy": 0.6, "data": {
        "held_out": {"pair_labels": {"is_next": 424, "not_next": 576}}}}  # fmt: skip
    rows = shown(old)
    assert not [name for name in rows if "unigram" in name or "below" in rows[name]]
    assert rows["held-out next-sentence accuracy"] == "60.0% (commoner label 57.6%)"
    assert rows["  all predicted positions, visible words included"] == "loss 5.970"


def test_the_dashboard_leads_with_mask_and_its_baselines() -> None:
    first = sections("bert")[0].panels[0]
    assert first.keys == ("mask_loss", "held_out_mask_loss", "held_out_mask_unigram_loss")
    keys = keys_of(sections("bert"))
    assert {
        "held_out_mask_majority",
        "mask_perplexity",
        "held_out_nsp_majority",
        "held_out_kept_accuracy",
    } <= keys
    assert "unigram_entropy" not in keys
    assert not {"held_out_nsp_majority"} & keys_of(sections("mlm"))


@pytest.mark.parametrize(("optimizer", "trust"), [("lamb", True), ("", True), ("adamw", False)])
def test_trust_ratios_are_for_lamb_alone(optimizer: str, trust: bool) -> None:
    optimizers = next(section for section in sections("bert", optimizer) if section.name == "Optimizer")
    assert any("trust" in panel.title.lower() for panel in optimizers.panels) == trust
    assert ("trust" in optimizers.question) == trust


def test_figures_that_verbs_reckon_with_must_be_numbers() -> None:
    assert wrong_figure({"held_out_mask_loss": "x"}) == "held_out_mask_loss"
    assert wrong_figure({**DEMO, "held_out_mask_top_token": ","}) == ""


def card(figures: dict[str, Any], **counts: int) -> Any:
    index: Any = SimpleNamespace(statistics={"held_out": counts})
    return card_facts._scores(figures, index, "mask_loss")


def test_the_card_puts_baselines_beside_and_no_sign_before_a_distance() -> None:
    rows = card(DEMO)
    assert rows["loss at [MASK]"] == "3.000 (unigram 5.880)"
    assert rows["next-sentence accuracy"] == "92.0% (commoner label 57.6%)"
    assert next(iter(rows)) == "loss at [MASK]"
    assert next(name for name in rows if "keep" in name).startswith("not comparable")
    worse = card(COPIER)
    assert "No context has been learnt yet" in worse["what this model has not learnt"]
    for rows in (card(DEMO), worse):
        assert not re.search(r"-\d|below", " ".join(map(str, rows.values())).replace("not below", ""))
    assert card({}) == "The run was not evaluated at this step."
    assert "42.4" not in str(
        card({"held_out_nsp_accuracy": 0.6}, pair_labels={"is_next": 424, "not_next": 576})
    )


def test_the_card_has_a_sentence_in_the_language_of_the_text() -> None:
    assert all(sentence.count(BLANK) == 1 for sentence in SENTENCES.values())
    assert sentence_for(["de", "en"]) == SENTENCES["de"]
    assert sentence_for(["xx", "pt-BR"]) == SENTENCES["pt"]
    assert sentence_for([]) == SENTENCES["en"]
    assert sentence_for(["xx"]) is None

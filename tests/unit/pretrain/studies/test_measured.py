"""What was measured of a run is kept whole, and says whether and when context was learnt."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.studies.measured import (
    Cell,
    Measured,
    best_values,
    by_arms,
    check_equal,
    hashes_of,
    measure_run,
    read_measured,
    tokens_to_context,
    write_measured,
)


def line(step: int, loss: float | None, unigram: float = 6.0) -> dict:
    return {"kind": "eval", "step": step, "held_out_mask_loss": loss, "held_out_mask_unigram_loss": unigram}


def run_with(folder: Path, *lines: dict) -> Path:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    return folder


def test_tokens_to_context_are_between_evaluations(tmp_path: Path) -> None:
    run = run_with(
        tmp_path, {"kind": "train", "step": 1, "loss": 9.0}, line(10, 6.5), line(20, 5.5), line(30, 5.0)
    )
    curve, figures = measure_run(run, lambda step: 100.0 * step, finite=True)
    assert [point["tokens"] for point in curve] == [1000, 2000, 3000]
    assert figures["tokens_to_context"] == 2000  # 5.5 is half a nat below 6
    assert figures["context_gain"] == pytest.approx(1.0)
    assert tokens_to_context([{**line(1, 6.0), "tokens": 100}, {**line(2, 5.0), "tokens": 200}]) == 150
    assert tokens_to_context([{**line(1, 5.6), "tokens": 100}]) is None


def test_a_run_that_did_not_stay_finite_is_the_worst(tmp_path: Path) -> None:
    _, figures = measure_run(run_with(tmp_path, line(10, 5.0)), lambda step: step, finite=False)
    assert figures["held_out_mask_loss"] == math.inf
    assert figures["held_out_mask_unigram_loss"] == 6.0
    runs = [
        Measured("a", 1, [["optim.lr", 0.1]], {"held_out_mask_loss": math.inf}),
        Measured("a", 1, [["optim.lr", 0.2]], {"held_out_mask_loss": 4.0}),
        Measured("a", 1, [["optim.lr", 0.4]], {}),
        Measured("a", 2, [["optim.lr", 0.4]], {"held_out_mask_loss": 1.0}),  # not the first seed
    ]
    assert best_values(runs, "held_out_mask_loss") == {"a": (("optim.lr", 0.2),)}
    scores = [Measured("a", 1, [["optim.lr", n]], {"mrpc.accuracy": 10 * n}) for n in (1, 3, 2)]
    assert best_values(scores, "mrpc.accuracy") == {"a": (("optim.lr", 3),)}


def test_context_is_judged_beside_word_frequencies() -> None:
    def judged(**figures: float) -> bool | None:
        return Measured("a", 1, [], figures).has_learnt_context

    assert judged(held_out_mask_loss=5.9, held_out_mask_unigram_loss=6.0) is True
    assert judged(held_out_mask_loss=6.0, held_out_mask_unigram_loss=6.0) is False
    assert judged(held_out_causal_loss=6.1, held_out_causal_unigram_loss=6.0) is False
    assert judged(held_out_rtd_loss=0.1) is None


def test_what_is_measured_is_read_again(tmp_path: Path) -> None:
    cell = Cell("arm", 2, (("optim.lr", 1e-3),))
    assert cell.name == "arm-lr0.001-2"
    assert read_measured(tmp_path, cell) is None
    found = Measured("arm", 2, [["optim.lr", 1e-3]], {"x": math.inf}, identity="abc")
    write_measured(tmp_path, found)
    assert read_measured(tmp_path, cell) == found
    assert found.cell == cell
    (tmp_path / f"{cell.name}.json").write_text('{"arm": 1}')
    with pytest.raises(UserError, match="is not what a study wrote"):
        read_measured(tmp_path, cell)


# Runs that share examples, masks or weights have the same hashes, and those that do not have others.


KINDS = ("examples", "masks", "weights", "content", "content_masks")


def hashed(tiny: list[str], *settings: str) -> dict[str, Any]:
    config = load_config("demo", [*tiny, "run.dir=unused", "run.ranks=1", "train.steps=6", *settings])
    return hashes_of(config, KINDS)


def equal_kinds(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {kind for kind in KINDS if one[kind] == other[kind]}


def test_what_settings_change(tiny: list[str]) -> None:
    first = hashed(tiny)
    assert set(first) == set(KINDS)
    assert equal_kinds(first, hashed(tiny, "optim.lr=0.5", "train.micro_batch=6")) == set(KINDS)
    assert equal_kinds(first, hashed(tiny, "run.seed=7")) == set()
    masks = hashed(tiny, "data.dynamic_masking=true")
    assert equal_kinds(first, masks) == {"examples", "weights", "content"}
    assert equal_kinds(first, hashed(tiny, "encoder.intermediate=32")) == set(KINDS) - {"weights"}


def test_all_phases_count(tiny: list[str]) -> None:
    def of(*phases: str) -> dict[str, Any]:
        return hashed(tiny, f"phases=[{', '.join(phases)}]")

    first, short, long = (
        f"{{name: {name}, train: {{steps: {steps}}}}}" for name, steps in (("a", 3), ("b", 3), ("b", 4))
    )
    assert equal_kinds(of(first, short), of(first, short)) == set(KINDS)
    assert equal_kinds(of(first, short), of(first, long)) == {"weights"}
    assert equal_kinds(of(first, short), of(short, first.replace("3", "4"))) == {"weights"}


def test_arms_that_differ_are_refused(tiny: list[str]) -> None:
    first, second = hashed(tiny), hashed(tiny, "encoder.layers=1", "data.dynamic_masking=true")
    both = ("a", "b")
    said = check_equal({"a": first, "b": second}, {"examples": both, "shared_weights": both}, 1, "study x")
    assert said["examples"] == first["examples"][:12]
    with pytest.raises(
        UserError, match=r"arms a and b must have the same masks, and differ in it with seed 3"
    ):
        check_equal({"a": first, "b": second}, {"masks": both}, 3, "study x")
    with pytest.raises(UserError, match=r"differ in encoder\.layers\.1\."):
        check_equal({"a": first, "b": second}, {"weights": both}, 1, "study x")


def test_some_arms_may_be_equal_in_what_others_are_not() -> None:
    """An arm that no kind names has no hashes."""
    hashes = {"a": {"masks": "1" * 64}, "b": {"masks": "2" * 64, "examples": "3"}, "c": {"masks": "1" * 64}}
    equal = {"masks": ("a", "c"), "examples": ("b",)}
    assert check_equal(hashes, equal, 1, "x") == {"masks": "1" * 12, "examples": "3"}
    with pytest.raises(UserError, match="arms b and c must have the same masks"):
        check_equal(hashes, {"masks": ("b", "c")}, 1, "x")
    assert by_arms({**equal, "weights": ("a", "c")}) == {
        ("a", "c"): ["masks", "weights"],
        ("b",): ["examples"],
    }

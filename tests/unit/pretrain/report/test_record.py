"""report.html's newer parts: warnings, phases and attempts, trust ratios by layer, time; and any kind of run."""

import json
import math
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.report.curves import COLUMNS, binned, by_layer
from pretrain.report.record import Points, read_run
from pretrain.report.summary import advice
from pretrain.run.events import HANG, LOST, NOT_SAVED, SPENT, AttemptLog, append_event, read_attempts
from pretrain.run.files import EVENTS, append
from pretrain.run.metrics import CHARTS, learning_charts
from tests.unit.pretrain.report.test_report_charts import (
    CONFIG,
    DATA,
    EVALUATION,
    HOSTILE,
    OLD_EVALUATION,
    SUMMARY,
    Page,
    make_run,
    page_of,
    train_line,
)

NAMES = (
    "encoder.embeddings.word.weight",
    "encoder.layers.0.attention.query.weight",
    "encoder.layers.0.feed_forward.up.weight",
    "encoder.layers.1.attention.query.weight",
    "head.dense.weight",
)


def trust_line(step: int, **changes: float) -> dict[str, Any]:
    ratios = {f"trust_ratio/{name}": 0.01 * (i + 1) * step for i, name in enumerate(NAMES)}
    return {"kind": "trust", "step": step, **ratios, **changes}


def write_attempts(folder: Path, lines: list[dict[str, Any]]) -> None:
    began = datetime(2026, 3, 4, 10, 15, tzinfo=UTC)
    folder.mkdir(parents=True, exist_ok=True)
    dated = [{"at": (began + timedelta(minutes=i)).isoformat(), **line} for i, line in enumerate(lines)]
    (folder / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in dated))


THREE_ATTEMPTS: list[dict[str, Any]] = [
    {"event": "started", "step": 0, "seconds": 0.0, "ranks": 2, "hosts": ["node1", "node2"], "device": "CPU"},
    {"event": "saved", "step": 40, "seconds": 1.5, "blocked_seconds": 0.25, "bytes": 2_000_000},
    {"event": "ended", "step": 50, "status": "stopped", "error": ""},
    {"event": "started", "step": 50, "seconds": 0.5, "ranks": 2, "hosts": ["node3"], "device": "CPU"},
    {"event": "ended", "step": 70, "status": LOST},
    {"event": "started", "step": 60, "seconds": 0.7, "ranks": 4, "hosts": ["node3"], "device": "CPU"},
    {"event": "ended", "step": 100, "status": "finished", "error": ""},
]
SKIPPED = {
    "event": "skip",
    "batch": 71,
    "step": 70,
    "text": "the gradient of batch 71 is not finite",
    "at": "x",
}


def titles(page: Page) -> list[str]:
    return [str(a["id"]) for tag, a in page.tags if tag == "figure"]


def test_attempts_and_checkpoints_on_a_line_of_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_attempts(run, THREE_ATTEMPTS)
    page = page_of(run)
    for words in (
        "0 to 50", "50 to 70", "60 to 100", "killed or crashed", "node1, node2", "2026-03-04 10:15:00 UTC",
        "1.5 s, 0.25 s", "dropped", "One attempt of the run ended without a word",
    ):  # fmt: skip
        assert words in page.text, words
    assert "resumed 2" in page.text
    raw = (run / "report.html").read_text()
    assert raw.count('class="attempt ') == 3
    assert '<path class="resumed" d="M' in raw


@pytest.mark.parametrize("hours", [1, -1])
def test_attempts_last_as_long_as_they_did_where_a_clock_was_set(tmp_path: Path, hours: int) -> None:
    """Set before the first save: all that follows is dated an hour later, or earlier than the first start."""
    run = make_run(tmp_path / "run")
    began, lines = datetime(2026, 3, 4, 10, 15, tzinfo=UTC), []
    for i, line in enumerate(THREE_ATTEMPTS):
        at = began + timedelta(minutes=i, hours=hours if i else 0)
        spent = {"spent": 100.0} if line["event"] == "ended" else {}
        lines.append({"at": at.isoformat(), **line, **spent})
    write_attempts(run, lines)
    page = page_of(run)
    assert page.text.count("1 min 40 s") == 3
    raw = (run / "report.html").read_text()
    bars = re.findall(r'<rect class="attempt \w+" x="([^"]+)" y="[^"]+" width="([^"]+)"', raw)
    assert len(bars) == 3
    assert all(float(left) >= 0 and float(left) + float(width) <= 1004 for left, width in bars), bars
    ticks = re.findall(r'<path class="save" d="M(\S+) ', raw)
    assert ticks, "the save of the first attempt"
    assert all(0 <= float(tick) <= 1000 for tick in ticks), ticks


def test_the_next_attempt_logs_the_end_of_one_that_was_killed(tmp_path: Path) -> None:
    AttemptLog(tmp_path, writes=False).started(0, {}, {})
    assert list(tmp_path.iterdir()) == []
    diary = AttemptLog(tmp_path, writes=True)
    diary.started(0, {"ranks": 2, "hosts": ["a"], "device": "CPU"}, {})
    diary.saved(10, 1.0, 0.1, 99)
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"event": "sav')  # the kill
    assert read_attempts(tmp_path)[0].ended is None
    before = {"step": 17, "seconds": 90.0, SPENT: 95.0}
    assert read_attempts(tmp_path, before)[0].spent == 95
    AttemptLog(tmp_path, writes=True).started(10, {"ranks": 1, "seconds": 60.0}, before)
    first, second = read_attempts(tmp_path)
    assert (first.spent, second.spent, read_attempts(tmp_path, {SPENT: 4})[1].spent) == (95, 0, 4)
    assert (first.status, first.last, first.saves[0].bytes) == (LOST, 17, 99)
    assert first.ended == first.started + timedelta(seconds=90)
    assert (second.first, second.ended, second.ranks, second.seconds) == (10, None, 1, 60.0)
    (tmp_path / EVENTS).unlink()
    (tmp_path / EVENTS).mkdir()  # cannot be written: the run goes on
    diary.ended(3, {"status": "failed", SPENT: 1.0}, exit_code=1)
    assert read_attempts(tmp_path) == []


def test_phases_skipped_batches_and_resumptions_are_marked(tmp_path: Path) -> None:
    phases = [{"name": "short", "first": 0, "last": 60}, {"name": "long", "first": 60, "last": 100}]
    run = make_run(tmp_path / "run", summary={**SUMMARY, "phases": phases, "phase": "long"})
    write_attempts(run, THREE_ATTEMPTS)
    append(run / EVENTS, f"{json.dumps(SKIPPED)}\ntorn".encode())
    page = page_of(run)
    raw = (run / "report.html").read_text()
    for kind in ("phase", "resumed", "skipped"):
        assert f'<path class="{kind}" d="M' in raw, kind
    assert ">short</span>" in raw
    assert ">long</span>" in raw
    assert "the gradient of batch 71 is not finite" in page.text
    assert "batch skipped" in page.text


def test_trust_ratios_are_a_map_of_layers_over_steps(tmp_path: Path) -> None:
    lines = [line for step in range(1, 101) for line in (train_line(step), trust_line(step))]
    page = page_of(make_run(tmp_path / "run", lines=[*lines, EVALUATION]))
    assert "trust-map" in titles(page)
    for row in ("embeddings", "layer 1", "layer 2", "heads"):
        assert row in page.text, row
    rows = by_layer(read_run(tmp_path / "run").trust)
    assert rows["layer 1"].values[9] == pytest.approx(
        math.sqrt(0.2 * 0.3)
    )  # of both of its tensors, at step 10
    edges, cells = binned(rows)
    assert cells.shape == (4, COLUMNS)
    assert edges[0] == 1
    assert edges[-1] == 101
    assert cells[0, 0] == pytest.approx(0.01, rel=0.5)
    assert cells[0, -1] == pytest.approx(1.0, rel=0.03)


def test_without_them_the_report_says_how_to_have_them(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert "monitor.trust_ratios_every=100" in page.text
    broken = [train_line(1), trust_line(1, **{f"trust_ratio/{name}": math.nan for name in NAMES})]
    assert "monitor.trust_ratios_every=100" in page_of(make_run(tmp_path / "nan", lines=broken)).text
    other = [{k: v for k, v in train_line(step).items() if k != "trust_ratio"} for step in range(1, 9)]
    assert "trust-map" not in titles(page_of(make_run(tmp_path / "adamw", lines=other)))


def test_very_many_layers_share_rows() -> None:
    points = Points(np.array([1.0]), np.array([0.5]))
    rows = by_layer({f"encoder.layers.{i}.x": points for i in range(200)})
    assert len(rows) <= 64
    assert "layers 1 to 4" in rows


def test_the_ceiling_is_drawn_and_its_source_is_said(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", summary={**SUMMARY, "peak_source": "measured"}))
    assert "ceiling 37,500" in page.text  # 15,000 tokens/s at an MFU of 0.4
    assert "The ceiling is the peak measured on these cores" in page.text
    lines = [train_line(step, mfu=None) for step in range(1, 9)]
    assert "ceiling" not in page_of(make_run(tmp_path / "unknown", lines=lines)).text


def test_where_the_time_of_a_step_goes(tmp_path: Path) -> None:
    times = {"step_ms": 100.0, "slowest_step_ms": 150.0, "forward_ms": 30.0, "data_wait_share": 0.2}
    ranks = {"slowest_rank_ratio": 1.5}
    lines = [train_line(s, **times, **ranks, slowest_rank=3 if s % 4 else 1) for s in range(1, 101)]
    evaluation = {**EVALUATION, "eval_seconds": 0.25}
    run = make_run(tmp_path / "run", lines=[*lines, evaluation], summary={**SUMMARY, "seconds": 1.0})
    page = page_of(run)
    assert {"step-time", "step-parts", "run-parts", "ranks", "slow-rank"} <= set(titles(page))
    for words in ("20 ms20.0%", "30 ms30.0%", "50 ms50.0%", "rank 37575.0%1.5", "0.2500 s25.0%"):
        assert words in page.text, words


def test_advice_names_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    slow = (
        "rank 3 is 1.4x slower than the median: 812 ms computing forward passes in a step, the others 580 ms"
    )
    lines = [train_line(s, slowdowns=[slow] if s > 80 else None) for s in range(1, 101)]
    lines[60]["mlm_loss"] = math.nan
    lines[-1] |= {"skipped_batches": 7, "damaged_examples": 3}
    held_out = [
        {**EVALUATION, "step": s, "held_out_mask_loss": v, "held_out_nsp_accuracy": 0.52}
        for s, v in ((20, 6.9), (40, 6.4), (60, 6.6), (100, 7.2))
    ]
    summary = {**SUMMARY, "status": "failed", "error": "UserError: ten in a row at s3://me:hunter2@b/x"}
    run = make_run(tmp_path / "run", lines=[*lines, *held_out], summary=summary)
    page = page_of(run)
    found = [one.what for one in advice(read_run(run))]
    for words in (
        "The run failed: UserError: ten in a row at s3://***@b/x",
        "the loss over all predicted tokens is not finite in 1 log",
        "7 of 100 batches were skipped", "3 examples could not be read", "No context has been learnt yet",
        "The pair task has not been learnt yet",
        "lowest at step 40 and has risen", "One rank was slower than the others in 20 of 100 log lines",
    ):  # fmt: skip
        assert any(words in what for what in found), words
        assert words in page.text
    assert page.text.index("The run failed") < page.text.index("Held-out loss at [MASK]")
    assert page.text.index("The run failed") < page.text.index("One rank was slower")
    assert advice(read_run(make_run(tmp_path / "well"))) == []


def test_failed_saves_and_hangs_are_advice(tmp_path: Path) -> None:
    """Red without either line."""
    run = make_run(tmp_path / "run")
    write_attempts(run, [{"event": "started", "step": 0, "ranks": 2}])
    append_event(run, NOT_SAVED, step=40, text="no space left at s3://me:hunter2@b/x")
    append_event(run, HANG, step=50, text="rank 1 waits in all_reduce")
    append_event(run, HANG, step=60, text="rank 0 waits in all_reduce")
    found = {one.what: one for one in advice(read_run(run))}
    saves = "The newest checkpoint could not be saved: no space left at s3://***@b/x."
    hangs = "The run hung 2 times and was ended: rank 0 waits in all_reduce."
    assert set(found) == {saves, hangs}
    assert found[saves].grave
    assert "a crash loses the steps since the newest one" in found[saves].hint
    assert "the one whose stack is not in a collective is the cause" in found[hangs].hint
    text = page_of(run).text
    assert saves in text
    assert hangs in text


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_held_out_loss_that_is_no_number_is_not_hidden_by_the_one_before(
    tmp_path: Path, status: str
) -> None:
    held_out = [{**EVALUATION, "step": step} for step in (50, 100)]
    held_out[1]["held_out_mask_loss"] = None  # as the run log writes it
    lines = [train_line(step) for step in range(1, 101)]
    told = {**SUMMARY, "status": status, "held_out_mask_loss": None}
    run = make_run(tmp_path / "run", lines=[*lines, *held_out], summary=told)
    assert read_run(run).final("held_out_mask_loss") is None
    assert read_run(run).final("held_out_mask_accuracy") == EVALUATION["held_out_mask_accuracy"]
    grave = [one.what for one in advice(read_run(run)) if one.grave]
    assert grave == ["From step 100 on, the held-out loss at [MASK] is not finite in 1 evaluations."]
    page = page_of(run)
    assert "in text it has not seen" not in page.text
    assert "On held-out text the newest was no number" in page.text
    held_out[1]["step"], held_out[0]["step"] = 50, 100  # and well again
    run = make_run(tmp_path / "well", lines=[*lines, *held_out], summary={**SUMMARY, "status": status})
    assert read_run(run).final("held_out_mask_loss") == EVALUATION["held_out_mask_loss"]


def test_the_pace_is_that_of_the_newest_phase(tmp_path: Path) -> None:
    """Three of its steps, of four minutes each, after fifty of one minute."""
    phases = [
        {"name": "a", "first": 0, "last": 50, "global_batch": 8, "sequence_length": 128},
        {"name": "b", "first": 50, "last": 100, "global_batch": 8, "sequence_length": 512},
    ]
    summary = {**SUMMARY, "status": "running", "phases": phases}
    lines = [train_line(s, seconds=60.0 * s + 180.0 * max(0, s - 50)) for s in range(1, 54)]
    page = page_of(make_run(tmp_path / "run", lines=lines, summary=summary))
    assert "About 3 h 8 min left at the newest pace." in page.text
    lines = [line for line in lines if line["step"] not in (50, 51, 52)]
    page = page_of(make_run(tmp_path / "sparse", lines=lines, summary=summary))
    assert "left at the newest pace" not in page.text, "one line of a phase tells no pace"


def test_a_run_that_goes_on_says_how_long_it_will(tmp_path: Path) -> None:
    lines = [train_line(s, seconds=60.0 * s) for s in range(1, 51)]
    page = page_of(make_run(tmp_path / "run", lines=lines, summary={**SUMMARY, "status": "running"}))
    assert "About 50 min left at the newest pace." in page.text
    assert "50 of 100 steps" in page.text
    write_attempts(tmp_path / "run", THREE_ATTEMPTS[:2])
    summary = {**SUMMARY, "status": "running", "seconds": 90.0}
    page = page_of(make_run(tmp_path / "run", lines=lines, summary=summary))
    assert "Last activity 2026-03-04 10:16:30 UTC" in page.text
    assert "still running" in page.text
    assert "left at the newest pace" not in page_of(make_run(tmp_path / "done")).text


@pytest.mark.parametrize("kind", ["just started", "one line", "nothing but config", "all nan", "nonsense"])
def test_any_run_has_a_page(tmp_path: Path, kind: str) -> None:
    lines: list[dict[str, Any]] = []
    summary: dict[str, Any] | None = {
        "status": "running",
        "started": "2026-03-04T10:15:00+00:00",
        "steps": 100,
    }
    if kind == "one line":
        lines = [train_line(1), trust_line(1)]
    elif kind == "nothing but config":
        summary = None
    elif kind == "all nan":
        lines = [
            {k: math.nan if isinstance(v, float) else v for k, v in train_line(s).items()}
            for s in range(1, 9)
        ]
    elif kind == "nonsense":
        lines = [{"step": "x"}, {"kind": 3, "step": 1}, {"kind": "trust", "step": 2, "trust_ratio/a": "b"}]
        lines += [train_line(3, slowdowns="no list", slowest_rank=math.inf, lr=-1e300, seconds=None)]
        summary = {
            "status": 7,
            "phases": [1, {"name": 2}],
            "hosts": 3,
            "data": {"train": {"tokens": "x", "examples": 0}},
        }
    run = make_run(tmp_path / "run", lines=lines, summary=summary)
    (run / "run.json").write_text('{"format": 2, "attempts": "many", "identity": 3}')
    write_attempts(
        run, [{"event": "ended", "step": 1, "status": 2}, {"event": "started", "step": "x"}, {"event": []}]
    )
    append(run / EVENTS, b'{"event": null}\n[]\n{"step": []}\n')
    page = page_of(run)
    assert "How to run it again" in page.text
    drawn = (run / "report.html").read_text().split("<main>")[1].split("<script>")[0].split(">Settings<")[0]
    assert not re.search(r"\b(nan|inf)\b", drawn)


def test_hostile_strings_stay_text_everywhere(tmp_path: Path) -> None:
    lines = [train_line(s, slowdowns=[f"waiting for data: {HOSTILE}"], phase=HOSTILE) for s in range(1, 9)]
    trust = {
        "kind": "trust",
        "step": 4,
        f"trust_ratio/{HOSTILE}": 0.3,
        f"trust_ratio/embeddings{HOSTILE}": 0.2,
    }
    lines += [trust, train_line(9, **{f"{HOSTILE}_loss": 1.0})]
    summary = {**SUMMARY, "phases": [{"name": HOSTILE, "first": 0, "last": 9}], "peak_source": HOSTILE,
               "hosts": [HOSTILE], "error": HOSTILE, "status": "failed",
               "command": f"maskmill train {HOSTILE}"}  # fmt: skip
    run = make_run(tmp_path / "run", lines=lines, summary=summary)
    write_attempts(run, [{"event": "started", "step": 0, "hosts": [HOSTILE], "device": HOSTILE},
                      {"event": "ended", "step": 9, "status": HOSTILE, "error": HOSTILE}])  # fmt: skip
    hostile = {"event": HOSTILE, "text": HOSTILE, "at": HOSTILE, "step": 3}
    append(run / EVENTS, json.dumps(hostile).encode())
    (run / "run.json").write_text(
        json.dumps({"format": 2, "identity": {"data": HOSTILE, "vocabulary": HOSTILE}})
    )
    folder = run / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    state = {"conditions": {HOSTILE: HOSTILE}, "held_out_loss": HOSTILE}
    (folder / "checkpoint.json").write_text(json.dumps({"step": 1, "files": [{"bytes": 1}], "state": state}))
    score = {"median": 1.0, "min": 1.0, "max": 1.0, "values": [1.0]}
    (run / "evaluation" / "a").mkdir(parents=True)
    (run / "evaluation" / "a" / "result.json").write_text(
        json.dumps(
            {
                "task": HOSTILE,
                "headline": HOSTILE,
                "scores": {name: {HOSTILE: score} for name in (HOSTILE, "b")},
            }
        )
    )
    page = page_of(run)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert('x')</script>") >= 17


@pytest.mark.slow
def test_a_hundred_thousand_lines_fit_a_small_page(tmp_path: Path) -> None:
    draw = random.Random(3)
    line = json.dumps(train_line(7_777_777, loss=9.9))
    run = make_run(tmp_path / "run", lines=[])
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 100_001):
            loss = 4 + 3 * math.exp(-step / 20_000) + draw.gauss(0, 0.1)
            file.write(line.replace("7777777", str(step)).replace("9.9", f"{loss:.4f}") + "\n")
            if step % 1000 == 0:
                file.write(json.dumps(trust_line(step)) + "\n")
                file.write(json.dumps({**EVALUATION, "step": step}) + "\n")
    page = page_of(run)
    assert (run / "report.html").stat().st_size < 1_000_000
    assert "100,000" in page.text


def test_an_objectives_own_metrics_get_pictures(tmp_path: Path) -> None:
    lines = [train_line(step, sop_loss=0.7, sop_accuracy=0.5) for step in range(1, 9)]
    page = page_of(make_run(tmp_path / "run", lines=lines))
    assert {"sop-loss", "sop-accuracy"} <= set(titles(page))
    assert "Sentence-order loss" in page.text


def test_a_probe_is_drawn_beside_the_loss(tmp_path: Path) -> None:
    scores = {"probe/blimp_trivial": 50.0, "probe_seconds": 4.0}
    lines = [train_line(step) for step in range(1, 9)]
    lines += [
        {"kind": "probe", "step": step, "probe/blimp_accuracy": 50.0 + step, **scores} for step in (0, 4, 8)
    ]
    folder = make_run(tmp_path / "run", lines=lines)
    page, run = page_of(folder), read_run(folder)
    assert "probe-blimp" in titles(page)
    assert "blimp: 50 at step 0, 58 at step 8; trivial: 50." in page.text
    assert run.train["loss"].steps.tolist() == list(range(1, 9)), "a probe is no line of training"
    assert run.probe["probe_seconds"].values.sum() == 12
    assert not any("probe" in name for name in run.metrics)


def test_a_checkpoint_is_shown_with_its_loss_at_mask(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_attempts(run, [*THREE_ATTEMPTS[:1], {**THREE_ATTEMPTS[1], "step": 100}])
    table = page_of(run).text.split("held-out loss at [MASK]now")[1]
    assert table.startswith("1002.0 MB1.5 s, 0.25 s6.120dropped")


def test_how_to_run_it_again_has_commands_hashes_and_conditions(tmp_path: Path) -> None:
    lines = [train_line(1), OLD_EVALUATION]
    run = make_run(tmp_path / "run", lines=lines, config=CONFIG)
    (run / "run.json").write_text(
        json.dumps({"format": 2, "attempts": 1, "identity": {"data": "abc123", "vocabulary": "def456"}})
    )
    folder = run / "checkpoints" / "step-00000100"
    folder.mkdir(parents=True)
    state = {"conditions": {"zero.stage": 1, "CUDA": None}, "held_out_loss": 5.25}
    (folder / "checkpoint.json").write_text(
        json.dumps({"step": 100, "files": [{"bytes": 9}], "state": state})
    )
    page = page_of(run)
    for words in (
        "maskmill vocab demo run.dir=runs/demo", "maskmill prepare demo run.dir=runs/demo",
        "maskmill export runs/demo", "abc123", "def456", "zero.stage", "5.250",
    ):  # fmt: skip
        assert words in page.text, words


def test_data_says_what_padding_would_cost(tmp_path: Path) -> None:
    data = {**DATA, "padded_tokens": 125_000, "examples": 1000}
    page = page_of(make_run(tmp_path / "run", summary={**SUMMARY, "data": {"train": data}}))
    assert "if padded to full length21.9%" in page.text  # 100,000 tokens in 1,000 x 128
    assert "if padded to the longest of each block20.0%" in page.text


def test_data_says_how_much_of_the_text_is_used(tmp_path: Path) -> None:
    counts = {"text_documents": 9, "text_tokens": 8000, "text_tokens_used": 5600, "documents_too_short": 1}
    page = page_of(make_run(tmp_path / "run", summary={**SUMMARY, "data": {"train": {**DATA, **counts}}}))
    assert "share of the text used70.0%" in page.text
    assert "documents too short1" in page.text
    older = page_of(make_run(tmp_path / "older", summary={**SUMMARY, "data": {"train": DATA}}))
    assert "share of the text" not in older.text


def test_padding_and_an_unused_budget_are_two_things(tmp_path: Path) -> None:
    lines = [train_line(step, padding_share=0.0, fill=0.764) for step in range(1, 9)]
    page = page_of(make_run(tmp_path / "run", lines=lines, summary={**SUMMARY, "data": {"train": DATA}}))
    padding, budget = page.text.split("Padding, as a share of all positions")[1].split(
        "Token budget of the micro-"
    )
    assert "as trained0.0%" in padding
    assert "used76.4%not used23.6%" in budget
    assert "23.6%" not in padding


def test_a_little_jitter_of_ranks_is_no_warning(tmp_path: Path) -> None:
    slow = "rank 1 is 1.4x slower than the median: 812 ms computing forward passes in a step"
    for wrong, warned in ((2, False), (8, False), (9, True)):
        lines = [train_line(s, slowdowns=[slow] if s <= wrong else None) for s in range(1, 91)]
        found = advice(read_run(make_run(tmp_path / str(wrong), lines=[*lines, EVALUATION])))
        assert [one.what for one in found] == [
            "One rank was slower than the others in 9 of 90 log lines."
        ] * warned


def test_a_loss_that_rose_is_grave(tmp_path: Path) -> None:
    lines = [train_line(s, loss=10.0 + 30 * (s > 5)) for s in range(1, 50)]
    (found,) = [one for one in advice(read_run(make_run(tmp_path / "run", lines=lines))) if one.grave]
    assert found.what.startswith("The loss is higher than where the run began: 40.000, and 10.000")


def test_no_two_pictures_share_a_name() -> None:
    ids = [chart.id for chart in (*CHARTS, *learning_charts(train_line(1), ["mask_loss"]))]
    assert len(set(ids)) == len(ids)

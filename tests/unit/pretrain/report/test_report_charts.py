"""report.html: whole, harmless, readable, whatever a run folder holds."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.errors import UserError, redact
from pretrain.report.charts import Level, Series, draw, running_middle, text, thin, ticks, value_range
from pretrain.report.page import render
from pretrain.report.record import Points, points_by_name, read_run
from pretrain.run.human import duration
from pretrain.run.metrics import Chart

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
VOID = {"meta", "path", "rect", "br", "img", "link", "input"}


class Page(HTMLParser):
    """Parses a page; collects tags with their attributes, visible text, and tags that close wrongly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("script", "style"):
            self.text += data.replace("\N{NO-BREAK SPACE}", " ")

    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]


def train_line(step: int, **changes: Any) -> dict[str, Any]:
    t = step / 100
    line = {
        "kind": "train", "step": step, "batch": step, "epoch": 0, "loss": 7 - t, "mlm_loss": 6.2 - t / 2,
        "mask_loss": 6.4 - t / 2, "mask_accuracy": 0.05 + t / 20, "kept_loss": 0.9, "kept_accuracy": 0.91,
        "random_loss": 7.2, "random_accuracy": 0.03,
        "nsp_loss": 0.6, "nsp_loss_is_next": 0.55, "nsp_loss_not_next": 0.65, "mlm_accuracy": 0.1 + t / 20,
        "nsp_accuracy": 0.7, "nsp_accuracy_is_next": 0.75, "nsp_accuracy_not_next": 0.65, "lr": 1e-3 * t,
        "grad_norm": 1.5, "trust_ratio": 0.05, "tokens_per_s": 15000.0, "examples_per_s": 140.0, "mfu": 0.4,
        "padding_share": 0.02, "fill": 0.97, "data_wait_share": 0.01, "memory_gb": 1.2, "seconds": t,
    }  # fmt: skip
    return {**line, **changes}


EVALUATION = {
    "kind": "eval", "step": 100, "held_out_loss": 6.6, "held_out_mlm_loss": 6.02, "held_out_nsp_loss": 0.58,
    "held_out_mlm_accuracy": 0.17, "held_out_nsp_accuracy": 0.71, "held_out_nsp_majority": 0.52,
    "held_out_mask_loss": 6.12, "held_out_mask_accuracy": 0.14, "held_out_mask_unigram_loss": 6.36,
    "held_out_mask_majority": 0.05, "held_out_mask_top_share": 0.3, "held_out_mask_top_token": ",",
    "held_out_kept_loss": 0.8, "held_out_kept_accuracy": 0.9, "held_out_random_loss": 7.1,
    "held_out_random_accuracy": 0.02,
}  # fmt: skip
OLD_EVALUATION = {
    name: value
    for name, value in EVALUATION.items()
    if not any(kind in name for kind in ("mask", "kept", "random", "majority"))
} | {"unigram_entropy": 6.36}
"""As versions wrote it that did not tell kinds of positions apart."""
DATA = {
    "documents": 1928, "examples": 1000, "tokens": 100_000, "masked": 15_000, "masked_as_mask": 12_000,
    "masked_as_random": 1_500, "masked_as_itself": 1_500, "pair_labels": {"is_next": 480, "not_next": 520},
    "single_sequences": 0, "full_length_examples": 800, "length_histogram": [10, 20, 170, 800],
}  # fmt: skip
SUMMARY = {
    "status": "finished", "steps": 100, "parameters": 1_543_104, "device": "CPU", "ranks": 2,
    "versions": {"torch": "2.13.0"}, "command": "maskmill train demo run.dir=runs/demo",
    "started": "2026-03-04T10:15:00+00:00", "finished": "2026-03-04T10:18:05+00:00", "data": {"train": DATA},
}  # fmt: skip
CONFIG = (
    "run:\n  dir: runs/demo\n  seed: 7\ntrain:\n  steps: 100\n  clip: 1.0\ndata:\n  sequence_length: 128\n"
)


def make_run(
    folder: Path,
    lines: list[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = SUMMARY,
    config: str | None = CONFIG,
    tail: str = "",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if lines is None:
        lines = [*(train_line(step) for step in range(1, 101)), EVALUATION]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    if config is not None:
        (folder / "config.yaml").write_text(config)
    return folder


def page_of(folder: Path) -> Page:
    path = render(folder)
    assert path == folder / "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert page.wrong == []
    assert len(set(page.ids())) == len(page.ids())
    return page


def test_says_what_ran_where_and_how_well(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "tiny"))
    for words in (
        "Finished", "tiny", "100 steps in 3 min 5 s on 2 ranks of CPU", "6.020", "71.0%", "15,000", "1.54 M",
        "At [MASK] in text it has not seen, its loss is 6.120 nats, a perplexity of 455; word frequencies alone give "
        "6.360, a perplexity of 578, 1.27 times as unsure.",
        "0.24 nats below what word frequencies alone give (6.360).",
        "Always the most frequent token would get 5.0%.", "Word frequencies alone give 578.",
        "Always the commoner label would get 52.0%.",
        "90.0% right at words that are kept, which takes no more than copying, 2.0% where",
        "maskmill train demo run.dir=runs/demo", "2.13.0",
        "48.0%", "80.0%", "documents",
    ):  # fmt: skip
        assert words in page.text, words


def in_mask(page: Page) -> list[str]:
    """Where the page says that context was learnt, or that it was not."""
    return re.findall("No context has been learnt yet|times as unsure", page.text)


def test_a_copier_is_not_praised(tmp_path: Path) -> None:
    """What the loss over all predicted tokens shows is that visible words were copied."""
    copier = {
        **EVALUATION,
        "held_out_mlm_loss": 5.97,
        "held_out_mask_loss": 6.485,
        "held_out_mask_top_share": 0.97,
    }
    lines = [*(train_line(step) for step in range(1, 101)), copier]
    page = page_of(make_run(tmp_path / "copier", lines=lines))
    assert in_mask(page) == ["No context has been learnt yet"] * 2, (
        "in the first sentence, and in what to look at"
    )
    assert "0.12 nats above what word frequencies alone give" in page.text
    assert '"," at 97% of the [MASK] positions' in page.text
    assert "data.sequence_length" in page.text
    only_at_start = page_of(make_run(tmp_path / "young", lines=[train_line(1), {**copier, "step": 0}]))
    assert in_mask(only_at_start) == []
    assert "only the untrained model was evaluated yet" in only_at_start.text


def test_an_older_run_is_shown_and_nothing_is_claimed(tmp_path: Path) -> None:
    old = {k: v for k, v in train_line(1).items() if not k.startswith(("mask_", "kept_", "random_"))}
    lines = [*({**old, "step": step} for step in range(1, 101)), OLD_EVALUATION]
    page = page_of(make_run(tmp_path / "old", lines=lines))
    assert in_mask(page) == []
    assert "its loss over all predicted tokens is 6.020 nats. Some of these tokens stay visible" in page.text
    assert "unigram" not in page.text
    assert "frequencies" not in page.text
    assert "mask-loss" not in page.ids()


def test_an_objective_without_mask_leads_with_its_own(tmp_path: Path) -> None:
    lines = [
        {"kind": "train", "step": step, "loss": 0.5, "disc_accuracy": 0.8, "lr": 1e-3} for step in range(1, 9)
    ]
    lines.append({"kind": "eval", "step": 8, "held_out_loss": 0.5, "held_out_disc_accuracy": 0.85})
    page = page_of(make_run(tmp_path / "run", lines=lines, summary={**SUMMARY, "headline": "disc_accuracy"}))
    assert "On text it has not seen, its disc accuracy is 85.0%." in page.text
    assert "Held-out disc accuracy85.0%" in page.text


def test_an_area_under_the_curve_has_a_tile_and_a_curve(tmp_path: Path) -> None:
    own = {"rtd_auc": 0.7, "rtd_loss": 0.4, "rtd_accuracy": 0.86}
    lines = [{"kind": "train", "step": step, "loss": 25.0, "lr": 1e-3, **own} for step in range(1, 9)]
    lines.append({"kind": "eval", "step": 8, **{f"held_out_{name}": value for name, value in own.items()}})
    page = page_of(make_run(tmp_path / "run", lines=lines, summary={**SUMMARY, "headline": "rtd_auc"}))
    assert "On text it has not seen, its replaced-token AUC is 0.700. A guess has 0.500." in page.text
    assert "Held-out replaced-token AUC0.700" in page.text
    assert {"headline", "rtd-loss", "rtd-accuracy"} <= set(page.ids())


def test_every_picture_is_there_and_told_in_words_and_numbers(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    wanted = {
        "mask-loss", "mask-accuracy", "kinds-loss", "kinds-accuracy", "mlm-loss", "mlm-accuracy", "nsp-loss",
        "nsp-accuracy", "loss", "lr", "grad-norm", "trust-ratio",
        "tokens-per-s", "shares", "memory", "data", "checkpoints", "reproduce", "settings",
    }  # fmt: skip
    assert wanted <= set(page.ids())
    pictures = [attributes for tag, attributes in page.tags if tag == "svg" and "role" in attributes]
    assert len(pictures) == 18  # seventeen charts and the lengths
    for picture in pictures:
        assert set(str(picture["aria-labelledby"]).split()) <= set(page.ids())
    assert sum(tag == "table" for tag, _ in page.tags) >= len(pictures)


def test_asks_for_nothing_and_allows_only_its_own_script(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert not [tag for tag, a in page.tags if {"src", "action"} & a.keys() or tag in ("link", "iframe")]
    links = [str(a["href"]) for _, a in page.tags if "href" in a]
    assert {link[1:] for link in links} <= set(page.ids())  # within the page
    assert all(link.startswith("#") for link in links)
    raw = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "url(" not in raw
    assert "@import" not in raw
    policy = next(str(a["content"]) for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    summary = {**SUMMARY, "status": HOSTILE, "device": HOSTILE, "command": HOSTILE, "versions": {HOSTILE: HOSTILE},
               "data": {**DATA, HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]}  # fmt: skip
    config = json.dumps(
        {"run": {"dir": HOSTILE, HOSTILE: HOSTILE}, "objective": {"name": HOSTILE}, HOSTILE: {"a": 1}}
    )
    run = make_run(tmp_path / "<b>&run", summary=summary, config=config)
    checkpoint = run / "checkpoints" / "<i>1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text(json.dumps({"step": 1, "files": [{"bytes": 9}]}))
    page = page_of(run)
    assert page.text.count("<script>alert('x')</script>") >= 8
    assert "<b>&run" in page.text
    assert "<i>1" not in page.text, "a folder of another name is no checkpoint"
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag in ("img", "b&run", "i1")]


def test_credentials_do_not_travel_with_the_page(tmp_path: Path) -> None:
    config = (
        "data:\n  sources: ['s3://me:hunter2@bucket/a']\n  shard_tokens: 400\nmonitor:\n  api_key: hunter2\n"
    )
    command = "maskmill train x data.out=https://h/p?X-Amz-Signature=hunter2&part=3"
    page = page_of(make_run(tmp_path / "run", summary={**SUMMARY, "command": command}, config=config))
    assert "hunter2" not in page.text
    assert "part=3" in page.text
    assert "400" in page.text
    assert redact("s3://me:a@b/c and ftp://x@y") == "s3://***@b/c and ftp://***@y"


def test_environment_variables_are_not_read_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPORT_TEST_SECRET", "hunter2")
    page = page_of(make_run(tmp_path / "run", config="run:\n  dir: ${oc.env:REPORT_TEST_SECRET}\n"))
    assert "hunter2" not in page.text
    assert "interpolation, ${...}, is not supported" in page.text


@pytest.mark.parametrize(
    "tail", ['{"kind":"train","step":101,"mlm_', '{"kind":', "\x00\x00\x00", "[1, 2]", '"text"']
)
def test_a_torn_last_line_costs_nothing(tmp_path: Path, tail: str) -> None:
    whole = page_of(make_run(tmp_path / "run")).text
    assert page_of(make_run(tmp_path / "run", tail=tail)).text == whole


def test_damaged_lines_are_said_to_be_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], b'{"kind": "train", "st', *lines[3:], b""]))
    assert "Damaged lines of metrics.jsonl, left out here: 1." in page_of(run).text


def test_a_run_without_metrics_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", lines=[], summary=None))
    assert "No metrics were logged" in page.text
    assert "summary.json is missing." in page.text
    assert "sequence_length" in page.text
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert "metrics.jsonl is missing." in page_of(tmp_path / "run").text


def test_broken_files_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", config="a: [1,\nb: {")
    (run / "summary.json").write_text('{"status": "fin')
    page = page_of(run)
    assert "summary.json cannot be read (JSONDecodeError" in page.text
    assert "config.yaml cannot be read" in page.text
    assert "Loss at [MASK]" in page.text
    (run / "summary.json").write_text("[]")
    assert "summary.json holds no table" in page_of(run).text


def test_single_streams_have_no_pictures_of_pairs(tmp_path: Path) -> None:
    def without_pairs(line: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in line.items() if "nsp" not in name}

    lines = [without_pairs(train_line(step)) for step in range(1, 50)] + [without_pairs(EVALUATION)]
    page = page_of(make_run(tmp_path / "run", lines=lines))
    assert {"mask-loss", "mask-accuracy"} <= set(page.ids())
    assert not {"nsp-loss", "nsp-accuracy", "loss"} & set(page.ids())
    assert "next-sentence" not in page.text.lower()


def test_values_that_are_not_finite_are_gaps_and_called_out(tmp_path: Path) -> None:
    lines = [train_line(step) for step in range(1, 31)]
    lines[10]["mlm_loss"] = math.nan
    lines[11]["mlm_loss"] = math.inf
    lines[12]["mlm_loss"] = None
    for line in lines:
        line["grad_norm"] = math.nan
    page = page_of(make_run(tmp_path / "run", lines=lines))
    assert "train: 3 values are not finite, first at step 11" in page.text
    assert "gradient norm: not one of 30 values is finite" in page.text
    assert not re.search(
        r"\b(nan|inf)\b", (tmp_path / "run" / "report.html").read_text().split("<script>")[0]
    )
    figure = draw(
        Chart("", "x", "X", "", ()), [Series("a", Points(np.arange(5.0), np.array([1, 2, math.nan, 4, 5])))]
    )
    stroke = re.search(r'class="s1" d="([^"]+)"/><path class="gap"', figure)
    assert stroke is not None
    assert stroke[1].count("M") == 2  # the pen is lifted once


def test_the_page_of_a_long_run_stays_small_and_keeps_its_spikes(tmp_path: Path) -> None:
    lines = [train_line(step) for step in range(1, 6_001)]
    lines[2_345]["nsp_loss"] = math.nan
    page = page_of(make_run(tmp_path / "run", lines=lines))
    assert (tmp_path / "run" / "report.html").stat().st_size < 400_000
    assert "first at step 2,346" in page.text
    values = np.ones(100_000)
    values[4321], values[50_000] = 9.0, math.nan
    thinned = thin(Points(np.arange(100_000.0), values), 600)
    assert len(thinned.values) <= 610
    assert 9.0 in thinned.values
    assert np.isnan(thinned.values).sum() == 1


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first = render(run).read_bytes()
    assert render(run).read_bytes() == first
    assert sorted(p.name for p in run.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "report.html",
        "summary.json",
    ]


@pytest.mark.parametrize("name", ["", "missing"])
def test_a_folder_that_is_no_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"expected a run folder with metrics\.jsonl"):
        render(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_whole_checkpoints_are_listed_and_others_are_not(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for step, text_ in (
        (50, '{"step": 50, "files": [{"bytes": 1500000}, {"bytes": 500000}]}'),
        (60, "{"),
        (70, None),
    ):
        folder = run / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        if text_ is not None:
            (folder / "checkpoint.json").write_text(text_)
    assert [(c.step, c.bytes) for c in read_run(run).checkpoints] == [(50, 2_000_000)]
    assert "2.0 MB" in page_of(run).text


def test_a_running_run_shows_its_newest_numbers_and_an_ended_one_its_summary(tmp_path: Path) -> None:
    for status, speed in (("running", 15_000.0), ("finished", 11.0)):
        run = make_run(tmp_path / status, summary={**SUMMARY, "status": status, "tokens_per_s": 11.0})
        assert read_run(run).final("tokens_per_s") == speed


def test_parts_of_the_data_stand_side_by_side(tmp_path: Path) -> None:
    held_out = {**DATA, "examples": 37, "pair_labels": {"is_next": 37, "not_next": 0}}
    parts = {
        "held_out": held_out,
        "reading": {"documents": 1929, "bytes": 5},
        "train": DATA,
        "held_out_entropy": 6.5,
    }
    page = page_of(make_run(tmp_path / "run", summary={**SUMMARY, "data": parts}))
    assert page.text.index("train", page.text.index("Data")) < page.text.index("held out")
    assert "1.93 k documents" in page.text
    for words in (
        "reading",
        "1,929",
        "37",
        "held out entropy",
        "6.500",
        "48.0%",
    ):  # shares are of the training part
        assert words in page.text, words


def test_pair_scores_are_set_beside_what_one_answer_would_get(tmp_path: Path) -> None:
    """An accuracy of 57.6 % is nothing where 57.6 % of the pairs are NotNext."""
    always = {"held_out_nsp_accuracy_is_next": 0.0, "held_out_nsp_accuracy_not_next": 1.0}
    parts = {"train": DATA, "held_out": {**DATA, "pair_labels": {"is_next": 424, "not_next": 576}}}
    lines = [train_line(1), train_line(2), {**OLD_EVALUATION, "held_out_nsp_accuracy": 0.576, **always}]
    page = page_of(make_run(tmp_path / "run", lines=lines, summary={**SUMMARY, "data": parts}))
    assert "IsNext 0.0%, NotNext 100.0%. Always the commoner label would get 57.6%." in page.text
    assert "commoner label 57.6%" in page.text
    assert "label frequencies alone 0.6816" in page.text


def test_a_failed_run_says_why_and_a_stopped_one_how_far_it_came(tmp_path: Path) -> None:
    lines = [train_line(step) for step in range(1, 41)]
    summary = {
        **SUMMARY,
        "status": "failed",
        "error": "OverflowError: ten in a row",
        "step": 40,
        "seconds": 50.0,
    }
    page = page_of(make_run(tmp_path / "run", lines=lines, summary=summary))
    assert "Failed" in page.text
    assert "OverflowError: ten in a row" in page.text
    assert "40 of 100 steps in 50 s" in page.text
    summary["status"] = "stopped"
    (tmp_path / "run" / "run.json").write_text('{"format": 2, "attempts": 3}')
    page = page_of(make_run(tmp_path / "run", lines=lines, summary=summary))
    assert "Stopped" in page.text
    assert "OverflowError" not in page.text.split("Settings")[0]
    assert "40 of 100 steps in 50 s" in page.text
    assert "Resumed 2 times." in page.text


def test_a_step_logged_twice_counts_as_its_later_line_says() -> None:
    metrics = points_by_name([{"step": 2, "a": 1.0}, {"step": 1, "a": 5}, {"step": 2, "a": 3.0, "b": True}])
    assert metrics["a"].steps.tolist() == [1, 2]
    assert metrics["a"].values.tolist() == [5, 3]
    assert "b" not in metrics


def test_a_few_wild_values_do_not_flatten_the_others() -> None:
    values = np.concatenate([np.linspace(1, 2, 500), [1e6]])
    low, high = value_range(values, [2.5], zero=False)
    assert low < 1
    assert 2.5 < high < 10
    chart = Chart("", "x", "X", "", ())
    figure = draw(chart, [Series("a", Points(np.arange(501.0), values))], [Level("l", 2.5)])
    assert "1 of 501 values lies outside the frame; they reach from 1 to 1,000,000." in figure


def test_smooth_lines_follow_the_values_and_stop_at_gaps() -> None:
    steps = np.arange(400.0)
    values = steps + np.where(steps == 200, 1e9, 0.0)
    smooth = running_middle(Points(steps, values))
    assert len(smooth.values) <= 200
    assert np.abs(smooth.values - smooth.steps).max() < 5  # the wild value moved nothing
    values[300] = math.nan
    assert np.isnan(running_middle(Points(steps, values)).values).sum() == 1


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0, 10, [0, 5, 10]),
        (0, 1e-3, [0, 5e-4, 1e-3]),
        (-3, 3, [-2, 0, 2]),
        (7, 7, [7]),
        (0.1, 0.4, [0.2, 0.4]),
    ],
)
def test_ticks_are_round(low: float, high: float, wanted: list[float]) -> None:
    assert ticks(low, high, 3) == wanted


def test_numbers_in_words() -> None:
    assert [text(v) for v in (None, math.nan, 0, 12, 6.3642, 15240.2, 4e-5)] == [
        "—", "—", "0", "12", "6.364", "15,240", "4e-05",
    ]  # fmt: skip
    assert [duration(v) for v in (None, 42, 185, 3600, 7800, 356_400)] == [
        "", "42 s", "3 min 5 s", "1 h", "2 h 10 min", "4 d 3 h",
    ]  # fmt: skip


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.1)."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_the_paper(mode: int) -> None:
    css = (Path(__file__).parents[4] / "pretrain" / "report" / "page.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", css)
    colours = {name: both[mode] for name, *both in found}
    for paper in ("card", "paper"):
        for ink in ("ink", "quiet", "bad"):
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    for line in ("c1", "c2", "c3", "c4"):
        assert contrast(colours[line], colours["card"]) >= 4.5, line
    for badge in ("good", "fair", "live", "broken"):
        assert contrast(colours[badge], colours[f"{badge}-bg"]) >= 4.5, badge

"""report.html in a real browser: quiet, whole, on a phone and a desk, in light and dark, by finger and by key.

The screenshots stay in tests/artefacts/ for a person to look at.
"""

import json
import math
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium

from pretrain.report.page import render
from pretrain.run.files import EVENTS, append
from tests.command_line import ROOT
from tests.unit.pretrain.report.test_record import (
    SKIPPED,
    THREE_ATTEMPTS,
    trust_line,
    write_attempts,
)
from tests.unit.pretrain.report.test_report_charts import (
    DATA,
    EVALUATION,
    HOSTILE,
    SUMMARY,
    make_run,
    train_line,
)

pytestmark = pytest.mark.browser
ARTEFACTS = ROOT / "tests" / "artefacts"
PHONE, DESK = 360, 1280


def rich_run(folder: Path) -> Path:
    """A run with everything that the page can show."""
    draw, slow = (
        random.Random(5),
        "rank 1 is 1.4x slower than the median: 812 ms computing forward passes in a step",
    )
    lines: list[dict[str, Any]] = []
    for step in range(1, 401):
        fall = 3 * math.exp(-step / 90)
        extra = {
            "loss": 5.1 + fall + draw.gauss(0, 0.05), "mlm_loss": 4.6 + fall + draw.gauss(0, 0.05),
            "mask_loss": 4.7 + fall + draw.gauss(0, 0.05),
            "grad_norm": 1 + draw.random(), "step_ms": 210 + draw.gauss(0, 5), "slowest_step_ms": 260.0,
            "forward_ms": 70.0, "slowest_rank": draw.randrange(2), "slowest_rank_ratio": 1 + draw.random() / 4,
            "slowdowns": [slow] if step > 380 else None, "skipped_batches": 1,
            "lr": 1e-3 * min(step / 40, 1 - step / 401),
        }  # fmt: skip
        lines.append(train_line(step, **extra))
        if step % 8 == 0:
            lines.append(trust_line(step))
        if step % 50 == 0:
            loss = 4.7 + 3 * math.exp(-step / 90)
            lines.append({**EVALUATION, "step": step, "held_out_mask_loss": loss, "held_out_loss": loss + 0.5,
                          "eval_seconds": 2.0})  # fmt: skip
    phases = [{"name": "short", "first": 0, "last": 300}, {"name": "long", "first": 300, "last": 400}]
    summary = {**SUMMARY, "steps": 400, "phases": phases, "phase": "long", "peak_source": "measured",
               "hosts": ["node1", "node2"], "seconds": 90.0, "step": 400}  # fmt: skip
    run = make_run(folder, lines=lines, summary=summary)
    write_attempts(run, THREE_ATTEMPTS)
    append(run / EVENTS, f"{json.dumps(SKIPPED)}\n".encode())
    blank = {
        "before": "member of the United",
        "after": "and of the Council",
        "word": "Nations",
        "guesses": [["x", 0.5]],
    }
    (run / "samples.json").write_text(json.dumps({"step": 400, "held_out": True, "samples": [blank] * 8}))
    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return render(rich_run(tmp_path_factory.mktemp("browser") / "a run to look at"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    ARTEFACTS.mkdir(exist_ok=True)
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture
def quiet(browser: Chromium) -> Iterator[Chromium]:
    """The browser; afterwards its console must have said nothing, and nothing may have been asked for."""
    browser.said.clear()
    browser.asked.clear()
    yield browser
    assert browser.said == []
    assert browser.asked == []


def pixels(png: bytes) -> list[bytes]:
    """Rows of RGB or RGBA bytes of a PNG of eight bits a channel (PNG specification, section 9)."""
    at, data, width, height, channels = 8, b"", 0, 0, 3
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, stride, rows, above = zlib.decompress(data), width * channels, [], bytearray(width * channels)
    for y in range(height):
        start = y * (stride + 1)
        above = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, channels)
        rows.append(bytes(above))
    return rows


def unfiltered(kind: int, row: bytearray, above: bytearray, channels: int) -> bytearray:
    for i, value in enumerate(row):
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        guess = left + above[i] - corner
        paeth = min((left, above[i], corner), key=lambda near: abs(guess - near))
        row[i] = (value + (0, left, above[i], (left + above[i]) // 2, paeth)[kind]) & 255
    return row


def brightness(browser: Chromium, width: int) -> float:
    """Of what the window shows, 0 to 255."""
    rows = pixels(browser.thumbnail(width))
    return sum(map(sum, rows)) / sum(map(len, rows))


@pytest.mark.parametrize("width", [PHONE, 768, DESK])
def test_nothing_sticks_out_and_every_chart_is_drawn(quiet: Chromium, page: Path, width: int) -> None:
    quiet.open(page, width)
    assert quiet.run("document.documentElement.scrollWidth") == width
    sizes = quiet.run(
        "[...document.querySelectorAll('svg[role=img]')].map((svg) => {"
        "const box = svg.getBoundingClientRect(), drawn = [...svg.querySelectorAll('path, rect')]"
        ".some((part) => part.getTotalLength() > 0);"
        "return [box.width, box.height, drawn]})"
    )
    assert len(sizes) >= 17
    for wide, high, drawn in sizes:
        assert wide > 150
        assert high >= 20
        assert drawn
    small = quiet.run(
        "[...document.querySelectorAll('body *')].filter((e) => e.childNodes.length && "
        "[...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length && "
        "parseFloat(getComputedStyle(e).fontSize) < 11).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert small == []


def test_the_table_of_checkpoints_fits_a_phone(quiet: Chromium, tmp_path: Path) -> None:
    """Also of a run of a million steps, without a bar to scroll it sideways."""
    run = rich_run(tmp_path / "run")
    saved = {
        **THREE_ATTEMPTS[1],
        "step": 1_000_000,
        "seconds": 123.4,
        "blocked_seconds": 12.345,
        "bytes": 123_400_000,
    }
    write_attempts(run, [THREE_ATTEMPTS[0], saved])
    quiet.open(render(run), 375)
    widths = "(() => { const box = document.querySelector('#checkpoints .scroll'); return [%s] })()"
    needed, there = quiet.run(widths % "box.scrollWidth, box.clientWidth")
    assert needed <= there
    assert "1,000,000" in quiet.run("document.querySelector('#checkpoints').textContent")


def test_light_and_dark_by_the_device_and_by_the_switch(quiet: Chromium, page: Path) -> None:
    shades: dict[str, float] = {}
    for width, name in ((PHONE, "phone"), (DESK, "desk")):
        for scheme in ("light", "dark"):
            quiet.open(page, width, scheme=scheme)
            quiet.screenshot(ARTEFACTS / f"report-{name}-{scheme}.png")
            shades[f"{name} {scheme}"] = brightness(quiet, width)
        assert shades[f"{name} light"] > 180
        assert shades[f"{name} dark"] < 80
    quiet.open(page, DESK, scheme="dark")
    assert quiet.run("document.getElementById('theme').textContent") == "Light"
    quiet.run("document.getElementById('theme').click()")
    assert brightness(quiet, DESK) > 180
    assert quiet.run("document.getElementById('theme').textContent") == "Dark"


def visible_tip(browser: Chromium) -> list[str]:
    return browser.run(
        "[...document.querySelectorAll('.tip:not([hidden])')].flatMap((tip) => "
        "[...tip.children].map((row) => row.textContent))"
    )


def middle_of(browser: Chromium, selector: str) -> tuple[float, float]:
    box = browser.run(
        f"(() => {{ const plot = document.querySelector('{selector}'); plot.scrollIntoView({{block: 'center'}});"
        "const box = plot.getBoundingClientRect(); return [box.x, box.y, box.width, box.height] })()"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def test_pointer_finger_and_keys_read_values(quiet: Chromium, page: Path) -> None:
    quiet.open(page, DESK)
    quiet.point(*middle_of(quiet, "#mask-loss .plot"))
    found = visible_tip(quiet)
    assert found[0].startswith(("step 199", "step 20"))
    assert [line.split(":")[0] for line in found[1:]] == ["train", "held-out"]
    assert 4 < float(found[1].split()[1]) < 6
    quiet.point(3, 3)
    assert visible_tip(quiet) == []

    quiet.run("document.querySelector('#trust-map .plot').focus()")
    quiet.key("ArrowDown")
    assert visible_tip(quiet)[1].startswith("layer 1: ")
    quiet.key("Home")
    assert visible_tip(quiet)[0] == "step 8"
    quiet.key("Escape")
    assert visible_tip(quiet) == []

    quiet.open(page, PHONE)
    for selector in ("#mask-loss .plot", "#trust-map .plot"):
        quiet.tap(*middle_of(quiet, selector))
        assert visible_tip(quiet)[0].startswith("step ")
        ends = quiet.run(
            "(() => { const box = document.querySelector('.tip:not([hidden])').getBoundingClientRect();"
            "return [box.left, box.right] })()"
        )
        assert ends[0] >= 0
        assert ends[1] <= PHONE
    assert quiet.run("document.documentElement.scrollWidth") == PHONE


def test_every_chart_is_reached_by_the_tab_key(quiet: Chromium, page: Path) -> None:
    quiet.open(page, DESK)
    wanted = quiet.run("document.querySelectorAll('[data-plot], [data-grid]').length")
    reached = set()
    for _ in range(200):
        quiet.key("Tab")
        name = quiet.run(
            "document.activeElement.closest('figure')?.id + ' ' + document.activeElement.className"
        )
        if name.split()[-1] in ("plot", "heat"):
            reached.add(name)
        if len(reached) == wanted:
            break
    assert len(reached) == wanted


def test_it_prints_in_light_without_the_bar(quiet: Chromium, page: Path) -> None:
    quiet.open(page, DESK, scheme="dark", media="print")
    assert quiet.run("getComputedStyle(document.getElementById('bar')).display") == "none"
    quiet.screenshot(ARTEFACTS / "report-print.png", whole=False)
    assert brightness(quiet, DESK) > 180
    paper = quiet.pdf(ARTEFACTS / "report.pdf")
    assert paper.startswith(b"%PDF")
    assert 3 <= paper.count(b"/Type /Page\n") <= 14


def test_hostile_names_run_nothing(quiet: Chromium, tmp_path: Path) -> None:
    lines = [train_line(step, slowdowns=[HOSTILE]) for step in range(1, 50)]
    lines += [{"kind": "trust", "step": 4, f"trust_ratio/{HOSTILE}": 0.3}]
    summary = {**SUMMARY, "device": HOSTILE, "hosts": [HOSTILE], "data": {"train": {**DATA, HOSTILE: HOSTILE}},
               "phases": [{"name": HOSTILE, "first": 0, "last": 50}]}  # fmt: skip
    quiet.open(render(make_run(tmp_path / "run", lines=lines, summary=summary)), DESK)
    quiet.point(*middle_of(quiet, "#mask-loss .plot"))
    assert visible_tip(quiet)
    assert quiet.run("document.images.length") == 0


def test_a_run_that_has_just_begun(quiet: Chromium, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines=[train_line(1)], summary={"status": "running", "steps": 100})
    quiet.open(render(run), PHONE)
    assert quiet.run("document.documentElement.scrollWidth") == PHONE
    assert quiet.run("document.querySelector('h1').textContent") == "run"


def test_the_console_is_heard(browser: Chromium, tmp_path: Path) -> None:
    """What the other tests rely on: an error, a message and a request are noticed."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<script>console.log('heard'); fetch('http://127.0.0.1:9/x').catch(() => 0); nothing()</script>"
    )
    browser.open(bad, DESK)
    assert any("heard" in line for line in browser.said)
    assert any("nothing is not defined" in line for line in browser.said)
    assert browser.asked == ["http://127.0.0.1:9/x"]

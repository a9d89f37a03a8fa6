"""Parts of a day with a GPU see what is wrong: other bytes, a loss that does not fall, a run that was not killed."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from launch.recipe import load_config
from pretrain.model.attention import choose_backend
from tests.factories.gpu_days import Script
from tests.gpu_day import checks
from tests.gpu_day.checks import family, kill_after, resume, twice
from tests.gpu_day.day import outcome
from tests.gpu_day.runs import Failed, LeftOut
from tests.gpu_day.stages import KINDS, ranks, stages

KILLED = {"checkpoints": [10, 20], "hangs": True}
RISING = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def figures_of(part: Any, script: Script) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    part(script.day, figures)
    return figures


def test_the_same_run_twice(script: Script) -> None:
    assert figures_of(twice, script) == {"first": "a", "second": "a"}
    assert [call["name"] for call in script.done()] == ["first", "second"]


@pytest.mark.parametrize("sha", [["b"], ["a", "a"]])
def test_two_runs_of_other_bytes(script: Script, sha: list[str]) -> None:
    script.write(second={"sha": sha})
    with pytest.raises(Failed, match=r"^the weights differ$"):
        figures_of(twice, script)


def test_a_run_that_is_killed_and_goes_on(script: Script) -> None:
    """It is held against a run of its own, or against the one that `twice` has left."""
    script.write(killed=KILLED)
    found = figures_of(resume, script)
    assert found == {"killed after": "step-00000020", "whole": "a", "resumed": "a"}
    assert [(call["name"], call["again"]) for call in script.done()] == [
        *(("whole", False), ("killed", False), ("killed", True))
    ]
    figures_of(twice, script)
    assert figures_of(resume, script) == found
    names = [call["name"] for call in script.done()]
    assert names[3:] == ["first", "second", "killed", "killed"]
    assert not [path for path in script.day.out.iterdir() if path.is_dir()]


def test_runs_that_are_compared_by_bytes_attend_as_bert_base_does(script: Script) -> None:
    script.write(killed=KILLED)
    for part in (twice, resume, resume):  # the second time without a whole run of `twice`
        figures_of(part, script)
    base, calls = load_config("bert_base", []).encoder, script.done()
    assert len(calls) == 2 + 2 + 3
    for call in calls:
        settings = [f"{key}={value}" for key, value in call.items() if key.startswith("encoder.")]
        encoder = load_config("bert_mini", settings).encoder
        assert (encoder.dropout, encoder.attention_dropout) == (base.dropout, base.attention_dropout)
        gpu, size = torch.device("meta"), encoder.head_size
        assert choose_backend(gpu, torch.bfloat16, size, encoder.attention_dropout) == "flash"


def test_a_run_that_goes_on_to_other_bytes(script: Script) -> None:
    script.write(killed={**KILLED, "sha": ["b"]})
    with pytest.raises(Failed, match=r"^the weights differ$"):
        figures_of(resume, script)


def test_a_run_that_ends_before_it_is_killed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = script.day.out / "killed"
    with pytest.raises(Failed, match=r"^it ended with 0 before it could be killed$"):
        kill_after(script.day, killed, [], checkpoints=2)
    # one that was over when it was to be killed: its checkpoints alone do not show that
    monkeypatch.setattr(checks, "stop", lambda process: process.wait())
    with pytest.raises(Failed, match=r"^it ended with 0 before it could be killed$"):
        kill_after(script.day, killed, [], checkpoints=1)


def test_a_run_that_is_never_killed_is_cut_short(script: Script) -> None:
    script.write(killed={"hangs": True})
    script.day.part_ends = 0.0
    with pytest.raises(subprocess.TimeoutExpired):
        kill_after(script.day, script.day.out / "killed", [], checkpoints=2)


def test_what_an_earlier_call_left_is_not_taken_for_this_ones(script: Script) -> None:
    """Neither as a run to compare with, nor as one that goes on, nor are its checkpoints waited for."""
    for name in ("first", "second", "whole", "killed", "member bert", "stages fp16"):
        for step in (10, 20):
            old = script.day.out / name / f"checkpoints/step-{step:08d}/checkpoint.json"
            old.parent.mkdir(parents=True)
            old.write_text('{"files": [{"file": "0", "sha256": "old"}]}')
    script.write(killed=KILLED)
    for part in ("resume", "twice", "family", "stages"):
        outcome(part, script.day)
    seen: set[str] = set()
    for call in script.done():
        assert call["again"] == (call["name"] in seen), call["name"]
        seen.add(call["name"])
    assert {"whole", "killed", "first", "second", "member bert", "stages fp16"} <= seen


def test_every_loss_has_to_fall(script: Script) -> None:
    assert figures_of(family, script) == {"trained": 2, "failed": {}}
    (bert,) = (call for call in script.done() if call["name"] == "member bert")
    assert bert["a.b"] == f"{script.day.carried}/members/bert"
    script.write(**{"member mlm": {"losses": RISING}})
    with pytest.raises(Failed, match=r"^mlm: loss 1\.000 at first, 10\.000 at last$"):
        figures_of(family, script)


MOVED = {"losses": [9, 8, 7, 6, 5] * 6, "later": [4.0] * 30, "says": "resuming from step 30 (bit-exact)"}
MOVES = {"stages 1 to 3": MOVED, "stages 3 to 0": MOVED}


def test_stages_and_moves_between_them(script: Script) -> None:
    script.write(**MOVES)
    assert figures_of(stages, script)["trained"] == len(KINDS) + 2
    given = {call["name"]: call for call in script.done()}
    assert given["stages fp16"]["train.precision"] == "fp16"
    assert given["stages stage 3 on the host"]["zero.offload"] == "cpu"
    moved = [call for call in script.done() if call["name"] == "stages 1 to 3"]
    assert [(call["zero.stage"], call.get("run.stop_after")) for call in moved] == [("1", "30"), ("3", None)]


@pytest.mark.parametrize(
    ("name", "said", "words"),
    [
        ("stages stage 0", {"losses": RISING}, "stage 0: loss 1.000 at first"),
        ("stages 3 to 0", {**MOVED, "says": ""}, "3 to 0: it began anew"),
        ("stages 3 to 0", {**MOVED, "later": [9.5] * 5 + [4.0] * 25}, "3 to 0: loss 9.000 at first, 9.500"),
        ("stages 3 to 0", {**MOVED, "later": [4.0] * 10 + [9.5] * 20}, "3 to 0: loss 9.000 at first, 9.500"),
    ],
)
def test_a_stage_that_does_not_learn(script: Script, name: str, said: dict[str, Any], words: str) -> None:
    """Nor one that has lost what was learnt before it went on."""
    script.write(**{**MOVES, name: said})
    with pytest.raises(Failed, match=f"^{words}"):
        figures_of(stages, script)


def test_one_gpu_is_too_few_for_ranks(script: Script) -> None:
    with pytest.raises(LeftOut, match=r"^needs two GPUs, torch sees 1$"):
        figures_of(ranks, script)
    assert outcome("ranks", script.day)["status"] == "left out: needs two GPUs, torch sees 1"


def test_all_gpus_at_every_stage_and_their_speed(script: Script) -> None:
    script.day.gpus = 4
    found = figures_of(ranks, script)
    assert found == {
        "GPUs": 4,
        **{f"stage {stage}": "a" for stage in range(4)},
        **{f"examples/s, {count}": 100.0 * count for count in (1, 2, 4)},
    }
    assert [(call["run.ranks"], call.get("zero.stage")) for call in script.done()] == [
        *((("4", str(stage))) for stage in range(4) for _ in range(2)),
        *((str(count), None) for count in (1, 2, 4)),
    ]


def test_a_stage_whose_bytes_differ_over_ranks(script: Script) -> None:
    """Of the first rank's file or of another's; the speed is measured all the same."""
    script.day.gpus = 2
    same = {"sha": ["a", "b"]}
    script.write(**{f"ranks 2 {attempt}": same for attempt in ("first", "second")})
    assert figures_of(ranks, script)["stage 2"] != "differs"
    script.write(**{"ranks 2 first": same, "ranks 2 second": {"sha": ["a", "c"]}})
    figures: dict[str, Any] = {}
    with pytest.raises(Failed, match=r"^the weights differ at stage 2$"):
        ranks(script.day, figures)
    assert (figures["stage 2"], figures["examples/s, 2"]) == ("differs", 200.0)


REPORT = """<testsuites><testsuite>
<testcase name="passes"/>{}
</testsuite></testsuites>"""
CASES = {
    "fails": '<testcase name="fails"><failure message="x"/></testcase>',
    "breaks": '<testcase name="breaks"><error message="x"/></testcase>',
}


def judged(report: Path, text: str) -> dict[str, Any]:
    report.write_text(text)
    figures: dict[str, Any] = {}
    checks.judge(report, figures)
    return figures


def test_a_report_of_tests(tmp_path: Path) -> None:
    report, skipped = tmp_path / "tests.xml", '<testcase name="skips"><skipped/></testcase>'
    assert judged(report, REPORT.format("")) == {"passed": 1, "failed": [], "skipped": []}
    assert judged(report, REPORT.format(skipped)) == {"passed": 1, "failed": [], "skipped": ["skips"]}
    for name, case in CASES.items():
        with pytest.raises(Failed, match=f"^1 of 2 tests: {name}$"):
            judged(report, REPORT.format(case))
    with pytest.raises(Failed, match=r"^0 of 0 tests"):
        judged(report, "<testsuites/>")
    with pytest.raises(Failed, match=r"^0 of 1 tests"):
        judged(report, f"<testsuite>{skipped}</testsuite>")

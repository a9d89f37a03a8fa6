"""A model that is scored while it trains (train.probe) has the weights of one that is not, and the scores are those of
its exports."""

import json
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pretrain.evaluate.probe import ProbeTask
from tests.command_line import WORDS, Maskmill, as_only_rank
from tests.run_ends import assert_bit_equal

pytestmark = [
    pytest.mark.slow,
    # what DeepSpeed's imports give rise to in a process of pytest's
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
DROPOUT = ["encoder.dropout=0.1", "encoder.attention_dropout=0.1", "train.eval_every=2"]


@pytest.fixture(scope="module")
def blimp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets of pairs in BLiMP's shape, of which a tenth is 18 pairs."""
    folder, rng = tmp_path_factory.mktemp("data") / "BLiMP", random.Random(5)
    folder.mkdir()
    for name in ("island", "agreement", "passive"):
        rows = []
        for _ in range(60):
            words = rng.sample(WORDS, 6)
            pair = {"sentence_good": " ".join(words), "sentence_bad": " ".join(words[::-1])}
            rows.append(json.dumps({**pair, "linguistics_term": "syntax", "UID": name}))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def probe(blimp: Path) -> list[str]:
    return ["train.probe=blimp", f"train.probe_data={blimp.parent}", "train.probe_every=2"]


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def learnt(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(run, "train")]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A user's own texts, of two classes."""
    folder, rng = tmp_path_factory.mktemp("own"), random.Random(6)
    for name, count in (("train", 40), ("dev", 20)):
        rows = [f"{' '.join(rng.sample(WORDS, 5))}\t{i % 2}" for i in range(count)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return ["train.probe=own", f"train.probe_data={folder}", "train.probe_every=2"]


@pytest.mark.parametrize(
    ("ranks", "stage", "task"), [(1, 1, "blimp"), (1, 3, "own"), (2, 1, "own"), (2, 3, "blimp")]
)
def test_the_weights_are_bit_equal_with_and_without_it(
    ranks: int,
    stage: int,
    task: str,
    probe: list[str],
    own: list[str],
    blimp: Path,
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path: Path,
) -> None:
    plain, probed = tmp_path / "plain", tmp_path / "probed"
    settings = [*tiny, *DROPOUT, f"run.ranks={ranks}", f"zero.stage={stage}"]
    # stage 3 changes torch in its process
    with as_only_rank() if (ranks, stage) == (1, 1) else nullcontext():
        maskmill("train", "demo", *settings, f"run.dir={plain}")
        asked = own if task == "own" else probe
        printed = maskmill("train", "demo", *settings, *asked, f"run.dir={probed}").stdout
    assert_bit_equal(plain, probed)
    assert learnt(plain) == learnt(probed)
    found = {line["step"]: line[f"probe/{task}_accuracy"] for line in lines(probed, "probe")}
    assert list(found) == [0, 2, 4]
    assert f"step 4  probe: {task} accuracy {found[4]:.1f} (trivial 50.0)" in printed
    assert f"{task} accuracy" in maskmill("status", str(probed)).stdout
    assert f'id="probe-{task}"' in (probed / "report.html").read_text()
    if (ranks, stage) == (2, 3):
        maskmill("export", str(probed))
        maskmill("evaluate", str(probed), "blimp", "--data", str(blimp), "--no-floor", "part=0.1")
        scored = json.loads((probed / "evaluation" / "blimp" / "result.json").read_text())
        assert scored["scores"]["dev"]["accuracy"]["median"] == found[4]


def test_a_resumed_run_has_each_score_once(
    here: None, probe: list[str], tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    settings = [*tiny, *DROPOUT, *probe]
    maskmill("train", "demo", *settings, f"run.dir={whole}")
    maskmill("train", "demo", *settings, f"run.dir={halves}", "run.stop_after=2")
    maskmill("train", "demo", *settings, f"run.dir={halves}")
    assert_bit_equal(whole, halves)
    scores = [
        [(p["step"], p["probe/blimp_accuracy"]) for p in lines(run, "probe")] for run in (whole, halves)
    ]
    assert scores[0] == scores[1]
    assert [step for step, _ in scores[0]] == [0, 2, 4]


def test_its_time_is_not_that_of_training(
    here: None,
    probe: list[str],
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*given: object) -> dict[str, float]:
        time.sleep(3)
        return {"blimp_accuracy": 60.0}

    monkeypatch.setattr(ProbeTask, "score", slow)
    maskmill("train", "demo", *tiny, *probe, "train.steps=3", f"run.dir={tmp_path}/run")
    assert min(line["probe_seconds"] for line in lines(tmp_path / "run", "probe")) >= 3
    logged = lines(tmp_path / "run", "train")
    assert [line["step"] for line in logged] == [1, 2, 3]
    assert all(12 / line["examples_per_s"] < 2 and line["step_ms"] < 2000 for line in logged[1:])

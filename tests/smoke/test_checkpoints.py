"""Checkpoints through the real command line: damage, mirrors, other models, poison, and secrets that stay secret.

Runs of one rank, in this process: what several ranks do is in tests/multirank and test_resume.py."""

import json
import pickle
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pytest

from data_pipeline.errors import UserError
from data_pipeline.io import object_store
from pretrain.checkpoint.mirror import Mirror
from pretrain.checkpoint.store import sealed
from pretrain.config.settings import TrainSettings
from pretrain.training import start
from pretrain.training.resume import _resuming
from tests.command_line import BUCKET, Maskmill, as_only_rank, described, setting
from tests.run_ends import assert_same_weights, final

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

RUN = ["train.steps=6", "run.ranks=1", "train.eval_every=2", "checkpoint.keep=2"]


@pytest.fixture(scope="module")
def stopped(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps, stopped after the fourth: checkpoints of steps 2 and 4."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    with as_only_rank():
        maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}", "run.stop_after=4")
    return run


@pytest.fixture(scope="module")
def finished(
    stopped: Path, tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, gone on with to its end."""
    run = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(stopped, run)
    with as_only_rank():
        printed = maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}").stdout
    assert "resuming from step 4 (bit-exact" in printed
    return run


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to do things to."""
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_a_damaged_newest_one_costs_its_steps_and_no_more(
    run: Path, finished: Path, tiny: list[str], maskmill: Maskmill
) -> None:
    damaged = run / "checkpoints" / "step-00000004"
    flip(damaged / "fragments-00000.safetensors")
    told = maskmill("inspect", str(run), code=2)
    assert "step-00000004/fragments-00000.safetensors: checkpoint file is missing or its bytes" in told.stderr
    assert "step-00000002" in told.stdout
    printed = maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}").stdout
    line = next(line for line in printed.splitlines() if "is damaged" in line)
    assert line.startswith("step-00000004 is damaged (")
    assert line.endswith("set aside as step-00000004.damaged, falling back to step-00000002")
    assert "resuming from step 2" in printed
    assert_same_weights(finished, run)
    assert [p.name for p in (run / "checkpoints").glob("*.damaged")] == [], "it has been made again"
    assert described(maskmill, run)["damaged"] == {}


def test_a_run_whose_folder_is_gone_goes_on_from_its_mirror(
    endpoint: str, finished: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    settings = [*tiny, *RUN, f"run.dir={gone}", f"checkpoint.mirror=s3://{BUCKET}/run"]
    maskmill("train", "demo", *settings, "run.stop_after=4")
    before = json.loads((gone / "run.json").read_text())
    shutil.rmtree(gone)
    assert "optim.lr=0.5" in maskmill("train", "demo", *settings, "optim.lr=0.5", code=2).stderr
    shutil.rmtree(gone, ignore_errors=True)
    printed = maskmill("train", "demo", *settings).stdout
    assert f"brought back the checkpoint of step 4 from s3://{BUCKET}/run" in printed
    assert "resuming from step 4" in printed
    assert_same_weights(finished, gone)
    assert json.loads((gone / "run.json").read_text())["id"] == before["id"]
    steps = [json.loads(line)["step"] for line in (gone / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [0, 1, 2, 3, 4, 5, 6], "the history is whole"


def test_a_damaged_newest_one_is_fetched_from_its_mirror(
    endpoint: str, run: Path, finished: Path, tiny: list[str], maskmill: Maskmill
) -> None:
    mirror = f"checkpoint.mirror=s3://{BUCKET}/healed"
    settings = [*tiny, *RUN, f"run.dir={run}", mirror]
    maskmill("train", "demo", *settings, "run.stop_after=5")
    flip(run / "checkpoints" / "step-00000005" / "fragments-00000.safetensors")
    printed = maskmill("train", "demo", *settings).stdout
    assert f"fetched the checkpoint of step 5, which is not whole here, from s3://{BUCKET}/healed" in printed
    assert "resuming from step 5 (bit-exact" in printed
    assert_same_weights(finished, run)


def test_a_checkpoint_of_another_recipe_is_refused_with_what_differs(
    run: Path, tiny: list[str], maskmill: Maskmill
) -> None:
    told = json.loads((run / "run.json").read_text())
    told["identity"]["optim.lr"] = 0.5
    del told["sha256"]
    (run / "run.json").write_text(json.dumps(told))
    line = maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}", "optim.lr=0.5", code=2).stderr
    assert "step-00000004: holds another run: optim.lr=0.5 (there: 0.01)" in line


def test_what_cannot_be_started_from_says_what_differs(
    run: Path, finished: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    fresh = [*tiny, *RUN, f"run.dir={tmp_path}/fresh", "run.stop_after=1"]
    line = maskmill("train", "demo", *fresh, f"init_from={run}", "encoder.heads=4", code=2).stderr
    assert "encoder.heads=4 (there: 2)" in line, "no shape would have told"
    assert not (tmp_path / "fresh").exists()
    maskmill("export", str(finished), "--out", str(tmp_path / "model"))
    (tmp_path / "model" / "maskmill.json").unlink()  # its hashes
    for name in ("tokenizer.json", "vocab.txt"):
        text = (tmp_path / "model" / name).read_text(encoding="utf-8")
        (tmp_path / "model" / name).write_text(text.replace("sea", "see"), encoding="utf-8")
    line = maskmill("train", "demo", *fresh, f"init_from={tmp_path}/model", code=2).stderr
    assert "has another vocabulary" in line
    assert not (tmp_path / "fresh").exists()
    flip(run / "checkpoints" / "step-00000004" / "fragments-00000.safetensors")
    line = maskmill("train", "demo", *fresh, f"init_from={run}", code=2).stderr
    assert "bytes changed" in line, "who names a model is not handed another"


def test_a_changed_condition_is_told_in_one_line(run: Path) -> None:
    newest = final(run, 4)
    same = newest.state["conditions"]
    assert _resuming(newest, same, TrainSettings(), 0) == "resuming from step 4 (bit-exact)"
    for key in ("ranks", "run.threads", "zero.stage", "train.micro_batch", "device", "instructions", "torch"):
        assert f"equal within rounding, since {key} {same[key]} -> 9)" in _resuming(
            newest, same | {key: 9}, TrainSettings(), 0
        )


class Poison:
    """Unpickling it makes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple:
        return Path.touch, (self.canary,)


def test_no_pickle_is_loaded_from_a_run_folder(
    run: Path, finished: Path, tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    poison = pickle.dumps(Poison(canary))
    pickle.loads(poison)
    canary.unlink()  # it does work
    maskmill("export", str(finished), "--out", str(tmp_path / "model"))
    checkpoint, settings = run / "checkpoints" / "step-00000004", [*tiny, *RUN, f"run.dir={run}"]
    for folder in (run, checkpoint, tmp_path / "model"):
        for name in (
            "optimizer.pt",
            "pytorch_model.bin",
            "rng.pkl",
            "mp_rank_00_model_states.pt",
            "training_args.bin",
        ):
            (folder / name).write_bytes(poison)
    # whoever can write into the folder can also make the hashes hold
    fragments, marker = checkpoint / "fragments-00000.safetensors", checkpoint / "checkpoint.json"
    fragments.write_bytes(poison)
    entry = {"file": fragments.name, "bytes": len(poison), "sha256": sha256(poison).hexdigest()}
    marker.write_bytes(sealed(json.loads(marker.read_text()) | {"files": [entry]}))
    assert "cannot be read" in maskmill("train", "demo", *settings, code=2).stderr
    assert "cannot be read" in maskmill("export", str(run), "--out", f"{tmp_path}/out", code=2).stderr
    maskmill("inspect", str(run))
    for name, code in {"metrics.jsonl": 0, "config.yaml": 2, "summary.json": 2, "run.json": 2}.items():
        (run / name).write_bytes(poison)
        maskmill("inspect", str(run), code=code)
    shutil.copytree(finished, tmp_path / "other")
    (tmp_path / "other" / "config.yaml").write_bytes(poison)
    assert "malformed" in maskmill("export", f"{tmp_path}/other", "--out", f"{tmp_path}/out", code=2).stderr
    marker.write_bytes(poison)
    (tmp_path / "model" / "model.safetensors").unlink()
    maskmill("fill", str(tmp_path / "model"), "the captain of the [MASK].", code=2)
    line = maskmill(
        "train", "demo", *tiny, *RUN, f"run.dir={tmp_path}/new", f"init_from={tmp_path}/model", code=2
    )
    assert "no weights" in line.stderr
    assert not canary.exists()


CANARIES = {
    "WANDB_API_KEY": "c0ffee" * 6 + "c0ff",
    "AWS_SECRET_ACCESS_KEY": "awscanary0123456789",
    "HF_TOKEN": "hf_canary0123456789",
}
IN_URI = "uricanary0123456789"


def test_secrets_are_written_nowhere(
    endpoint: str,
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, said = tmp_path / "run", []
    secret = f"https://AKIA{IN_URI}:{IN_URI}@127.0.0.1:9/text?X-Amz-Signature={IN_URI}"
    monkeypatch.setattr(object_store, "DELAYS", ())
    settings = [
        *(s for s in tiny if not s.startswith("data.sources=")),
        *RUN,
        f"data.sources={secret}",
        f"train.shards={setting(tiny, 'data.out')}",
        f"run.dir={run}",
        "monitor.tracker=wandb",
        f"checkpoint.mirror=s3://{BUCKET}/secret",
    ]
    said.append(maskmill("train", "demo", *settings, "run.stop_after=2"))
    said.append(maskmill("train", "demo", *settings))
    said.append(maskmill("export", str(run), "--out", str(tmp_path / "model")))
    said.append(maskmill("report", str(run)))
    said.append(maskmill("inspect", str(run), "--json"))
    for key in (
        "checkpoint.mirror",
        "data.out",
        "train.shards",
        "data.sources",
    ):  # read again from the run folder: refused, not cut
        refused = maskmill("train", "demo", *settings, f"{key}=s3://{IN_URI}:{IN_URI}@{BUCKET}/x", code=2)
        assert f"{key} holds credentials" in refused.stderr
        said.append(refused)
    said.append(maskmill("prepare", "demo", *settings, f"data.out={tmp_path}/out", code=2))
    store = fsspec.filesystem("s3")
    written = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written |= {name: store.cat_file(name) for name in store.find(f"{BUCKET}/secret")}
    written |= {f"output {i}": (one.stdout + one.stderr).encode() for i, one in enumerate(said)}
    names = {Path(name).name for name in written}
    assert {
        "config.yaml",
        "report.html",
        "metrics.jsonl",
        "checkpoint.json",
        "config.json",
        "summary.json",
    } <= names
    assert any(name.endswith(".wandb") for name in names)
    leaks = [
        (name, canary)
        for name, data in written.items()
        for canary in (*CANARIES.values(), IN_URI)
        if canary.encode() in data
    ]
    assert leaks == []
    assert setting(settings, "data.sources").count(IN_URI) == 3


def test_what_a_killed_save_left_takes_no_room(
    run: Path, tiny: list[str], maskmill: Maskmill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes before the room is looked at: else the restart could be refused for it."""
    left, found, check_room = run / "checkpoints" / "step-00000006.5f0c81ab.partial", [], start.check_room

    def noted(*arguments: Any) -> str:
        found.append(left.exists())
        return check_room(*arguments)

    left.mkdir()
    monkeypatch.setattr(start, "check_room", noted)
    maskmill("train", "demo", *tiny, *RUN, f"run.dir={run}", "run.stop_after=5")
    assert found == [False]


def test_a_run_whose_last_checkpoint_is_not_mirrored_is_not_finished(
    endpoint: str, run: Path, tiny: list[str], maskmill: Maskmill, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored = [*tiny, *RUN, f"run.dir={run}", f"checkpoint.mirror=s3://{BUCKET}/last"]

    def full(*_arguments: Any) -> None:
        raise UserError("cannot be written: the bucket is full", where="s3://bucket")

    with monkeypatch.context() as patch:
        patch.setattr(Mirror, "copy", full)
        said = maskmill("train", "demo", *mirrored, code=2).stderr
    assert "the bucket is full" in said
    assert final(run, 6).step == 6
    maskmill("train", "demo", *mirrored)
    assert [
        n
        for n in object_store.object_names(f"s3://{BUCKET}/last/checkpoints")
        if n.startswith("step-00000006")
    ]
    assert "nothing to do" in maskmill("train", "demo", *mirrored).stdout

"""What users get wrong: one clear line, exit code 2, no traceback, nothing half-written."""

import fcntl
import re
import shutil
from pathlib import Path

import pytest

from tests.command_line import Maskmill, setting, write_text

pytestmark = pytest.mark.slow


def app_verbs() -> list[str]:
    """Every verb of the command line."""
    from launch import cli

    return [command.callback.__name__ for command in cli.app.registered_commands if command.callback]


def refused(maskmill: Maskmill, *arguments: str) -> str:
    """The one line of a refusal."""
    lines = maskmill(*arguments, code=2).stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("maskmill: ")
    return lines[0]


def test_arguments(maskmill: Maskmill, tmp_path: Path) -> None:
    assert "train.steps" in refused(maskmill, "train", "demo", "train.stepz=3")
    assert "no such recipe" in refused(maskmill, "train", "nobody")
    assert "No such command" in refused(maskmill, "trian", "demo")
    assert "no such folder" in refused(maskmill, "inspect", str(tmp_path / "nowhere"))
    (tmp_path / "nowhere2").mkdir()
    near = f"nowhere: no such run folder (did you mean {tmp_path}/nowhere2?)"
    for verb in ("status", "export", "report"):
        assert refused(maskmill, verb, str(tmp_path / "nowhere")).endswith(near)
        assert refused(maskmill, verb, "nobody").endswith(
            "nobody: no such run folder, and no recipe of that name"
        )
    assert "did you mean the recipe demo?" in refused(maskmill, "status", "demoo")
    assert "no such recipe" in refused(maskmill, "status", str(tmp_path / "nowhere.yaml"))
    assert "nothing to inspect" in refused(maskmill, "inspect", str(tmp_path))
    assert "is above encoder.max_positions" in refused(maskmill, "train", "demo", "data.sequence_length=512")


def test_sources(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    out = tmp_path / "shards"

    def prepare(*changes: str) -> str:
        line = refused(maskmill, "prepare", "demo", *tiny, f"data.out={out}", *changes)
        assert not (out / "index.json").exists()
        assert not list(out.glob("*.tar")), "a shard without an index was left"
        return line

    assert "no-such-file" in prepare(f"data.sources={tmp_path}/no-such-file.txt")
    (tmp_path / "empty.txt").write_text("\n\n \n")
    assert "no text to learn from" in prepare(f"data.sources={tmp_path}/empty.txt")
    (tmp_path / "one.txt").write_text("Only one document. It has two sentences.\n")
    assert "only one" in prepare(f"data.sources={tmp_path}/one.txt", "data.held_out=0")
    assert "sets aside" in prepare(f"data.sources={tmp_path}/one.txt", "data.held_out=0.5")
    assert "data.vocab" in prepare("data.vocab=")
    (tmp_path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    assert "broken.jsonl" in prepare(f"data.sources={tmp_path}/broken.jsonl")


def test_shards(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    shards = Path(setting(tiny, "data.out"))
    run = [*tiny, f"run.dir={tmp_path}/run", "run.ranks=1"]
    assert "without shards" in refused(maskmill, "train", "demo", *run, f"train.shards={tmp_path}")
    assert "is above train.global_batch" in refused(maskmill, "train", "demo", *run, "run.ranks=13")
    assert "data.masked_lm_prob=0.2" in refused(maskmill, "train", "demo", *run, "data.masked_lm_prob=0.2")
    assert "doc_sentences" in refused(maskmill, "train", "demo", *run, "objective.name=mlm")
    assert "holds other data" in refused(maskmill, "prepare", "demo", *tiny, "data.seed=99")

    other = tmp_path / "vocabulary"
    write_text(tmp_path / "other.txt", seed=5)
    maskmill(
        "vocab",
        "demo",
        *tiny,
        f"data.sources={tmp_path}/other.txt",
        f"data.vocab={other}",
        "vocabulary.size=200",
    )
    assert "is not the one that made the shards" in refused(
        maskmill, "train", "demo", *run, f"data.vocab={other}"
    )

    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    tar = sorted(damaged.glob("train-*.tar"))[0]
    content = bytearray(tar.read_bytes())
    content[len(content) // 3] ^= 1
    tar.write_bytes(content)
    assert tar.name in refused(maskmill, "inspect", str(damaged))
    assert tar.name in refused(maskmill, "train", "demo", *run, f"train.shards={damaged}", "data.verify=full")
    assert not (tmp_path / "run").exists(), "a refused run leaves no folder"
    line = refused(maskmill, "train", "demo", *run, f"train.shards={damaged}")
    assert tar.name in line
    assert "block" in line


def test_run_folders(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    run = [*tiny, "run.ranks=1", "run.stop_after=1", f"run.dir={tmp_path}/run"]
    maskmill("train", "demo", *run)
    line = refused(maskmill, "train", "demo", *run, "optim.lr=0.5", "encoder.layers=3")
    assert "optim.lr=0.5 (there: 0.01)" in line
    assert "encoder.layers=3 (there: 2)" in line
    fresh = [*run, f"run.dir={tmp_path}/fresh"]
    assert "no such folder" in refused(maskmill, "train", "demo", *fresh, f"init_from={tmp_path}/typo")
    maskmill("train", "demo", *fresh)  # what came to nothing does not stand in the way
    with (tmp_path / "run" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process" in refused(maskmill, "train", "demo", *run)
    assert "is a URI" in refused(maskmill, "train", "demo", *run, "run.dir=s3://bucket/run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    assert "holds other files" in refused(maskmill, "train", "demo", *run, f"run.dir={tmp_path}/mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    assert "exists already" in refused(maskmill, "export", f"{tmp_path}/run", "--out", f"{tmp_path}/mine")
    fragment = next((tmp_path / "run" / "checkpoints").glob("*/fragments-*"))
    content = bytearray(fragment.read_bytes())
    content[-1] ^= 1
    fragment.write_bytes(content)
    assert "bytes changed" in refused(maskmill, "export", f"{tmp_path}/run")
    assert "bytes changed" in refused(maskmill, "train", "demo", *run)


def test_fill_wants_one_blank(maskmill: Maskmill, tmp_path: Path) -> None:
    assert "not an exported model" in refused(maskmill, "fill", str(tmp_path), "a [MASK]")


@pytest.mark.parametrize("verb", sorted(app_verbs()))
def test_every_verb_explains_itself(maskmill: Maskmill, verb: str) -> None:
    text = maskmill(verb, "--help").stdout
    assert re.search(rf"Examples?:\n +(\w+ .*)?maskmill {verb}\b", text)


def test_a_mistake_says_what_to_do_next(maskmill: Maskmill, tmp_path: Path) -> None:
    assert "did you mean bert_base" in refused(maskmill, "train", "bert-base")
    assert "expected one of train.steps" in refused(maskmill, "train", "demo", "train.stepz=3")
    assert "Did you mean 'train'? (see `maskmill --help`)" in refused(maskmill, "trian", "demo")
    assert "(see `maskmill train --help`)" in refused(maskmill, "train")
    (tmp_path / "base").mkdir()
    for verb in ("status", "report", "export", "inspect"):
        assert f"did you mean {tmp_path}/base?" in refused(maskmill, verb, f"{tmp_path}/bsae"), verb

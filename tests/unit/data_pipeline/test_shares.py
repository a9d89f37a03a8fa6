"""Stages in shares, by many processes on one folder: the bytes of one process; and tokenized text that is kept."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import whole_file, whole_folder, write_once
from data_pipeline.prepare import NAMES, prepare, prepare_share
from data_pipeline.records import Corpus
from data_pipeline.sequences.registry import SEQUENCES
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.shards.index import SPLITS
from data_pipeline.stages import tasks
from data_pipeline.stages.corpus import plan_pools
from data_pipeline.stages.executors import Share
from data_pipeline.stages.workspace import open_workspace
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import Maskmill, command, environ, write_text
from tests.factories.preparations import corpus_of, hashes, settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")

SMALL = {"sequence_length": "32", "max_predictions": "5", "shard_tokens": "1500", "block_examples": "8"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of documents, and a vocabulary."""
    folder = tmp_path_factory.mktemp("shares")
    (folder / "corpus").mkdir()
    for number in range(4):
        write_text(folder / "corpus" / f"{number}.txt", documents=25, seed=number)
    settings = DataSettings(sources=[f"{folder}/corpus"], vocab=f"{folder}/vocabulary")
    learn_vocabulary(settings, VocabularySettings(size=300), silent)
    return folder


@pytest.fixture(scope="module")
def expected(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("expected") / "shards"
    prepare(settings_for(text, out), silent)
    return hashes(out)


def test_shares_one_after_the_other(text: Path, expected: dict[str, str], tmp_path: Path) -> None:
    settings = settings_for(text, tmp_path / "shards")
    for name in ("read", "plan", "gather", "write"):
        for number in (2, 0, 1):
            prepare_share(settings, silent, name, Share(number, 3))
    assert not (tmp_path / "shards" / "index.json").exists()
    assert prepare_share(settings, silent, "finish") == f"prepared {tmp_path / 'shards'}"
    assert hashes(tmp_path / "shards") == expected
    assert not (tmp_path / "shards" / ".work").exists()
    for name in NAMES:
        assert "already prepared" in prepare_share(settings, silent, name)


@pytest.mark.parametrize("kind", SEQUENCES)
def test_all_text_that_was_read_is_used_or_counted_apart(text: Path, tmp_path: Path, kind: str) -> None:
    settings = settings_for(text, tmp_path / "shards", sequences=kind, weights=[0.5], dupe_factor=1)
    index, _ = prepare(settings, silent)
    parts = [index.statistics[split] for split in SPLITS]
    total = {name: sum(part[name] for part in parts) for name in parts[0] if type(parts[0][name]) is int}
    groups = ("text_{}", "{}_too_short", "{}_not_passed")
    for unit in ("documents", "tokens"):
        assert sum(total[group.format(unit)] for group in groups) == index.statistics["reading"][unit]
    assert total["text_tokens_used"] == total["text_tokens"] > 0
    assert total["documents_not_passed"] > 0


def test_exact_mode_says_what_the_script_loses(text: Path, tmp_path: Path) -> None:
    index, _ = prepare(
        settings_for(text, tmp_path / "shards", mode="exact", held_out=0.0, duplicates="keep"), silent
    )
    assert index.train.shards[1:], "counted once, not once a shard"
    found = index.statistics["train"]
    assert 0.1 * found["text_tokens"] < found["text_tokens_used"] < found["text_tokens"]
    assert found["text_documents"] == 97, "a file that ends is no end of a document"


def test_a_stage_says_what_is_missing_before_it(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text, tmp_path / "shards")
    prepare_share(settings, silent, "read", Share(1, 2))
    line = (
        r"read-done: stage gather needs all tasks of stage read, and 2 are missing: 0, 2 \(run --stage read"
    )
    with pytest.raises(UserError, match=line):
        prepare_share(settings, silent, "gather")
    with pytest.raises(UserError, match="stage finish needs all tasks of stage read"):
        prepare_share(settings, silent, "finish")
    with pytest.raises(UserError, match="unknown 'reed'"):
        prepare_share(settings, silent, "reed")
    for wrong in ("3", "3/3", "-1/2", "a/b", "1/0"):
        with pytest.raises(UserError, match="expected NUMBER/OF"):
            Share.parsed(wrong)


@pytest.mark.slow
def test_many_processes_start_at_once_on_an_empty_folder(
    text: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    """Six at once, two for each share: all do their tasks, some twice, and nothing collides."""
    settings = [f"data.sources={text}/corpus"]
    settings += [f"data.vocab={text}/vocabulary", f"data.out={tmp_path}/shards", "data.held_out=0.2"]
    settings += [
        "data.workers=1",
        "data.dupe_factor=2",
        "data.duplicates=keep",
        "data.masked_lm_prob=0.15",
        *(f"data.{key}={value}" for key, value in SMALL.items()),
    ]
    started = [
        subprocess.Popen(
            command("prepare", "demo", *settings, "--stage", "read", "--share", f"{number % 3}/3"),
            env=environ(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for number in range(6)
    ]
    for process in started:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
    for name in ("plan", "gather", "write", "finish"):
        prepare_share(settings_for(text, tmp_path / "shards"), silent, name)
    assert hashes(tmp_path / "shards") == expected


def test_work_of_other_settings_is_an_error_among_many(text: Path, tmp_path: Path) -> None:
    settings = settings_for(text, tmp_path / "shards")
    prepare_share(settings, silent, "read")
    done = sorted((tmp_path / "shards" / ".work" / "read").iterdir())
    for options in ({"seed": 1}, {"sources": [f"{text}/corpus/0.txt"]}):
        with pytest.raises(UserError, match="unfinished work of other settings or sources"):
            prepare_share(settings_for(text, tmp_path / "shards", **options), silent, "read")
    assert sorted((tmp_path / "shards" / ".work" / "read").iterdir()) == done


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("version", [None, 2], ids=["nameless", "which_cut_pairs_otherwise"])
def test_unfinished_work_of_another_version_is_refused_and_stays(
    text: Path, tmp_path: Path, together: bool, version: int | None
) -> None:
    settings = settings_for(text, tmp_path / "shards")
    prepare_share(settings, silent, "discover")
    identity = tmp_path / "shards" / ".work" / "identity.json"
    older = json.loads(identity.read_bytes()) | {"format": version}
    if version is None:
        del older["format"]
    identity.write_text(json.dumps(older))
    with pytest.raises(UserError, match=r"another version of Maskmill \(finish it .* or remove the folder"):
        prepare_share(settings, silent, "discover") if together else prepare(settings, silent)
    assert json.loads(identity.read_bytes()) == older


@pytest.mark.parametrize(("elsewhere", "notes"), [((), 1), (("work", "tokens"), 2)])
def test_discover_notices_text_that_changed_behind_unfinished_work(
    text: Path, tmp_path: Path, elsewhere: tuple[str, ...], notes: int
) -> None:
    """An edit of equal size, which no reader would notice, and a file that was added; the line says how to go on."""
    shutil.copytree(text / "corpus", tmp_path / "corpus")
    options = {name: str(tmp_path / name) for name in elsewhere}
    settings = settings_for(text, tmp_path / "shards", sources=[str(tmp_path / "corpus")], **options)
    prepare_share(settings, silent, "discover")
    prepare_share(settings, silent, "read", Share(0, 2))
    assert "4 parts" in prepare_share(settings, silent, "discover"), (
        "beside those who read, of unchanged text"
    )
    edited = tmp_path / "corpus/3.txt"
    edited.write_bytes(edited.read_bytes().swapcase())
    shutil.copy(edited, tmp_path / "corpus/4.txt")
    for _ in range(notes):  # each folder of unfinished work says whose it is
        with pytest.raises(
            UserError, match=r"unfinished work of other settings or sources .*remove it"
        ) as caught:
            prepare_share(settings, silent, "discover")
        shutil.rmtree(caught.value.where)
    assert "5 parts" in prepare_share(settings, silent, "discover")
    for name in ("read", "plan", "gather", "write", "finish"):
        prepare_share(settings, silent, name)
    fresh = settings_for(text, tmp_path / "fresh", sources=[str(tmp_path / "corpus")])
    prepare(fresh, silent)
    assert hashes(tmp_path / "shards") == hashes(tmp_path / "fresh")


def test_shares_are_not_for_exact_mode(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    exact = ["data.mode=exact", "data.sentences=lines", "data.held_out=0", f"data.out={tmp_path}/out"]
    line = maskmill("prepare", "demo", *tiny, *exact, "--stage", "read", code=2).stderr
    assert "exact mode is one process" in line
    assert (
        "data.tokens"
        in maskmill("prepare", "demo", *tiny, *exact, f"data.tokens={tmp_path}/t", code=2).stderr
    )
    assert "--stage" in maskmill("prepare", "demo", *tiny, "--share", "1/2", code=2).stderr


def test_two_who_write_the_same(tmp_path: Path) -> None:
    with whole_file(tmp_path / "file") as one, whole_file(tmp_path / "file") as other:
        one.write(b"same")
        other.write(b"same")
    assert (tmp_path / "file").read_bytes() == b"same"
    with whole_folder(tmp_path / "folder") as late:
        with whole_folder(tmp_path / "folder") as early:
            (early / "a").write_bytes(b"early")
        (late / "a").write_bytes(b"late")
    assert (tmp_path / "folder" / "a").read_bytes() == b"early", "a folder that someone may read was replaced"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_the_first_of_many_writers_is_believed(tmp_path: Path) -> None:
    barrier, found = threading.Barrier(8), []

    def write(number: int) -> None:
        barrier.wait()
        found.append(write_once(tmp_path / "once", f"{number}".encode() * 1000))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {(tmp_path / "once").read_bytes()}
    assert [p.name for p in tmp_path.iterdir()] == ["once"]


def test_a_shard_of_a_huge_document_is_put_together_on_disk(
    text: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(text, tmp_path / "shards")
    for name in ("read", "plan", "gather"):
        prepare_share(settings, silent, name)
    workspace = open_workspace(settings, load_vocabulary(settings.vocab), together=True)
    monkeypatch.setattr(tasks, "MAX_TOKENS_IN_MEMORY", 0)
    monkeypatch.setattr("data_pipeline.sequences.base.BUFFER_TOKENS", 512)  # many pieces
    pool, chosen = workspace.pools[0], workspace.pools[0].shards[0]
    assert pool.split == "train"
    shard = tmp_path / "train-000000.tar"
    corruption, mask = workspace.corruption, workspace.vocabulary.mask
    tasks.write_range(
        workspace.gathered[0], chosen, workspace.builder, corruption, mask, settings, 0, str(shard)
    )
    (tmp_path / "shards").rename(tmp_path / "aside")
    assert {p.name: h for p in [shard] for h in [hashes(tmp_path)[p.name]]} == {
        shard.name: expected[shard.name]
    }
    assert not list(tmp_path.glob(".*")), "the spool was left"


def test_another_length_starts_from_the_tokens_of_the_first(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two phases of BERT: the second one reads and tokenizes nothing, and has the bytes of a fresh start."""
    kept = {"tokens": str(tmp_path / "tokens")}
    later: dict[str, Any] = {
        "sequence_length": 64,
        "max_predictions": 10,
        "dupe_factor": 3,
        "whole_word": True,
    }
    prepare(settings_for(text, tmp_path / "fresh", **later), silent)
    prepare(settings_for(text, tmp_path / "first", **kept), silent)
    tokens = {p: p.stat().st_mtime_ns for p in (tmp_path / "tokens").rglob("*") if p.is_file()}
    assert any(p.name == "tokens.npy" and "gathered" in str(p) for p in tokens)

    aside = tmp_path / "aside"
    for file in (
        text / "corpus"
    ).iterdir():  # of the same name, size and time, but nothing that anyone could read
        stamp, size = file.stat(), file.stat().st_size
        aside.mkdir(exist_ok=True)
        shutil.copy2(file, aside / file.name)
        file.write_bytes(b"\n" * size)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    try:
        prepare(settings_for(text, tmp_path / "second", **kept, **later), silent)
    finally:
        for file in aside.iterdir():
            shutil.copy2(file, text / "corpus" / file.name)
    assert hashes(tmp_path / "second") == hashes(tmp_path / "fresh")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "tokens").rglob("*") if p.is_file()} == tokens


@pytest.mark.slow
def test_what_decides_tokens_and_pools_has_folders_of_its_own(text: Path, tmp_path: Path) -> None:
    kept = {"tokens": str(tmp_path / "tokens")}

    def folders(number: int, **options: Any) -> tuple[int, int]:
        """After one more preparation: folders of tokenized text, and of gathered documents."""
        prepare(settings_for(text, tmp_path / f"out{number}", **kept, **options), silent)
        fresh = settings_for(text, tmp_path / f"fresh{number}", **options)
        prepare(fresh, silent)
        assert hashes(tmp_path / f"out{number}") == hashes(tmp_path / f"fresh{number}")
        found = list((tmp_path / "tokens").iterdir())
        return len(found), sum(len(list(f.glob("gathered-????????????????"))) for f in found)

    assert folders(0) == (1, 1)
    assert folders(1, masked_lm_prob=0.2) == (1, 1)
    assert folders(2, held_out=0.4) == (1, 2)
    assert folders(3, seed=9) == (1, 3), "which documents are held out is drawn from the seed"
    assert folders(4, held_out=0.0) == (1, 4)
    assert folders(5, held_out=0.0, seed=9) == (1, 4)
    assert folders(6, sentences="lines") == (2, 5)
    notes = [json.loads((f / "identity.json").read_bytes()) for f in (tmp_path / "tokens").iterdir()]
    assert sorted(note[1]["sentences"] for note in notes) == ["lines", "split"]


def test_work_elsewhere_and_the_same_bytes(text: Path, expected: dict[str, str], tmp_path: Path) -> None:
    work = tmp_path / "work"
    settings = settings_for(text, tmp_path / "shards", work=str(work))
    prepare_share(settings, silent, "read")
    assert [p.name for p in (tmp_path / "shards" / ".work").iterdir()] != []
    assert not (tmp_path / "shards" / ".work" / "read").exists()
    prepare(settings, silent)
    assert hashes(tmp_path / "shards") == expected
    assert list(work.iterdir()) == []


def test_corpora_of_short_documents_are_cut_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_pipeline.stages.corpus.POOL_DOCUMENTS", 5)
    parts: list[Corpus] = [corpus_of(list(range(1, 18)))]
    assert [p.last_key for p in plan_pools(parts, DataSettings(sources=["x"], min_donors=2))] == [5, 11, 17]

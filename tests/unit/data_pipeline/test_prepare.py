"""Sources to shards: the same bytes whatever the workers and the place, nothing lost on the way, and exact mode."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import check_writable
from data_pipeline.loader.packing import original_tokens
from data_pipeline.prepare import NAMES, prepare, prepare_share
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.shards.index import HELD_OUT, TRAIN, Index
from data_pipeline.shards.shard import BlockReader
from data_pipeline.sources import passed_over, snapshot
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.read import source_files
from data_pipeline.stages import executors
from data_pipeline.stages.corpus import DocumentPool, ShardRange, plan_pools
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import VOCABULARY, Maskmill, setting, write_text
from tests.factories.preparations import corpus_of, hashes, settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of documents, and a vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus").mkdir()
    write_text(folder / "corpus" / "a.txt", documents=60, seed=1)
    write_text(folder / "corpus" / "b.txt", documents=30, seed=2)
    settings = DataSettings(sources=[f"{folder}/corpus"], vocab=f"{folder}/vocabulary")
    learn_vocabulary(settings, VocabularySettings(size=300), silent)
    return folder


def test_equal_bytes_for_any_workers_folder_time_zone_and_umask(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, fresh = prepare(settings_for(text, tmp_path / "one"), silent)
    assert fresh
    assert len(index.train.shards) > 2
    assert len(index.held_out.shards) >= 1
    moved = tmp_path / "elsewhere" / "corpus"
    moved.mkdir(parents=True)
    for name in ("b.txt", "a.txt"):  # written, and so perhaps listed, in another order
        (moved / name).write_bytes((text / "corpus" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    old = os.umask(0o077)
    try:
        prepare(
            settings_for(text, Path("two"), workers=2, sources=["elsewhere/corpus"]),
            silent,
        )
    finally:
        os.umask(old)
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")
    assert not (tmp_path / "one" / ".work").exists()
    prepare(settings_for(text, tmp_path / "three", seed=1), silent)
    assert hashes(tmp_path / "one")["train-000000.tar"] != hashes(tmp_path / "three")["train-000000.tar"]


def test_a_killed_run_goes_on_where_it_was(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(settings_for(text, tmp_path / "whole"), silent)
    kept = executors.keep
    results = []

    def dies_after(count: int):  # type: ignore[no-untyped-def]
        def keep(done: Path, number: int, result: dict) -> None:
            if len(results) == count:
                raise KeyboardInterrupt
            results.append(executors.marker(done, number))
            kept(done, number, result)

        return keep

    for count in (1, 3, 5):
        monkeypatch.setattr(executors, "keep", dies_after(count))
        with pytest.raises(KeyboardInterrupt):
            prepare(settings_for(text, tmp_path / "killed"), silent)
        assert not (tmp_path / "killed" / "index.json").exists()
    monkeypatch.setattr(executors, "keep", kept)
    before = {path: path.stat().st_mtime_ns for path in results}
    monkeypatch.setattr("data_pipeline.prepare.close_workspace", lambda _job: None)  # keep .work to look at
    prepare(settings_for(text, tmp_path / "killed"), silent)
    assert {path: path.stat().st_mtime_ns for path in results} == before, "what was done was done again"
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")


def test_nothing_is_lost_and_nothing_shared(text: Path, tmp_path: Path) -> None:
    """As single streams, whose tokens cover the text exactly: every document once a pass, on one side only."""
    options = {"sequences": "doc_sentences", "short_seq_prob": 0.0, "held_out": 0.3}
    index, _ = prepare(settings_for(text, tmp_path / "streams", **options), silent)
    reading = index.statistics["reading"]
    assert reading["documents"] == 90
    per_split = {}
    for split in (index.train, index.held_out):
        blocks = list(BlockReader(index, split).all_blocks())
        per_split[split.name] = sum(len(b.tokens) - 2 * len(b) for b in blocks)
    assert sum(per_split.values()) == 2 * reading["tokens"]
    assert 0.1 < per_split[HELD_OUT] / sum(per_split.values()) < 0.5
    texts = {
        name: {
            tuple(original_tokens(b)[b.offsets[i] : b.offsets[i + 1]]) for b in blocks for i in range(len(b))
        }
        for name, blocks in (
            (s.name, list(BlockReader(index, s).all_blocks())) for s in (index.train, index.held_out)
        )
    }
    assert not texts[TRAIN] & texts[HELD_OUT]


def test_statistics_are_those_of_the_examples(text: Path, tmp_path: Path) -> None:
    index, _ = prepare(settings_for(text, tmp_path / "shards"), silent)
    blocks = list(BlockReader(index, index.train).all_blocks())
    counts = index.statistics["train"]
    assert counts["examples"] == index.train.examples == sum(map(len, blocks))
    assert counts["tokens"] == sum(len(b.tokens) for b in blocks)
    assert counts["pair_labels"]["not_next"] == sum(int((b.labels == 1).sum()) for b in blocks)
    assert counts["masked"] == sum(len(b.masked_ids) for b in blocks)


def test_stock_webdataset_reads_a_shard(text: Path, tmp_path: Path) -> None:
    index, _ = prepare(settings_for(text, tmp_path / "shards"), silent)
    code = (
        "import sys, webdataset\n"
        "n = sum(len(s['labels.npy']) for s in webdataset.WebDataset(sys.argv[1], shardshuffle=False).decode())\n"
        "print(n)"
    )
    path = index.path(index.train.shards[0].file)
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, path], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == index.train.shards[0].examples


def test_the_help_names_every_stage(maskmill: Maskmill) -> None:
    said = " ".join(maskmill("prepare", "--help").stdout.replace("│", " ").split())
    assert f"Do this stage only: {', '.join(NAMES[:-1])} or {NAMES[-1]}." in said


def test_the_folder_of_other_data_is_left_alone(text: Path, tmp_path: Path) -> None:
    prepare(settings_for(text, tmp_path / "shards"), silent)
    before = hashes(tmp_path / "shards")
    _, fresh = prepare(settings_for(text, tmp_path / "shards", workers=2), silent)
    assert not fresh
    for options in ({"seed": 3}, {"whole_word": True}):
        with pytest.raises(UserError, match="holds other data"):
            prepare(settings_for(text, tmp_path / "shards", **options), silent)
    with pytest.raises(UserError, match="holds other data"):
        prepare(settings_for(text, tmp_path / "shards", sequences="doc_sentences"), silent)
    assert hashes(tmp_path / "shards") == before


def test_a_worker_that_stays_takes_the_vocabulary_as_it_is_now(
    worker_here: None, text: Path, tmp_path: Path
) -> None:
    """As Dask's workers do, which know the files of an earlier preparation in the same folder."""
    shutil.copytree(text / "vocabulary", tmp_path / "vocabulary")
    settings = settings_for(text, tmp_path / "shards", vocab=f"{tmp_path}/vocabulary")
    prepare(settings, silent)
    before = hashes(tmp_path / "shards")
    for folder in ("shards", "vocabulary"):
        shutil.rmtree(tmp_path / folder)
    learn_vocabulary(settings, VocabularySettings(size=100), silent)
    prepare(settings, silent)
    fresh = settings_for(text, tmp_path / "fresh", vocab=settings.vocab, workers=2)
    prepare(fresh, silent)
    assert hashes(tmp_path / "shards") == hashes(tmp_path / "fresh") != before


def test_a_folder_of_somebody_else_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").write_bytes(b"precious")
    (tmp_path / "train-000123.tar").write_bytes(b"precious")
    with pytest.raises(UserError, match="holds other files"):
        prepare(settings_for(text, tmp_path), silent)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.tar")} == {
        "train-000000.tar": b"precious",
        "train-000123.tar": b"precious",
    }


def test_other_sources_are_other_data(text: Path, tmp_path: Path) -> None:
    prepare(settings_for(text, tmp_path / "shards"), silent)
    one = settings_for(text, tmp_path / "shards", sources=[f"{text}/corpus/a.txt"])
    with pytest.raises(UserError, match="its sources"):
        prepare(one, silent)


def test_files_are_known_by_their_bytes_where_only_the_time_differs(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a copy, `pip install -U` or an image that was built again."""
    corpus = tmp_path / "corpus"
    shutil.copytree(text / "corpus", corpus)
    file, other = corpus / "a.txt", {"sources": [str(corpus)]}
    prepare(settings_for(text, tmp_path / "shards", **other), silent)
    monkeypatch.setattr(snapshot, "HASHED", 100)
    prepare(settings_for(text, tmp_path / "large", **other), silent)
    monkeypatch.undo()
    os.utime(file, ns=(1, 1))
    assert not prepare(settings_for(text, tmp_path / "shards", **other), silent)[1]
    with pytest.raises(UserError, match=r"its sources had .*a\.txt"):
        prepare(settings_for(text, tmp_path / "large", **other), silent)
    file.write_text(file.read_text().swapcase())
    with pytest.raises(UserError, match=r"its sources had .*a\.txt"):
        prepare(settings_for(text, tmp_path / "shards", **other), silent)


@pytest.mark.parametrize(
    ("info", "mark"),
    [
        ({"blob_id": "5c2b", "size": 1, "last_commit": None}, "5c2b"),  # hf
        ({"modify": "20260304101500", "unique": "1", "size": 1}, "20260304101500"),  # ftp
        ({"modificationTime": 1772619300000, "size": 1}, "1772619300000"),  # webhdfs
        ({"ETag": '"5c2b"', "LastModified": "then", "size": 1}, '"5c2b"'),  # s3
        ({"size": 1}, 0),
    ],
)
def test_each_store_has_a_mark_of_its_content(
    info: dict[str, Any], mark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SimpleNamespace(protocol="hf", info=lambda path: info | {"name": path})
    monkeypatch.setattr(snapshot, "filesystem", lambda uri: (store, uri))
    monkeypatch.setattr(
        snapshot,
        "source_files",
        lambda *_: [SourceFile("hf://datasets/a/b/c.txt", "c.txt", "text", "", 1)],
    )
    assert snapshot.described_sources(DataSettings()) == [["c.txt", 1, mark]]


def test_the_sources_are_listed_once_to_be_hashed(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, listings = settings_for(text, text / "nowhere"), []
    sources = snapshot.described_sources(settings)

    def listed(*arguments: Any) -> list[SourceFile]:
        listings.append(arguments)
        return source_files(*arguments)

    monkeypatch.setattr(snapshot, "source_files", listed)
    assert len(snapshot.contents(settings, sources)) == 64
    assert len(listings) == 1


@pytest.mark.parametrize(
    "log",
    [
        b'{"sources": [["0.txt", 17',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        *(
            b'{"contents": 7, "passed_over": %s, "sources": %s}' % (odd, odd)
            for odd in (
                b"7",
                b'"ab"',
                b"[7]",
                b"[[]]",
                b'[[["a"], 1, 2]]',
                b'{"files": "9", "first": [7]}',
                b"null",
            )
        ),
    ],
)
def test_a_torn_or_odd_log_notes_nothing(text: Path, tmp_path: Path, log: bytes) -> None:
    (tmp_path / snapshot.LOG).write_bytes(log)
    settings = settings_for(text, tmp_path)
    assert snapshot.what_changed(settings) == ""
    assert passed_over.lines(snapshot.noted(settings.out).get("passed_over", {})) == []


def test_what_is_hashed_is_what_was_read(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what somebody wrote there meanwhile."""
    shutil.copytree(text / "corpus", tmp_path / "corpus")
    settings = settings_for(text, tmp_path / "shards", sources=[f"{tmp_path}/corpus"])
    prepare_share(settings, silent, "read")
    (tmp_path / "corpus/a.txt").write_text((tmp_path / "corpus/a.txt").read_text().swapcase())
    for name in ("plan", "gather", "write", "finish"):
        prepare_share(settings, silent, name)
    assert snapshot.noted(settings.out)["contents"] == ""
    with pytest.raises(UserError, match="its sources had"):
        prepare(settings, silent)


def test_files_of_other_kinds_are_named(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    shutil.copy(setting(tiny, "data.sources"), corpus / "a.txt")
    own = [*tiny, f"data.sources={corpus}", f"data.out={tmp_path}/shards"]
    (corpus / "page.html").write_text("<p>no")
    said = "skipped 1 file of other kinds: page.html"
    assert said in maskmill("prepare", "demo", *own, "--stage", "discover").stdout
    for number in range(6):
        (corpus / f"{number}.pdf").write_text("no")
    for _ in ("made", "there already"):
        told = maskmill("prepare", "demo", *own).stdout
        assert "skipped 7 files of other kinds: 0.pdf, 1.pdf, 2.pdf, 3.pdf, 4.pdf, ...\n" in told
    assert "skipped" not in maskmill("prepare", "demo", *tiny).stdout


def test_a_cap_that_binds_is_said_before_and_after(
    maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    """By prepare at the beginning, for full length, and at the end, as measured; by plan in the same words."""
    own = [*tiny, f"data.out={tmp_path}/shards", "data.max_predictions=2"]
    full = "data.max_predictions=2 caps what is predicted: 6.2% of an example of 32 tokens, where"
    assert full in maskmill("plan", "demo", *own, "--gpus-per-node", "2").stdout
    assert full in maskmill("prepare", "demo", *own, "--stage", "discover").stdout
    said = maskmill("prepare", "demo", *own).stdout
    split = Index.load(tmp_path / "shards").train
    measured = (
        f"data.max_predictions=2 caps what is predicted: {split.masked / split.tokens:.1%} of the tokens in "
        f"{tmp_path}/shards, where data.masked_lm_prob=0.15 asks for 15.0%"
    )
    assert full in said
    assert measured in said.replace("\n", " ")
    assert measured in maskmill("plan", "demo", *own, "--gpus-per-node", "2").stdout
    again = maskmill("plan", "demo", *own, "--gpus-per-node", "2", "data.dynamic_masking=true").stdout
    assert full in again, "the masks are drawn in training"
    assert "caps" not in maskmill("prepare", "demo", *tiny).stdout
    assert "caps" not in maskmill("plan", "demo", *tiny, "--gpus-per-node", "2").stdout


def test_names_that_are_not_utf8_are_named_or_refused_in_one_line(
    maskmill: Maskmill, tiny: list[str], tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    shutil.copy(setting(tiny, "data.sources"), corpus / "a.txt")
    other = Path(os.fsdecode(bytes(corpus) + b"/\xff.pdf"))
    other.write_text("no")
    own = [*tiny, f"data.sources={corpus}", f"data.out={tmp_path}/shards"]
    for _ in ("made", "there already"):
        told = maskmill("prepare", "demo", *own).stdout
        assert "skipped 1 file of other kinds: \\udcff.pdf\n" in told
    other.rename(Path(os.fsdecode(bytes(corpus) + b"/\xff.txt")))
    own[-1] = f"data.out={tmp_path}/others"
    line = maskmill("prepare", "demo", *own, code=2).stderr
    assert f"{corpus}/\\udcff.txt: its name is not UTF-8 (rename the file or its folder)" in line
    assert len(line.splitlines()) == 1


def test_the_plan_follows_from_documents_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DataSettings(shard_tokens=40, min_donors=4)
    assert plan_pools([corpus_of([1, 2]), corpus_of([3])], settings) == [
        DocumentPool(TRAIN, 1, 3, (ShardRange(0, 3),))
    ]
    monkeypatch.setattr("data_pipeline.stages.corpus.POOL_TOKENS", 50)
    keys = list(range(100, 113))
    pools = plan_pools([corpus_of(keys[::2]), corpus_of(keys[1::2])], settings)
    assert [(p.first_key, p.last_key) for p in pools] == [(100, 105), (106, 112)], (
        "two, for three would lack donors"
    )
    assert pools[1].shards == (ShardRange(0, 4), ShardRange(4, 7))
    assert plan_pools([corpus_of(keys)], settings) == pools


def test_two_documents_of_one_id_are_refused() -> None:
    with pytest.raises(UserError, match=r"1 documents have the id of another"):
        plan_pools([corpus_of([7, 8]), corpus_of([8])], DataSettings())


@pytest.mark.parametrize("name", ["sample_text.seq128", "sample_text.seq512.wwm"])
def test_exact_mode_is_googles_script_on_the_command_line(
    maskmill: Maskmill, tmp_path: Path, name: str
) -> None:
    first, *expected = (GOLDEN / "pairs" / f"{name}.jsonl").read_text().splitlines()
    golden = json.loads(first)
    settings = {
        "data.mode": "exact",
        "data.sentences": "lines",
        "data.held_out": 0,
        "data.sources": GOLDEN / "pairs" / "sample_text.txt",
        "data.vocab": VOCABULARY,
        "data.out": tmp_path / "shards",
        "data.seed": golden["random_seed"],
        "data.sequence_length": golden["max_seq_length"],
        "data.dupe_factor": golden["dupe_factor"],
        "data.short_seq_prob": golden["short_seq_prob"],
        "data.masked_lm_prob": golden["masked_lm_prob"],
        "data.duplicates": "keep",
        "data.max_predictions": golden["max_predictions_per_seq"],
        "data.whole_word": golden["do_whole_word_mask"],
        "data.block_examples": 16,
        "encoder.max_positions": 512,
    }
    maskmill("prepare", "demo", *(f"{key}={value}" for key, value in settings.items()))
    printed = maskmill("inspect", str(tmp_path / "shards"), "--examples", "all", "--json").stdout.splitlines()
    assert len(printed) == len(expected) == golden["instances"]
    for found, wanted in zip(map(json.loads, printed), map(json.loads, expected), strict=True):
        assert {key: found[key] for key in wanted} == wanted
    assert Index.load(tmp_path / "shards").train.examples == golden["instances"]


@pytest.mark.parametrize(
    ("text", "documents"), [("hello\ntom sawyer\nhow are you\n", 1), ("a b\nc d\n\ne f\ng h\n", 2)]
)
def test_pairs_of_one_document_in_exact_mode_are_warned_of(
    maskmill: Maskmill, tmp_path: Path, text: str, documents: int
) -> None:
    """BERT's script takes the second segments of random pairs from the only document there is."""
    (tmp_path / "a.txt").write_bytes(text.encode() + b"\xff word\n")
    settings = {
        "data.mode": "exact",
        "data.sentences": "lines",
        "data.held_out": 0,
        "data.sources": tmp_path / "a.txt",
        "data.vocab": VOCABULARY,
        "data.out": tmp_path / "shards",
        "data.dupe_factor": 20,
        "data.duplicates": "keep",
    }
    warned = "all examples come from one document, so that nothing is known of other text, and the second segments of"
    for words in (
        ["prepare", "demo", *(f"{k}={v}" for k, v in settings.items())],
        ["inspect", tmp_path / "shards"],
    ):
        said = " ".join(maskmill(*map(str, words)).stdout.split())
        assert (warned in said) == (documents == 1)
        assert ("1 byte sequences were no UTF-8 and were dropped" in said) == (words[0] == "inspect")
    reading = Index.load(tmp_path / "shards").statistics["reading"]
    assert (reading["documents"], reading["invalid_characters"]) == (documents, 1)
    (tmp_path / "a.txt").write_bytes(b"PK\x03\x04" + bytes(50))
    settings["data.out"] = tmp_path / "others"
    line = maskmill("prepare", "demo", *(f"{k}={v}" for k, v in settings.items()), code=2).stderr
    assert "is no text but a zip archive" in line


@pytest.mark.parametrize("made", [True, False], ids=["there", "to be made"])
def test_a_folder_that_may_not_be_written_is_refused_before_any_text_is_read(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "locked" / "shards"
    (out if made else tmp_path / "locked").mkdir(parents=True)
    locked = out if made else out.parent
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked and may(path, mode))
    with pytest.raises(UserError, match=f"{locked}: may not be written by this user"):
        check_writable(str(out))
    monkeypatch.setattr("data_pipeline.prepare._checked", lambda settings: None)
    monkeypatch.setattr("data_pipeline.prepare._existing", lambda *_: None)
    monkeypatch.setattr("data_pipeline.prepare.open_workspace", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(UserError, match="may not be written"):
        prepare(DataSettings(out=str(out)), lambda *_: pytest.fail("shown"))


@pytest.mark.parametrize(
    ("mode", "when"),
    [
        ("fast", "reading and tokenizing"),
        ("fast", "gathering documents"),
        ("fast", "writing shards"),
        ("exact", "writing instances"),
    ],
)
def test_a_folder_that_is_removed_meanwhile_is_said_to_be(
    mode: str, when: str, text: Path, tmp_path: Path
) -> None:
    """The first file that was missing was the vocabulary's copy, and the line blamed the vocabulary."""
    out = tmp_path / "shards"

    @contextmanager
    def removing(what: str, count: int) -> Iterator[Callable[[int], None]]:
        if what == when:
            shutil.rmtree(out)
        yield lambda _: None

    settings = settings_for(text, out, mode=mode, held_out=0.0)
    said = r"shards/\.work: was removed while the preparation wrote to it"
    with pytest.raises(UserError, match=said):
        prepare(settings, removing)
    if when == "reading and tokenizing":
        prepare_share(settings, silent, "discover")
        with pytest.raises(UserError, match=said):
            prepare_share(settings, removing, "read")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: Not a directory"):
        check_writable(str(tmp_path / "file" / "shards"))
    check_writable(str(tmp_path / "new" / "deeper"))
    check_writable("s3://bucket/shards")
    assert not (tmp_path / "new").exists()

"""Shards: read by stock WebDataset, the same bytes every time, and nothing believed that was not checked."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.io.files import SEAL, canonical_json, read_bytes, read_ranges, sealed_json, write_whole
from data_pipeline.io.object_store import object_names
from data_pipeline.records import REQUIRED, Examples, concatenate
from data_pipeline.shards.index import Index, write_index
from data_pipeline.shards.lint import lint
from data_pipeline.shards.shard import (
    BlockError,
    BlockReader,
    _member,
    check_examples,
    decode_block,
    encode_block,
    problems,
    stock_samples,
    verify_full,
    write_shard,
)
from data_pipeline.shards.show import report
from tests.factories.preparations import hashes, silent
from tests.factories.shards import SIZE, StubVocabulary, blocks_of, random_examples, shard_folder

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shard_folder(tmp_path / "shards", [20, 8, 3], held_out=(9,))
    return tmp_path / "shards"


def read_all(index: Index) -> Examples:
    return concatenate(list(BlockReader(index, index.train).all_blocks()))


def test_examples_come_back(tmp_path: Path) -> None:
    index, content = shard_folder(tmp_path, [20, 8, 3])
    assert read_all(index) == concatenate(content)
    assert read_all(index).offsets.dtype == np.int64
    assert [(s.examples, s.blocks) for s in index.train.shards] == [(20, 3), (8, 1), (3, 1)]
    assert index.train.max_tokens == max(c.lengths.max() for c in content)
    assert index.train.max_masked == max(np.diff(c.masked_offsets).max() for c in content)
    assert (index.train.examples, index.train.masked) == (31, sum(len(c.masked_ids) for c in content))


def test_a_vocabulary_beyond_16_bits_and_single_streams(tmp_path: Path) -> None:
    examples = random_examples(10, size=100_000, labels=(-1,))
    entry = write_shard(tmp_path / "a.tar", blocks_of(examples, 8))
    index = write_index(
        tmp_path,
        splits={"train": [entry]},
        settings={},
        block_examples=8,
        vocabulary=StubVocabulary(size=100_000),  # type: ignore[arg-type]
        statistics={},
    )
    assert read_all(index) == examples
    assert read_all(index).tokens.dtype == np.uint32


def test_stock_webdataset_reads_a_shard(tmp_path: Path) -> None:
    """In a process of its own, as anyone would: nothing of ours is imported."""
    index, content = shard_folder(tmp_path, [20])
    code = (
        "import sys, json, webdataset\n"
        "data = webdataset.WebDataset(sys.argv[1], shardshuffle=False).decode()\n"
        "print(json.dumps([{k: v.tolist() for k, v in s.items() if k.endswith('npy')} | {'key': s['__key__']}"
        " for s in data]))"
    )
    path = index.path(index.train.shards[0].file)
    out = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    ).stdout
    samples = json.loads(out)
    assert [sample["key"] for sample in samples] == ["000000", "000001", "000002"]
    for sample, block in zip(samples, blocks_of(content[0], 8), strict=True):
        for name in ("tokens", "offsets", "first_lengths", "labels"):
            assert sample[f"{name}.npy"] == getattr(block, name).tolist()
        for name in ("masked_positions", "masked_ids", "masked_offsets"):
            assert sample[f"{name}.npy"] == getattr(block, name).tolist()


def test_the_door_to_webdataset_is_secured_and_gives_the_same(folder: Path) -> None:
    code = (
        "import sys\n"
        "from data_pipeline.shards.shard import stock_samples\n"
        "assert 'webdataset' not in sys.modules and 'torch' not in sys.modules\n"
        "print(sum(len(s['labels.npy']) for s in stock_samples(sys.argv[1])))\n"
        "import webdataset; print(webdataset.utils.enforce_security)"
    )
    command = [sys.executable, "-c", code, str(folder / "train-000000.tar")]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["20", "True"]


@pytest.mark.parametrize(
    "path",
    [
        *("pipe:touch HERE", "PIPE:touch HERE", "simplecache::pipe:touch HERE", "simplecache::s3://b/a.tar"),
        *("shell://ls", "reference://a.json", "file://a::b", "dask://a"),
    ],
)
def test_uris_that_could_run_something_are_refused_at_every_door(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readers: list[Callable[[], object]] = [
        lambda: next(stock_samples(path)),
        lambda: Index.load(path),
        lambda: read_bytes(path),
        lambda: list(read_ranges([(path, 0, 1)])),
        lambda: write_whole(path, b""),
        lambda: object_names(path),
    ]
    for read in readers:
        with pytest.raises(UserError, match="this kind of URI is not read"):
            read()
    assert not list(tmp_path.iterdir())


def test_bytes_do_not_depend_on_folder_time_or_umask(tmp_path: Path) -> None:
    first, _ = shard_folder(tmp_path / "a", [20, 8, 3], held_out=(9,))
    before = os.umask(0o077)
    try:
        second, _ = shard_folder(tmp_path / "elsewhere" / "b", [20, 8, 3], held_out=(9,))
    finally:
        os.umask(before)
    assert hashes(tmp_path / "a") == hashes(tmp_path / "elsewhere" / "b")
    assert first.identity == second.identity
    assert first.identity != shard_folder(tmp_path / "c", [20, 8, 4], held_out=(9,))[0].identity


def test_the_bytes_of_a_block_never_change() -> None:
    examples = Examples(
        tokens=np.array([1, 7, 2, 1, 3, 9, 2], np.uint16),
        offsets=np.array([0, 3, 7]),
        first_lengths=np.array([3, 2], np.uint16),
        labels=np.array([-1, 1], np.int8),
        masked_positions=np.array([1, 1, 2], np.uint16),
        masked_ids=np.array([7, 8, 9], np.uint16),
        masked_offsets=np.array([0, 1, 3]),
    )
    data = encode_block(3, examples)
    assert len(data) == 7 * 1024
    assert (
        hashlib.sha256(data).hexdigest() == "ac05b1b019b27a272f4bd42b8324af70355b048bc20af00aa8238d7093dcf11a"
    )
    for number, name in enumerate(REQUIRED):  # numpy reads each member
        member = io.BytesIO(data[1024 * number + 512 : 1024 * (number + 1)])
        assert np.array_equal(np.load(member, allow_pickle=False), getattr(examples, name))


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 8**6 - 1, 8**6, 10**7])
def test_a_member_is_what_tarfile_writes(size: int) -> None:
    info = tarfile.TarInfo("000123.masked_positions.npy")
    info.size, info.mode = size, 0o644
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(b"x" * size))
        end = tar.offset
    assert _member(info.name, b"x" * size) == written.getvalue()[:end]


def test_only_whole_files_get_their_names(tmp_path: Path) -> None:
    def failing() -> Any:
        yield random_examples(8)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        write_shard(tmp_path / "a.tar", failing())
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_writers_go_with_the_index(tmp_path: Path) -> None:
    tmp_path.joinpath(".train-000000.tar.123.partial").write_bytes(b"half")
    shard_folder(tmp_path, [3])
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "index.json",
        "tokenizer.json",
        "train-000000.json",
        "train-000000.tar",
    ]


@pytest.mark.parametrize("sizes", [[8, 9], [8, 3, 8], [8, 3, 3], [8, 0], []])
def test_uneven_blocks_are_refused(tmp_path: Path, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="example"):
        write_shard(
            tmp_path / "a.tar",
            [random_examples(n) if n else random_examples(1).take(np.arange(0)) for n in sizes],
        )
    assert not (tmp_path / "a.tar").exists()


def test_a_changed_byte_names_shard_and_block(folder: Path) -> None:
    path = folder / "train-000000.tar"
    data = bytearray(path.read_bytes())
    data[7168 + 700] ^= 1
    path.write_bytes(data)
    index = Index.load(folder)
    reader = BlockReader(index, index.train)
    assert len(next(reader.read([(0, 0)]))) == 8
    with pytest.raises(UserError, match=r"train-000000\.tar, block 1: bytes changed .*inspect"):
        next(reader.read([(0, 1)]))
    with pytest.raises(UserError, match=r"train-000000\.tar: missing or changed"):
        verify_full(index)


def test_full_verification_finds_every_changed_file(folder: Path) -> None:
    seen: list[int] = []
    verify_full(Index.load(folder), seen.append)
    assert sum(seen) == 4
    (folder / "tokenizer.json").write_text("{}")
    (folder / "train-000001.tar").unlink()
    (folder / "train-000002.json").write_text("{}")
    data = (folder / "held_out-000000.tar").read_bytes()
    (folder / "held_out-000000.tar").write_bytes(data + b"\0")
    found = [error.where.rsplit("/")[-1] for error in problems(Index.load(folder))]
    assert sorted(found) == ["held_out-000000.tar", "tokenizer.json", "train-000001.tar", "train-000002.json"]


@pytest.mark.parametrize("field", ["max_tokens", "max_masked"])
def test_an_index_that_lies_about_the_greatest_example(folder: Path, field: str) -> None:
    """Training takes its caps from them."""
    document = json.loads((folder / "index.json").read_bytes())
    document["splits"]["train"][0][field] += 1
    (folder / "index.json").write_bytes(sealed_json(document))
    (error,) = problems(Index.load(folder))
    assert re.search(rf"train-000000\.tar: index\.json says .*{field} \d", str(error))


def test_an_index_that_lies_about_the_size_of_a_shard(folder: Path) -> None:
    document = json.loads((folder / "index.json").read_bytes())
    document["splits"]["train"][0]["bytes"] -= 1024  # the blocks fit still
    (folder / "index.json").write_bytes(sealed_json(document))
    (error,) = problems(Index.load(folder))
    assert "train-000000.tar: missing or changed" in str(error)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("vocabulary", "size"), 2**40), (("splits", "train", 0, "max_tokens"), 2**40)],
)
def test_an_index_whose_counts_would_fill_the_memory(folder: Path, path: tuple, value: int) -> None:
    document = json.loads((folder / "index.json").read_bytes())
    *parents, last = path
    place = document
    for key in parents:
        place = place[key]
    place[last] = value
    (folder / "index.json").write_bytes(sealed_json(document))
    with pytest.raises(UserError, match="expected"):
        Index.load(folder)


def test_a_shard_that_ends_early_or_is_gone(folder: Path) -> None:
    index = Index.load(folder)
    path = folder / "train-000000.tar"
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(UserError, match=r"block 1: the file ends \d+ bytes too early"):
        next(BlockReader(index, index.train).read([(0, 1)]))
    path.unlink()
    with pytest.raises(UserError, match=r"train-000000\.tar: cannot be read: No such file"):
        next(BlockReader(index, index.train).read([(0, 1)]))


def test_a_changed_or_missing_block_table(folder: Path) -> None:
    index = Index.load(folder)
    table = folder / "train-000000.json"
    table.write_bytes(table.read_bytes().replace(b'"offset":0', b'"offset":1'))
    with pytest.raises(UserError, match=r"bytes changed since index\.json was written"):
        index.block_table(index.train.shards[0])
    table.unlink()
    with pytest.raises(UserError, match="missing"):
        index.block_table(index.train.shards[0])


def resealed(folder: Path, change: Any) -> Index:
    """The folder after `change(blocks)` of the first shard's block table, with an index that vouches for it."""
    table = folder / "train-000000.json"
    document = json.loads(table.read_bytes())
    change(document["blocks"])
    table.write_bytes(canonical_json(document))
    path = folder / "index.json"
    index = json.loads(path.read_bytes())
    index["splits"]["train"][0]["block_table_sha256"] = hashlib.sha256(table.read_bytes()).hexdigest()
    path.write_bytes(sealed_json(index))
    return Index.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[0].update(examples=7), "contradict"),
        (lambda b: b[0].update(tokens=b[0]["tokens"] + 1), "contradict"),
        (lambda b: b.pop(), "contradict"),
        (lambda b: b[1].update(offset=0), "one behind the other"),
        (lambda b: b[2].update(bytes=2**62), "one behind the other"),
        (lambda b: b[2].update(offset=2**62), "one behind the other"),
        (lambda b: b[0].update(offset=-1), "whole number"),
        (lambda b: b[0].update(bytes=7168.0), "whole number"),
        (lambda b: b[0].update(examples=True), "whole number"),
        (lambda b: b[0].update(checksum="0"), "16 hexadecimal"),
        (lambda b: b[0].update(extra=1), "the fields"),
    ],
)
def test_a_block_table_that_contradicts_itself(folder: Path, change: Any, message: str) -> None:
    index = resealed(folder, change)
    with pytest.raises(UserError, match=message):
        index.block_table(index.train.shards[0])


def test_a_folder_without_shards(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            UserError, match=r"a folder without shards \(expected index\.json in it; run `maskmill"
        ):
            Index.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=1),
        lambda d: d.update(format=3),
        lambda d: d.update(format=5),
        lambda d: d.update(format="1"),
        lambda d: d.pop("statistics"),
        lambda d: d.update(more=1),
        lambda d: d.update(block_examples=0),
        lambda d: d.update(splits=[]),
        lambda d: d["splits"].pop("held_out"),
        lambda d: d["splits"]["train"].append(d["splits"]["train"][0]),
        lambda d: d["splits"]["train"].append(7),
        lambda d: d["splits"]["train"][0].update(file="../train-000000.tar"),
        lambda d: d["splits"]["train"][0].update(file="/etc/passwd.tar"),
        lambda d: d["splits"]["train"][0].update(file="a..tar"),
        lambda d: d["splits"]["train"][0].update(file="pipe:x.tar"),
        lambda d: d["splits"]["train"][0].update(file="index.tar"),
        lambda d: d["splits"]["train"][0].update(examples=-20),
        lambda d: d["splits"]["train"][0].update(examples=0, blocks=0),
        lambda d: d["splits"]["train"][0].update(examples="20"),
        lambda d: d["splits"]["train"][0].update(examples=True),
        lambda d: d["splits"]["train"][0].update(blocks=4),
        lambda d: d["splits"]["train"][0].update(sha256="ff"),
        lambda d: d["splits"]["train"][0].pop("tokens"),
        lambda d: d["vocabulary"].update(mask=SIZE),
        lambda d: d["vocabulary"].update(sha256=""),
    ],
)
def test_an_index_that_is_not_as_it_should_be(folder: Path, change: Any) -> None:
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(sealed_json(document))
    with pytest.raises(UserError, match=r"index\.json: "):
        Index.load(folder)


def test_an_index_of_an_older_version_is_refused_by_its_version(folder: Path) -> None:
    """By its number, not by the keys that have other names since."""
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    document["format"] = 3
    for shard in document["splits"]["train"]:
        shard["longest"] = shard.pop("max_tokens")
    document["another"] = document.pop("block_examples")
    path.write_bytes(sealed_json(document))
    with pytest.raises(
        UserError, match=r"index\.json: format 3 \(expected format 4; prepare the shards again"
    ):
        Index.load(folder)


CHANGES: dict[str, Any] = {
    "a setting": lambda d: d["settings"].update(sequence_length=127),
    "a statistic": lambda d: d["statistics"].update(reading={"documents": 7}),
    "fewer shards": lambda d: d["splits"]["train"].pop(),
    "none held out": lambda d: d["splits"]["held_out"].clear(),
    "another special id": lambda d: d["vocabulary"].update(pad=d["vocabulary"]["pad"] + 1),
    "a larger vocabulary": lambda d: d["vocabulary"].update(size=d["vocabulary"]["size"] + 1),
    "the seal": lambda d: d.update({SEAL: "0" * 64}),
    "the seal's kind": lambda d: d.update({SEAL: None}),
    "the seal's name": lambda d: d.update({"sha257": d.pop(SEAL)}),
    "the version": lambda d: d.update(format=5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_sealed_index_that_was_changed_is_refused(folder: Path, name: str) -> None:
    """All of these describe a folder that could be: only the seal knows."""
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    CHANGES[name](document)
    path.write_bytes(canonical_json(document))
    with pytest.raises(
        UserError, match=r"index\.json: changed since it was written: its sha256 does not hold \("
    ) as caught:
        Index.load(folder)
    assert "\n" not in str(caught.value)


def test_the_seal_is_the_hash_of_the_other_fields_and_bytes_may_be_laid_out_anew(folder: Path) -> None:
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    seal = document.pop(SEAL)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    assert seal == hashlib.sha256(text.encode()).hexdigest()
    assert Index.load(folder).is_sealed
    path.write_text(json.dumps({SEAL: seal, **document}, indent=4))
    assert Index.load(folder).is_sealed


def test_an_index_of_an_older_version_without_a_seal_is_read_and_said_to_be(folder: Path) -> None:
    path = folder / "index.json"
    document = json.loads(path.read_bytes())
    assert "not sealed" not in report(lint(Index.load(folder), silent))
    del document[SEAL]
    path.write_bytes(canonical_json(document, indent=1))
    index = Index.load(folder)
    assert not index.is_sealed
    verify_full(index)
    assert read_all(index)
    facts = lint(index, silent)
    assert facts["not_sealed"] == ["index.json"]
    assert "not sealed  index.json" in report(facts)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"format": NaN}', "[" * 100_000, "\xff"])
def test_an_index_that_is_no_json(folder: Path, text: str) -> None:
    (folder / "index.json").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"index\.json: "):
        Index.load(folder)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(folder: Path, number: str) -> None:
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace('"share": 0.15', f'"share": {number}'))
    assert number in (folder / "index.json").read_text()
    with pytest.raises(UserError, match=f"{number} is no number"):
        Index.load(folder)


def hostile(**columns: Any) -> Examples:
    good = random_examples(4, seed=1)
    kept = {name: getattr(good, name) for name in Examples.__dataclass_fields__}
    return Examples(**{**kept, **{k: np.array(v, kept[k].dtype) for k, v in columns.items()}})


GOOD = random_examples(4, seed=1)
LAST = int(GOOD.offsets[-1])


def beyond_its_example() -> np.ndarray:
    positions = GOOD.masked_positions.copy()
    positions[GOOD.masked_offsets[1] - 1] = GOOD.lengths[0]
    return positions


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"offsets": [0, 24, 23, 24, LAST]}, "empty or longer"),
        ({"offsets": [0, 0, 3, 9, LAST]}, "empty or longer"),
        ({"offsets": [0, 4, 8, 12, 2**32 - 1]}, "offsets do not run"),
        ({"offsets": [1, 4, 8, 12, LAST]}, "offsets do not run"),
        ({"offsets": [0, LAST]}, "column offsets has 2 entries"),
        ({"masked_offsets": [0, 2**32 - 1, 1, 2, len(GOOD.masked_ids)]}, "masked_offsets"),
        ({"masked_offsets": [0, 3, 2, 3, len(GOOD.masked_ids)]}, "masked_offsets|not ascending"),
        ({"masked_positions": GOOD.masked_positions * 0 + 60_000}, "not ascending within"),
        ({"masked_positions": GOOD.masked_positions * 0}, "not ascending within"),
        ({"masked_positions": beyond_its_example()}, "not ascending within"),
        ({"masked_ids": GOOD.masked_ids[:-1]}, "differ in length"),
        ({"first_lengths": [25, 1, 1, 1]}, "first segment is longer"),
        ({"labels": [0, 1, 2, 0]}, "label"),
        ({"labels": [0, 1, 0]}, "entries"),
        ({"tokens": GOOD.tokens * 0 + SIZE}, "beyond the vocabulary"),
        ({"masked_ids": GOOD.masked_ids * 0 + 65_535}, "beyond the vocabulary"),
    ],
)
def test_a_hostile_block_is_refused(columns: dict[str, Any], message: str) -> None:
    data = np.frombuffer(bytearray(encode_block(0, hostile(**columns))), np.uint8)
    with pytest.raises(BlockError, match=message):
        check_examples(decode_block(0, data), SIZE, 24)


def test_a_hostile_block_with_a_true_checksum_is_a_user_error(folder: Path) -> None:
    """Everything vouches for the block but its content."""
    path = folder / "train-000001.tar"
    index = json.loads((folder / "index.json").read_bytes())
    index["vocabulary"]["size"] = 12
    (folder / "index.json").write_bytes(sealed_json(index))
    opened = Index.load(folder)
    with pytest.raises(UserError, match=r"train-000001\.tar, block 0: not a block of examples: a token id"):
        next(BlockReader(opened, opened.train).read([(1, 0)]))
    assert path.exists()


BLOCK = encode_block(0, GOOD)
HEADERS = [
    512 * i + j
    for i in range(0, len(BLOCK) // 512, 2)
    for j in (*range(100), *range(124, 136), 156, *range(257, 262))
]


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(BLOCK) - 1) | st.sampled_from(HEADERS), st.integers(0, 255)),
        min_size=1,
        max_size=4,
    )
)
def test_random_bytes_never_lead_out_of_range(changes: list[tuple[int, int]]) -> None:
    data = bytearray(BLOCK)
    for place, value in changes:
        data[place] = value
    try:
        examples = decode_block(0, np.frombuffer(data, np.uint8))
        check_examples(examples, SIZE, 24)
    except BlockError:
        return
    assert examples.take(np.arange(4)[::-1]).tokens.max() < SIZE  # touches every row
    assert len(examples) == 4


@given(st.integers(0, len(BLOCK) - 1))
def test_cut_bytes_are_refused(length: int) -> None:
    with pytest.raises(BlockError):
        decode_block(0, np.frombuffer(bytearray(BLOCK[:length]), np.uint8))


def test_objects_in_a_column_are_not_unpickled() -> None:
    data = bytearray(BLOCK)
    data[512 + 10 : 512 + 128] = (
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    )
    with pytest.raises(BlockError, match=r"no plain one-dimensional"):
        decode_block(0, np.frombuffer(data, np.uint8))


def test_shards_are_read_from_an_object_store(folder: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/bucket/shards", recursive=True)
    try:
        remote, local = Index.load("memory://bucket/shards"), Index.load(folder)
        assert remote.identity == local.identity
        verify_full(remote)
        assert read_all(remote) == read_all(local)
        store.pipe("/bucket/shards/train-000001.tar", b"short")
        with pytest.raises(
            UserError, match=r"memory://bucket/shards/train-000001\.tar, block 0: the file ends"
        ):
            read_all(remote)
        store.rm("/bucket/shards/train-000001.tar")
        with pytest.raises(UserError, match=r"train-000001\.tar: cannot be read"):
            read_all(remote)
    finally:
        store.rm("/bucket", recursive=True)


def test_a_hundred_thousand_shards_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file is read; only the shard that is read has its block table opened."""
    index, content = shard_folder(tmp_path, [20])
    entry = index.train.shards[0].as_dict()
    document = json.loads((tmp_path / "index.json").read_bytes())
    document["splits"]["train"] += [{**entry, "file": f"more-{i:06d}.tar"} for i in range(100_000)]
    (tmp_path / "index.json").write_bytes(sealed_json(document))
    opened_files: list[str] = []

    def counted(path: str) -> bytes:
        opened_files.append(Path(path).name)
        return Path(path).read_bytes()

    monkeypatch.setattr("data_pipeline.shards.index.read_bytes", counted)
    opened = Index.load(tmp_path)
    assert opened.train.examples == 20 * 100_001
    reader = BlockReader(opened, opened.train)
    assert next(reader.read([(0, 0)])) == blocks_of(content[0], 8)[0]
    assert next(reader.read([(0, 1)])) == blocks_of(content[0], 8)[1]
    assert opened_files == ["index.json", "train-000000.json"]

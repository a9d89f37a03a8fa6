"""docs/reference/shard_format.md is enough to write shards: a writer in plain Python, without numpy and without any of
our code, makes a folder, and the data pipeline reads every example of it as it was meant. Then: no change of any byte
of such a folder is read as something else."""

import hashlib
import json
import os
import random
import shutil
import signal
import struct
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.shards.index import Index
from data_pipeline.shards.lint import lint
from data_pipeline.shards.shard import BlockReader, problems, stock_samples
from tests.factories.preparations import silent


class Pair(NamedTuple):
    """One example as plain lists."""

    tokens: list[int]
    first_length: int
    label: int
    positions: list[int]
    originals: list[int]


# --- the foreign writer: nothing below this line and above the next one may use the data pipeline or numpy

CODES = {"<u2": "H", "<u4": "I", "|i1": "b"}


def npy(kind: str, values: list[int], header: int = 128) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    padded = text.ljust(header - 11) + "\n"
    body = struct.pack(f"<{len(values)}{CODES[kind]}", *values)
    return b"\x93NUMPY" + bytes([1, 0]) + struct.pack("<H", len(padded)) + padded.encode("ascii") + body


def running(lengths: list[int]) -> list[int]:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return ends


def columns_of(pairs: list[Pair], ids: str) -> dict[str, tuple[str, list[int]]]:
    return {
        "tokens": (ids, [token for pair in pairs for token in pair.tokens]),
        "offsets": ("<u4", running([len(pair.tokens) for pair in pairs])),
        "first_lengths": ("<u2", [pair.first_length for pair in pairs]),
        "labels": ("|i1", [pair.label for pair in pairs]),
        "masked_positions": ("<u2", [place for pair in pairs for place in pair.positions]),
        "masked_ids": (ids, [token for pair in pairs for token in pair.originals]),
        "masked_offsets": ("<u4", running([len(pair.positions) for pair in pairs])),
    }


def block_of(number: int, pairs: list[Pair], ids: str, header: int) -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (kind, values) in columns_of(pairs, ids).items():
            data = npy(kind, values, header)
            member = tarfile.TarInfo(f"{number:06d}.{name}.npy")
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
        end = tar.offset
    return out.getvalue()[:end]  # without the zeros that end a tar


def write_shards(
    folder: Path, splits: dict[str, list[list[Pair]]], block: int, size: int, header: int = 128
) -> None:
    """A folder with a shard for each list of examples."""
    folder.mkdir(parents=True)
    ids = "<u2" if size <= 65_536 else "<u4"
    listed: dict[str, list[dict[str, Any]]] = {"train": [], "held_out": []}
    for split, shards in splits.items():
        for number, pairs in enumerate(shards):
            name = f"{split}.{number}"
            table, data = [], b""
            for first in range(0, len(pairs), block):
                some = pairs[first : first + block]
                body = block_of(first // block, some, ids, header)
                table.append({
                    "checksum": xxhash.xxh3_64_hexdigest(body),
                    "offset": len(data),
                    "bytes": len(body),
                    "examples": len(some),
                    "tokens": sum(len(pair.tokens) for pair in some),
                    "masked": sum(len(pair.positions) for pair in some),
                })  # fmt: skip
                data += body
            data += bytes(1024)
            table_text = json.dumps({"blocks": table}, indent=3).encode()
            (folder / f"{name}.tar").write_bytes(data)
            (folder / f"{name}.json").write_bytes(table_text)
            listed[split].append({
                "file": f"{name}.tar",
                "examples": len(pairs),
                "tokens": sum(block_["tokens"] for block_ in table),
                "masked": sum(block_["masked"] for block_ in table),
                "max_tokens": max(len(pair.tokens) for pair in pairs),
                "max_masked": max(len(pair.positions) for pair in pairs),
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "blocks": len(table),
                "block_table_sha256": hashlib.sha256(table_text).hexdigest(),
            })  # fmt: skip
    tokenizer = b'{"model": {"vocab": {"[PAD]": 0}}}'
    (folder / "tokenizer.json").write_bytes(tokenizer)
    vocabulary = {"sha256": hashlib.sha256(tokenizer).hexdigest(), "size": size}
    document = {
        "splits": listed,
        "format": 4,
        "columns": {},
        "statistics": {"by": "another program"},
        "vocabulary": vocabulary | {"pad": 0, "cls": 1, "sep": 2, "mask": 3, "unk": 4},
        "settings": {"sequence_length": 40},
        "block_examples": block,
    }
    (folder / "index.json").write_text(json.dumps(document))


def invented(count: int, seed: int, size: int) -> list[Pair]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        text = [rng.randrange(5, size) for _ in range(rng.randrange(2, 30))]
        cut = rng.randrange(1, len(text) + 1)
        label = rng.choice([0, 1]) if cut < len(text) else -1
        tokens = [1, *text[:cut], 2, *text[cut:], *([2] if label >= 0 else [])]
        first = cut + 2
        places = sorted(
            rng.sample([i for i, t in enumerate(tokens) if t > 2], rng.randrange(0, len(text) // 5 + 2))
        )
        originals = [tokens[i] for i in places]
        for place in places:
            tokens[place] = rng.choice([3, 3, 3, tokens[place], rng.randrange(5, size)])
        made.append(Pair(tokens, first, label, places, originals))
    return made


# --- the data pipeline reads it


def read(index: Index, split: str) -> list[Pair]:
    found = []
    for block in BlockReader(index, index.splits[split]).all_blocks():
        for i in range(len(block)):
            span = slice(block.offsets[i], block.offsets[i + 1])
            masks = slice(block.masked_offsets[i], block.masked_offsets[i + 1])
            found.append(
                Pair(
                    block.tokens[span].tolist(),
                    int(block.first_lengths[i]),
                    int(block.labels[i]),
                    block.masked_positions[masks].tolist(),
                    block.masked_ids[masks].tolist(),
                )
            )
    return found


@pytest.mark.parametrize(
    ("size", "header"), [(300, 128), (300, 96), (300, 201), (100_000, 128), (65_536, 256)]
)
def test_a_foreign_writers_shards_are_read(tmp_path: Path, size: int, header: int) -> None:
    """Headers of odd lengths too: a reader may not hope for aligned data."""
    train, aside = [invented(n, n, size) for n in (40, 16, 3)], [invented(9, 9, size)]
    write_shards(tmp_path / "shards", {"train": train, "held_out": aside}, 16, size, header)
    index = Index.load(tmp_path / "shards")
    assert read(index, "train") == [pair for pairs in train for pair in pairs]
    assert read(index, "held_out") == aside[0]
    assert list(problems(index)) == []
    assert lint(index, silent)["splits"]["train"]["examples"] == 59
    samples = list(stock_samples(index.path("train.0.tar")))
    assert [sample["__key__"] for sample in samples] == ["000000", "000001", "000002"]
    assert samples[2]["labels.npy"].tolist() == [pair.label for pair in train[0][32:]]


# --- no byte can change without a word


FILES = ("index.json", "train.0.json", "train.1.json", "train.0.tar", "train.1.tar", "tokenizer.json")


class Material:
    """The files of a folder, its examples, and a folder to write changed files into."""

    def __init__(self, files: dict[str, bytes], pairs: list[Pair], folder: Path) -> None:
        self.files, self.pairs, self.folder = files, pairs, folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """A small folder of the foreign writer."""
    folder = tmp_path_factory.mktemp("fuzz") / "shards"
    train = [invented(21, 1, 300), invented(5, 2, 300)]
    write_shards(folder, {"train": train, "held_out": []}, 8, 300)
    return Material({p.name: p.read_bytes() for p in folder.iterdir()}, [*train[0], *train[1]], folder)


@contextmanager
def in_time(seconds: int = 20) -> Iterator[None]:
    """A hang fails."""

    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def restored(files: dict[str, bytes], folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.integers(0, 2**20), st.integers(1, 255)),
        st.tuples(st.just("cut"), st.integers(0, 2**20), st.integers(1, 2000)),
        st.tuples(st.just("double"), st.integers(0, 2**20), st.integers(1, 2000)),
        st.tuples(st.just("insert"), st.integers(0, 2**20), st.integers(0, 255)),
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, place, value in edits:
        place %= len(out) + (kind == "insert") or 1
        if kind == "flip" and out:
            out[place] ^= value
        elif kind == "cut":
            del out[place : place + value]
        elif kind == "double":
            out[place:place] = out[place : place + value]
        elif kind == "insert":
            out.insert(place, value)
    return bytes(out)


FUZZ = settings(
    max_examples=int(os.environ.get("MASKMILL_FUZZ", "0")) * 100 or 120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)


@FUZZ
@given(st.sampled_from(FILES[1:]), changes)
def test_any_change_of_shards_and_tables_is_found(
    shards: Material, name: str, edits: list[tuple[str, int, int]]
) -> None:
    files, pairs, folder = shards.files, shards.pairs, shards.folder
    data = changed(files[name], edits)
    restored(files | {name: data}, folder)
    with in_time():
        index = Index.load(folder)
        errors = list(problems(index))
        if data == files[name]:
            assert errors == []
            return
        assert len(errors) == 1
        assert name.rpartition(".")[0] in str(errors[0])
        try:
            assert read(index, "train") == pairs  # what lies behind the last block, or in tokenizer.json
        except UserError:
            return
        assert name in ("tokenizer.json", "train.0.tar", "train.1.tar")


@FUZZ
@given(changes)
def test_a_changed_index_is_refused_or_says_what_the_shards_are(
    shards: Material, edits: list[tuple[str, int, int]]
) -> None:
    """A flipped digit of a count, a hash or a name ends in one line; spaces and settings are free."""
    files, pairs, folder = shards.files, shards.pairs, shards.folder
    restored(files | {"index.json": changed(files["index.json"], edits)}, folder)
    with in_time():
        try:
            index = Index.load(folder)
            errors = list(problems(index))
            found = read(index, "train")
            facts = lint(index, silent)
        except UserError:
            return
        # an index that vouches for fewer shards, or for none, is a smaller folder
        assert errors == []
        assert found in (pairs, pairs[:21], pairs[21:], [])
        assert facts["splits"]["train"]["examples"] == len(found)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.sampled_from(["../x.tar", "index.tar", "train.1.tar", "0" * 64, [], {}, [{}], {"a": []}]),
)  # fmt: skip


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths to everything in a JSON value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from leaves(child, (*path, key))


@FUZZ
@given(st.data())
def test_every_field_of_index_and_table_may_hold_anything(shards: Material, data: st.DataObject) -> None:
    """The table is sealed anew, so that the index vouches for the lie."""
    files, pairs, folder = shards.files, shards.pairs, shards.folder
    documents = {name: json.loads(files[name]) for name in ("index.json", "train.0.json")}
    name = data.draw(st.sampled_from(sorted(documents)))
    *path, last = data.draw(st.sampled_from(list(leaves(documents[name]))))
    target = documents[name]
    for key in path:
        target = target[key]
    before, target[last] = target[last], data.draw(values)
    table = json.dumps(documents["train.0.json"]).encode()
    if name == "train.0.json":
        documents["index.json"]["splits"]["train"][0]["block_table_sha256"] = hashlib.sha256(
            table
        ).hexdigest()
        restored(
            files | {"train.0.json": table, "index.json": json.dumps(documents["index.json"]).encode()},
            folder,
        )
    else:
        restored(files | {"index.json": json.dumps(documents["index.json"]).encode()}, folder)
    with in_time():
        try:
            index = Index.load(folder)
            facts = lint(index, silent)
            found = read(index, "train")
        except UserError:
            return
        free = name == "index.json" and (
            path[:1] in (["settings"], ["statistics"]) or last in ("settings", "statistics")
        )
        harmless = last in (
            "pad",
            "cls",
            "sep",
            "mask",
            "unk",
            "size",
            "max_tokens",
            "max_masked",
            "train",
            "held_out",
        )
        assert free or harmless or target[last] == before
        assert last == "train" or found == pairs
        assert facts["splits"]["train"]["examples"] == len(found)

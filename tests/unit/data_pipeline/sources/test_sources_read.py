"""Files, folders and globs -> units of work -> documents with stable ids."""

import gzip
import json
import os
import random
import socket
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencex
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources import formats, text_formats
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.formats import SourceFile
from data_pipeline.sources.passed_over import PassedOver, lines
from data_pipeline.sources.read import discover, read, source_files
from data_pipeline.tokenize.sentences import split


def documents(*names, counts=None, **options):
    """(id, text) of every document of the sources."""
    chosen = DataSettings(sources=[str(n) for n in names], **options)
    tally = Counts() if counts is None else counts
    return [(d.id, d.text) for unit in discover(chosen) for d in read(unit, chosen, tally)]


def error(*names, **options):
    with pytest.raises(UserError) as caught:
        documents(*names, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_plain_text_is_split_at_blank_lines_and_numbered_by_its_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\n\nOne.\nTwo.\n \t\n\nThree.\n\xc2\xa0\xe3\x80\x80\nFour.")
    assert documents(tmp_path / "a.txt") == [
        ("a.txt:3", "One.\nTwo.\n"),
        ("a.txt:7", "Three.\n"),
        ("a.txt:9", "Four."),
    ]


def test_a_file_can_be_one_document(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    assert documents(tmp_path, documents="file") == [("a.txt:1", "One.\n\nTwo.\n")]


def test_json_lines_by_line_number_or_by_id(tmp_path):
    path = jsonl(
        tmp_path / "a.jsonl", {"body": "one", "key": "x"}, {"body": None, "key": 6}, {"body": "é", "key": 7}
    )
    path.write_text("\n" + path.read_text())
    assert documents(path, text_field="body") == [("a.jsonl:2", "one"), ("a.jsonl:4", "é")]
    assert documents(path, text_field="body", id_field="key") == [("a.jsonl:x", "one"), ("a.jsonl:7", "é")]


def test_parquet_by_row_with_bad_bytes_and_missing_values(tmp_path):
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"c\xff\x00d"]).buffers())
    text = pa.chunked_array([pa.array(["one", None]), bad])
    pq.write_table(pa.table({"text": text, "n": [10, 20, 30]}), tmp_path / "a.parquet", row_group_size=2)
    counts = Counts()
    found = documents(tmp_path / "a.parquet", counts=counts)
    assert found == [("a.parquet:1", "one"), ("a.parquet:3", "c\ufffdd")]
    assert (counts.invalid_characters, counts.control_characters, counts.empty_documents) == (1, 1, 1)
    assert documents(tmp_path / "a.parquet", id_field="n")[1][0] == "a.parquet:30"
    assert "no column 'body' (expected one of text, n" in error(tmp_path, text_field="body")
    assert "'n' holds int64" in error(tmp_path, text_field="n")


def test_a_large_parquet_file_is_shared_out_by_row_groups(tmp_path, monkeypatch):
    table = pa.table({"text": [f"text {i}" for i in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    whole = documents(tmp_path)
    monkeypatch.setattr(formats, "PART_BYTES", 300)
    assert len(discover(DataSettings(sources=[str(tmp_path)]))) > 3
    assert documents(tmp_path) == whole
    assert whole[99] == ("a.parquet:100", "text 99")


LINES = st.lists(
    st.sampled_from(["word", "", " \t", "a longer line of text ", "x", "\u00a0", "{}"]), max_size=40
)


@given(lines=LINES, feed=st.sampled_from(["\n", "\r\n"]), unit=st.integers(1, 40), ends=st.booleans())
@settings(max_examples=150, deadline=None)
def test_pieces_of_a_plain_file_give_the_documents_of_the_whole(tmp_path_factory, lines, feed, unit, ends):
    path = tmp_path_factory.mktemp("pieces") / "a.txt"
    path.write_bytes((feed.join(lines) + feed * ends).encode())
    records = jsonl(path.with_suffix(".jsonl"), *[{"text": line} for line in lines])
    for name in (path, records):
        whole = documents(name) if os.path.getsize(name) else []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "PART_BYTES", unit)
            chosen = DataSettings(sources=[str(name)])
            units = discover(chosen)
        assert len(units) == max(1, -(-os.path.getsize(name) // unit))
        assert [
            (d.id, d.text) for u in random.sample(units, len(units)) for d in read(u, chosen, Counts())
        ] or not whole
        assert [(d.id, d.text) for u in units for d in read(u, chosen, Counts())] == whole


def test_a_piece_within_a_long_document_does_not_read_on():
    piece = SourceFile("a.txt", "a.txt", "text", "", 20, start=10, stop=30)
    lines = iter([(number, 10 * number, b"no blank\n") for number in range(1, 100)])
    assert list(text_formats._between_blank_lines(piece, lines)) == []
    assert next(lines)[0] == 4


def test_ids_depend_neither_on_the_folder_nor_on_how_it_is_named(tmp_path, monkeypatch):
    for folder in ("x", "elsewhere/y"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "b.txt").write_text("B")
        (tmp_path / folder / "a.txt").write_text("A")
    expected = [("a.txt:1", "A"), ("sub/b.txt:1", "B")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in (
        tmp_path / "x",
        "y",
        "y/",
        "../x",
        f"file://{tmp_path}/x",
        "y/**/*.txt",
        tmp_path / "x" / "**",
    ):
        assert documents(name) == expected


def test_the_order_is_that_of_the_names_whatever_the_listing(tmp_path, monkeypatch):
    for name in "cab":
        (tmp_path / f"{name}.txt").write_text(name)
    scandir = os.scandir

    class Backwards(list):
        def __init__(self, path):
            super().__init__(sorted(scandir(path), key=lambda entry: entry.name, reverse=True))

        def __enter__(self):
            return iter(self)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", Backwards)
    assert [text for _, text in documents(tmp_path)] == ["a", "b", "c"]
    assert [text for _, text in documents(tmp_path / "c.txt", tmp_path / "[ab].txt")] == ["c", "a", "b"]


def test_equal_paths_in_two_sources_have_different_ids(tmp_path):
    for folder in ("en", "fr"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    assert documents(tmp_path / "en", tmp_path / "fr" / "*.txt") == [("a.txt:1", "en"), ("#2/a.txt:1", "fr")]
    assert "two sources hold this file" in error(tmp_path / "en", tmp_path)


def test_folders_skip_hidden_files_other_kinds_and_link_circles(tmp_path):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.txt").write_text("no")
    (tmp_path / "README.md").write_text("no")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "circle").symlink_to(tmp_path)
    (tmp_path / "sub" / "a.TXT").write_text("yes")
    assert documents(tmp_path) == [("sub/a.TXT:1", "yes")]


def test_object_stores_are_read_through_fsspec(tmp_path):
    fs = fsspec.filesystem("memory")
    fs.pipe("/bucket/data/a.txt", b"one\n\ntwo")
    fs.pipe("/bucket/data/.x/b.txt", b"no")
    expected = [("a.txt:1", "one\n"), ("a.txt:3", "two")]
    for name in ("memory://bucket/data", "memory://bucket/data/a.txt", "memory://bucket/data/*.txt"):
        assert documents(name) == expected
    fs.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    "uri", ["pipe:cat a.txt", "simplecache::s3://b/a.txt", "shell://ls", "reference://a.json"]
)
def test_uris_that_could_run_something_are_refused(uri):
    assert "this kind of URI is not read" in error(uri)


def test_sources_that_are_missing_or_empty_are_refused(tmp_path):
    assert "there is nothing to read" in error()
    assert "there is no such file or folder" in error(tmp_path / "none.txt")
    assert "no file to read here" in error(tmp_path)
    assert "no file to read here" in error(tmp_path / "*.txt")
    (tmp_path / "a.pdf").write_text("x")
    assert "no file to read here" in error(tmp_path)
    assert "its suffix names no format" in error(tmp_path / "a.pdf")
    assert "its suffix names no format" in error(tmp_path / "*")


def test_a_source_that_vanishes_names_itself(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    chosen = DataSettings(sources=[str(tmp_path)])
    units = discover(chosen)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UserError, match=r"a\.txt: cannot be read: No such file"):
        list(read(units[0], chosen, Counts()))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "cut', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "holds a JSON list"),
        ('{"body": "x"}', "no field 'text' (expected body; set data.text_field)"),
        ('{"text": 5}', "holds no text"),
    ],
)
def test_a_broken_record_names_its_line(tmp_path, line, what):
    path = jsonl(tmp_path / "a.jsonl", {"text": "fine"})
    path.write_text(path.read_text() + line + "\n")
    message = error(path)
    assert message.startswith(f"{path}:2: ")
    assert what in message


def test_nasty_text_is_cleaned_and_counted(tmp_path):
    (tmp_path / "a.txt").write_bytes(
        b"\xef\xbb\xbfcaf\xe9\x00 x\r\ny\x0c\xc2\x85\r\n\r\n\xe2\x80\x8f \x01\n\n\x02\n"
    )
    jsonl(tmp_path / "b.jsonl", {"text": "a\ud800b\u0007"}, {"text": " \n"})
    counts = Counts()
    assert documents(tmp_path, counts=counts) == [
        ("a.txt:1", "caf\ufffd x\ny\n"),
        ("a.txt:4", "\u200f \n"),
        ("b.jsonl:1", "a\ufffdb"),
    ]
    assert counts == Counts(
        bytes=21, documents=3, empty_documents=2, invalid_characters=2, control_characters=6
    )


def test_a_long_document_stays_one_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 3_000_000 + b"\n" + b"y\n\n" * 1000)
    first, *others = (text for _, text in documents(tmp_path))
    assert len(first) > 3_000_000
    assert len(others) == 999


@pytest.mark.parametrize("suffix", [".txt.gz", ".jsonl.zst"])
def test_stripes_of_a_compressed_file_give_the_documents_of_the_whole(tmp_path, monkeypatch, suffix):
    texts = [f"document {number} {random.Random(number).random()}" for number in range(50)]
    if suffix == ".txt.gz":
        content = gzip.compress("\n\n".join(texts).encode())
    else:
        content = zstandard.compress("\n".join(json.dumps({"text": t}) for t in texts).encode())
    path = tmp_path / f"all{suffix}"
    path.write_bytes(content)
    chosen = DataSettings(sources=[str(path)])
    [whole] = discover(chosen)
    expected = sorted(read(whole, chosen, Counts()))
    monkeypatch.setattr(formats, "STRIPE_BYTES", len(content) // 3)
    units = discover(chosen)
    parts = [list(read(unit, chosen, Counts())) for unit in units]
    assert len(units) >= 3
    assert all(parts), "a unit without work"
    assert sorted(document for part in parts for document in part) == expected


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("change", [-1000, 1000])
def test_a_source_that_shrinks_or_grows_names_itself(tmp_path, meanwhile, change):
    path = tmp_path / "a.txt"
    path.write_text(("x" * 998 + "\n\n") * 3000)
    chosen = DataSettings(sources=[str(path)])
    [unit] = discover(chosen)
    found = read(unit, chosen, Counts())
    if meanwhile:
        next(found)
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(UserError, match=r"a\.txt: has changed: \d+ bytes, and 3000000 before"):
        list(found)


def test_documents_know_their_source_and_sentences_its_language(tmp_path):
    text = "Das kostet ca. Hundert Euro, vgl. Abb. Drei. Es regnet."
    for name in ("en", "de", "none"):
        (tmp_path / f"{name}.txt").write_text(text)
    chosen = DataSettings(
        sources=[str(tmp_path / f"{name}.txt") for name in ("en", "de", "none")], languages=["en", "de", "en"]
    )
    found = {}
    for unit in discover(chosen):
        for document in read(unit, chosen, Counts()):
            sentences = split(document, chosen, Counts())
            assert sentences.source == document.source
            found[document.source] = list(sentences.sentences)
    english, german = ([s.strip() for s in sentencex.segment(language, text)] for language in ("en", "de"))
    assert english != german
    assert found == {0: english, 1: german, 2: english}


@pytest.mark.parametrize(
    ("languages", "what"),
    [(["en", "de"], "has 2 entries for 3 sources"), (["english"], "'english' is no language code")],
)
def test_languages_that_do_not_fit_the_sources_are_refused(tmp_path, languages, what):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("x")
    assert what in error(*(tmp_path / f"{name}.txt" for name in "abc"), languages=languages)


def special(folder: Path, kind: str) -> Path:
    """What is no file: a FIFO, a socket, or a device by a link."""
    path = folder / f"{kind}.txt"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
def test_what_is_no_file_is_passed_over_in_a_folder_and_refused_by_name(tmp_path: Path, kind: str) -> None:
    """Nothing hangs: a FIFO is never opened, a device never read."""
    (tmp_path / "corpus" / "sub").mkdir(parents=True)
    (tmp_path / "corpus" / "a.txt").write_text("a")
    path = special(tmp_path / "corpus" / "sub", kind)
    passed_over = PassedOver()
    files = source_files(DataSettings(sources=[str(tmp_path / "corpus")]), passed_over)
    assert [file.name for file in files] == ["a.txt"]
    assert lines(passed_over.summary()) == [f"skipped 1 device, FIFO or socket: sub/{kind}.txt"]
    for name in (path, path.parent / "*.txt"):
        assert error(name) == f"{path}: is a {kind} (expected a file or folder; check data.sources)"
    assert "no file to read here" in error(path.parent)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device_is_neither_a_source_nor_read_whole(path: str) -> None:
    assert error(path) == f"{path}: is a device (expected a file or folder; check data.sources)"
    with pytest.raises(UserError, match=rf"^{path}: is a device \(expected a file\)$"):
        read_bytes(path)


def table(path, rows, columns=None):
    """The rows as JSON lines, Parquet or Arrow."""
    if path.suffix == ".jsonl":
        return jsonl(path, *rows)
    made = pa.Table.from_pylist(rows, schema=columns)
    if path.suffix == ".parquet":
        pq.write_table(made, path)
        return path
    with pa.ipc.new_stream(str(path), made.schema) as writer:
        writer.write_table(made)
    return path


TABLES = ["a.jsonl", "a.parquet", "a.arrow"]


@pytest.mark.parametrize("name", TABLES)
def test_a_field_may_lie_in_another(tmp_path, name):
    rows = [
        {"meta": {"text": "one", "of": {"id": 7}}, "n": 1},
        {"meta": None, "n": 2},
        {"meta": {"text": None, "of": {"id": 8}}, "n": 3},
        {"meta": {"text": "four", "of": {"id": 9}}, "n": 4},
    ]
    path = table(tmp_path / name, rows)
    counts = Counts()
    found = documents(path, counts=counts, text_field="meta.text")
    assert found == [(f"{name}:1", "one"), (f"{name}:4", "four")]
    assert counts.empty_documents == 2
    path = table(tmp_path / name, [rows[0], rows[3]])
    ids = [(f"{name}:7", "one"), (f"{name}:9", "four")]
    assert documents(path, text_field="meta.text", id_field="meta.of.id") == ids
    for field in ("meta.body", "meta.text.more", "n.text", "meta.", ".text", "meta..text"):
        assert f"{field!r} (expected " in error(path, text_field=field)
    assert "'meta'" in error(path, text_field="meta"), "an object is no text"


@pytest.mark.parametrize("name", TABLES)
def test_a_field_of_the_very_name_wins_over_a_path(tmp_path, name):
    path = table(tmp_path / name, [{"meta": {"text": "inner"}, "meta.text": "outer"}])
    assert documents(path, text_field="meta.text") == [(f"{name}:1", "outer")]
    path = table(tmp_path / name, [{"meta": {"a.b": "dotted", "a": {"b": "deep"}}}])
    assert documents(path, text_field="meta.a.b") == [(f"{name}:1", "dotted")]


@pytest.mark.parametrize("kind", [pa.null(), pa.float64(), pa.int32()])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_part_without_any_value_is_empty(tmp_path, kind, suffix):
    """What writes a part of a table does not know the type of a column that is null throughout."""
    table(tmp_path / f"0.{suffix}", [{"text": "one"}])
    column = pa.schema([("text", kind)])
    table(tmp_path / f"1.{suffix}", [{"text": None}, {"text": None}], column)
    counts = Counts()
    assert documents(tmp_path, counts=counts) == [(f"0.{suffix}:1", "one")]
    assert counts.empty_documents == 2
    nested = pa.schema([("meta", pa.null())])
    assert documents(table(tmp_path / f"2.{suffix}", [{"meta": None}], nested), text_field="meta.text") == []
    if kind != pa.null():
        table(tmp_path / f"1.{suffix}", [{"text": None}, {"text": 1}], column)
        assert f"1.{suffix}: column 'text' holds " in error(tmp_path / f"1.{suffix}")


def test_two_columns_of_one_name_are_refused(tmp_path):
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), twice.schema) as writer:
        writer.write_table(twice)
    assert "there are two columns 'text'" in error(tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_long_names_of_fields_are_shortened_in_the_line(tmp_path, name):
    started = time.thread_time()
    line = error(table(tmp_path / name, [{"k" * 100_000: "x", **{f"key{n}": "x" for n in range(1000)}}]))
    assert time.thread_time() - started < 5
    assert "expected " + "one of " * (name != "a.jsonl") + "k" * 60 + "..., key0, key1" in line
    assert len(line) < 1000


BINARY = {
    "zip": b"PK\x03\x04\x14\0\x08\0\x08\0" + bytes(range(256)),
    "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "OLE": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(50),
    "RIFF": b"RIFF\x24\0\0\0WEBPVP8 ",
    "NumPy": b"\x93NUMPY\x01\0v\0{'descr'",
    "Parquet": b"PAR1\x15\0\x15\x1a",
    "tar": b"a.txt".ljust(257, b"\0") + b"ustar\x0000",
}


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_binary_file_is_not_read_as_text(tmp_path, kind, name):
    (tmp_path / name).write_bytes(BINARY[kind])
    line = error(tmp_path)
    assert line.startswith(f"{tmp_path}/{name}: is no text but a")
    assert kind.lower() in line.lower()
    assert error(tmp_path, documents="file") == line


@pytest.mark.parametrize(
    "text", ["PAR1 is a word.", "RIFF and ID3", "PK is for Pakistan", "%PDF is a mark", "GIF89a, a format"]
)
def test_text_that_begins_as_a_binary_file_does_is_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert documents(tmp_path) == [("a.txt:1", text)]

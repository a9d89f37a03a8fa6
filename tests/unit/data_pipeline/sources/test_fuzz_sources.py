"""Whatever bytes a source holds: documents, or one line that names it; and the same documents however it is read.

MASKMILL_FUZZ=SECONDS mutates files for so long instead of a few seconds.
"""

import bz2
import gzip
import json
import lzma
import os
import random
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings
from data_pipeline.sources import formats, tables, text_formats, wikipedia
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read
from data_pipeline.tokenize.sentences import split
from tests.faults.mutations import changed

SECONDS = float(os.environ.get("MASKMILL_FUZZ", "6"))

TEXTS = [
    "One. Two.\nThree.",
    "",
    " \u3000\n\n",
    "\u200f\u202e\u05e9\u05dc\u05d5\u05dd. \u0627\u0644\u0633\u0644\u0627\u0645",
    "👩‍👩‍👧‍👦🏳️‍🌈" * 20,
    "a" * 10_000,
    "\x00\x01\x7f\r\n\r\x85",
    "word",
    "中文。" * 50,
    'He said "no" \\ and left.\u2028Then {{x}} [[y|z]] <b>',
]


def table() -> pa.Table:
    return pa.table({"text": [*TEXTS, None], "id": list(range(len(TEXTS) + 1))})


def parquet() -> bytes:
    out = BytesIO()
    pq.write_table(table(), out, row_group_size=4)
    return out.getvalue()


def arrow(opened: Callable) -> bytes:
    out = BytesIO()
    with opened(out, table().schema) as writer:
        writer.write_table(table(), max_chunksize=3)
    return out.getvalue()


def escaped(text: str) -> str:
    kept = "".join(c for c in text if c >= " " or c in "\t\n\r")
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def dump() -> bytes:
    pages = "".join(
        f"<page><title>t</title><ns>{n % 2}</ns><id>{n}</id><revision><text>{escaped(t)}</text></revision></page>\n"
        for n, t in enumerate(TEXTS)
    )
    head = "<mediawiki><siteinfo><namespaces><namespace key='6'>File</namespace></namespaces></siteinfo>"
    return (head + pages + "</mediawiki>\n").encode()


VALID = {
    "a.txt": "\n\n".join(TEXTS).encode(),
    "a.jsonl": "".join(json.dumps({"id": n, "text": t}) + "\n" for n, t in enumerate(TEXTS)).encode(),
    "b.jsonl": "".join(
        json.dumps({"text": t, "more": [t, {"text": None}]}, ensure_ascii=False) + "\n" for t in TEXTS
    ).encode(),
    "a.parquet": parquet(),
    "a.arrow": arrow(pa.ipc.new_stream),
    "b.arrow": arrow(pa.ipc.new_file),
    "a.xml": dump(),
    "wiki_00": "".join(
        f'<doc id="{n}" url="u" title="t">\n{escaped(t)}\n</doc>\n' for n, t in enumerate(TEXTS)
    ).encode(),
}
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data[:500]) + gzip.compress(data[500:]),
    ".bz2": lambda data: bz2.compress(data[:500]) + bz2.compress(data[500:]),
    ".xz": lambda data: lzma.compress(data[:500]) + lzma.compress(data[500:]),
    ".zst": lambda data: zstandard.compress(data[:500]) + zstandard.compress(data[500:]),
}


def outcome(path: Path, **options: object) -> list[tuple[str, str]] | str:
    """The documents, or the one line that says why not; anything else is an error of the test."""
    chosen = DataSettings(sources=[str(path)], **options)  # type: ignore[arg-type]
    counts = Counts()
    refusal = ""
    try:
        found = [(d.id, d.text) for unit in discover(chosen) for d in read(unit, chosen, counts)]
    except UserError as error:
        refusal = str(error)
    if refusal:
        assert path.name in refusal
        assert "\n" not in refusal
        return refusal
    assert counts.documents == len(found)
    assert counts.bytes == sum(len(text.encode()) for _, text in found)
    for _, text in found:
        assert text.strip()
    return found


def small_pieces(unit: int, block: int) -> list:
    """Patches under which every file is long."""
    return [
        patch.object(formats, "PART_BYTES", unit),
        patch.object(formats, "STRIPE_BYTES", unit),
        patch.object(text_formats, "BLOCK_BYTES", block),
        patch.object(tables, "SLICE_BYTES", unit),
        patch.object(wikipedia, "_READ", block),
    ]


def in_small_pieces(path: Path, unit: int, block: int, **options: object) -> list | str:
    patches = small_pieces(unit, block)
    for one in patches:
        one.start()
    try:
        return outcome(path, **options)
    finally:
        for one in patches:
            one.stop()


@pytest.mark.parametrize(
    ("name", "suffix"), [(n, s) for n in VALID for s in PACK if not (n == "b.arrow" and s)]
)
def test_the_size_of_pieces_changes_nothing(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / (name + suffix)
    path.write_bytes(PACK[suffix](VALID[name]))
    whole = outcome(path)
    assert isinstance(whole, list)
    assert len(whole) >= 3
    for sizes in ((10**9, 16), (700, 64), (97, 5000)):
        assert sorted(in_small_pieces(path, *sizes)) == sorted(whole)
    for option in ({"documents": "file"}, {"id_field": "id"}):
        assert in_small_pieces(path, 10**9, 100, **option) == outcome(path, **option)


TEXT = st.text(
    st.one_of(st.sampled_from('ab \n\n\r\t"\\/u0d8\u00a0\u3000字👩\ud83d\ude00\ufffd\x00'), st.characters())
)


@given(
    lines=st.lists(st.one_of(st.dictionaries(st.sampled_from(["text", "a", ""]), TEXT), TEXT), max_size=6),
    ascii_only=st.booleans(),
    block=st.integers(4, 40),
)
@settings(max_examples=100, deadline=None)
def test_json_and_text_in_small_pieces(
    tmp_path_factory: pytest.TempPathFactory, lines: list, ascii_only: bool, block: int
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    rows = [r if isinstance(r, dict) else {"text": r} for r in lines]
    text = "".join(json.dumps({"text": "x", **r}, ensure_ascii=ascii_only) + "\n" for r in rows)
    (folder / "a.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
    (folder / "a.txt").write_bytes("\n".join(map(str, lines)).encode("utf-8", "surrogatepass"))
    for name in ("a.jsonl", "a.txt"):
        path = folder / name
        assert in_small_pieces(path, 10**9, block) == outcome(path)


@given(st.binary(max_size=300), st.sampled_from([n + s for n in VALID for s in PACK]))
@settings(max_examples=200, deadline=None)
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(content)
    outcome(path)


def test_mutated_files(tmp_path: Path) -> None:
    """Each format in each compression: bytes changed before they are compressed, or after."""
    seed = random.randrange(2**32) if "MASKMILL_FUZZ" in os.environ else 1
    rng = random.Random(seed)
    cases = [(name, suffix) for name in VALID for suffix in PACK]
    ends, slowest, refused, number = time.monotonic() + SECONDS, 0.0, 0, 0
    while number < 2 * len(cases) or time.monotonic() < ends:
        name, suffix = cases[number % len(cases)]
        content = VALID[name]
        packed = (
            PACK[suffix](changed(rng, content)) if rng.random() < 0.7 else changed(rng, PACK[suffix](content))
        )
        path = tmp_path / (name + suffix)
        path.write_bytes(packed)
        started = time.perf_counter()
        try:
            refused += isinstance(outcome(path), str)
            in_small_pieces(path, rng.choice((50, 700, 10**9)), rng.choice((10, 100)))
        except BaseException as error:
            saved = Path(tempfile.gettempdir(), f"maskmill-fuzz-{seed}-{number}-{path.name}")
            saved.write_bytes(packed)
            error.add_note(f"case {number} of seed {seed}: {saved}")
            raise
        slowest = max(slowest, time.perf_counter() - started)
        number += 1
    print(f"{number} files, {refused} refused, the slowest took {slowest:.2f} s")
    assert slowest < 30
    assert 0 < refused < number


@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_nasty_texts_have_sentences(sentences: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(VALID["a.jsonl"])
    chosen = DataSettings(sources=[str(tmp_path)], sentences=sentences)
    [unit] = discover(chosen)
    found = [list(split(d, chosen, Counts()).sentences) for d in read(unit, chosen, Counts())]
    assert len(found) == 7
    assert all(found)


def test_ten_million_empty_documents_take_no_memory(tmp_path: Path) -> None:
    """Fewer here; the time and the memory of ten million are linear in their number."""
    (tmp_path / "a.txt").write_bytes(b"\n \n" * 300_000)
    (tmp_path / "b.jsonl").write_bytes(b'{"text":""}\n' * 50_000)
    chosen = DataSettings(sources=[str(tmp_path)])
    counts = Counts()
    assert not [d for unit in discover(chosen) for d in read(unit, chosen, counts)]
    assert counts == Counts(empty_documents=50_000)

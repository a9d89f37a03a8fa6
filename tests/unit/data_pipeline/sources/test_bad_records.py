"""Records that cannot be read: they stop a preparation, or are skipped, counted and named."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipeline.errors import UserError
from data_pipeline.prepare import prepare
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.shards.index import Index
from data_pipeline.sources import formats
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.passed_over import lines
from data_pipeline.sources.read import discover, read
from data_pipeline.sources.snapshot import noted
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import VOCABULARY
from tests.factories.preparations import silent

PAGE = "<page><title>T</title><ns>0</ns><id>{0}</id><revision><text>{1}</text></revision></page>\n"
DUMP = "<mediawiki>\n" + PAGE.format(1, "one") + PAGE.format(2, "two &bad;") + PAGE.format("", "three")
DUMP += PAGE.format(4, "four") + "</mediawiki>\n"


def documents(path: Path, counts: Counts, **options: Any) -> list[str]:
    chosen = DataSettings(sources=[str(path)], **options)
    return [d.text for unit in discover(chosen) for d in read(unit, chosen, counts)]


def bad_lines(path: Path) -> Path:
    path.write_bytes(
        b'{"text": "one"}\n{"text": "cut\n[1]\n{"body": "x"}\n{"text": 5}\n\n{"text": "tw\xffo"}\n'
        + b"[" * 100_000
        + b'\n{"text": "\xff", "n": }\n{"text": "three"}\n{"text'
    )
    return path


def test_lines_that_cannot_be_read_are_skipped_counted_and_named(tmp_path: Path) -> None:
    path, counts = bad_lines(tmp_path / "a.jsonl"), Counts()
    assert documents(path, counts, bad_records="skip") == ["one", "tw\ufffdo", "three"]
    assert (counts.bad_records, counts.documents, counts.invalid_characters) == (7, 3, 1)
    assert [line.partition(": ")[0] for line in counts.first_bad] == [f"{path}:{n}" for n in (2, 3, 4, 5, 8)]
    assert "has no field 'text'" in counts.first_bad[2]
    with pytest.raises(UserError, match=r"a\.jsonl:2: not JSON"):
        documents(path, Counts())


@pytest.mark.parametrize("size", [30, 100, 100_000])
def test_the_pieces_of_a_file_skip_what_the_whole_skips(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, pieces = bad_lines(tmp_path / "a.jsonl"), Counts(), Counts()
    expected = documents(path, whole, bad_records="skip")
    monkeypatch.setattr(formats, "PART_BYTES", size)
    assert documents(path, pieces, bad_records="skip") == expected
    assert (pieces, pieces.first_bad) == (whole, whole.first_bad)


def test_rows_without_an_id_and_broken_pages_are_skipped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b", "c"], "id": ["x", None, "y"]}), tmp_path / "a.parquet")
    counts = Counts()
    assert documents(tmp_path / "a.parquet", counts, bad_records="skip", id_field="id") == ["a", "c"]
    assert counts.first_bad == [f"{tmp_path}/a.parquet: row 2 has no 'id' (set data.id_field)"]
    (tmp_path / "a.xml").write_text(DUMP)
    counts = Counts()
    assert documents(tmp_path / "a.xml", counts, bad_records="skip") == ["one", "four"]
    assert counts.bad_records == 2
    assert "broken XML: undefined entity" in counts.first_bad[0]


def test_damaged_files_stop_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(DUMP[:-30])
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(50))
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "b.parquet")
    for name, what in (
        ("a.xml", "cut off"),
        ("a.parquet", "not a whole table"),
        ("b.parquet", "no column 'text'"),
    ):
        with pytest.raises(UserError, match=what):
            documents(tmp_path / name, Counts(), bad_records="skip")


def prepared(folder: Path, out: str, **options: Any) -> tuple[Index, list[str], dict[str, bytes]]:
    chosen = DataSettings(
        sources=[str(folder / "text")],
        out=str(folder / out),
        vocab=str(VOCABULARY),
        sequence_length=32,
        sequences="doc_sentences",
        **options,
    )
    index, _ = prepare(chosen, silent)
    files = {p.name: p.read_bytes() for p in (folder / out).iterdir() if p.name != "prepare.log.json"}
    return index, lines(noted(chosen.out)["passed_over"]), files


def test_a_preparation_without_the_bad_records_is_the_same_on_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "PART_BYTES", 20_000)
    (tmp_path / "text").mkdir()
    rows = [
        json.dumps({"text": f"The house number {n} is old. It has a garden. A dog lives there."})
        for n in range(990)
    ]
    for place in range(0, 990, 99):
        rows.insert(place, '{"text": "cut')
    (tmp_path / "text" / "a.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(UserError, match=r"a\.jsonl:1: not JSON"):
        prepared(tmp_path, "stopped")
    one, said, files = prepared(tmp_path, "one", bad_records="skip", workers=1)
    assert files == prepared(tmp_path, "two", bad_records="skip", workers=2)[2]
    assert one.statistics["reading"]["bad_records"] == 10
    assert said[0] == "skipped 10 records that could not be read:"
    assert said[1].startswith(f"  {tmp_path}/text/a.jsonl:1: not JSON")
    assert said[-1] == "  ..."
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, "three", bad_records="skip", bad_records_limit=0.009)
    line = str(caught.value)
    assert line.startswith("data.bad_records_limit: 10 of 1,000 records could not be read; the first: ")
    assert "a.jsonl:1: not JSON" in line
    assert "expected at most 0.90% of the records" in line
    with pytest.raises(UserError, match=r"^data\.bad_records: 10 of 1,000 records could not be read"):
        prepared(tmp_path, "three", bad_records="stop")  # the unfinished work is that of the same data


def test_a_file_of_noise_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    text = "The house is old. It has a garden.\n\nA dog lives there. It is a good dog.\n\n" * 200
    (tmp_path / "text" / "a.txt").write_text(text)
    (tmp_path / "text" / "latin.txt").write_bytes(
        "Früher wäre das größer. Über Köln.\n\n".encode("latin-1") * 20
    )
    (tmp_path / "text" / "noise.txt").write_bytes(bytes((7 * n * n + n // 256) % 256 for n in range(3000)))
    _, said, _ = prepared(tmp_path, "shards")
    assert said[0] == "read 2 files of another encoding, or of no text at all:"
    assert [line.partition(":")[0] for line in said[1:]] == ["  latin.txt", "  noise.txt"]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_vocabulary_names_what_its_sample_skips_and_keeps_the_limit(kind: str, tmp_path: Path) -> None:
    path, said = tmp_path / "a.jsonl", list[str]()
    lines_ = [json.dumps({"text": f"the house number {n} is old and has doors"}) for n in range(60)]
    path.write_text("\n".join([*lines_[:7], '{"text": "cut', *lines_[7:]]))
    options: dict[str, Any] = {"sources": [str(path)], "vocab": str(tmp_path / "vocabulary")}
    wanted = VocabularySettings(size=300 if kind == "bpe" else 40, kind=kind)
    with pytest.raises(UserError, match="1 of 61 records could not be read"):
        learn_vocabulary(DataSettings(**options, bad_records="skip"), wanted, silent, said.append)
    assert not (tmp_path / "vocabulary").exists()
    generous = DataSettings(**options, bad_records="skip", bad_records_limit=0.02)
    learn_vocabulary(generous, wanted, silent, said.append)
    assert said[0] == "skipped 1 record that could not be read:"
    assert f"{path}:8: not JSON" in said[1]

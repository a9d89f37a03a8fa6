"""Hugging Face data sets, Wikipedia's dumps, WikiExtractor's output: small samples, whole, shared out and broken."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from data_pipeline.errors import UserError
from data_pipeline.records import Sentences
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.sources import formats, tables, text_formats, wikipedia
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read, source_files
from data_pipeline.sources.wikipedia import plain_text
from data_pipeline.stages.corpus import open_corpus
from data_pipeline.stages.tasks import read_source
from data_pipeline.tokenize.tokenize import WordCache, tokenize
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.train import learn_vocabulary
from tests.command_line import ROOT, write_text
from tests.factories.preparations import silent
from tests.factories.saved_datasets import saved
from tests.linear_time import is_linear

HIDDEN = frozenset({"file", "image", "category", "datei", "kategorie"})


def documents(*names: object, counts: Counts | None = None, **options: object) -> list[tuple[str, str]]:
    chosen = DataSettings(sources=[str(n) for n in names], **options)  # type: ignore[arg-type]
    tally = Counts() if counts is None else counts
    return [(d.id, d.text) for unit in discover(chosen) for d in read(unit, chosen, tally)]


def error(*names: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        documents(*names, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Hugging Face data sets


def test_a_large_arrow_file_is_shared_out_by_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "set", {"text": [f"text {n}" for n in range(50)]}, files=1, batch=3)
    whole = documents(folder)
    monkeypatch.setattr(formats, "PART_BYTES", 500)
    assert len(discover(DataSettings(sources=[str(folder)]))) > 3
    assert sorted(documents(folder)) == sorted(whole)
    assert ("data-00000-of-00001.arrow:50", "text 49") in whole


def test_arrow_files_of_the_other_kind_and_other_types_of_text(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two"]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert [text for _, text in documents(tmp_path)] == ["one", "two"]
    for number, kind in enumerate(
        (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    ):
        path = tmp_path / f"{number}.arrow"
        typed = pa.table({"text": pa.array(["one", None, "two"]).cast(kind)})
        with pa.ipc.new_stream(str(path), typed.schema) as writer:
            writer.write_table(typed)
        assert [text for _, text in documents(path)] == ["one", "two"]
    compressed = tmp_path / "a.arrow.gz"
    compressed.write_bytes(gzip.compress((tmp_path / "a.arrow").read_bytes()))
    assert "read from its end" in error(compressed)


@pytest.mark.parametrize("ends", [[0, 5, 3], [0, 5, 500], [-4, 2, 3]])
def test_a_column_that_points_outside_of_itself_is_refused(tmp_path: Path, ends: list[int]) -> None:
    batch = pa.record_batch([pa.array(["ab", "cd"])], names=["text"])
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    content = (tmp_path / "a.arrow").read_bytes()
    good, bad = (np.array(offsets, np.int32).tobytes() for offsets in ([0, 2, 4], ends))
    assert content.count(good) == 1
    (tmp_path / "a.arrow").write_bytes(content.replace(good, bad))
    assert "a.arrow: not a whole table: " in error(tmp_path)


def test_rows_are_taken_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SLICE_BYTES", 20)
    folder = saved(tmp_path / "set", {"text": [f"text {n}" for n in range(20)]}, files=1, batch=7)
    assert [text for _, text in documents(folder)] == [f"text {n}" for n in range(20)]


# Wikipedia

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
ARTICLE = """{{Infobox|name={{lang|de|X}}|x=1}}
'''Alan Smithee''' steht als [[Pseudonym]] für einen [[Filmregisseur|Regisseur]].&lt;ref&gt;{{cite|a}}&lt;/ref&gt;
Er ist &amp;quot;bekannt&amp;quot;&lt;ref name="b" /&gt; (''englisch'' {{lang|en|X}}).&lt;!-- weg --&gt;
[[Datei:A.jpg|mini|Bild mit [[Link]] darin]]
== Geschichte ==
Siehe [http://example.org dort].
* Erstens
* Zweitens
{| class="wikitable"
|-
! Kopf
|-
| Zelle || {{x}}
|}
[[Kategorie:Pseudonym]]
"""
TEXT = (
    'Alan Smithee steht als Pseudonym für einen Regisseur.\nEr ist "bekannt" (englisch ).\n\nGeschichte\n\n'
    "Siehe dort.\n\nErstens\n\nZweitens"
)


def page(number: int, text: str, namespace: int = 0, inside: str = "") -> str:
    return (
        f"  <page>\n    <title>T{number}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>{inside}\n"
        f"    <revision>\n      <id>{number}99</id>\n      <text bytes='1' xml:space=\"preserve\">{text}</text>\n"
        "    </revision>\n  </page>\n"
    )


PAGES = [
    page(1, ARTICLE),
    page(2, "#REDIRECT [[T1]]", inside='\n    <redirect title="T1" />'),
    page(3, "Talk about it.", namespace=1),
    *[page(n, f"Artikel {n}: " + "wort " * 20) for n in range(4, 40)],
]
DUMP = HEAD + "".join(PAGES) + "</mediawiki>\n"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".bz2": bz2.compress,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", PACK)
def test_articles_of_a_wikipedia_dump_are_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"dewiki-pages-articles.xml{suffix}"
    path.write_bytes(PACK[suffix](DUMP.encode()))
    counts = Counts()
    found = documents(path, counts=counts)
    assert found[0] == (f"{path.name}:1", TEXT)
    assert [name.rpartition(":")[2] for name, _ in found] == ["1", *map(str, range(4, 40))]
    assert found[1][1] == "Artikel 4: " + " ".join(["wort"] * 20)
    assert counts.pages_passed_over == 2


def test_parts_of_a_dump_have_their_own_suffix(tmp_path: Path) -> None:
    (tmp_path / "dewiki-pages-articles1.xml-p1p297012.bz2").write_bytes(bz2.compress(DUMP.encode()))
    (tmp_path / "other.xml").write_text("<html></html>")
    assert len(documents(tmp_path)) == 37
    assert "is no dump of MediaWiki" in error(tmp_path / "other.xml")


def multistream() -> bytes:
    """As Wikipedia packs it: the head, the pages in groups and the end, each a bzip2 stream."""
    groups = [HEAD, *("".join(PAGES[n : n + 4]) for n in range(0, len(PAGES), 4)), "</mediawiki>\n"]
    return b"".join(bz2.compress(group.encode()) for group in groups)


def cut_anywhere() -> bytes:
    """As pbzip2 packs it: streams that end within pages, and now and then before one."""
    data = DUMP.encode()
    borders = sorted({0, len(data), *range(0, len(data), 999), data.find(b"<page>", 3000)})
    return b"".join(bz2.compress(data[a:b]) for a, b in pairwise(borders))


@pytest.mark.parametrize(
    ("name", "content", "size"),
    [
        ("a.xml", DUMP.encode(), 700),
        ("a.xml.bz2", multistream(), 300),
        ("a.xml.bz2", cut_anywhere(), 300),
        ("a.xml.bz2", bz2.compress(DUMP.encode()), 300),
        ("a.xml.gz", gzip.compress(DUMP.encode()), 300),
    ],
)
def test_a_large_dump_is_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, size: int
) -> None:
    (tmp_path / name).write_bytes(content)
    whole = documents(tmp_path)
    assert len(whole) == 37
    monkeypatch.setattr(formats, "PART_BYTES", size)
    monkeypatch.setattr(formats, "STRIPE_BYTES", size)
    monkeypatch.setattr(wikipedia, "_READ", 64)
    units = discover(DataSettings(sources=[str(tmp_path)]))
    assert len(units) >= 2
    if content == multistream():
        assert len(units) >= 4
        assert all(unit.start for unit in units[1:])
    assert sorted(documents(tmp_path)) == sorted(whole)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (DUMP[: DUMP.find("<revision>")], "the dump is cut off"),
        (HEAD + PAGES[0], "the dump is cut off"),
        (DUMP.replace("</title>", "</titel>", 1), "broken XML: mismatched tag"),
        (DUMP.replace("<id>1</id>", ""), "a page has no id"),
        (DUMP.replace("Alan", "&lol;"), "broken XML: undefined entity"),
    ],
)
def test_broken_dumps_are_refused(tmp_path: Path, content: str, what: str) -> None:
    (tmp_path / "a.xml").write_text(content)
    message = error(tmp_path)
    assert message.startswith(f"{tmp_path}/a.xml")
    assert what in message


def test_xml_entities_are_not_expanded(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY f SYSTEM "/etc/passwd">]>'
    for name in ("b", "f"):
        (tmp_path / "a.xml").write_text(bomb + DUMP.replace("Alan", f"&{name};"))
        assert "undefined entity" in error(tmp_path)


def test_a_page_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "LONGEST_PAGE", 3000)
    monkeypatch.setattr(wikipedia, "_READ", 500)
    (tmp_path / "a.xml").write_text(HEAD + page(1, "x" * 9000) + "</mediawiki>")
    assert "a page is longer than" in error(tmp_path)


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("a {{b {{c}} d}} e", "a e"),
        ("a {{b c", "a {{b c"),
        ("x [[Image:a.png|thumb|see [[b]]]] y", "x y"),
        ("see [[:Category:X]], [[w:de:Y|Z]], [[a|]] [[b]]s [[", "see Category:X, Z, a bs [["),
        ("[//x.org A b], [https://x.org] [mailto:x]", "A b, [mailto:x]"),
        ("a < b, 3 > 2 &lt;i> &nbsp;c", "a < b, 3 > 2 <i> c"),
        ("= A =\n== B==\n=\n x = y", "A\n\nB\n\n=\nx = y"),
        ("a\n : b\n{| x\n| y\n{|\n|}\n| z\n|}\nc", "a\n: b\n\nc"),
        ("<b>bold</b> &amp; <i>it</i>", "bold & it"),
        ("x<math>a^2</math> y<math> <gallery>\nFile:A.jpg\n</gallery>", "x y"),
        ("__NOTOC__'''''a''''' ({{b}})", "a"),
        ("a<ref>b</ref>c<ref name=x/>d<REF>e</REF>", "acd"),
        ("one<br>two<br />three", "one\n\ntwo\n\nthree"),
        ("x [[de:Fuchs]] [[fr:Renard|renard]] [[zh-min-nan:A]]y [[Simple:Fox]]", "x y"),
        ("[[:de:Fuchs]] [[de]] [[w:de:A|B]] [[Mission: Impossible]]", "de:Fuchs de B Mission: Impossible"),
        ("[[Bild:A b.JPG|mini|ein [[Fuchs]]]]x [[画像:b.svg]][[Файл:c.png|thumb]]", "x"),
        ("[[Star Trek: Log.pdf guide]] [[a.png]]", "Star Trek: Log.pdf guide a.png"),
        ("-{zh-hans:A;zh-hant:B}-", "A"),
        ("在-{zh-tw:計程車; zh-cn:出租车;zh-hk:的士;}-裡", "在出租车裡"),
        ("-{A}- -{R|zh-cn:b}- -{zh;zh-hans|c}- -{A|zh-cn:d;zh-tw:e}-", "A zh-cn:b c d"),
        ("x-{H|zh-cn:a;zh-tw:b}-y-{T|zh-cn:a}-z -{-|zh-cn:a}-", "xyz"),
        ("-{sr-ec:Ћ; sr-el:Ć}- -{巨集=>zh-cn:宏;}- -{mailto:x; a:b}-", "Ћ 宏 mailto:x; a:b"),
        ("-{zh-hans:&quot;[[a|b]]&quot;;zh-hant:[[c]]}-", '"b"'),
        ("-{a -{zh-cn:b;zh-tw:c}- d}- }- -{ e", "a b d }- -{ e"),
        ("__KEIN_INHALTSVERZEICHNIS__a __БЕЗ_ОГЛ____無目錄__b __init__", "a b __init__"),
        ("a\n----\nb\n-- c", "a\n\nb\n-- c"),
        ("{{{1|a}}}x &#65;&#0000000066; &#" + "9" * 5000 + ";", "x AB \ufffd"),
    ],
)
def test_wikitext_becomes_running_text(wikitext: str, text: str) -> None:
    assert plain_text(wikitext, HIDDEN) == text


@pytest.mark.parametrize(
    ("before", "again"),
    [
        *(
            ("", nasty)
            for nasty in ("{{", "[[", "<!--", "<ref>", "{|\n", "'''", "[[File:a|", "<b>", "|}", "&", "==")
        ),
        *(
            ("", nasty)
            for nasty in ("[http://", "-{", "}-", "-{zh:", "-{zh-cn:a;", "__A_", "{{{", "&#9", "[[a:.jpg ")
        ),
        *(
            (before, nasty)
            for before in ("[//a", "-{zh:", "(", "=", "\n", "</ref")
            for nasty in (" ", ";", "a")
        ),
    ],
)
def test_wikitext_takes_linear_time(before: str, again: str) -> None:
    assert is_linear(lambda size: plain_text(before + again * (size // len(again)), HIDDEN))


def test_the_head_of_a_dump_takes_linear_time() -> None:
    names = b'<namespace key="6" '
    assert is_linear(lambda size: wikipedia._hidden_namespaces(names * (size // len(names))))


# WikiExtractor

EXTRACTED = (
    '<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">\nAnarchism\n\nA &lt; B.\n</doc>\n\n'
    '<doc id="25" url="https://en.wikipedia.org/wiki?curid=25" title="Autism">\nAutism\n\nText.\n</doc>\n'
)


@pytest.mark.parametrize("suffix", PACK)
def test_pages_of_wikiextractor_are_read(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "AA").mkdir()
    (tmp_path / "AA" / f"wiki_00{suffix}").write_bytes(PACK[suffix](EXTRACTED.encode()))
    (tmp_path / "LICENSE").write_text("no text of ours")
    assert documents(tmp_path) == [
        (f"AA/wiki_00{suffix}:12", "Anarchism\n\nA < B.\n"),
        (f"AA/wiki_00{suffix}:25", "Autism\n\nText.\n"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "the compressed file is cut off"), (b"<doc id=", "is not compressed where its name says bzip2")],
)
def test_a_damaged_file_of_a_folder_is_not_skipped(tmp_path: Path, content: bytes, said: str) -> None:
    """A copy that failed: nothing in it says of which kind it was."""
    (tmp_path / "wiki_00.bz2").write_bytes(bz2.compress(EXTRACTED.encode()))
    assert len(documents(tmp_path)) == 2
    (tmp_path / "wiki_01.bz2").write_bytes(content)
    message = error(tmp_path)
    assert message.startswith(f"{tmp_path}/wiki_01.bz2: ")
    assert said in message


@pytest.mark.parametrize(
    "empty",
    [
        '<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\n\n</doc>\n',
        '<doc id="1" url="u" title="C "q" > D">\nC "q" > D\n</doc>\n',
        '<doc id="1" url="u" title="E">\n\n</doc>\n',
        '<doc id="1" url="u" title="E"></doc>\n',
    ],
)
def test_articles_of_wikiextractor_without_text_are_empty(tmp_path: Path, empty: str) -> None:
    """Of an article without text it writes the title, which is no document of its own."""
    (tmp_path / "wiki_00").write_text(empty + EXTRACTED + empty)
    counts = Counts()
    assert [name for name, _ in documents(tmp_path, counts=counts)] == ["wiki_00:12", "wiki_00:25"]
    assert counts.empty_documents == 2


def test_wikiextractors_json_is_read(tmp_path: Path) -> None:
    row = {"id": "12", "revid": "1", "url": "u", "title": "Anarchism", "text": "Anarchism is"}
    (tmp_path / "wiki_00").write_text(json.dumps(row) + "\n")
    assert documents(tmp_path) == [("wiki_00:1", "Anarchism is")]
    assert documents(tmp_path, id_field="id") == [("wiki_00:12", "Anarchism is")]


def test_wikiextractor_shared_out_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "wiki_00"
    path.write_text(EXTRACTED * 5)
    whole = documents(path)
    for size in (37, 150, 400):
        with monkeypatch.context() as patch:
            patch.setattr(formats, "PART_BYTES", size)
            assert documents(path) == whole
    path.write_text(EXTRACTED[:-8])
    assert "wiki_00:7: the document has no </doc>" in error(path)
    path.write_text(EXTRACTED + "stray\n")
    assert "wiki_00:12: text outside of <doc> and </doc>" in error(path)


def test_a_file_without_a_suffix_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("just text")
    assert "its suffix names no format" in error(tmp_path / "text")
    assert "no file to read here" in error(tmp_path)


def test_html_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>x")
    assert ".html is not read" in error(tmp_path / "a.html")
    assert "trafilatura" in error(tmp_path / "a.html")
    assert "trafilatura" in error(tmp_path)


# Long documents


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A megabyte of text without blank lines, and a vocabulary."""
    folder = tmp_path_factory.mktemp("long")
    write_text(folder / "a.txt", documents=2600)
    learn_vocabulary(
        DataSettings(sources=[f"{folder}/a.txt"], vocab=f"{folder}/vocabulary"),
        VocabularySettings(size=300),
        silent,
    )
    (folder / "a.txt").write_text((folder / "a.txt").read_text().replace("\n\n", "\n")[: 10**6])
    return folder


LONG = "word " * 20
RECORDS: dict[str, Callable[[str], str]] = {
    "a.txt": lambda text: f"one\n\n{text}\n\nthree\n",
    "a.jsonl": lambda text: "".join(json.dumps({"text": t}) + "\n" for t in ("one", text, "three")),
    "wiki_00": lambda text: "".join(
        f'<doc id="{n}" url="u" title="t">\n{t}\n</doc>\n' for n, t in enumerate(("one", text, "three"))
    ),
}


def long_record(folder: Path, name: str) -> Path:
    path = folder / name
    if name in RECORDS:
        path.write_text(RECORDS[name](LONG))
    elif path.suffix == ".xml":
        path.write_text(DUMP.replace("Alan", "&lol;"))
    else:
        table = pa.table({"text": ["one", LONG, "three"]})
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
    return path


@pytest.mark.parametrize(
    ("name", "place"),
    [("a.txt", 3), ("a.jsonl", 2), ("wiki_00", 4), ("a.parquet", 2), ("a.arrow", 2)],
)
def test_a_record_above_the_limit_is_refused_or_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: int
) -> None:
    for module in (formats, text_formats):
        monkeypatch.setattr(module, "LONGEST_RECORD", 64)
    path = long_record(tmp_path, name)
    line = error(path)
    assert line.startswith(f"{path}:{place}: the record has more than 64 bytes (expected at most ")
    assert line.endswith("split it into several records)")
    counts = Counts()
    assert [found.strip() for _, found in documents(path, counts=counts, bad_records="skip")] == [
        "one",
        "three",
    ]
    assert (counts.bad_records, counts.first_bad) == (1, [line])
    if name == "a.txt":
        assert f"{path}:1: the record has more" in error(path, documents="file")
    for module in (formats, text_formats):
        monkeypatch.setattr(module, "LONGEST_RECORD", len(LONG) + 50)
    assert len(documents(path)) == 3


SAMPLES = {
    "text": "a.txt",
    "jsonl": "a.jsonl",
    "parquet": "a.parquet",
    "arrow": "a.arrow",
    "wikipedia": "a.xml",
    "wikiextractor": "wiki_00",
}


@pytest.mark.parametrize("name", formats.FORMATS)
def test_the_table_says_which_settings_a_format_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in (formats, text_formats):
        monkeypatch.setattr(module, "LONGEST_RECORD", 64)
    path = long_record(tmp_path, SAMPLES[name])
    chosen, read_fields = DataSettings(sources=[str(path)], bad_records="skip"), set()

    class Recorder:
        def __getattr__(self, field: str) -> object:
            read_fields.add(field)
            return getattr(chosen, field)

    [file] = source_files(chosen)
    assert file.format == name
    counts = Counts()
    for part in formats.parts_of(file, Recorder()):  # type: ignore[arg-type]
        assert len(list(formats.records(part, Recorder(), counts))) >= 2  # type: ignore[arg-type]
    assert counts.bad_records == 1
    assert read_fields == {*formats.FORMATS[name].settings}


def test_the_page_lists_every_suffix() -> None:
    page = (ROOT / "docs/guides/data.md").read_text()
    assert [s for row in formats.FORMATS.values() for s in row.suffixes if f"`{s}`" not in page] == []


def test_a_record_of_less_than_the_limit_is_read(tmp_path: Path) -> None:
    assert formats.LONGEST_RECORD == 256 << 20
    (tmp_path / "a.jsonl").write_text(json.dumps({"meta": {"text": "wörter " * 2_000_000}}) + "\n")
    assert documents(tmp_path, text_field="meta.text") == [("a.jsonl:1", "wörter " * 2_000_000)]


def test_tokens_on_disk_are_the_tokens_in_memory(text: Path, tmp_path: Path) -> None:
    cache = WordCache(load_vocabulary(f"{text}/vocabulary"))
    lines = (text / "a.txt").read_text().splitlines()

    def documents():  # type: ignore[no-untyped-def]
        yield Sentences("long", iter([*lines, "\u200b"]))
        for number, line in enumerate(lines):
            yield Sentences(str(number), [line, " "])
        yield Sentences("empty", [])

    counts, again = Counts(), Counts()
    memory = tokenize(documents(), cache, counts)
    disk = tokenize(documents(), cache, again, tmp_path / "spool")
    assert counts == again
    assert counts.documents_without_tokens == 1
    assert len(memory) == len(lines) + 1
    for column in ("tokens", "sentence_starts", "document_starts", "keys", "sources"):
        assert getattr(memory, column).tolist() == getattr(disk, column).tolist()
    assert memory.document_starts[1] == len(lines)
    assert (tmp_path / "spool").stat().st_size == disk.tokens.nbytes


def test_a_task_leaves_no_temporary_file(text: Path, tmp_path: Path) -> None:
    settings = DataSettings(sources=[f"{text}/a.txt"])
    [part] = discover(settings)
    result = read_source(part, settings, f"{text}/vocabulary", str(tmp_path / "out"))
    corpus = open_corpus(tmp_path / "out")
    assert result["tokens"] == len(corpus.tokens) == result["counts"]["tokens"]
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".npy"}

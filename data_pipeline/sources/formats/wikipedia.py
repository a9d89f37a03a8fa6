"""Read the running text of articles from a Wikipedia dump (pages-articles, MediaWiki XML).

Each page is cut out of the stream at `<page>` and `</page>`, which cannot occur within text, and parsed separately.
So memory holds one page, errors give the offset of a damaged page, and no document type can declare entities, neither
expanding ones nor ones that name a file. Redirects and pages outside the article namespace are skipped and counted.
The record id is the page id.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from xml.etree import ElementTree

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import filesystem, open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.formats.wikitext import plain_text
from data_pipeline.sources.read_counts import Counts
from data_pipeline.sources.source_file import Record, SourceFile

LONGEST_PAGE = 16 << 20
"""Maximum bytes of XML per page; MediaWiki limits an article to 2 MiB."""
BZIP2_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_READ = 1 << 20
_HEAD = 1 << 18
_BEGIN, _END, _ALL_READ = b"<page>", b"</page>", b"</mediawiki>"
_HIDDEN = frozenset({"file", "image", "category"})
_NAMESPACE = re.compile(r'<namespace key="(?:6|14)"[^<>]*>([^<]+)<')


def pages(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the articles of one part: page id and text. Raises UserError for an unreadable page and a truncated
    dump."""
    with ExitStack() as stack:
        stream = stack.enter_context(open_bytes(file.uri, file.compression))
        hidden = _hidden_namespaces(stream.peek(_HEAD))
        place = 0
        if file.compression and (file.start or file.stop >= 0):
            stream = stack.enter_context(open_bytes(file.uri, file.compression, file.start, file.stop))
        elif file.start:
            place = stream.seek(file.start)
        stop = -1 if file.compression else file.stop
        last = file.stop < 0
        for number, (at, page) in enumerate(_cut(stream, place, stop, last, file.uri)):
            if file.owns(number):
                where = f"{file.uri}, byte {at}" + (" of this piece decompressed" if file.compression else "")
                try:
                    found = _article(page, where, hidden)
                except UserError as error:
                    counts.skip_or_raise(error, settings)
                    continue
                if found is None:
                    counts.pages_passed_over += 1
                else:
                    yield found[0], found[1], ()


def _cut(
    stream: BufferedReader, place: int, stop: int, last: bool, where: str
) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each page that begins before `stop` (-1: the end). `last`: the dump must end here."""
    data, at, ended = b"", 0, False
    while True:
        begin = data.find(_BEGIN, at)
        if 0 <= stop <= place + begin and begin >= 0:
            return
        end = data.find(_END, begin) if begin >= 0 else -1
        if end >= 0:
            at = end + len(_END)
            yield place + begin, data[begin:at]
            continue
        keep = begin if begin >= 0 else max(at, len(data) - len(_ALL_READ) + 1)
        ended = ended or _ALL_READ in data[at:]
        place, data, at = place + keep, data[keep:], 0
        if begin < 0 <= stop <= place:
            return
        if begin >= 0 and len(data) > LONGEST_PAGE:
            raise UserError(
                f"a page is longer than {LONGEST_PAGE >> 20} MiB",
                where=f"{where}, byte {place}",
                expected="a pages-articles dump, with one revision of each page",
            )
        more = stream.read(max(_READ, len(data)))  # doubles, so that a long page is not searched too often
        if not more:
            break
        data += more
    if begin >= 0 or (last and not ended):
        raise UserError("the dump is cut off", where=where, remedy="copy or make it again")


def _article(page: bytes, where: str, hidden: frozenset[str]) -> tuple[str, str] | None:
    try:
        element = ElementTree.fromstring(page)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"broken XML: {error}", where=where, expected="MediaWiki's page") from error
    if element.find("redirect") is not None or (element.findtext("ns") or "0").strip() != "0":
        return None
    name = (element.findtext("id") or "").strip()
    if not name:
        raise UserError("a page has no id", where=where, expected="MediaWiki's page")
    return name, plain_text(element.findtext("revision/text") or "", hidden)


def _hidden_namespaces(head: bytes) -> frozenset[str]:
    """Return the wiki's own names of the file and category namespaces, and the English ones."""
    text = head.partition(b"</siteinfo>")[0].decode("utf-8", "replace")
    return _HIDDEN | {name.strip().lower() for name in _NAMESPACE.findall(text)}


def bzip2_borders(uri: str, part_bytes: int) -> list[int]:
    """Find where to cut a dump of many bzip2 streams: about every `part_bytes`, at streams that begin with a page."""
    borders = []
    fs, path = filesystem(uri)
    with fs.open(path, "rb") as stream:
        base, data, wanted = 0, b"", part_bytes
        while more := stream.read(_READ):
            data += more
            for found in BZIP2_STREAM.finditer(data, 0, len(data)):
                at = base + found.start()
                if at >= wanted and _begins_with_page(uri, at):
                    borders.append(at)
                    wanted = at + part_bytes
            keep = min(len(data), 9)  # the start of a stream may span two reads
            base, data = base + len(data) - keep, data[len(data) - keep :]
    return borders


def _begins_with_page(uri: str, at: int) -> bool:
    with open_bytes(uri, "bzip2", at) as stream:
        return stream.read(256).lstrip().startswith(_BEGIN)

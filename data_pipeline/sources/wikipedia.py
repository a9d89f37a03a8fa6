"""Read the running text of articles from Wikipedia's dumps, and from the files that WikiExtractor makes of them.

A dump is a pages-articles file, MediaWiki XML. Each page is cut out of the stream at `<page>` and `</page>`, which
cannot occur within text, and parsed separately. So memory holds one page, errors give the offset of a damaged page,
and no document type can declare entities, neither expanding ones nor ones that name a file. Redirects and pages
outside the article namespace are skipped and counted.

In the text of an article of a dump, paragraphs, headings and list items are separated by blank lines. Templates,
tables, references, formulae, files, categories and links to other languages' articles are removed; links, styles and
other tags keep their text. Of a word in several variants of a language, `-{zh-hans:A;zh-hant:B}-`, the one whose code
comes first in the alphabet stays, so that an article is in one variant.

A file of WikiExtractor holds the text of each page between `<doc id=...>` and `</doc>`.

The record id is the page id.
"""

import html
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedReader
from xml.etree import ElementTree

from data_pipeline.errors import UserError
from data_pipeline.io.decompress import open_bytes
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts, decode
from data_pipeline.sources.formats import (
    Record,
    SourceFile,
    between,
    check_length,
    is_local_file,
    joined,
    striped,
)
from data_pipeline.sources.text_formats import Line, lines_of

# Extract the running text of an article from its wikitext. No library does it, since it must cope with any text: every
# step is one pass over the text with a pattern that never backtracks far. mwparserfromhell takes 18 seconds for 40 KB
# of `{|`, and a hundred times as long for a whole article of it; on ordinary articles it processes 0.5 MB of wikitext
# per second on one core, `plain_text` 8 MB.

_WITHOUT_TEXT = (
    *(
        "ref",
        "math",
        "chem",
        "ce",
        "gallery",
        "timeline",
        "score",
        "syntaxhighlight",
        "source",
        "imagemap",
        "hiero",
    ),
    *(
        "graph",
        "mapframe",
        "maplink",
        "templatestyles",
        "templatedata",
        "categorytree",
        "inputbox",
        "style",
        "script",
        "indicator",
    ),
)
"""Tags whose content is not running text."""

_CODES = """
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar
bat-smg bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bol bpy br bs btm bug bxr ca cbk-zam
cdo ce ceb ch cho chr chy ckb cmn co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee egl
el eml en eo es et eu ext fa fat ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom
gor got gpe gsw gu guc gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik
ilo inh io is isv it iu ja jam jbo jv ka kaa kab kai kaj kbd kbp kcg kg kge ki kj kk kl km kn knc ko koi kr
krc ks ksh ku kus kv kw ky la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh mad mag mai
map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds
nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi
pih pl pms pnb pnt ppl ps pt pwn qu rki rm rmy rn ro roa-rup roa-tara rsk ru rue rup rw sa sah sat sc scn
sco sd se sg sgs sh shi shn si simple sk skr sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay
tcy tdd te tet tg th ti tig tk tl tlh tly tn to tok tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec
vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zgh zh zh-classical zh-min-nan zh-yue zu
"""
_LANGUAGES = frozenset(_CODES.split())
"""Language codes of Wikipedias, open, closed and former ones: a link to `de:` is one to the same article there."""
_CONVERTED = "ban|crh|en|gan|iu|kk|ku|mni|sh|shi|sr|tg|tly|uz|wuu|zh"
"""Languages with variants that MediaWiki converts into each other."""
_HIDDEN_RULES = frozenset("HT-")
"""Flags of a variant that shows nothing: a rule for the page, its title, the removal of a rule."""
_FLAGS = frozenset("ADEHNRST+-")
_DEEPEST = 10
"""Deepest nesting of variants, as in MediaWiki."""

NAME_CHARACTERS = 300
"""Longest name of a page, a namespace or a file before the bar of a link; MediaWiki limits it to 255 bytes."""

_COMMENT, _COMMENT_END = re.compile(r"<!--"), re.compile(r"-->")
_TEMPLATE = re.compile(r"(?P<open>\{\{)|\}\}")
_TABLE = re.compile(r"(?P<open>^[ \t:*#;]*\{\|)|^[ \t]*\|\}", re.MULTILINE)
_LINK = re.compile(r"(?P<open>\[\[)|\]\]")
_SINGLE_TAG = re.compile(rf"<(?:{'|'.join(_WITHOUT_TEXT)})\b[^<>]*/>", re.IGNORECASE)
_PAIRS = [
    (re.compile(rf"<{tag}\b[^<>]*>", re.IGNORECASE), re.compile(rf"</{tag}\s*>", re.IGNORECASE))
    for tag in _WITHOUT_TEXT
]
_STYLE = re.compile(r"'{2,5}")
_SWITCH = re.compile(r"__([^\W\d_]++(?:_[^\W\d_]++)*+)__")
_RULE_LINE = re.compile(r"^-{4,}", re.MULTILINE)
_PARAMETER = re.compile(r"\{\{\{[^{}]*\}\}\}")
_VARIANT = re.compile(r"(?P<open>-\{)|\}-")
_VARIANT_CODE = re.compile(rf"(?:{_CONVERTED})(?:-[a-z]+)*")
_VARIANT_TEXT = re.compile(rf"(?:^|;)\s*+(?:[^;:=]*+=>\s*+)?((?:{_CONVERTED})(?:-[a-z]+)*+)\s*+:")
_MEDIA = re.compile(
    r"[^\[\]|:]*+:[^\[\]|]*?\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|ogg|oga|ogv|opus|webm|wav|mp3|midi?|flac|stl)"
    r"\s*+(?:\||\]\])",
    re.IGNORECASE,
)
"""A file under any name of its namespace: dumps list the official one, and articles use aliases (Bild:)."""
_HEADING = re.compile(r"^=.*=[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^[*#:;]+[ \t]*", re.MULTILINE)
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_PAGE_LINK = re.compile(r"\[\[:?([^\[\]|]*)(?:\|([^\[\]]*))?\]\]")
_WEB_LINK = re.compile(r"\[(?:[a-z]{3,9}:)?//[^\s\[\]]++(?:[ \t]++([^\[\]]*+))?+\]", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_EMPTY_PARENTHESES = re.compile(r"\([ ,;]*\)")
_LONG_NUMBER = re.compile(r"&#0*+([0-9]{8,});?")
_SPACES = re.compile(r"[ \t\u00a0]+")
_BLANK = re.compile(r"\n\s*\n")


def plain_text(wikitext: str, hidden: frozenset[str]) -> str:
    """Return the text of an article. `hidden`: lower-cased names of the namespaces whose links show no text: files and
    categories, in the wiki's language and in English."""
    text = _without_spans(wikitext, _COMMENT, _COMMENT_END)
    text = _without_nested(_PARAMETER.sub("", text), _TEMPLATE)
    text = _without_nested(text, _TABLE)
    text = _SINGLE_TAG.sub("", text)
    for opening, closing in _PAIRS:
        text = _without_spans(text, opening, closing)
    text = _in_one_variant(text) if "-{" in text else text
    text = _without_nested(text, _LINK, lambda inside: _shows_nothing(inside, hidden))
    text = _SWITCH.sub(lambda found: "" if found[1] == found[1].upper() else found[0], _STYLE.sub("", text))
    text = _HEADING.sub(lambda line: f"\n\n{line[0].strip().strip('=')}\n\n", text)
    text = _LINE_BREAK.sub("\n\n", _ITEM.sub("\n\n", _RULE_LINE.sub("\n\n", text)))
    text = _PAGE_LINK.sub(lambda link: link[2] or link[1], text)
    text = _TAG.sub("", _WEB_LINK.sub(lambda link: link[1] or "", text))
    text = _SPACES.sub(" ", unescaped(text))
    text = _SPACES.sub(" ", _EMPTY_PARENTHESES.sub("", text))
    paragraphs = ("\n".join(line.strip(" ") for line in p.split("\n")).strip() for p in _BLANK.split(text))
    return "\n\n".join(filter(None, paragraphs))


def unescaped(text: str) -> str:
    """Return `text` with HTML's references resolved. `html.unescape` raises ValueError for a number of more than 4,300
    digits; those beyond Unicode are U+FFFD, as it makes them."""
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text))


def _shows_nothing(inside: str, hidden: frozenset[str]) -> bool:
    """Return whether a link that begins with `inside` shows no text where it stands."""
    name = inside.partition(":")[0].strip().lower()
    return name in hidden or name in _LANGUAGES or _MEDIA.match(inside) is not None


def _in_one_variant(text: str) -> str:
    """Replace each `-{...}-` by what it shows in one variant; unmatched brackets stay."""
    opened: list[list[str]] = [[]]
    at = 0
    for found in _VARIANT.finditer(text):
        opened[-1].append(text[at : found.start()])
        at = found.end()
        if found.lastgroup == "open" and len(opened) <= _DEEPEST:
            opened.append([])
        elif found.lastgroup != "open" and len(opened) > 1:
            inside = "".join(opened.pop())
            opened[-1].append(_variant(inside))
        else:
            opened[-1].append(found[0])
    opened[-1].append(text[at:])
    return "-{".join("".join(parts) for parts in opened)


def _variant(inside: str) -> str:
    """Return what `-{inside}-` shows (mediawiki.org, Writing systems/Syntax): flags and a bar may come first."""
    before, bar, after = inside.partition("|")
    flags = {flag.strip() for flag in before.split(";")} if bar and len(before) < 200 else {"?"}
    if not all(flag in _FLAGS or _VARIANT_CODE.fullmatch(flag) for flag in flags - {""}):
        after, flags = inside, set()
    if flags & _HIDDEN_RULES:
        return ""
    codes = [] if flags - _FLAGS - {""} or "R" in flags else list(_VARIANT_TEXT.finditer(after))
    if not codes:
        return after
    first = min(range(len(codes)), key=lambda number: codes[number][1])
    stop = codes[first + 1].start() if first + 1 < len(codes) else len(after)
    return after[codes[first].end() : stop].strip().rstrip(";")


def _without_spans(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    """Remove everything from `opening` to `closing`, which do not nest; an opening that is never closed stays."""
    parts, at = [], 0
    while (begin := opening.search(text, at)) and (end := closing.search(text, begin.end())):
        parts.append(text[at : begin.start()])
        at = end.end()
    return "".join([*parts, text[at:]])


def _without_nested(text: str, bracket: re.Pattern[str], goes: Callable[[str], bool] = lambda _: True) -> str:
    """Remove nested brackets and their content if `goes` is true for the text after the opening one; unmatched
    brackets stay."""
    opened: list[re.Match[str]] = []
    spans: list[tuple[int, int]] = []
    for found in bracket.finditer(text):
        if found.lastgroup == "open":
            opened.append(found)
        elif opened:
            begin = opened.pop()
            if goes(text[begin.end() : begin.end() + NAME_CHARACTERS]):
                while spans and spans[-1][0] >= begin.start():
                    spans.pop()
                spans.append((begin.start(), found.end()))
    parts, at = [], 0
    for start, stop in spans:
        parts.append(text[at:start])
        at = stop
    return "".join([*parts, text[at:]])


# Read the pages of a part of WikiExtractor's output.

_DOC = re.compile(rb'<doc id="([^"]*)"(?: url="[^"]*")?(?: title="(.*)")?[^>]*>(</doc>)?\s*+$')


def extracted_pages(file: SourceFile, settings: DataSettings, counts: Counts) -> Iterator[Record]:
    """Yield the pages of one part: page id and text, "" where there is but a title. Raises UserError for text outside
    of pages, if the last page has no end and, unless data.bad_records=skip, for a page that is too long."""
    with open_bytes(file.uri, file.compression) as stream:
        yield from _pages(file, lines_of(file, stream), settings, counts)


def _pages(
    file: SourceFile, lines: Iterator[Line], settings: DataSettings, counts: Counts
) -> Iterator[Record]:
    count = 0
    for number, position, line in lines:
        past = 0 <= file.stop <= position
        opening = _DOC.match(line)
        if opening is None:
            if not line.isspace() and (count or not file.start):
                raise UserError("text outside of <doc> and </doc>", where=f"{file.uri}:{number}")
            if past:
                return
            continue
        if past:
            return
        count += 1
        where = f"{file.uri}:{number}"
        body = b"" if opening[3] else joined(_until_doc_ends(lines, where))
        if not file.owns(count):
            continue
        try:
            check_length(len(body), where)
        except UserError as error:
            counts.skip_or_raise(error, settings)
            continue
        text = decode(body, counts)
        if _is_title(text, decode(opening[2] or b"", Counts())):
            text = ""
        yield decode(opening[1], counts), unescaped(text)


def _is_title(text: str, title: str) -> bool:
    """Return whether the text is its own heading only: WikiExtractor writes that of an article without text."""
    return bool(title) and unescaped(text).strip() in (title, unescaped(title))


def _until_doc_ends(lines: Iterator[Line], where: str) -> Iterator[bytes]:
    for _, _, line in lines:
        if line.startswith(b"</doc>"):
            return
        yield line
    raise UserError("the document has no </doc>: the file is cut off", where=where, remedy="make it again")


# Read the articles of a part of a dump.

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
                    yield found


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


def page_parts(file: SourceFile, _settings: DataSettings, part_bytes: int) -> list[SourceFile]:
    """Cut a local dump every `part_bytes`, one of many bzip2 streams at streams; another compressed one by pages."""
    local = is_local_file(file)
    splits = file.compression == "bzip2" and local and file.size > part_bytes
    if splits and (borders := bzip2_borders(file.uri, part_bytes)):
        return between(file, [0, *borders])
    if file.compression:
        return striped(file, part_bytes)
    return between(file, range(0, file.size, part_bytes)) if local and file.size > part_bytes else [file]


def bzip2_borders(uri: str, part_bytes: int) -> list[int]:
    """Find where to cut a dump of many bzip2 streams: about every `part_bytes`, at streams that begin with a page."""
    borders = []
    with open(uri, "rb") as stream:
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

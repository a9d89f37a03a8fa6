"""Extract the running text of an article from its wikitext.

Paragraphs, headings and list items are separated by blank lines. Templates, tables, references, formulae, files and
categories are removed; links, styles and other tags keep their text.

Not done with a library, since it must cope with any text: every step is one pass over the text with a pattern that
never backtracks far. mwparserfromhell takes 18 seconds for 40 KB of `{|`, and a hundred times as long for a whole
article of it; on ordinary articles it processes 0.5 MB of wikitext per second on one core, this module 8 MB.
"""

import html
import re
from collections.abc import Callable

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
    ),
)
"""Tags whose content is not running text."""

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
_SWITCH = re.compile(r"__[A-Z]+__")
_HEADING = re.compile(r"^=.*=[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^[*#:;]+[ \t]*", re.MULTILINE)
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_PAGE_LINK = re.compile(r"\[\[:?([^\[\]|]*)(?:\|([^\[\]]*))?\]\]")
_WEB_LINK = re.compile(r"\[(?:[a-z]{3,9}:)?//[^\s\[\]]+(?:[ \t]+([^\[\]]*))?\]", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_EMPTY_PARENTHESES = re.compile(r"\([ ,;]*\)")
_SPACES = re.compile(r"[ \t\u00a0]+")
_BLANK = re.compile(r"\n\s*\n")


def plain_text(wikitext: str, hidden: frozenset[str]) -> str:
    """Return the text of an article. `hidden`: lower-cased names of the namespaces whose links show no text: files and
    categories, in the wiki's language and in English."""
    text = _without_spans(wikitext, _COMMENT, _COMMENT_END)
    text = _without_nested(text, _TEMPLATE)
    text = _without_nested(text, _TABLE)
    text = _SINGLE_TAG.sub("", text)
    for opening, closing in _PAIRS:
        text = _without_spans(text, opening, closing)
    text = _without_nested(text, _LINK, lambda inside: inside.partition(":")[0].strip().lower() in hidden)
    text = _SWITCH.sub("", _STYLE.sub("", text))
    text = _HEADING.sub(lambda line: f"\n\n{line[0].strip().strip('=')}\n\n", text)
    text = _LINE_BREAK.sub("\n\n", _ITEM.sub("\n\n", text))
    text = _PAGE_LINK.sub(lambda link: link[2] or link[1], text)
    text = _TAG.sub("", _WEB_LINK.sub(lambda link: link[1] or "", text))
    text = _SPACES.sub(" ", html.unescape(text))
    text = _SPACES.sub(" ", _EMPTY_PARENTHESES.sub("", text))
    paragraphs = ("\n".join(line.strip(" ") for line in p.split("\n")).strip() for p in _BLANK.split(text))
    return "\n\n".join(filter(None, paragraphs))


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
            if goes(text[begin.end() : begin.end() + 80]):
                while spans and spans[-1][0] >= begin.start():
                    spans.pop()
                spans.append((begin.start(), found.end()))
    parts, at = [], 0
    for start, stop in spans:
        parts.append(text[at:start])
        at = stop
    return "".join([*parts, text[at:]])

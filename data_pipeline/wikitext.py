"""An article's wikitext in, its running text out: paragraphs, headings and list items apart by blank lines.

Templates, tables, references, comments and what shows no text (files, categories, formulae) go first, by their
brackets, in one pass each; the rest (links, styles, tags, entities) is mwparserfromhell's, which is careful and slow:
measured, 1.6 MB of wikitext a second on one core, against 0.5 if it is given everything.
"""

import re
from collections.abc import Callable

import mwparserfromhell

_COMMENT, _COMMENT_END = re.compile(r"<!--"), re.compile(r"-->")
_TEMPLATE = re.compile(r"(?P<open>\{\{)|\}\}")
_TABLE = re.compile(r"(?P<open>^[ \t:*#;]*\{\|)|^[ \t]*\|\}", re.MULTILINE)
_LINK = re.compile(r"(?P<open>\[\[)|\]\]")
_EMPTY_REFERENCE = re.compile(r"<ref\b[^<>]*/>", re.IGNORECASE)
_REFERENCE, _REFERENCE_END = (
    re.compile(r"<ref\b[^<>]*>", re.IGNORECASE),
    re.compile(r"</ref\s*>", re.IGNORECASE),
)
_STYLE = re.compile(r"'{2,5}")
_SWITCH = re.compile(r"__[A-Z]+__")
_HEADING = re.compile(r"^(={1,6})[ \t]*(.*?)[ \t]*\1[ \t]*$", re.MULTILINE)
_ITEM = re.compile(r"^[*#:;]+[ \t]*", re.MULTILINE)
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_EMPTY_PARENTHESES = re.compile(r"[ \t]*\([ \t,;]*\)")
_SPACES = re.compile(r"[ \t\u00a0]{2,}")
_BLANK = re.compile(r"\n\s*\n")


def plain_text(wikitext: str, hidden: frozenset[str]) -> str:
    """The text of an article. `hidden`: lower-cased names of the namespaces to which a link shows nothing: files
    and categories, in the wiki's language and in English."""
    text = _without_spans(wikitext, _COMMENT, _COMMENT_END)
    text = _without_nested(text, _TEMPLATE)
    text = _without_nested(text, _TABLE)
    text = _EMPTY_REFERENCE.sub("", text)
    text = _without_spans(text, _REFERENCE, _REFERENCE_END)
    text = _without_nested(text, _LINK, lambda inside: inside.partition(":")[0].strip().lower() in hidden)
    text = _SWITCH.sub("", _STYLE.sub("", text))
    text = _HEADING.sub(r"\n\n\2\n\n", text)
    text = _LINE_BREAK.sub("\n\n", _ITEM.sub("\n\n", text))
    paragraphs = map(_converted, _BLANK.split(text))
    return "\n\n".join(filter(None, paragraphs))


def _converted(paragraph: str) -> str:
    if any(mark in paragraph for mark in "[<&{"):  # else there is nothing that the library would change
        paragraph = mwparserfromhell.parse(paragraph, skip_style_tags=True).strip_code()
    return _SPACES.sub(" ", _EMPTY_PARENTHESES.sub("", paragraph)).strip()


def _without_spans(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    """`text` without what lies between the two, which do not nest; what is never closed stays."""
    parts, at = [], 0
    while (begin := opening.search(text, at)) and (end := closing.search(text, begin.end())):
        parts.append(text[at : begin.start()])
        at = end.end()
    return "".join([*parts, text[at:]])


def _without_nested(text: str, bracket: re.Pattern[str], goes: Callable[[str], bool] = lambda _: True) -> str:
    """`text` without what lies between nested brackets, where `goes` says so of what follows the opening one;
    brackets without a partner stay. In time linear in the text."""
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

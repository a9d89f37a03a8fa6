"""Choose a sentence with a blank in the language of a model's text, for its card.

It is never a sentence of the text itself: a card is published, and the text may be private.
"""

from collections.abc import Iterable

BLANK = "{mask}"
SENTENCES = {
    "en": "She opened the {mask} and went out.",
    "de": "Sie öffnete die {mask} und ging hinaus.",
    "fr": "Elle ouvrit la {mask} et sortit.",
    "es": "Ella abrió la {mask} y salió.",
    "it": "Aprì la {mask} e uscì.",
    "pt": "Ela abriu a {mask} e saiu.",
    "nl": "Ze opende de {mask} en ging naar buiten.",
    "sv": "Hon öppnade {mask} och gick ut.",
    "da": "Hun åbnede {mask} og gik ud.",
    "pl": "Otworzyła {mask} i wyszła.",
    "cs": "Otevřela {mask} a vyšla ven.",
    "ru": "Она открыла {mask} и вышла.",
    "fi": "Hän avasi {mask} ja meni ulos.",
    "zh": "她打开{mask}走了出去。",
    "ja": "彼女は{mask}を開けて出て行った。",
}
"""By ISO 639-1 code."""


def sentence_for(languages: Iterable[str]) -> str | None:
    """Return a sentence with one BLANK in the first stated language that is known; English if none is stated, None if
    none of those stated is known."""
    stated = [language.lower().partition("-")[0] for language in languages]
    if not stated:
        return SENTENCES["en"]
    return next((SENTENCES[language] for language in stated if language in SENTENCES), None)

"""Choose a sentence with a blank in the language of a model's text, for its card.

It is never a sentence of the text itself: a card is published, and the text may be private. Where no language is
stated, the text shows one: by its script, or by the words that every text of a language has.
"""

import re
import unicodedata
from collections import Counter
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
    "uk": "Вона відчинила {mask} і вийшла.",  # noqa: RUF001
    "el": "Άνοιξε την {mask} και βγήκε έξω.",
    "ar": "فتحت {mask} وخرجت.",
    "hi": "उसने {mask} खोला और बाहर चली गई।",
    "ko": "그녀는 {mask} 열고 나갔다.",
    "tr": "Kadın {mask} açtı ve çıktı.",  # noqa: RUF001
}
"""By ISO 639-1 code."""


def sentence_for(languages: Iterable[str]) -> str | None:
    """Return a sentence with one BLANK in the first stated language that is known; English if none is stated, None if
    none of those stated is known."""
    stated = [language.lower().partition("-")[0] for language in languages]
    if not stated:
        return SENTENCES["en"]
    return next((SENTENCES[language] for language in stated if language in SENTENCES), None)


_WORDS = {
    "en": "the of and to in is that was for with as his on be by this are from which",
    "de": "der die und den das nicht von ist des sich mit dem ein zu auf eine im auch als wird",
    "fr": "de la le les et des est une du que dans qui pour pas sur au plus par ce avec",
    "es": "de la que el en los del las por con una para su es lo como pero sus al era",
    "it": "di che la il un per non sono della con una del si nel alla dei piu anche gli era",
    "pt": "de que os do da em um para com nao uma no na por mais as dos como mas ao",
    "nl": "de het een van en dat niet te zijn op voor met die aan er hij ook maar bij werd",
    "sv": "och att det som en pa ar av for den med till inte han om ett var jag hade hon",
    "da": "og det at en den til er som pa af de med han ikke der var jeg et hun blev",
    "pl": "nie sie na to jest do ze jak za od po ale czy tak tym przez byl tego jego przy",
    "cs": "se na je ze to byl pro jako jeho ale by jsem nebo tak byla jsou bylo podle roce mezi",
    "fi": "ja on ei se etta oli han mutta kun niin ovat myos joka kuin sen mita vain tai olla jo",
    "tr": "bir bu da ne icin ile cok ama gibi daha olarak var kadar o sonra olan ya ben degil her",
}
"""Frequent words of languages of the Latin script, without accents."""
_SCRIPTS = (
    ("HIRAGANA", "ja"), ("KATAKANA", "ja"), ("HANGUL", "ko"), ("CJK", "zh"), ("CYRILLIC", "ru"), ("GREEK", "el"),
    ("ARABIC", "ar"), ("DEVANAGARI", "hi"),
)  # fmt: skip
"""First word of a letter's Unicode name -> a language of that script; of two that a text has, the first one here."""
_UKRAINIAN = frozenset("іїєґ")
_SHARE, _ENOUGH = 0.3, 20
"""Of the letters that must be of a script, and how many frequent words must be of a language."""


def language_of(texts: Iterable[str]) -> str:
    """Return the language of SENTENCES that the texts show; empty if they show none clearly. Persian and Urdu count as
    Arabic, Marathi and Nepali as Hindi: the sentence that follows is at least in their script."""
    words, scripts, letters = Counter[str](), Counter[str](), 0
    ukrainian = 0
    for text in texts:
        for letter in text.lower():
            if letter.isalpha():
                letters += 1
                scripts[unicodedata.name(letter, " ").split(" ")[0].split("-")[0]] += letter > "\u02ff"
                ukrainian += letter in _UKRAINIAN
        bare = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))
        words.update(re.findall(r"[a-z]+", bare))
    found = {script: scripts[script] for script, _ in _SCRIPTS}
    if letters and sum(found.values()) > _SHARE * letters:
        language = next(language for script, language in _SCRIPTS if found[script] > 0.05 * letters)
        return "uk" if language == "ru" and ukrainian > 0.02 * letters else language
    hits = Counter(
        {language: sum(words[word] for word in listed.split()) for language, listed in _WORDS.items()}
    )
    (best, most), (_, second) = hits.most_common(2)
    return best if most >= _ENOUGH and most > 1.3 * second else ""

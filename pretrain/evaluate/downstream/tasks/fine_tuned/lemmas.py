"""Predict lemmas by classes: the rule that turns a word into its lemma, which other words share.

In the manner of UDPipe (Straka 2018, section 3.4): the casing of the lemma, and what to remove and to add around the
longest common part."""

from difflib import SequenceMatcher

CASING, PARTS = ";", "¦"
UPPER, LOWER = "↑", "↓"


def lemma_rule(form: str, lemma: str) -> str:
    """Return the rule that turns `form` into `lemma`; one that names the lemma as it is where no other does, as with
    letters whose upper case has another length.

    >>> lemma_rule("Running", "run"), lemma_rule("mice", "mouse"), lemma_rule("went", "go")
    ('↓0;d0¦4¦¦', '↓0;d0¦3¦¦ouse', '↓0;ago')
    """
    rule = f"{_casing(lemma)}{CASING}{_edit(form.lower(), lemma.lower())}"
    return rule if apply_rule(rule, form) == lemma else f"{CASING}a{lemma}"


def _edit(form: str, lemma: str) -> str:
    """Return what to remove from both ends and to add there, or the lemma where the two have no letter in common."""
    found = SequenceMatcher(None, form, lemma, autojunk=False).find_longest_match()
    if not found.size or any(mark in lemma for mark in (CASING, PARTS)):
        return f"a{lemma}"
    first, last = found.a, len(form) - found.a - found.size
    return f"d{first}{PARTS}{last}{PARTS}{lemma[: found.b]}{PARTS}{lemma[found.b + found.size :]}"


def apply_rule(rule: str, form: str) -> str:
    """Return the lemma that a rule makes of a word; the word itself where the rule does not fit it.

    >>> apply_rule(lemma_rule("Running", "run"), "Sitting")
    'sit'
    """
    casing, _, edit = rule.partition(CASING)
    if edit.startswith("a"):
        return _cased(edit[1:], casing)
    small = form.lower()
    parts = edit[1:].split(PARTS)
    first, last = int(parts[0]), int(parts[1])
    if first + last > len(small):
        return form
    return _cased(parts[2] + small[first : len(small) - last] + parts[3], casing)


def _casing(lemma: str) -> str:
    """Return where the case of the letters changes and to what; places in the second half are counted from the end."""
    steps, before = [], ""
    for i, character in enumerate(lemma):
        case = UPPER if character.lower() != character else LOWER
        if case != before:
            steps.append(f"{case}{i if i <= len(lemma) // 2 else i - len(lemma)}")
        before = case
    return PARTS.join(steps)


def _cased(text: str, casing: str) -> str:
    """Return the text with this casing."""
    for step in casing.split(PARTS) if casing else []:
        place = int(step[1:])
        start = max(0, place if place >= 0 else len(text) + place)
        rest = text[start:]
        text = text[:start] + (rest.upper() if step[0] == UPPER else rest.lower())
    return text

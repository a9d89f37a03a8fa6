"""Read the outputs of models that others fine-tuned as the classes of a task's files.

They are read by the names that published models give them, or, where they have none, in the order that is usual or
that a setting states.

Sources: names and orders are those of Hugging Face's data set `glue` (huggingface.co/datasets/nyu-mll/glue), by which
transformers' run_glue.py numbers classes. Other models of NLI without names, as TextAttack's of MNLI, have the order
of Google's run_classifier.py: contradiction, entailment, neutral (github.com/QData/TextAttack/issues/684).
"""

import re
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError

NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "cola": {"0": ("unacceptable", "not_acceptable"), "1": ("acceptable",)},
    "sst2": {"0": ("negative", "neg"), "1": ("positive", "pos")},
    "mrpc": {"0": ("not_equivalent", "not_paraphrase"), "1": ("equivalent", "paraphrase")},
    "qqp": {"0": ("not_duplicate", "not_paraphrase"), "1": ("duplicate", "paraphrase")},
    "wnli": {"0": ("not_entailment",), "1": ("entailment",)},
    **{task: {"contradiction": ("contradictory",)} for task in ("mnli", "snli", "ax")},
    **{task: {"not_entailment": ("non_entailment", "no_entailment")} for task in ("qnli", "rte")},
}
"""Task -> class of its files -> other names of it, in lower case: the data set's own first. A class's own name goes
without saying."""
NLI = ("entailment", "neutral", "contradiction")
PEOPLE = ("PER", "ORG", "LOC", "MISC")
ORDERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mnli", "snli", "ax"), NLI),
    **dict.fromkeys(("qnli", "rte"), ("entailment", "not_entailment")),
    "conll2003": ("O", *(f"{place}-{kind}" for kind in PEOPLE for place in "BI")),
}
"""Task -> the usual order of outputs without names, where it is not that of the names themselves. Of conll2003: that of
Hugging Face's data set (huggingface.co/datasets/eriktks/conll2003)."""
TYPES = {
    "person": "per",
    "organization": "org",
    "organisation": "org",
    "location": "loc",
    "miscellaneous": "misc",
}
"""Longer names of the types of entities -> those of CoNLL-2003."""
PREFIXES = {"b": "B", "s": "B", "u": "B", "i": "I", "m": "I", "e": "I", "l": "I"}
"""How tags begin, of BIO, BIOES and BILOU -> what that is in BIO."""
TAG = re.compile(r"([bsuimel])[-_](.+)")
NAMELESS = re.compile(r"(?:label|class|output)?[_ -]?\d+")
"""How outputs are called that have no name: LABEL_0 is transformers' default."""
OUTSIDE = "O"
FEW = 3
"""Up to how many classes every other order is tried for the note of `better_order`."""


class Outputs(NamedTuple):
    """How the outputs of a model are read."""

    labels: tuple[str, ...]
    """Of each output the class of the files, or the model's own name where they have none such."""
    notes: tuple[str, ...] = ()
    """What a reader of the scores must know."""
    is_assumed: bool = False
    """Whether their order is only the usual one."""


ClassOf = Callable[[str], str | None]
"""Returns the class that a name stands for; None for none of the files."""


def class_of(task: str, classes: Sequence[str]) -> ClassOf:
    """Return how names of classes of texts are read: case, spaces and dashes do not matter."""
    known = {_plain(label): label for label in classes}
    for label, others in NAMES.get(task, {}).items():
        known |= {name: label for name in others if label in classes}
    known |= {label: label for label in classes}
    return lambda name: known.get(name) or known.get(_plain(name))


def tag_of(classes: Sequence[str]) -> ClassOf:
    """Return how names of tags are read: those of BIOES and BILOU as those of BIO, and a type alone as inside of one,
    so that neighbours of one type are one entity. A tag that the files happen not to have is read too, if they have its
    type."""
    types = {_type(tag[2:]): tag[2:] for tag in classes if tag != OUTSIDE}

    def read(name: str) -> str | None:
        plain = name.strip().lower()
        if name in classes or plain in ("o", "outside"):
            return name if name in classes else OUTSIDE
        found = TAG.fullmatch(plain)
        if found and (own := types.get(_type(found[2]))):
            return f"{PREFIXES[found[1]]}-{own}"
        own = types.get(_type(plain))
        return f"I-{own}" if own else None

    return read


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def _type(name: str) -> str:
    plain = _plain(name)
    return TYPES.get(plain, plain)


def read_outputs(
    names: Sequence[str],
    classes: Sequence[str],
    task: str,
    stated: Sequence[str],
    where: Path,
    are_tags: bool = False,
) -> Outputs:
    """Return how the outputs of a model with these names are read as these classes. `stated`: the classes of the
    outputs by the setting class_order, which goes before the names; empty for none. `are_tags`: where several outputs
    may stand for one class, and a type of entities needs no more than one.

    Raises UserError where a class has no output, or, of texts, several, and where nothing says which is which."""
    read = tag_of(classes) if are_tags else class_of(task, classes)
    if stated:
        if len(stated) != len(names):
            raise UserError(
                f"names {len(stated)} classes, and the model in {where} has {len(names)} outputs",
                where="class_order",
                expected="the class of each output, in their order",
            )
        found = [read(name) for name in stated]
        _refuse(found, stated, classes, "class_order", are_tags)
        note = f"outputs are read as class_order says: {', '.join(map(_shown, stated, found))}"
        own = [] if _are_nameless(names, classes) else [read(name) for name in names]
        if any(a and b and a != b for a, b in zip(own, found, strict=False)):
            note += f"; the model's config.json names them {', '.join(names)}"
        return Outputs(_labels(stated, found), (note, *_others(stated, found)))
    if _are_nameless(names, classes):
        order = usual_order(task, classes)
        if len(order) != len(names):
            raise UserError(
                f"has {len(names)} outputs without names ({names[0]}, ...)",
                where=where,
                expected=f"{len(order)}, of {_some(order)}",
                remedy="class_order=[...] states the class of each" if len(names) > len(order) else "",
            )
        shown = _some(order, len(PEOPLE) * 2 + 1)
        note = f"outputs without names are read as {shown}; class_order=[...] states another order"
        return Outputs(tuple(order), (note,), is_assumed=True)
    found = [read(name) for name in names]
    _refuse(found, names, classes, where, are_tags)
    return Outputs(_labels(names, found), tuple(_others(names, found)))


def usual_order(task: str, classes: Sequence[str]) -> tuple[str, ...]:
    """Return as which classes outputs without names are read: those of ORDERS, or `classes` as the files have them."""
    usual = ORDERS.get(task, ())
    return usual if set(classes) <= set(usual) else tuple(classes)


def _are_nameless(names: Sequence[str], classes: Sequence[str]) -> bool:
    return all(NAMELESS.fullmatch(name.strip().lower()) for name in names) and set(names) != set(classes)


def _labels(names: Sequence[str], found: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(name if one is None else one for name, one in zip(names, found, strict=True))


def _shown(name: str, found: str | None) -> str:
    return name if found in (None, name) else f"{name} ({found})"


def _others(names: Sequence[str], found: Sequence[str | None]) -> list[str]:
    """Return a note of the outputs that are no class of the files, if there are any."""
    other = [name for name, one in zip(names, found, strict=True) if one is None]
    if not other:
        return []
    return [f"the files have no class {_some(other)}, which the model has: where it says so, it is wrong"]


def _some(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def _refuse(
    found: Sequence[str | None],
    names: Sequence[str],
    classes: Sequence[str],
    where: Path | str,
    are_tags: bool,
) -> None:
    """Raise UserError where a class has no output, or two outputs are one class."""
    if are_tags:
        have = {tag and tag[2:] for tag in found}
        lacking = sorted({tag[2:] for tag in classes} - have, key=lambda kind: kind or OUTSIDE)
        lacking = [kind or OUTSIDE for kind in lacking]
    else:
        lacking = [label for label in classes if label not in found]
    twice = [name for name, one in zip(names, found, strict=True) if one and found.count(one) > 1]
    if lacking or (twice and not are_tags):
        what = (
            f"{' and '.join(twice)} are one class" if twice and not lacking else f"none is {_some(lacking)}"
        )
        raise UserError(
            f"classifies as {_some(names)}: {what}",
            where=where,
            expected=_some(classes),
            remedy="class_order=[...] states the class of each output" if where != "class_order" else "",
        )


def better_order(
    outputs: Sequence[str], score: Callable[[tuple[str, ...]], float]
) -> tuple[tuple[str, ...], float] | None:
    """Return which order of a few outputs scores more than the assumed one, and what: for a note, since scored
    examples choose nothing. None where none does, or there are many classes. `score`: returns an order's metric."""
    if not 1 < len(outputs) <= FEW:
        return None
    best = max(
        permutations(outputs), key=score
    )  # the assumed one is the first, and stays it among equal ones
    return None if best == tuple(outputs) else (best, score(best))

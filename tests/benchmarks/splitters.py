"""Running text in, sentences out: how well splitters do on cases that are hard, and how fast they are."""

import importlib.util
import time
from collections.abc import Callable
from importlib.metadata import version

from rich.table import Table

# ruff: noqa: RUF001 (quotation marks as books have them)

Splitter = Callable[[str], list[str]]

HARD_CASES: dict[str, list[list[str]]] = {
    "titles and places": [
        ["Mr. Darcy met Dr. Watson at St. James's Park.", "They spoke for an hour."],
        ["Capt. Smith, Lieut. Jones and Gen. Lee were there."],
        ["Mrs. Hall vs. Mme. Dupont was heard by Judge J. Marsh Jr. in the morning."],
    ],
    "initials": [
        ["J. R. R. Tolkien wrote it.", "W. H. Auden praised it."],
        ["The letter was signed E. M. F. and bore no date."],
        ["He came from the U.S. Army to the U.K. in winter."],
    ],
    "dates, numbers, references": [
        ["The ship left on Jan. 5 at 3 p.m. and returned in Feb. of that year."],
        ["It cost $3.50 in 1899.", "Now it costs 4.25."],
        ["See Fig. 3 and pp. 12-14 of vol. ii for the rest.", "Nothing else is known."],
        ["No. 7 was empty.", "They moved in at once."],
    ],
    "Latin and other short forms": [
        ["Fruit, e.g. apples, i.e. the red ones, etc. are sold here.", "Come early."],
        ["Visit www.example.com for more.", "It is free."],
    ],
    "an abbreviation that ends a sentence": [
        ["They sailed for the U.S.", "She stayed behind."],
        ["He arrived at 5 p.m.", "The house was dark."],
    ],
    "dialogue that goes on": [
        ['"Why?" asked Tom.', '"Because," said she.'],
        ['"Stop!" he cried, "or I shall call for help."', "Nobody moved."],
        ["“Is it you?” she whispered.", "He nodded."],
        ["‘Where are you going?’ asked the old man.", "The boy ran on."],
    ],
    "dialogue that ends": [
        ['"I am ready."', "He stood up and went out."],
        ["“You cannot mean it!”", "Her voice shook."],
        ["‘I never saw him before.’", "The judge believed her."],
        ["(He laughed.)", "Then he left."],
    ],
    "sentences within one quotation": [
        ["“I am ready.", "We leave at dawn.”", "He stood up."],
        ['"It was late," he said.', '"I went home.', "Nobody saw me.", 'That is all."'],
    ],
    "ellipses and runs of marks": [
        ["I thought ... well, never mind.", "Go on."],
        ["And then… silence.", "Nobody moved."],
        ["Wait... what was that?", "I heard nothing."],
        ["What?!", "You cannot mean it!!", "I do."],
    ],
}


def splitters() -> dict[str, Splitter]:
    """Splitter of a paragraph by name and version: those that are installed."""
    import sentencex

    found: dict[str, Splitter] = {
        f"sentencex {version('sentencex')}": lambda text: list(sentencex.segment("en", text))
    }
    if importlib.util.find_spec("blingfire"):
        import blingfire

        found[f"blingfire {version('blingfire')}"] = lambda text: blingfire.text_to_sentences(text).split(
            "\n"
        )
    return found


def quality_table() -> Table:
    """Cases split just as marked, by kind; and what each splitter made of those it missed."""
    chosen = splitters()
    table = Table("hard cases", *chosen, title="sentence splitting: cases split exactly right")
    misses: list[str] = []
    totals = dict.fromkeys(chosen, 0)
    for kind, cases in HARD_CASES.items():
        row = []
        for name, splitter in chosen.items():
            made = [_split(splitter, " ".join(case)) for case in cases]
            right = sum(a == b for a, b in zip(made, cases, strict=True))
            totals[name] += right
            row.append(f"{right} of {len(cases)}")
            misses += [f"{name}: {' | '.join(a)}" for a, b in zip(made, cases, strict=True) if a != b]
        table.add_row(kind, *row)
    everything = sum(map(len, HARD_CASES.values()))
    table.add_row("all", *(f"{n} of {everything}" for n in totals.values()))
    table.caption = "missed ( | is where it was cut):\n" + "\n".join(misses)
    return table


def speed_table(paragraphs: list[str]) -> Table:
    """MB of text that each splitter takes a second of CPU time, and the sentences that it makes of it."""
    size = sum(len(text.encode("utf-8")) for text in paragraphs) / 1e6
    table = Table("splitter", "MB/s", "sentences", "characters each", title="sentence splitting: speed")
    for name, splitter in splitters().items():
        splitter("One. Two.")  # what it loads at its first call is not timed
        start = time.process_time()
        made = [splitter(text) for text in paragraphs]
        seconds = time.process_time() - start
        sentences = [s.strip() for part in made for s in part if s.strip()]
        mean = sum(map(len, sentences)) / len(sentences)
        table.add_row(name, f"{size / seconds:.1f}", f"{len(sentences):,}", f"{mean:.0f}")
    if len(table.rows) == 1:
        table.add_row("blingfire", "not installed", "", "")
    table.caption = f"{size:.1f} MB in {len(paragraphs):,} paragraphs, a call a paragraph; MB a CPU second"
    return table


def _split(splitter: Splitter, text: str) -> list[str]:
    return [sentence.strip() for sentence in splitter(text) if sentence.strip()]

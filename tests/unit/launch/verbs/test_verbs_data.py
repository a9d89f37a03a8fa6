"""The table of new words says what each saves, and which were unknown."""

from typing import Any

from rich.console import Console

from launch.verbs.data import SHOWN, shown


def facts_of(*entries: dict[str, Any]) -> dict[str, Any]:
    text = {"words": 2000, "tokens_before": 5000, "tokens_after": 4600, "words_cut_otherwise": 10}
    return {"extends": {"size": 300}, "text": text, "entries": list(entries)}


def entry(word: str, old_ids: list[int], occurrences: int, saved: float) -> dict[str, Any]:
    figures = {"occurrences": occurrences, "saved_per_thousand_words": saved}
    return {"id": 300, "piece": word, "old_ids": old_ids, "word": word} | figures


def printed(facts: dict[str, Any]) -> list[list[str]]:
    """The words of each line."""
    console = Console(width=1000)
    with console.capture() as capture:
        console.print(shown(facts))
    return [line.split() for line in capture.get().splitlines()]


def test_the_figures_of_each_word_and_of_all() -> None:
    part = {"id": 302, "piece": "neph", "old_ids": [4, 5]}
    facts = facts_of(entry("nephrology", [4, 5, 6], 1100, 1.1), entry("저장", [], 200, 0.0), part)
    lines = printed(facts)
    assert ["nephrology", "1,100", "3", "1.10"] in lines
    assert ["저장", "200", "unknown", "0.00"] in lines
    assert ["all,", "measured", "2,000", "words", "200.00"] in lines
    said = " ".join(lines[-1])
    assert "2 new words and 1 pieces that merges make on the way to them behind 300 old entries" in said
    assert "2,500.0 before, 2,300.0 after. 0.50% of the words" in said
    assert "1 of the new words were unknown to the old vocabulary" in said


def test_nothing_is_said_of_unknown_words_where_there_are_none() -> None:
    many = [entry(f"word{n}", [1, 2], 5, 0.5) for n in range(SHOWN + 1234)]
    lines = printed(facts_of(*many))
    assert ["and", "1,234", "more"] in lines
    assert not any("unknown" in line for line in lines)

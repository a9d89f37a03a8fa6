"""Read questions about texts from files in SQuAD's format (Rajpurkar et al. 2016, 2018)."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError, first_line
from pretrain.evaluate.downstream.tasks.splits import Split, not_empty
from pretrain.evaluate.downstream.tasks.tables import parsed_json, read_text

MISPLACED = "whose answer is not in the text at its place"


class Answer(NamedTuple):
    """A text and where it starts, in characters."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a text; without answers where the text has none."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


def read_split(name: str, path: Path) -> tuple[str, Split]:
    """Return the version that a file in SQuAD's format states, and its questions. Raises UserError for a file of
    another format, with half a character in it, or without a question."""
    found: list[Question] = []
    try:
        content = parsed_json(read_text(path), path)
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                context = str(paragraph["context"])
                for one in paragraph["qas"]:
                    answers = tuple(
                        _trimmed(Answer(str(a["text"]), int(a["answer_start"])), context)
                        for a in one["answers"]
                    )
                    answers = () if one.get("is_impossible") else answers
                    found.append(Question(str(one["id"]), str(one["question"]), context, answers))
        version = str(content.get("version", ""))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"is not in SQuAD's format behind {len(found)} questions: {type(error).__name__} {first_line(error)}",
            where=path,
            expected="data, paragraphs, context and qas, id, question and answers, text and answer_start",
        ) from None
    return version, not_empty(Split(name, found), path)


def _trimmed(answer: Answer, context: str) -> Answer:
    """Return the answer without white space at its ends. Where it begins with some, COVID-QA's files give at times the
    place behind that: it is taken if the text has the answer there and not at the other place."""
    text = answer.text.strip()
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    has_at = [place >= 0 and context.startswith(text, place) for place in (start, answer.start)]
    return Answer(text, answer.start if has_at == [False, True] else start)


def sound(split: Split) -> Split:
    """Return the split without the questions whose first answer is not what the text has at its place."""
    kept = [
        item
        for item in split.items
        if not item.answers or item.context.startswith((a := item.answers[0]).text, max(0, a.start))
    ]
    return replace(split, items=kept, skipped=len(split.items) - len(kept))

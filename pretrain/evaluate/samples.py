"""Fill blanks in held-out text with a model, and write its answers and the true words to the run folder."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.records import Examples
from pretrain.model.batch import MicroBatch
from pretrain.objectives.base import Model
from pretrain.run.files import replace_file
from pretrain.run.folder import SAMPLES

MAX_SAMPLES, GUESSES = 8, 3
CONTEXT = 12
"""Tokens shown on either side of a blank. The model sees the whole example."""


class Sample(NamedTuple):
    """A blank: the text around it, the true word, and the likeliest words with their probabilities."""

    before: str
    after: str
    word: str
    guesses: list[tuple[str, float]]


def fill_samples(model: Model, examples: Examples, tokenizer_json: str, mask_id: int) -> list[Sample]:
    """Fill one blank in each of MAX_SAMPLES evenly spaced examples: the middle one of its whole words, so that nobody
    picks them. Empty for a model that predicts no words. `model` is on the CPU and in evaluation mode."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    found: list[Sample] = []
    order = np.linspace(0, len(examples) - 1, min(MAX_SAMPLES, len(examples))).round().astype(int)
    for chosen in np.unique(order):
        example = _unmasked(examples.take(np.array([chosen])))
        words = list(_whole_words(tokenizer, example.tokens))
        if not words:
            continue
        place, word = words[len(words) // 2]
        logits = _answer(model, example, place, mask_id)
        if logits is None:
            return []
        top = logits.softmax(-1).topk(GUESSES)
        guesses = [
            (
                tokenizer.decode([token]).strip() or str(tokenizer.id_to_token(token)),
                round(float(probability), 4),
            )
            for probability, token in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        found.append(Sample(*_around(tokenizer, example, place), word, guesses))
    return found


def decoded(examples: Examples, tokenizer_json: str) -> Iterator[str]:
    """Yield the text of each example, nothing of it masked."""
    tokenizer = Tokenizer.from_str(tokenizer_json)
    for i in range(len(examples)):
        yield tokenizer.decode(_unmasked(examples.take(np.array([i]))).tokens.tolist())


def write_samples(run: Path, step: int, samples: list[Sample], held_out: bool) -> None:
    """Write samples.json. Raises OSError where the run folder cannot be written."""
    rows = [sample._asdict() for sample in samples]
    note = {"step": step, "held_out": held_out, "samples": rows}
    replace_file(run / SAMPLES, json.dumps(note, indent=1, ensure_ascii=False) + "\n")


def _unmasked(example: Examples) -> Examples:
    tokens = example.tokens.copy()
    tokens[example.masked_positions] = example.masked_ids
    return replace(example, tokens=tokens)


def _whole_words(tokenizer: Tokenizer, tokens: NDArray[Any]) -> Iterator[tuple[int, str]]:
    """Return (position, word) of the words that are a single token, judged by how they join their neighbours."""
    ids = tokens.tolist()
    for place in range(1, len(ids) - 1):
        word = tokenizer.decode([ids[place]]).strip()
        if not word.isalpha() or (len(word) < 3 and word.isascii()):
            continue
        before = tokenizer.decode(ids[place - 1 : place + 1]).strip().removesuffix(word)
        after = tokenizer.decode(ids[place : place + 2]).strip().removeprefix(word)
        if not before[-1:].isalpha() and not after[:1].isalpha():
            yield place, word


@torch.no_grad()
def _answer(model: Model, example: Examples, place: int, mask_id: int) -> torch.Tensor | None:
    """Return the (words,) logits at `place`, the only masked position; None without such a head."""
    tokens = example.tokens.copy()
    blank, tokens[place] = tokens[place], mask_id
    asked = replace(
        example,
        tokens=tokens,
        masked_positions=np.array([place], example.masked_positions.dtype),
        masked_ids=np.array([blank], example.masked_ids.dtype),
        masked_offsets=np.array([0, 1]),
    )
    logits = model.logits(MicroBatch.from_examples(asked))
    return logits["mlm"][0].float() if "mlm" in logits else None


def _around(tokenizer: Tokenizer, example: Examples, place: int) -> tuple[str, str]:
    """Return the text before and after the blank, within its segment."""
    ids, border = example.tokens.tolist(), int(example.first_lengths[0])
    first, last = (0, border) if place < border else (border, len(ids))
    start, end = max(first, place - CONTEXT), min(last, place + 1 + CONTEXT)
    while start < place and str(tokenizer.id_to_token(ids[start])).startswith(
        "##"
    ):  # half a word is no context
        start += 1
    before, after = tokenizer.decode(ids[start:place]).strip(), tokenizer.decode(ids[place + 1 : end]).strip()
    return ("… " if start > first + 1 else "") + before, after + (" …" if end < last - 1 else "")

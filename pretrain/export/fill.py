"""Fill blanks with a model's likeliest words: in given sentences, and in held-out text when a run is exported.

An exported model fills the sentences. The answers in held-out text are written to the run folder with the true words.
"""

import json
import reprlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.model.batch import MicroBatch
from pretrain.objectives.base import Model
from pretrain.run.files import CONFIG, EXPORT, SAMPLES, number, objects, replace_file, table
from pretrain.run.folder import model_folders

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

# Blanks in sentences, filled by an exported model, and a description of those that a run's export has filled.

Guesses = list[tuple[str, float]]
"""Words and their probabilities, likeliest first."""


def run_and_export(folder: Path) -> tuple[Path, Path]:
    """Return the run folder and the exported model's folder, given either; of several models, the one that predicts
    masked words."""
    is_run = (folder / CONFIG).is_file()
    exported = folder / EXPORT if is_run else folder
    models = model_folders(exported)
    words = [
        model for model in models if "ForMaskedLM" in str(table(model / "config.json").get("architectures"))
    ]
    return folder if is_run else folder.parent, (words or models or [exported])[0]


def fill_blanks(model: Path, texts: list[str], top: int = 5) -> Iterator[tuple[str, Guesses]]:
    """Yield (text, [(word, probability)]) per text, the likeliest words of all the model's vocabulary; [MASK] in a text
    is replaced by the model's own mask token.

    Raises UserError for a folder without a model that was trained to fill blanks, and for a text without exactly one
    blank, or of more tokens than the model reads."""
    if not (model / "config.json").exists():
        raise UserError("not an exported model", where=model, remedy="maskmill export RUN writes one")
    for text in texts:
        _refuse_bytes(text)
    from pretrain.huggingface.load import (
        load_config,
        load_model,
        load_tokenizer,
        max_positions,
        reads_one_way,
    )

    config = load_config(model)
    if reads_one_way(config):
        raise UserError(
            "predicts the next word and fills no blanks", where=model, expected="a model of masked words"
        )
    tokenizer = load_tokenizer(model, config)
    mask, mask_id = tokenizer.mask_token, tokenizer.mask_token_id
    if not isinstance(mask, str) or mask_id is None:
        raise UserError("its tokenizer has no mask token", where=model, expected="a model of masked words")
    inputs = [_encoded(tokenizer, text, max_positions(config)) for text in texts]
    filler = load_model(model, "ForMaskedLM", seed=0, has_head=True)
    for text, encoding in zip(texts, inputs, strict=True):
        columns = {"input_ids": torch.tensor([encoding.ids])}
        if "token_type_ids" in tokenizer.model_input_names:
            columns["token_type_ids"] = torch.tensor([encoding.type_ids])
        with torch.no_grad():
            logits = filler(**columns).logits[0, encoding.ids.index(mask_id)]
        found = logits.softmax(-1).topk(min(top, len(logits)))
        words = [str(tokenizer.decode([token])).strip() for token in found.indices.tolist()]
        yield text, list(zip(words, found.values.tolist(), strict=True))


def _refuse_bytes(text: str) -> None:
    """Raise UserError for a text of the command line whose bytes are not UTF-8: Python keeps each as half a letter."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"is not UTF-8 text from character {error.start + 1} on", where=ascii(text), expected="UTF-8"
        ) from error


def _encoded(tokenizer: "PreTrainedTokenizerFast", text: str, most: int) -> "Encoding":
    """Return the tokens of a text with its blank. Raises UserError unless it has one blank and at most `most`
    tokens."""
    mask = str(tokenizer.mask_token)
    own = text.replace("[MASK]", mask)
    encoding = tokenizer.backend_tokenizer.encode(own)
    for blanks in (own.count(mask), encoding.ids.count(tokenizer.mask_token_id)):
        if blanks != 1:
            raise UserError(f"{blanks} blanks in {text!r}", expected=f"one {mask} in each sentence")
    if len(encoding.ids) > most:
        raise UserError(
            f"has {len(encoding.ids):,} tokens",
            where=reprlib.repr(text),
            expected=f"at most {most:,}, which the model has positions for",
            remedy="give the sentence around the blank alone",
        )
    return encoding


def held_out_blanks(run: Path) -> list[str]:
    """Describe the held-out blanks that the run's export filled: two lines per blank, with the true word, and one line
    with the number of correct first guesses. Raises UserError if there are none."""
    kept = table(run / SAMPLES)
    lines, right = [], 0
    samples = objects(kept.get("samples")) if kept.get("held_out") else []
    for sample in samples:
        word, guesses = str(sample.get("word") or ""), _guesses(sample.get("guesses"))
        hit = bool(guesses) and guesses[0][0] == word
        right += hit
        shares = "   ".join(f"{guess} {share:.1%}" for guess, share in guesses)
        blank = f"{sample.get('before') or ''} [MASK] {sample.get('after') or ''}".strip()
        lines.append(f"{blank}\n    {shares}   ({'right' if hit else f'it was {word}'})")
    if not lines:
        raise UserError(
            "no blanks of held-out text",
            where=run,
            remedy="maskmill export fills them, where data.held_out is not 0",
        )
    return [*lines, f"{right} of {len(lines)} right; blanks in held-out text that nobody chose"]


def _guesses(found: object) -> Guesses:
    """Return the (word, share) pairs in a list that was read from a file."""
    pairs = (
        [pair for pair in found if isinstance(pair, list) and len(pair) == 2]
        if isinstance(found, list)
        else []
    )
    return [(str(word), number(share) or 0.0) for word, share in pairs]


# Blanks in held-out text, filled at an export.

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

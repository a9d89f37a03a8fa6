"""Extend a vocabulary by words of new text, with every old id unchanged, and record what they save.

NEW_WORDS, next to the extended tokenizer.json, names the vocabulary that was extended by its hash, and lists each new
entry with the ids of the old pieces of its text, from whose vectors a model's vector of it can start; none for a text
that the old vocabulary takes as unknown. Training computes these ids from the two vocabularies (`old_pieces`), so that
shards need nothing but their tokenizer.json.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json, write_whole
from data_pipeline.records import ShowProgress
from data_pipeline.settings import DataSettings, VocabularySettings, required
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.new_words import (
    NewWord,
    Savings,
    WordCounts,
    choose,
    ids_of,
    measure,
    old_pieces,
    text_of,
)
from data_pipeline.vocabulary.train import sample, save_trained, trained_before

NEW_WORDS = "new_words.json"


def extend_vocabulary(
    settings: DataSettings,
    vocabulary: VocabularySettings,
    old: Vocabulary,
    stage: ShowProgress,
    warn: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], bool]:
    """Extend `old` by words of a sample of the sources and write it into the folder data.vocab; return the content of
    NEW_WORDS there, and False if all was done before. Depends on the text, `old` and the settings only.
    `warn` is called with what of the text is left out.

    Raises UserError, before reading, if the folder holds another vocabulary; and if no word is worth an entry."""
    folder = Path(required(settings.vocab, "data.vocab", "a folder for the vocabulary"))
    if trained_before(settings, vocabulary, old.sha256) and (folder / NEW_WORDS).is_file():
        return json.loads((folder / NEW_WORDS).read_bytes()), False
    with stage("counting words of documents", 0) as advance:
        text = WordCounts.of(sample(settings, vocabulary.sample_mb * 1_000_000, advance, warn))
    with stage("choosing new words", 0):
        words = choose(text, old, vocabulary)
        if not words:
            raise UserError(
                f"of {text.total:,} words none is worth an entry of its own",
                where="data.sources",
                expected="text with words that the vocabulary cuts into pieces",
                remedy="name more text, or lower vocabulary.min_gain or vocabulary.min_frequency",
            )
        extended = old.extended([word.piece for word in words])
        facts = record(words, measure(text, words, old, extended), old, extended)
    save_trained(extended, settings, vocabulary, old.sha256)
    write_whole(folder / NEW_WORDS, canonical_json(facts, indent=1))
    return facts, True


def record(
    words: Sequence[NewWord], savings: Savings, old: Vocabulary, extended: Vocabulary
) -> dict[str, Any]:
    """Return the content of NEW_WORDS: the old vocabulary, figures of the text, and the new entries by their ids."""
    chosen = {word.piece: word for word in words}
    entries = []
    for number, pieces in enumerate(old_pieces(old, extended), start=old.size):
        piece = extended.tokens[number]
        entry: dict[str, Any] = {"id": number, "piece": piece, "old_ids": pieces}
        if word := chosen.get(piece):
            saved = word.occurrences * (len(ids_of(old, piece)) - 1)  # what is unknown is a token too
            entry |= {
                "word": text_of(extended, piece),
                "occurrences": word.occurrences,
                "saved_per_thousand_words": round(1000 * saved / savings.words, 4),
            }
        entries.append(entry)
    return {
        "extends": {"sha256": old.sha256, "size": old.size},
        "sha256": extended.sha256,
        "size": extended.size,
        "text": {
            "words": savings.words,
            "tokens_before": savings.tokens_before,
            "tokens_after": savings.tokens_after,
            "words_cut_otherwise": savings.cut_otherwise,
        },
        "entries": entries,
    }

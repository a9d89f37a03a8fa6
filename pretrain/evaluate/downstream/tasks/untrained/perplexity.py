"""Compute the pseudo-perplexity of text (Salazar et al. 2020, section 2.3): how many words a masked model hesitates
between when it sees all of a sentence but one token."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import UserError
from data_pipeline.io.files import file_sha256
from data_pipeline.settings import DataSettings
from data_pipeline.shards.statistics import unigram_entropy
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.read import discover, read
from data_pipeline.tokenize.sentences import split
from pretrain.evaluate.downstream.encoders import Encoder
from pretrain.evaluate.downstream.settings import EvaluationSettings
from pretrain.evaluate.downstream.tasks.base import Material, Untrained
from pretrain.evaluate.downstream.tasks.splits import evenly_spaced
from pretrain.evaluate.downstream.tasks.untrained.likelihood import score_sentences


class Perplexity(Untrained):
    """The task `perplexity`. Its items are sentences."""

    def __init__(self) -> None:
        super().__init__("perplexity", ".", "perplexity")

    def read(self, folder: Path, settings: EvaluationSettings) -> Material:
        """Read every file of text that `maskmill prepare` reads too, in sentences; of these the evenly spaced share
        that settings.part says. `folder` may be one such file. Raises UserError where there is none."""
        reading = DataSettings(sources=[str(folder)])
        parts, counts = discover(reading), Counts()
        found = [
            sentence
            for part in parts
            for document in read(part, reading, counts)
            for sentence in split(document, reading, counts).sentences
        ]
        if not found:
            raise UserError("has no sentence", where=folder)
        kept = [found[i] for i in evenly_spaced(len(found), settings.part)]
        names = sorted({part.name for part in parts})
        notes = [
            f"{count:,} {what}"
            for what, count in (
                ("invalid characters were read as U+FFFD", counts.invalid_characters),
                ("control characters were left out", counts.control_characters),
                ("pages that are no articles were left out", counts.pages_passed_over),
            )
            if count
        ]
        if settings.part < 1:
            notes.append(f"{settings.part:.0%} of the sentences")
        place = folder.parent if folder.is_file() else folder
        files = {name: file_sha256(place / name) for name in names}
        return Material(kept, len(kept), files, tuple(notes), counts.pages_passed_over)

    def score(
        self,
        encoder: Encoder,
        material: Material,
        settings: EvaluationSettings,
        seed: int,
        advance: Callable[[int], None],
    ) -> dict[str, Any]:
        """Return the perplexity per token; per word (by white space) and the bits per character, which encoders of
        different vocabularies can be compared by. Of a sentence that was cut the words and characters up to its last
        token count, a word that is cut in two as one. Left-to-right models have an ordinary perplexity. Trivial: the
        entropy of the tokens' frequencies in the same text, which is lower than any fixed distribution's."""
        found = score_sentences(encoder, material.items, settings, seed, advance)
        tokens = int(found.tokens.sum())
        if not tokens:
            raise UserError("has nothing that the encoder's vocabulary reads", where=encoder.folder)
        total = -float(found.log_likelihoods.sum())
        scored = [text[:end] for text, end in zip(material.items, found.read.tolist(), strict=True)]
        words, characters = sum(len(text.split()) for text in scored), sum(map(len, scored))
        guess = tokens * unigram_entropy(found.frequencies)
        notes = [f"{found.cut} sentences were cut to the encoder's positions"] if found.cut else []
        return {
            "scores": _figures(total, tokens, words, characters),
            "trivial": _figures(guess, tokens, words, characters),
            "unknown_share": 100 * found.unknown_share,
            "sentences": len(material.items),
            "tokens": tokens,
            "notes": notes,
        }


def _figures(nats: float, tokens: int, words: int, characters: int) -> dict[str, float]:
    """Return the figures of a text of this negative log-likelihood."""
    return {
        "perplexity": math.exp(min(700.0, nats / tokens)),
        "perplexity_per_word": math.exp(min(700.0, nats / words)),
        "bits_per_character": nats / characters / float(np.log(2)),
    }

"""Register the sequence builders by the name of the sequences they make; one line registers one."""

from data_pipeline.errors import UserError
from data_pipeline.sequences.base import SegmentRecipe
from data_pipeline.sequences.pairs import NextSentencePairs, OrderedPairs, SentencePairs
from data_pipeline.sequences.single import FullSentences, SingleStreams
from data_pipeline.settings import DataSettings
from data_pipeline.vocabulary.files import Vocabulary

RECIPES: dict[str, type[SegmentRecipe]] = {
    "segment_pair": NextSentencePairs,
    "sentence_pair": SentencePairs,
    "sentence_order": OrderedPairs,
    "doc_sentences": SingleStreams,
    "full_sentences": FullSentences,
}
"""Name in `data.sequences` -> recipe."""


def recipe_of(settings: DataSettings, vocabulary: Vocabulary) -> SegmentRecipe:
    """The data recipe of these settings. Raises UserError for an unknown name, or a setting out of its range."""
    if settings.sequences not in RECIPES:
        raise UserError(
            f"unknown {settings.sequences!r}", where="data.sequences", expected=" or ".join(RECIPES)
        )
    return RECIPES[settings.sequences].from_settings(settings, vocabulary)

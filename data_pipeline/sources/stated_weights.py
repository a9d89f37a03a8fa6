"""Read what the settings state of each source: its language and its weight. Does not import numpy: settings are checked
before anything else is loaded."""

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings, language_of, of_source

MOST = 10_000
"""Largest weight of a source, and largest number of passes over a document."""


def stated_languages(settings: DataSettings) -> list[str]:
    """Return the language of each source. Raises UserError if data.languages and data.sources differ in length."""
    return [language_of(settings, source) for source in _sources(settings)]


def stated_weights(settings: DataSettings) -> list[float]:
    """Return the weight of each source. Raises UserError if data.weights and data.sources differ in length, or for a
    weight out of range."""
    stated = settings.weights
    weights = [float(of_source(stated, s, settings, "data.weights", 1.0)) for s in _sources(settings)]
    for weight in weights:
        if not 0.0 < weight <= MOST:
            raise UserError(
                f"must be above 0 and at most {MOST}, got {weight}",
                where="data.weights",
                remedy="to leave a source out, remove it from data.sources",
            )
    return weights


def _sources(settings: DataSettings) -> range:
    return range(max(1, len(settings.sources)))

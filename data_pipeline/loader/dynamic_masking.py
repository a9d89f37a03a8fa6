"""Re-mask examples in the loader: RoBERTa's dynamic masking (Liu et al. 2019, section 4.1) and ERNIE's stages.

A mask is a function of (seed, epoch, number of the example) and of the stage, which follows from the number of the
global batch. So it is the same at every world size and after every resume. Held-out examples are never re-masked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import UserError
from data_pipeline.loader.packing import example_keys, original_tokens
from data_pipeline.masking.masker import Corruption, corruption_of
from data_pipeline.records import Examples, Segments
from data_pipeline.rng import DYNAMIC_MASK
from data_pipeline.settings import AFFECTING_MASKS, LATER, DataSettings, mask_stages, settings_affecting_bytes
from data_pipeline.shards.index import TOKENIZER, Index
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary

_SEGMENTS = {column.name for column in fields(Segments)}


@dataclass(frozen=True, eq=False)
class DynamicMasking:
    """Re-mask examples with the masker of the stage that their global batch belongs to."""

    seed: int
    firsts: tuple[int, ...]
    """First global batch of each stage."""
    maskers: tuple[Corruption, ...]
    identity: Mapping[str, Any]
    """The settings that affect the masks, by name; for the lexicon, its SHA-256."""

    @classmethod
    def from_settings(cls, settings: DataSettings, vocabulary: Vocabulary, seed: int) -> Self:
        """Build the masking of data.mask_stages, or of data.masking. Raises UserError if a setting is out of range
        or the lexicon cannot be used."""
        found = mask_stages(settings)
        kinds = {kind: corruption_of(replace(settings, masking=kind), vocabulary) for _, kind in found}
        values = settings_affecting_bytes(settings)
        return cls(
            seed=seed,
            firsts=tuple(stage.first for stage in found),
            maskers=tuple(kinds[stage.kind] for stage in found),
            identity={name: values[name] for name in AFFECTING_MASKS if values[name] != LATER.get(name)}
            | {"mask_stages": list(settings.mask_stages)},
        )

    def masker(self, batch: int) -> Corruption:
        """Return the masker of global batch number `batch`."""
        return self.maskers[int(np.searchsorted(self.firsts, batch, "right")) - 1]

    def __call__(
        self, examples: Examples, batch: int, epochs: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> Examples:
        """Return the examples of global batch `batch`, of these epochs and numbers in their split, with new masks."""
        given = {name: column for name, column in examples.columns.items() if name in _SEGMENTS}
        drawn = {"tokens": original_tokens(examples), "keys": example_keys(epochs, numbers)}
        segments = Segments(**given | drawn)
        return self.masker(batch)(segments, self.seed, DYNAMIC_MASK)


def shards_vocabulary(index: Index) -> Vocabulary:
    """Load the vocabulary whose copy is next to the shards. Raises UserError if it is missing or differs."""
    with TemporaryDirectory() as folder:  # the shards may be in an object store
        path = Path(folder) / TOKENIZER
        path.write_bytes(index.tokenizer_json())
        vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != index.vocabulary.sha256:  # of other bytes than its own canonical ones
        raise UserError(
            "not as this version writes it", where=index.path(TOKENIZER), remedy="prepare the shards again"
        )
    return vocabulary

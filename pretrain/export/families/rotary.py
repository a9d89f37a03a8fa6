"""Define what families of encoders with rotary positions have in common."""

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.settings import RunConfig
from pretrain.export.families.base import Family
from pretrain.export.families.entries import Config

if TYPE_CHECKING:
    import transformers
    from torch import Tensor

    from pretrain.model.batch import MicroBatch

UNSCALED: tuple[object, ...] = (None, {}, {"rope_type": "default"}, {"type": "default"})
"""Values of rope_scaling that change no angle."""


class Rotary(Family):
    """A family whose class states `biases` in several fields, and rotates in float32."""

    also: ClassVar[Mapping[str, tuple[str, ...]]]
    """Field -> further fields that have its value."""

    def config(self, run: RunConfig, vocabulary: VocabularyStamp) -> dict[str, Any]:
        """Return the fields of config.json, without class and dtype."""
        fields = super().config(run, vocabulary)
        return fields | {name: fields[one] for one, others in self.also.items() for name in others}

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        known = {**self.defaults, **config}
        found = super().differences(config, run, vocabulary_size)
        if known.get("rope_scaling") not in UNSCALED:  # the older name; version 5 reads it too
            found.append(f"rope_scaling is {reprlib.repr(known['rope_scaling'])}, which must be null")
        return found + [
            f"{name} is {known[name]}, {one} {known.get(one)}, which must be equal"
            for one, others in self.also.items()
            for name in others
            if name in known and known[name] != known.get(one)
        ]

    def logits(
        self, model: "transformers.PreTrainedModel", batch: "MicroBatch", pad: int
    ) -> "dict[str, Tensor]":
        """Compute their logits for a packed batch by the names of our heads; in float64 without rounding between."""
        from pretrain.export.families.float64 import KeepFloat64

        with KeepFloat64():
            return super().logits(model, batch, pad)

"""Define one-directional BERT in transformers: BertLMHeadModel, causal by `is_decoder`, without a pooler.

A model that was trained from right to left is exported as the same class: it reads ids that are reversed, which the
field `direction` of config.json and the card say.
"""

from dataclasses import replace

from pretrain.config.settings import CausalSettings, RunConfig
from pretrain.export.families.base import Family
from pretrain.export.families.bert import BERT_FOR_PRETRAINING
from pretrain.export.families.entries import Config, Head

_BACKWARDS = (
    "A decoder with a language-model head, trained on texts whose tokens were reversed: it reads"
    " from right to left, each token attends to itself and to what follows it in the text, and predicts the one before."
    " Reverse the ids that it is given (`input_ids.flip(-1)`, without padding) and what it returns. It has no pooler;"
    " for a vector of a text take that of its first token."
)


class Decoder(Family):
    """The family in either direction of the run."""

    def of_run(self, run: RunConfig) -> Family:
        """Return the family with the run's direction, in which the class itself cannot generate a text backwards."""
        direction = run.objective.causal.direction
        stated = replace(self, fixed={**self.fixed, "direction": direction})
        if direction == CausalSettings().direction:
            return stated
        return replace(stated, what=_BACKWARDS, pipeline="")

    def differences(self, config: Config, run: RunConfig, vocabulary_size: int) -> list[str]:
        """Describe how a config.json differs from the settings of a run that is to start from its weights, one line
        each."""
        found = super().differences(config, run, vocabulary_size)
        here, there = run.objective.causal.direction, config.get("direction", CausalSettings().direction)
        if run.objective.name == self.objective and here != there:
            found.append(f"objective.causal.direction is {here}, direction {there}")
        return found


BERT_DECODER = Decoder(
    **vars(
        replace(
            BERT_FOR_PRETRAINING,
            export_class="BertLMHeadModel",
            objective="causal",
            # without is_decoder, stated, the class attends both ways; without a cache its results are equal, but slow
            fixed={**BERT_FOR_PRETRAINING.fixed, "is_decoder": True},
            heads={"causal": Head("logits")},
            what="A decoder with the layers of BERT and a language-model head: each token attends to itself and to what"
            " is before it, and predicts the next one. It has no pooler; for a vector of a text take its last token's.",
            pipeline="text-generation",
            tags=("bert", "causal-lm"),
        )
    )
)

"""Train DistilRoBERTa: a student of a RoBERTa's, with DistilBERT's losses (Sanh et al. 2019, and its published code).

Six layers learn from RoBERTa-base, over its byte-level BPE vocabulary, and are exported as a RoBERTa. That code can
freeze the position embeddings of such students; here they are always trained.
"""

from pretrain.objectives.base import MODERN_FAMILIES
from pretrain.objectives.distilbert import DistilBert


class DistilRoberta(DistilBert):
    """The objective `distilroberta`."""

    families = ("RobertaForMaskedLM", *MODERN_FAMILIES)

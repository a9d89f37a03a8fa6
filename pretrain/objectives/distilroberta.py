"""Train DistilRoBERTa: a student of a RoBERTa's, with DistilBERT's losses (Sanh et al. 2019, and its published code).

Six layers learn from RoBERTa-base, over its byte-level BPE vocabulary, and leave as a RoBERTa. Where that code freezes
the positions of such students on request, ours always learn theirs.
"""

from pretrain.objectives.distilbert import DistilBert


class DistilRoberta(DistilBert):
    """The objective `distilroberta`."""

    families = ("RobertaForMaskedLM",)

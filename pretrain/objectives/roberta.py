"""Train RoBERTa and XLM-R: masked tokens of running text, without pairs and without segments.

Liu et al. 2019 (RoBERTa, sections 3 and 4) and Conneau et al. 2020 (XLM-R, section 3). The loss is that of `mlm`. What
makes a RoBERTa is fixed in the registry (a byte-level BPE vocabulary, XLM-R: unigram; no segment table; the exact GELU,
which the head of transformers' class has) or stated in the recipes (full sentences, masks drawn at every epoch).

Where the published code and this differ: fairseq masks <s> and </s> too, rounds 0.15 n at random, and draws random
tokens from all entries but the first four. Here, as for every objective, special tokens stay, 0.15 n is rounded to the
nearest, and a random token is any entry.
"""

from pretrain.objectives.base import MODERN_FAMILIES
from pretrain.objectives.mlm import Mlm


class Roberta(Mlm):
    """The objective `roberta`."""

    families = ("RobertaForMaskedLM", *MODERN_FAMILIES)


class XlmR(Mlm):
    """The objective `xlmr`: RoBERTa's, with the tokenizer and the class of XLM-R."""

    families = ("XLMRobertaForMaskedLM", *MODERN_FAMILIES)

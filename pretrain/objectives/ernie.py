"""Train ERNIE 1.0: masked tokens, phrases and names, and labels of pairs (Sun et al. 2019, section 3).

The loss is that of `bert`. Its stages, knowledge of ever larger units, are kinds of masks that follow one another in
one run (data.mask_stages with data.dynamic_masking): pairs and schedule continue, and no stage needs shards of its own.
What makes the encoder an ERNIE (relu, LayerNorm with 1e-5) is in the recipes.

Where the published code (PaddlePaddle/ERNIE, 2019) and this differ: its labels of pairs are 1 for the true next
segment, here, as in BERT and in transformers' class, 0; it draws for each phrase whether it is masked, without a
limit (data_pipeline/masking/masker.py); its pairs join neighbours of a shuffled buffer. Its dialogue embeddings and
their task are left out.
"""

from pretrain.objectives.base import MODERN_FAMILIES
from pretrain.objectives.bert import Bert


class Ernie(Bert):
    """The objective `ernie`."""

    families = ("ErnieForPreTraining", *MODERN_FAMILIES)

"""Train ALBERT: masked tokens and the order of two segments, each weighing 1 (Lan et al. 2020, section 3).

The loss is that of `bert` with the pair task of data.sequences=sentence_order; the paper also compares next-sentence
prediction (section 4.6). What makes an ALBERT is in the encoder's settings: narrow embeddings
(encoder.embedding_size) and parameters that layers share (encoder.sharing, encoder.groups). N-gram masks are
data.masking=ngram; the recipes have all of it.

Where the published code (google-research/albert) and this differ: there a chunk of one sentence gets a random second
segment, here it is cut in two (data_pipeline/sequences/pairs.py); its n-grams may cross a [SEP], and its words are
separated at punctuation and digits as well as at spaces (data_pipeline/masking/phrases.py).
"""

from pretrain.objectives.bert import Bert


class Albert(Bert):
    """The objective `albert`."""

    families = ("AlbertForPreTraining",)

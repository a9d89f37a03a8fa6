"""Export weights to a Hugging Face folder with a card and a proof, and send it to the hub.

export.py     weights and settings, or all of a run, as a folder that transformers loads
tokenizer.py  the tokenizer files for transformers, with equal ids
parity.py     the proof: equal logits of both models on real examples
fill.py       blanks that a model fills, in sentences and in held-out text
lineage.py    the model that training started from
card.py       the model card
hub.py        the files that may be sent to the hub, and their upload

pretrain/huggingface has the families of models, and reads such folders.
"""

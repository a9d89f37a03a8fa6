"""Convert settings and weights to a Hugging Face family and back, and read Hugging Face folders.

base.py         what a family is: its config and its weights in both directions, and its logits
registry.py     all families, and which of them a folder or a run's export is of
config_json.py  a folder's config.json, checked before any library reads it
folder.py       weights and settings of a folder of any family, as ours
load.py         configs, tokenizers and models of any folder, as those of transformers

The other modules define the families, each those of models with the same layers.
"""

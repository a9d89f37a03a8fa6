"""Write the tokenizer of an extended vocabulary for transformers, as that of the folder which it extends."""

import json
from pathlib import Path

from data_pipeline.errors import UserError
from data_pipeline.io.files import temporary_folder, write_whole
from data_pipeline.vocabulary.files import load_vocabulary
from pretrain.export.tokenizer import write_tokenizer
from pretrain.huggingface.bert import BERT_FOR_MASKED_LM
from pretrain.huggingface.load import quiet
from pretrain.huggingface.registry import family_of

MAX_LENGTH = 512
"""Longest text of a tokenizer whose old folder states none."""


def write_extended_tokenizer(folder: Path, old: Path) -> None:
    """Write tokenizer_config.json and what else transformers reads beside the vocabulary in `folder`: with the inputs
    and the frame of the model in `old`, if a config.json there names one, else BERT's. Raises UserError if transformers
    gives other ids than we do."""
    family = family_of(old)[0] if (old / "config.json").is_file() else BERT_FOR_MASKED_LM
    definition, longest = load_vocabulary(folder).json, _max_length(old)
    with temporary_folder(folder) as whole, quiet():
        write_tokenizer(definition, whole, longest, family.model_inputs, family.special_ids, family.cls_last)
        for path in sorted(whole.iterdir()):
            write_whole(folder / path.name, path.read_bytes())


def _max_length(old: Path) -> int:
    """Return model_max_length of the old folder's tokenizer_config.json."""
    path = old / "tokenizer_config.json"
    try:
        stated = json.loads(path.read_bytes()).get("model_max_length") if path.is_file() else None
    except (ValueError, AttributeError):
        raise UserError("not JSON", where=path, expected="a tokenizer_config.json of transformers") from None
    return int(stated) if isinstance(stated, int) and 0 < stated < 2**31 else MAX_LENGTH

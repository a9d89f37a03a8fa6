"""Write the tokenizer files for transformers, with equal ids, of a model or of an extended vocabulary.

The ids are those of the tokenizer.json from which the files are made.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from transformers import BertTokenizer

from data_pipeline.errors import UserError
from data_pipeline.io.files import temporary_folder, write_whole
from data_pipeline.loader.packing import PERIOD
from data_pipeline.settings import SEPARATORS
from data_pipeline.shards.index import VocabularyStamp
from data_pipeline.vocabulary.base import Vocabulary, json_text
from data_pipeline.vocabulary.files import load_vocabulary, parse_tokenizer_json
from data_pipeline.vocabulary.wordpiece import WordPiece
from pretrain.config.settings import CLS_SEGMENT
from pretrain.huggingface.bert import BERT_FOR_MASKED_LM
from pretrain.huggingface.load import load_tokenizer, quiet
from pretrain.huggingface.registry import family_of

PROBES = (
    "The QUICK brown fox, isn't it? 3,14 & co.",
    "Crème brûlée; ÆSIR, Straße, İstanbul, ﬁne",
    "東京 and Москва\tand नमस्ते\u200b.",
    "  spaces  before,\n between \u3000and behind ",
    "x" * 150,
)
"""Texts that reveal differences in letter case, accents, ideographs, blanks and very long words."""


INPUTS = ("input_ids", "token_type_ids", "attention_mask")
"""What BERT's own tokenizer returns by default."""


def vocabulary_of(tokenizer_json: str) -> VocabularyStamp:
    """Parse the vocabulary in this text. Raises UserError if it is not one."""
    return VocabularyStamp.of(parse_tokenizer_json(tokenizer_json, "tokenizer.json"))


def write_tokenizer(
    tokenizer_json: str,
    folder: Path,
    max_length: int,
    inputs: tuple[str, ...] = INPUTS,
    special_ids: Mapping[str, str] = MappingProxyType({}),
    cls_last: bool = False,
    separators: str = SEPARATORS[0],
) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and other vocabulary files of its kind into
    `folder`. A WordPiece vocabulary with [CLS] first loads as BERT's own tokenizer class, others as the general one;
    both return `inputs`. `special_ids` and `cls_last`: as in Family; the first name further special tokens (bos_token,
    eos_token). `separators`: those of the pairs that the model was trained on, one of SEPARATORS.

    Raises UserError if the text is not one of our vocabularies, or the re-loaded tokenizer gives other ids on
    PROBES."""
    vocabulary = parse_tokenizer_json(tokenizer_json, "tokenizer.json")
    specials = {f"{role}_token": token for role, token in vocabulary.specials._asdict().items()}
    specials |= {name.removesuffix("_id"): specials[f"{role}_token"] for name, role in special_ids.items()}
    own_inputs: dict[str, Any] = {} if inputs == INPUTS else {"model_input_names": list(inputs)}
    for name, text in vocabulary.files().items():
        (folder / name).write_text(text, "utf-8")
    is_usual = not cls_last and separators == SEPARATORS[0]
    if not is_usual:
        template = _cls_last(vocabulary) if cls_last else _separated(vocabulary, separators)
        framed = {**vocabulary.definition(), "post_processor": template}
        (folder / "tokenizer.json").write_text(json_text(framed), "utf-8")
    if isinstance(vocabulary, WordPiece) and is_usual:  # BERT's own class has a frame of its own
        BertTokenizer(
            vocab=vocabulary.ids,
            do_lower_case=vocabulary.normalization.lowercase,
            strip_accents=vocabulary.normalization.strip_accents,
            tokenize_chinese_chars=vocabulary.normalization.handle_chinese_chars,
            model_max_length=max_length,
            **own_inputs,
            **specials,
        ).save_pretrained(folder)
    else:
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": list(inputs),
            "clean_up_tokenization_spaces": False,
            **({"padding_side": "left"} if cls_last else {}),
            **specials,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(specials, indent=2) + "\n", "utf-8")
    _check(Tokenizer.from_str(tokenizer_json), vocabulary, folder, cls_last, separators)


def _cls_last(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the part of a tokenizer.json that frames A sep cls, or A sep B sep cls, in segments 0, 1 and 2."""
    template = vocabulary.sequence_template()
    moved = {"SpecialToken": {"id": vocabulary.specials.cls, "type_id": CLS_SEGMENT}}
    return template | {kind: [*template[kind][1:], moved] for kind in ("single", "pair")}


def _separated(vocabulary: Vocabulary, separators: str) -> dict[str, Any]:
    """Return the part of a tokenizer.json that frames texts with these separators (data.separators), one at the end of
    a single text where pairs have one there."""
    template, sep = vocabulary.sequence_template(), vocabulary.specials.sep
    has_mid, has_end = separators in ("mid", "period"), separators in ("end", "period")
    cls, first, mid, second, end = template["pair"]
    single = [cls, first, *([end | {"SpecialToken": mid["SpecialToken"]}] if has_end else [])]
    pair = [cls, first, *([mid] if has_mid else []), second, *([end] if has_end else [])]
    framed = template | {"single": single, "pair": pair}
    if separators != "period":
        return framed
    ids = {"id": PERIOD, "ids": [vocabulary.tokens.index(PERIOD)], "tokens": [PERIOD]}
    renamed = json.loads(json.dumps(framed).replace(json.dumps(sep), json.dumps(PERIOD)))
    return renamed | {"special_tokens": template["special_tokens"] | {PERIOD: ids}}


def _check(ours: Tokenizer, vocabulary: Vocabulary, folder: Path, cls_last: bool, separators: str) -> None:
    ours.no_truncation()
    theirs = load_tokenizer(folder)
    for text in PROBES:
        expected = ours.encode(text, add_special_tokens=False).ids
        if theirs(text, add_special_tokens=False)["input_ids"] != expected:
            raise UserError(
                f"the exported tokenizer gives other ids for {text[:40]!r}",
                where=folder,
                expected="the ids of the vocabulary that the model was trained with",
            )
    for role in vocabulary.specials._fields:
        if getattr(theirs, f"{role}_token_id") != getattr(vocabulary, role):
            raise UserError(f"the exported tokenizer has another {role} token", where=folder)
    frame = theirs("a", "b")["input_ids"]
    ends = frame[-2:] if cls_last else [frame[-1], frame[0]]
    if separators in ("none", "mid", "period"):
        ends[0] = vocabulary.sep if frame.count(vocabulary.sep) == (separators == "mid") else -1
    if ends != [vocabulary.sep, vocabulary.cls]:
        raise UserError(f"the exported tokenizer adds no {vocabulary.specials.cls}", where=folder)


# The tokenizer of an extended vocabulary, as that of the folder which it extends.

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

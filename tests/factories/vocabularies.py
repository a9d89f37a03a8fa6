"""Small vocabularies of every kind, trained here, and the files that transformers writes of such ones."""

import base64
import io
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.byte_bpe import NEVER_IN_UTF8
from data_pipeline.vocabulary.train import train_vocabulary

SAMPLE = Path(__file__).parents[1] / "golden" / "pairs" / "sample_text.txt"
TEXT = SAMPLE.read_text("utf-8") + "Ünïque été字字 字字 の が 한국 한국 שלום मर्ती ☃ ☃ [MASK] x " * 3
SIZES = {"wordpiece": 500, "bpe": 500, "unigram": 400}


@cache
def trained(kind: str, lowercase: bool | None = None, specials: str = "") -> Vocabulary:
    """A vocabulary of a few hundred pieces."""
    return train_vocabulary(
        [Document("0", TEXT)],
        VocabularySettings(SIZES[kind], kind=kind, lowercase=lowercase, specials=specials),
    )


@cache
def roberta_tokenizer() -> dict[str, Any]:
    """A tokenizer.json in the form of roberta-base's: no space before the first word, runs of blanks as they are, a
    frame with two </s> between two texts."""
    vocabulary = trained("bpe", False)
    bos, eos = (
        [token, vocabulary.ids[token]] for token in (vocabulary.specials.cls, vocabulary.specials.sep)
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False}
    model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    model |= {"vocab": vocabulary.ids, "merges": [list(pair) for pair in vocabulary.merges]}
    return {
        "version": "1.0",
        "added_tokens": [
            {**token, "lstrip": token["content"] == vocabulary.specials.mask}
            for token in vocabulary.added_tokens()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {**byte_level, "type": "RobertaProcessing", "sep": eos, "cls": bos},
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": model,
    }


@cache
def modernbert_tokenizer() -> dict[str, Any]:
    """A tokenizer.json in the form of ModernBERT's: GPT-NeoX's pieces without the bytes that UTF-8 never has, NFC, no
    space before the first word, and BERT's special tokens, runs of spaces and placeholders beside the model."""
    of_roberta = trained("bpe", False)
    pieces = [p for p in of_roberta.tokens if p not in of_roberta.specials and p not in NEVER_IN_UTF8]
    model = {"vocab": {p: i for i, p in enumerate(["<|endoftext|>", *pieces])}}
    model |= {"type": "BPE", "merges": [list(pair) for pair in of_roberta.merges], "unk_token": None}
    beside = ["    ", "   ", "|||EMAIL_ADDRESS|||", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[unused0]"]
    ids = {"<|endoftext|>": 0, **{token: len(model["vocab"]) + i for i, token in enumerate(beside)}}
    added = [
        {"id": i, "content": token, "special": token[0] in "<[", "normalized": token[0] not in "<["}
        | {"single_word": False, "lstrip": token == "[MASK]", "rstrip": False}
        for token, i in ids.items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


@cache
def eurobert_tokenizer() -> dict[str, Any]:
    """A tokenizer.json in the form of EuroBERT's, which is Llama 3's with <|mask|>: byte-level BPE, whose words a
    pattern of its own cuts, without an unknown token, and with one token that both ends and pads a text."""
    of_roberta = trained("bpe", False)
    pieces = [p for p in of_roberta.tokens if p not in of_roberta.specials]
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    added = [
        {"id": len(pieces) + i, "content": token, "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for i, token in enumerate(marks)
    ]
    words = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}{1,3}|\s+"},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": True}
    model |= {
        "vocab": {p: i for i, p in enumerate(pieces)},
        "merges": [list(pair) for pair in of_roberta.merges],
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


@cache
def charsmap(rules: Path | None = None) -> str:
    """SentencePiece's table of replacements as a tokenizer.json holds it: its NFKC with lower case, or the rules in a
    file, a line each: code points, a tab, code points."""
    found = io.BytesIO()
    named = {"normalization_rule_tsv": rules} if rules else {"normalization_rule_name": "nmt_nfkc_cf"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"] * 3),
        model_writer=found,
        model_type="char",
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
        **named,
    )
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(found.getvalue())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()

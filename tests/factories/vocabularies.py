"""Small vocabularies of every kind, trained here, and the files that transformers writes of such ones."""

import base64
import io
from functools import cache
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary.base import Vocabulary
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

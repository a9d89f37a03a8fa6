"""Tokenizer files: the text of a tokenizer.json in; the files that transformers loads, with equal ids, out."""

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertTokenizer

from data_pipeline.errors import UserError

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
PROBES = (
    "The QUICK brown fox, isn't it? 3,14 & co.",
    "Crème brûlée; ÆSIR, Straße, İstanbul, ﬁne",
    "東京 and Москва\tand नमस्ते\u200b.",
    "x" * 150,
)
"""Texts on which letter case, accents, ideographs, blanks and very long words show."""


def size_and_pad(tokenizer_json: str) -> tuple[int, int]:
    """Entries of the vocabulary and the id of [PAD]. Raises UserError where the text is no tokenizer or a special
    token is missing."""
    try:
        vocabulary = Tokenizer.from_str(tokenizer_json).get_vocab()
    except Exception as error:  # the library raises nothing more special
        raise UserError(f"not a tokenizer: {error}", expected="the text of a tokenizer.json") from error
    missing = [token for token in SPECIAL_TOKENS.values() if token not in vocabulary]
    if missing:
        raise UserError(f"the vocabulary lacks {', '.join(missing)}", expected="BERT's five special tokens")
    return len(vocabulary), vocabulary["[PAD]"]


def write_tokenizer(
    tokenizer_json: str, folder: Path, max_length: int, texts: tuple[str, ...] = PROBES
) -> None:
    """Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and vocab.txt into `folder`.

    Raises UserError where the vocabulary is not WordPiece with BERT's normalizer, or the tokenizer loaded back
    gives other ids on `texts`."""
    stored = json.loads(tokenizer_json)
    normalizer = stored.get("normalizer") or {}
    kinds = (
        stored["model"].get("type"),
        normalizer.get("type"),
        (stored.get("pre_tokenizer") or {}).get("type"),
    )
    if kinds != ("WordPiece", "BertNormalizer", "BertPreTokenizer"):
        raise UserError(
            f"the vocabulary is {kinds}", expected="WordPiece with BERT's normalizer and pre-tokenizer"
        )
    vocabulary: dict[str, int] = stored["model"]["vocab"]
    BertTokenizer(
        vocab=vocabulary,
        do_lower_case=normalizer["lowercase"],
        strip_accents=normalizer["strip_accents"],
        tokenize_chinese_chars=normalizer["handle_chinese_chars"],
        model_max_length=max_length,
        **SPECIAL_TOKENS,
    ).save_pretrained(folder)
    lines = [token for token, _ in sorted(vocabulary.items(), key=lambda entry: entry[1])]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in lines), "utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(SPECIAL_TOKENS, indent=2) + "\n", "utf-8")
    _check(Tokenizer.from_str(tokenizer_json), folder, texts)


def _check(ours: Tokenizer, folder: Path, texts: tuple[str, ...]) -> None:
    ours.no_truncation()
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in texts:
        expected = ours.encode(text, add_special_tokens=False).ids
        if theirs(text, add_special_tokens=False)["input_ids"] != expected:
            raise UserError(
                f"the exported tokenizer gives other ids for {text[:40]!r}",
                where=folder,
                expected="the ids of the vocabulary that the model was trained with",
            )
    frame = theirs("a", "b")
    if (frame["input_ids"][0], frame["input_ids"][-1]) != (theirs.cls_token_id, theirs.sep_token_id):
        raise UserError("the exported tokenizer adds no [CLS] and [SEP]", where=folder)

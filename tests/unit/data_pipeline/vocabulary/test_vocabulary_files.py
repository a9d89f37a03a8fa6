"""Byte-level BPE and unigram vocabularies: trained, loaded, refused; word starts from ids alone."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.files import load_vocabulary, parse_tokenizer_json, save_vocabulary
from data_pipeline.vocabulary.train import lower_cases, train_vocabulary
from tests.factories.vocabularies import SAMPLE, TEXT, charsmap, modernbert_tokenizer, trained

KINDS = ("bpe", "unigram")
SENTENCES = SAMPLE.read_text("utf-8").split("\n")[:60]


def train(text: str = TEXT, **settings: Any):
    return train_vocabulary([Document("0", text)], VocabularySettings(**settings))


def encoded(vocabulary, text: str) -> list[str]:
    """Pieces of `text` by their ids."""
    return [vocabulary.tokens[i] for i in WordCache(vocabulary).encode([text])[0]]


def test_byte_bpe_has_robertas_layout() -> None:
    found = trained("bpe")
    assert found.size == 500
    assert (found.cls, found.pad, found.sep, found.unk, found.mask) == (0, 1, 2, 3, 499)
    assert found.tokens[4:8] == ["!", '"', "#", "$"]
    assert [t for t in found.tokens[260:] if len(t) < 2] == []
    assert "Ġthe" in found.tokens
    assert found.unk not in WordCache(found).encode(["☃ \U0010ffff \x01 字"])[0]
    assert len(json.loads(found.json)["model"]["merges"]) == 500 - 5 - 256


def test_unigram_has_alberts_layout() -> None:
    found = trained("unigram")
    assert found.tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert (found.pad, found.unk, found.cls, found.sep, found.mask) == (0, 1, 2, 3, 4)
    assert found.size <= 400
    assert found.scores[5:] == sorted(found.scores[5:], reverse=True)
    assert {"▁", "▁the", "☃"} <= set(found.tokens)
    assert encoded(found, "\U0010ffff a") == ["▁", "<unk>", "▁a"]


def test_xlm_rs_layout() -> None:
    found = train(size=400, kind="unigram", specials="roberta", lowercase=False)
    assert found.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert (found.cls, found.pad, found.sep, found.unk, found.mask) == (0, 1, 2, 3, found.size - 1)
    assert found.size <= 400
    assert "▁the" in found.tokens
    assert encoded(found, "\U0010ffff a") == ["▁", "<unk>", "▁a"]
    assert not found.continuation[[found.cls, found.sep, found.mask, found.pad]].any()
    again = parse_tokenizer_json(found.json, "tokenizer.json")
    assert (again.sha256, again.specials) == (found.sha256, found.specials)


def test_xlnets_layout() -> None:
    found = train(size=400, kind="unigram", specials="xlnet")
    controls = ("<s>", "</s>", "<eod>", "<eop>")
    assert found.tokens[:9] == ["<unk>", *controls[:2], "<cls>", "<sep>", "<pad>", "<mask>", *controls[2:]]
    assert (found.unk, found.cls, found.sep, found.pad, found.mask) == (0, 3, 4, 5, 6)
    assert found.size <= 400
    ids = WordCache(found).encode(["a <s> </s> <eod> <eop> <cls> b"])[0]
    assert not set(ids.tolist() if hasattr(ids, "tolist") else ids) & {1, 2, 3, 7, 8}, (
        "no text gives a control token"
    )
    again = parse_tokenizer_json(found.json, "tokenizer.json")
    assert (again.sha256, again.specials) == (found.sha256, found.specials)
    assert set(again.controls) == set(controls)


@pytest.mark.parametrize("kind", KINDS)
def test_letter_case_is_kept_or_lowered(kind: str) -> None:
    assert lower_cases(VocabularySettings(kind=kind)) == (kind == "unigram")
    assert trained(kind).json == trained(kind, kind == "unigram").json
    bare, cased = trained(kind, True), trained(kind, False)
    assert encoded(bare, "THE Été") == encoded(bare, "the ete")
    assert encoded(cased, "THE") != encoded(cased, "the")
    assert bare.sha256 != cased.sha256


@pytest.mark.parametrize("kind", KINDS)
def test_words_begin_where_the_ids_say(kind: str) -> None:
    found = trained(kind)
    cache = WordCache(found)
    sentences = [*SENTENCES, "don't 'tis 3.14! ☃☃ \U0010ffff字 \u00a0x\u3000y\n z"]
    ids, lengths = cache.encode(sentences)
    ends = np.cumsum(lengths)
    for sentence, first, last in zip(sentences, ends - lengths, ends, strict=True):
        assert (~found.continuation[ids[first:last]]).sum() == len(sentence.split())
    running, _ = cache.encode([" ".join(sentences)])
    assert running.tolist() == ids.tolist()
    assert not found.continuation[[found.cls, found.sep, found.mask, found.pad]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_the_text_are_text(kind: str) -> None:
    found = trained(kind)
    for token in found.specials:
        assert not set(WordCache(found).encode([f"a {token} {token}b"])[0]) & {
            found.cls, found.sep, found.mask, found.pad,
        }  # fmt: skip


def test_rare_pairs_are_not_merged() -> None:
    few = train("zyx zyx " + "abc " * 3, size=400, kind="bpe", min_frequency=3)
    assert few.tokens[260:-1] == ["ab", "Ġab", "Ġabc"]
    assert "Ġzyx" in train("zyx zyx " + "abc " * 3, size=400, kind="bpe").tokens


def test_rare_characters_are_unknown() -> None:
    text = TEXT + " ☂a ☂b"
    assert "☂" in train(text, size=400, kind="unigram").tokens
    found = train(text, size=400, kind="unigram", min_frequency=3)
    assert not any("☂" in token for token in found.tokens)
    assert encoded(found, "☂a")[:2] == ["▁", "<unk>"]
    crowded = TEXT + "".join(chr(0x4E00 + i) * 2 for i in range(500))
    assert sum(len(t) == 1 for t in train(crowded, size=400, kind="unigram").tokens) == 400 // 8 + 1  # and ▁


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_trained_is_refused(kind: str) -> None:
    for documents in ([], [Document("0", " \n ")]):
        with pytest.raises(UserError, match="no text to learn"):
            train_vocabulary(documents, VocabularySettings(kind=kind))
    least = {"bpe": 262, "unigram": 16}[kind]
    with pytest.raises(UserError, match=rf"vocabulary\.size: {least - 1} .* \(expected at least {least}\)"):
        train(size=least - 1, kind=kind)
    assert train(size=least, kind=kind).size <= least


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_vocabulary_loads_equal(kind: str, tmp_path: Path) -> None:
    for lowercase in (False, True):
        found = trained(kind, lowercase)
        save_vocabulary(found, tmp_path)
        assert (tmp_path / "tokenizer.json").read_text("utf-8") == found.json
        again = load_vocabulary(tmp_path)
        assert (type(again), again.json) == (type(found), found.json)
        assert pickle.loads(pickle.dumps(again)).sha256 == found.sha256
    expected = {"bpe": {"tokenizer.json", "vocab.json", "merges.txt"}, "unigram": {"tokenizer.json"}}
    assert set(os.listdir(tmp_path)) == expected[kind]


def changed(kind: str, path: str, value: Any) -> str:
    """The tokenizer.json of a trained vocabulary with another value at `path`."""
    found = json.loads(trained(kind).json)
    *groups, last = path.split(".")
    inner = found
    for group in groups:
        inner = inner[int(group) if isinstance(inner, list) else group]
    inner[last] = value
    if path == "model.vocab":
        found["added_tokens"] = []
    return json.dumps(found)


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}
SPACES = {"type": "Metaspace", "replacement": "_"}
REFUSED = [
    ("bpe", "model.dropout", 0.1, "model.dropout: 0.1"),
    ("bpe", "model.end_of_word_suffix", "</w>", "model.end_of_word_suffix"),
    ("bpe", "model.byte_fallback", True, "model.byte_fallback"),
    ("bpe", "model.ignore_merges", True, "model.ignore_merges"),
    ("bpe", "model.merges", ["a b c"], "merge 0 is ['a', 'b', 'c']"),
    ("bpe", "model.merges", [["q", "\u0120q"]], "a merge of pieces that it lacks"),
    ("bpe", "model.merges", [1], "merge 0 is 1"),
    ("bpe", "model.vocab", {"<s>": 0, "a": 0}, "does not number its pieces"),
    ("bpe", "model.vocab", {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3}, "lacks"),
    ("bpe", "normalizer", {"type": "NFKD"}, "normalizer: 'NFKD'"),
    ("bpe", "normalizer", {"type": "NFKC"}, "normalizer: 'NFKC'"),
    ("bpe", "pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer: 'Whitespace'"),
    ("bpe", "pre_tokenizer", BYTES, "pre_tokenizer.use_regex: False"),
    ("bpe", "added_tokens", [{"id": 500, "content": "<new>"}], "added tokens that the model lacks: '<new>'"),
    ("unigram", "model.unk_id", None, "model.unk_id"),
    ("unigram", "model.byte_fallback", True, "model.byte_fallback"),
    ("unigram", "model.vocab", [["<unk>", 0], ["x"]], "model.vocab holds ['x']"),
    ("unigram", "model.vocab", [["<unk>", 0], ["a", 0.0]] * 2, "a piece ▁"),
    ("unigram", "model.vocab", [["<unk>", 0], ["▁", 0.0], ["a", 0.0], ["a", 0.0]], "lists a piece twice"),
    ("unigram", "pre_tokenizer", SPACES, "pre_tokenizer.replacement: '_'"),
    ("unigram", "pre_tokenizer.prepend_scheme", "never", "pre_tokenizer.prepend_scheme"),
    ("unigram", "pre_tokenizer.split", False, "pre_tokenizer.split"),
    ("unigram", "pre_tokenizer.add_prefix_space", False, "pre_tokenizer.add_prefix_space"),
    ("unigram", "pre_tokenizer", None, "pre_tokenizer: ''"),
    ("unigram", "normalizer", {"type": "BertNormalizer"}, "normalizer: {'type': 'BertNormalizer'"),
    ("unigram", "normalizer", {"type": "Replace", "pattern": {"String": "a b"}, "content": ""}, "normalizer"),
    ("unigram", "normalizer", {"type": "Replace", "pattern": {"Regex": "a b"}, "content": ""}, "normalizer"),
    ("unigram", "normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "normalizer"),
    ("unigram", "added_tokens", [{"id": 9, "content": "<new>", "special": True}], "the added token '<new>'"),
    ("unigram", "added_tokens", [{"id": 5, "content": "▁", "special": False}], "the added token '▁'"),
]


@pytest.mark.parametrize(("kind", "path", "value", "message"), REFUSED)
def test_other_structures_are_refused_in_a_line(
    kind: str, path: str, value: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(changed(kind, path, value), "utf-8")
    with pytest.raises(UserError) as caught:
        load_vocabulary(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_missing_are_refused(tmp_path: Path) -> None:
    ids = {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(UserError, match="lacks 242 of the 243 bytes"):
        load_vocabulary(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"merges\.txt: the vocabulary cannot be read"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize("kind", ["wordpiece", *KINDS])
def test_a_model_may_have_more_rows_than_entries(kind: str, tmp_path: Path) -> None:
    found = trained(kind)
    save_vocabulary(found, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": found.size + 7}))
    longer = load_vocabulary(tmp_path)
    assert (longer.size, longer.tokens[: found.size]) == (found.size + 7, found.tokens)
    assert parse_tokenizer_json(longer.json, "tokenizer.json").sha256 == longer.sha256
    texts = [*SENTENCES, longer.tokens[-1], f"a{longer.tokens[-1]}b"]
    assert WordCache(longer).encode(texts)[0].tolist() == WordCache(found).encode(texts)[0].tolist()
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1}))
    assert load_vocabulary(tmp_path).sha256 == found.sha256


def test_modernberts_tokenizer_is_read_from_its_folder(tmp_path: Path) -> None:
    """Its special tokens, runs of spaces and placeholders stand beside the model; text is composed (NFC) first."""
    written = modernbert_tokenizer()
    (tmp_path / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    found = load_vocabulary(tmp_path)
    assert found.size == len(written["model"]["vocab"]) + len(written["added_tokens"]) - 1  # one is in both
    assert [*found.specials] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert found.ids["   "] == found.ids["|||EMAIL_ADDRESS|||"] - 1
    again = parse_tokenizer_json(found.json, "tokenizer.json")
    assert (again.json, again.specials) == (found.json, found.specials)
    theirs = Tokenizer.from_str(json.dumps(written))
    sentences = [
        *SENTENCES,
        "e\u0301te\u0301 na\u00efve",
        "don't 3.14! \u2603 \U0010ffff\u5b57",
        "\uac00 \u1100\u1161",
    ]
    cache = WordCache(found)
    for sentence in filter(None, sentences):
        expected = theirs.encode(" " + " ".join(sentence.split()), add_special_tokens=False).ids
        assert cache.encode([sentence])[0].tolist() == expected
    apart, together = (cache.encode([text])[0].tolist() for text in ("e\u0301", "\u00e9"))
    assert apart == together
    hidden = {found.ids[t["content"]] for t in written["added_tokens"]}
    texts = [f"a {token['content']} b{token['content']}c" for token in written["added_tokens"]]
    assert not set(cache.encode(texts)[0].tolist()) & hidden


def test_a_table_that_joins_marks_to_spaces_is_refused(tmp_path: Path) -> None:
    """Words could not be remembered: what a word becomes would depend on the space before it."""
    path = tmp_path / "tokenizer.json"
    for name, rules in {"fits": "41\t61\n", "joins": "41\t61\n20 301\tB4\n"}.items():
        (tmp_path / name).write_text(rules)
        table = {"type": "Precompiled", "precompiled_charsmap": charsmap(tmp_path / name)}
        path.write_text(changed("unigram", "normalizer", table), "utf-8")
        if name == "fits":
            assert encoded(load_vocabulary(path), "A") == encoded(load_vocabulary(path), "a")
        else:
            with pytest.raises(UserError, match="normalizer"):
                load_vocabulary(path)

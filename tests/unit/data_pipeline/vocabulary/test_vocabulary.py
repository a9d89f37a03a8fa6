"""Vocabularies: loaded from every form, written in one, trained the same on any number of threads."""

import contextlib
import errno
import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.vocabulary.files import load_vocabulary, save_vocabulary
from data_pipeline.vocabulary.train import train_vocabulary, trained_before
from data_pipeline.vocabulary.wordpiece import SPECIAL_TOKENS

GOLDEN = Path(__file__).parents[3] / "golden"
BERT = GOLDEN / "vocab" / "bert-base-uncased-vocab.txt"
SMALL = [*SPECIAL_TOKENS, "a", "b", "##b", "##c", "word", "!"]


@pytest.fixture(scope="module")
def bert():
    return load_vocabulary(BERT)


def vocab_txt(folder, tokens, name="vocab.txt"):
    (folder / name).write_text("\n".join(tokens) + "\n")
    return folder / name


def error(path, **options):
    with pytest.raises(UserError) as caught:
        load_vocabulary(path, **options)
    return str(caught.value)


def test_berts_vocabulary_has_its_special_ids(bert):
    assert (bert.size, bert.dtype, bert.normalization.lowercase) == (30522, "uint16", True)
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask) == (0, 100, 101, 102, 103)
    assert bert.continuation.sum() == sum(t.startswith("##") for t in bert.tokens) == 5828
    assert bert.tokenizer.encode("Unaffable!", add_special_tokens=False).tokens == [
        "una",
        "##ffa",
        "##ble",
        "!",
    ]


def test_the_json_is_what_the_libraries_read(bert, tmp_path):
    save_vocabulary(bert, tmp_path / "v")
    theirs = Tokenizer.from_file(str(tmp_path / "v" / "tokenizer.json"))
    assert theirs.encode("Hello", "world").tokens == ["[CLS]", "hello", "[SEP]", "world", "[SEP]"]
    assert theirs.get_vocab_size() == bert.size


def test_a_vocabulary_that_cannot_be_written_leaves_nothing(bert, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        save_vocabulary(bert, tmp_path / "v")
    assert not list((tmp_path / "v").iterdir())
    with pytest.raises(UserError, match=r"v\.txt: is a file"):
        save_vocabulary(bert, vocab_txt(tmp_path, SMALL, "v.txt"))


def test_every_form_gives_the_same_vocabulary(bert, tmp_path):
    save_vocabulary(bert, tmp_path / "v")
    forms = [tmp_path / "v", tmp_path / "v" / "vocab.txt", tmp_path / "v" / "tokenizer.json"]
    theirs = tmp_path / "theirs.json"
    bert.tokenizer.save(str(theirs), pretty=True)
    for form in (*map(str, forms), theirs):
        assert load_vocabulary(form).json == bert.json
    assert (tmp_path / "v" / "tokenizer.json").read_text() == bert.json
    assert pickle.loads(pickle.dumps(bert)).sha256 == bert.sha256
    assert os.listdir(tmp_path / "v") in (["vocab.txt", "tokenizer.json"], ["tokenizer.json", "vocab.txt"])


def test_lower_casing_is_part_of_the_identity(tmp_path):
    path = vocab_txt(tmp_path, SMALL)
    assert load_vocabulary(path).normalization.lowercase
    assert not load_vocabulary(path, lowercase=False).normalization.lowercase
    assert load_vocabulary(path, lowercase=False).sha256 != load_vocabulary(path).sha256
    assert not load_vocabulary(vocab_txt(tmp_path, [*SMALL, "Word"], "cased.txt")).normalization.lowercase
    config = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load_vocabulary(path).normalization
    assert (found.lowercase, found.strip_accents, found.handle_chinese_chars) == (False, True, False)


def test_odd_lines_keep_the_ids_of_the_others(tmp_path):
    lines = [*SPECIAL_TOKENS, "a", "", "b", "a", "\u2028x", "c"]
    (tmp_path / "v.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n")
    found = load_vocabulary(tmp_path / "v.txt")
    assert found.tokens[5:] == ["[unreachable 5]", "[unreachable 6]", "b", "a", "\u2028x", "c"]
    assert found.tokenizer.encode("a b c", add_special_tokens=False).ids == [8, 7, 10]
    save_vocabulary(found, tmp_path / "again")
    for name in ("tokenizer.json", "vocab.txt"):
        assert load_vocabulary(tmp_path / "again" / name).json == found.json


def test_special_tokens_in_the_text_are_text(bert):
    assert bert.tokenizer.encode("[MASK]", add_special_tokens=False).tokens == ["[", "mask", "]"]


def change(**parts):
    found = {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "vocab": {t: i for i, t in enumerate(SMALL)},
        },
    }
    return json.dumps({**found, **parts})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[]", "not a tokenizer.json"),
        (change(model={"type": "WordLevel"}), "model: 'WordLevel'"),
        (change(model={"type": "BPE"}), "normalizer: 'BertNormalizer'"),
        (change(model={"type": "Unigram", "vocab": []}), "model.unk_id"),
        (change(model=[1]), "model: None"),
        (change(normalizer={"type": "NFC"}), "normalizer: 'NFC'"),
        (change(pre_tokenizer=None), "pre_tokenizer: None"),
        (change(added_tokens=[{"id": 99, "content": "[NEW]"}]), "added tokens that the model lacks: '[NEW]'"),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, text, what):
    (tmp_path / "tokenizer.json").write_text(text)
    message = error(tmp_path)
    assert message.startswith(str(tmp_path / "tokenizer.json"))
    assert what in message


@pytest.mark.parametrize("ids", [{"a": 0, "b": 0}, {"a": -1}, {"a": "x"}, {"a": 10**9}])
def test_vocabularies_that_do_not_number_their_pieces_are_refused(tmp_path, ids):
    model = json.loads(change())["model"]
    (tmp_path / "tokenizer.json").write_text(change(model={**model, "vocab": ids}))
    assert "does not number its pieces" in error(tmp_path)


def test_a_minimal_json_of_another_writer_loads(tmp_path):
    (tmp_path / "tokenizer.json").write_text(change())
    assert load_vocabulary(tmp_path).json == load_vocabulary(vocab_txt(tmp_path, SMALL)).json


def test_missing_vocabularies_are_refused(tmp_path):
    assert "no vocabulary is named" in error("")
    assert "cannot be read: No such file" in error(tmp_path / "none")
    assert "no vocabulary in this folder" in error(tmp_path)
    assert "lacks [SEP], [MASK]" in error(vocab_txt(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "a"]))
    (tmp_path / "v.txt").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in error(tmp_path / "v.txt")


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "vocab.json"])
@pytest.mark.parametrize("kind", ["device", "pipe", "socket", "gigabyte"])
def test_what_is_no_file_or_too_large_is_refused_at_once(tmp_path, name, kind):
    path = tmp_path / name
    what = "is no file"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(os.path.relpath(path))
    else:
        path.touch()
        os.truncate(path, 1 << 30)
        what = "has 1,073,741,824 bytes"
    assert error(path).startswith(f"{path}: {what}")
    if kind != "gigabyte":
        assert "no vocabulary in this folder" in error(tmp_path)
    settings = DataSettings(vocab=str(path), sources=["nowhere"])
    with pytest.raises(UserError, match="is no folder"):
        trained_before(settings, VocabularySettings())


def test_merges_beside_a_vocabulary_are_a_file_too(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    os.mkfifo(tmp_path / "merges.txt")
    assert f"{tmp_path}/merges.txt: is no file" in error(tmp_path)


TEXT = (GOLDEN / "pairs" / "sample_text.txt").read_text() * 3
TRAIN = """
import sys
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary.train import train_vocabulary
documents = [Document(str(i), open(sys.argv[1]).read()) for i in range(3)]
for kind in sys.argv[2:]:
    print(train_vocabulary(documents, VocabularySettings(size=600, kind=kind)).sha256)
"""


def test_training_gives_equal_bytes_on_any_number_of_threads():
    found, kinds = [], ["wordpiece", "bpe", "unigram"]
    for threads in ("1", "4", "4"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", TRAIN, str(GOLDEN / "pairs" / "sample_text.txt"), *kinds]
        root = Path(__file__).parents[4]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    here = [
        train_vocabulary([Document("0", TEXT)], VocabularySettings(size=600, kind=kind)).sha256
        for kind in kinds
    ]
    assert found == [here] * 3


def test_a_trained_vocabulary_encodes_its_text():
    texts = (TEXT, "Ünïque 字字 [MASK] [MASK] x")
    found = train_vocabulary([Document("0", text) for text in texts], VocabularySettings(600))
    assert found.size == 600
    assert found.tokens[:5] == list(SPECIAL_TOKENS)
    assert found.pad == 0
    assert len(set(found.tokens)) == 600
    assert {"the", "##s", "字", "u"} <= set(found.tokens)
    assert not {"##字", "ü", "The", "##!"} & set(found.tokens)
    ids = found.tokenizer.encode(TEXT[:1000], add_special_tokens=False).ids
    assert found.unk not in ids
    cased = train_vocabulary([Document("0", TEXT)], VocabularySettings(600, lowercase=False))
    assert "T" in cased.tokens
    assert not cased.normalization.lowercase


def test_rare_characters_give_way_to_words():
    rare = "".join(chr(0x4E00 + i) * 2 for i in range(500))
    found = train_vocabulary([Document("0", TEXT + rare)], VocabularySettings(size=400))
    assert sum(len(t) == 1 for t in found.tokens) <= 400 // 8
    assert "the" in found.tokens


def test_training_without_text_is_refused():
    with pytest.raises(UserError, match="no text to learn"):
        train_vocabulary([], VocabularySettings())
    with pytest.raises(UserError, match=r"vocabulary\.size: 5 entries are too few"):
        train_vocabulary([Document("0", TEXT)], VocabularySettings(size=5))

"""The exact mode's reading rules, spool and refusals; tests/golden holds its draws."""

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.records import concatenate
from data_pipeline.settings import DataSettings
from data_pipeline.sources.read import discover
from data_pipeline.stages import google_bert
from data_pipeline.vocabulary.files import load_vocabulary
from tests.factories.pairs import rows

WORDS = [f"w{n}" for n in range(40)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_like(tmp_path_factory.mktemp("vocabulary"), WORDS)


def load_like(folder, words):
    path = folder / "vocab.words"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    return load_vocabulary(str(path))


def read(tmp_path, vocabulary, *contents):
    """The documents that are read from files of these bytes: a list of words for each sentence."""
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    files = discover(DataSettings(sources=[str(tmp_path / "*.txt")]))
    spool = tmp_path / "spool"
    spool.mkdir()
    text = google_bert.read_corpus(files, vocabulary, spool)
    sentences = [
        " ".join(vocabulary.tokens[i] for i in ids) for ids in rows(text.tokens, text.sentence_starts)
    ]
    return [sentences[a:b] for a, b in zip(text.document_starts[:-1], text.document_starts[1:], strict=True)]


def test_blank_lines_separate_documents_and_files_do_not(tmp_path, vocabulary):
    found = read(tmp_path, vocabulary, b"w1 w2\nw3\n\n\nw4\n", b"w5\n \t\r\nw6", b"w7\n\n")
    assert found == [["w1 w2", "w3"], ["w4", "w5"], ["w6", "w7"]]


def test_lines_end_at_line_feeds_only_and_bad_bytes_vanish(tmp_path, vocabulary):
    text = "w1\rw2\u2028w3 w4\r\n".encode() + b"\xffw\xfe5 w6\xe2\x82\n\xff\nw7\n"
    assert read(tmp_path, vocabulary, text) == [["w1 w2 w3 w4", "w5 w6"], ["w7"]]


def test_sentences_and_documents_without_a_token_are_dropped(tmp_path, vocabulary):
    found = read(tmp_path, vocabulary, b"w1\n\x01\nw2\n\n\x02\n\x03\n\nw3\n")
    assert found == [["w1", "w2"], ["w3"]]


def test_words_are_unknown_beyond_200_characters(tmp_path, vocabulary):
    piece = "x" * 99
    wide = load_like(tmp_path, [*WORDS, "##" + piece])
    found = read(tmp_path, wide, f"w1{piece}{piece}\nw10{piece}{piece}\n".encode())
    assert found == [[f"w1 ##{piece} ##{piece}", "[UNK]"]]


def test_where_the_reader_pauses_leaves_no_trace(tmp_path, vocabulary, monkeypatch):
    content = b"w1\nw2\n\n\nw3\n\x01\n\nw4\nw5 w6\nw7\n\nw8\n"
    whole = read(tmp_path, vocabulary, content)
    for characters in (1, 4, 7):
        monkeypatch.setattr(google_bert, "READ_CHARACTERS", characters)
        folder = tmp_path / str(characters)
        folder.mkdir()
        assert read(folder, vocabulary, content) == whole


# -- instances ----------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path):
    """Settings for a text of 60 documents."""
    generator = np.random.default_rng(1)
    with open(tmp_path / "book.txt", "w") as out:
        for _ in range(60):
            for _ in range(generator.integers(1, 12)):
                out.write(" ".join(generator.choice(WORDS, generator.integers(1, 15))) + "\n")
            out.write("\n")
    return DataSettings(sources=[str(tmp_path / "book.txt")], mode="exact", sequence_length=24, dupe_factor=3)


def instances(settings, vocabulary, folder):
    return list(google_bert.exact_examples(discover(settings), vocabulary, settings, folder))


def test_neither_blocks_nor_buffers_change_the_instances(book, vocabulary, tmp_path, monkeypatch):
    whole = concatenate(instances(book, vocabulary, tmp_path))
    book.block_examples = 11
    monkeypatch.setattr(google_bert, "BUFFER_TOKENS", 256)
    assert concatenate(instances(book, vocabulary, tmp_path)) == whole


def test_each_pass_makes_other_pairs_and_all_are_shuffled(book, vocabulary, tmp_path):
    made = concatenate(instances(book, vocabulary, tmp_path))
    book.dupe_factor = 1
    once = concatenate(instances(book, vocabulary, tmp_path))
    assert len(made) > 2.5 * len(once)
    assert len({row.tobytes() for row in rows(made.tokens, made.offsets)}) > 2.5 * len(once)


def test_one_document_pairs_with_itself_as_in_the_script(vocabulary, tmp_path):
    (tmp_path / "one.txt").write_text("w1 w2\nw3 w4\n")
    settings = DataSettings(sources=[str(tmp_path / "one.txt")], mode="exact", sequence_length=16)
    made = concatenate(instances(settings, vocabulary, tmp_path))
    assert len(made) > 0


def test_temporary_files_are_deleted_even_when_the_reader_stops(book, vocabulary, tmp_path):
    (tmp_path / "exact.partial").mkdir()
    (tmp_path / "exact.partial" / "left by a killed run").touch()
    made = google_bert.exact_examples(discover(book), vocabulary, book, tmp_path)
    first = next(made)
    assert (tmp_path / "exact.partial").is_dir()
    assert not (tmp_path / "exact.partial" / "left by a killed run").exists()
    made.close()
    assert not (tmp_path / "exact.partial").exists()
    assert len(first) > 0
    assert not isinstance(first.tokens, np.memmap)


def test_what_it_cannot_honour_is_refused(book, vocabulary, tmp_path):
    (tmp_path / "book.jsonl").write_text('{"text": "w1"}\n')
    with pytest.raises(UserError, match=r"book\.jsonl.*plain text"):
        instances(DataSettings(sources=[str(tmp_path / "book.jsonl")]), vocabulary, tmp_path)
    (tmp_path / "blank.txt").write_text("\n\x01\n\n")
    with pytest.raises(UserError, match="no sentence found"):
        instances(DataSettings(sources=[str(tmp_path / "blank.txt")]), vocabulary, tmp_path)
    assert not (tmp_path / "exact.partial").exists()

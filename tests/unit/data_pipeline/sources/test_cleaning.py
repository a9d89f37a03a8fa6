"""The stated rules for bad text: what is replaced, removed, refused and counted."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from data_pipeline.sources.cleaning import Counts, check_encoding, clean, decode


@given(st.text(st.characters()))
def test_clean_does_what_the_rules_say_character_by_character(text):
    plain = text.replace("\r\n", "\n").replace("\r", " ")
    kept = ["\ufffd" if "\ud800" <= c <= "\udfff" else c for c in plain]
    kept = [c for c in kept if c in "\t\n" or unicodedata.category(c) != "Cc"]
    counts = Counts()
    assert clean(text, counts) == "".join(kept)
    assert counts.control_characters == len(plain) - len(kept)
    assert counts.invalid_characters == sum("\ud800" <= c <= "\udfff" for c in plain)


def test_clean_handles_surrogates():
    counts = Counts()
    assert clean("a\ud800\udc00b\x00", counts) == "a\ufffd\ufffdb"
    assert counts == Counts(invalid_characters=2, control_characters=1)


@given(st.binary())
def test_decode_never_fails_and_counts_only_what_was_invalid(raw):
    counts = Counts()
    assert decode(raw, counts) == raw.decode("utf-8", "replace")
    assert (counts.invalid_characters == 0) == (raw == raw.decode("utf-8", "ignore").encode())


def test_a_replacement_character_in_the_text_is_no_error():
    counts = Counts()
    assert decode("a\ufffdb".encode() + b"\xff", counts) == "a\ufffdb\ufffd"
    assert counts.invalid_characters == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings_are_refused(encoding):
    with pytest.raises(UserError, match=r"a\.txt: the text is not UTF-8"):
        check_encoding("Some plain text in another encoding.".encode(encoding), "a.txt")


@pytest.mark.parametrize("head", [b"", b"\x00", b"plain", b"a\x00b\x00c plain text from here on", bytes(100)])
def test_nuls_alone_make_no_other_encoding(head):
    check_encoding(head, "a.txt")


def test_counts_add_up_in_any_order():
    a, b = Counts(bytes=1, tokens=5), Counts(bytes=2, documents=1)
    assert a + b == b + a == Counts(bytes=3, documents=1, tokens=5)
    assert (a + b).as_dict()["bytes"] == 3

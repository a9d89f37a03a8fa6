"""Words of thousands of characters: a vocabulary is learnt in seconds, and what was cut is said."""

import base64
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from data_pipeline.errors import UserError
from data_pipeline.prepare import prepare
from data_pipeline.records import Document
from data_pipeline.settings import VocabularySettings
from data_pipeline.vocabulary.train import LONGEST_WORD, _cut_words, learn_vocabulary, train_vocabulary
from tests.command_line import Maskmill
from tests.factories.preparations import settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")

KINDS = ("wordpiece", "bpe", "unigram")
PLAIN = "Hello world, this is a text of ordinary words. It has two sentences."


def _base64(characters: int) -> str:
    return base64.b64encode(random.Random(1).randbytes(characters)).decode()[:characters]


def _chinese(characters: int) -> str:
    draw = random.Random(1)
    return "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(characters))


WORDS: dict[str, Callable[[int], str]] = {
    "base64": _base64,
    "one letter": lambda n: "a" * n,
    "dna": lambda n: "".join(random.Random(1).choices("ACGT", k=n)),
    "chinese": _chinese,
    "marks": lambda n: "e\u0301" * (n // 2),
    "digits": lambda n: "".join(random.Random(1).choices("0123456789", k=n)),
    "nothing to see": lambda n: "\u200b" * n,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WORDS)
def test_a_long_word_takes_seconds_and_is_counted(kind: str, name: str) -> None:
    long = WORDS[name](60_000)
    said: list[str] = []
    started = time.process_time()
    documents = [Document("0", f"{PLAIN}\n\n{long}\n\n{PLAIN}")]
    found = train_vocabulary(documents, VocabularySettings(kind=kind, size=8000), said.append)
    assert time.process_time() - started < 20
    assert said == [
        f"warning: 1 word of more than 1,000 characters, the longest of {len(long):,}, was cut: base64, sequences of "
        "letters, or text without spaces"
    ]
    assert found.unk not in found.tokenizer.encode("hello world", add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_text_beside_a_long_word_learns_its_words(kind: str) -> None:
    words = [f"{a}{b}" for a in ("sea", "wind", "stone", "river") for b in ("side", "ward", "bank", "fall")]
    draw, said = random.Random(1), list[str]()
    text = " ".join(draw.choice(words) for _ in range(3000))
    settings = VocabularySettings(kind=kind, size=400)
    alone = train_vocabulary([Document("0", text)], settings, said.append)
    assert said == []
    with_long = train_vocabulary([Document("0", text), Document("1", "acgt" * 5000)], settings, said.append)
    assert len(said) == 1
    for word in words:
        ids = [v.tokenizer.encode(word, add_special_tokens=False).ids for v in (alone, with_long)]
        assert len(ids[1]) <= len(ids[0]) + 1


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\r", " \n \t"])
@pytest.mark.parametrize("character", ["x", "é", "字", "😀"])
def test_words_are_cut_at_characters_and_nothing_is_lost(space: str, character: str) -> None:
    draw = random.Random(1)
    lengths = [1, 999, 1000, 1001, 2000, 2001, 5, 12_345, *(draw.randrange(1, 1500) for _ in range(50))]
    for first in ("", space):
        for last in ("", space):
            words = [character * n for n in lengths]
            text = first + space.join(words) + last
            long: list[int] = []
            cut = _cut_words(text.encode(), long).decode()
            assert long == [n for n in lengths if n > LONGEST_WORD]
            assert max(map(len, cut.split())) == LONGEST_WORD
            assert cut.replace("\n", "") == text.replace("\n", "")
            assert len(cut) - len(text) == sum((n - 1) // LONGEST_WORD for n in long)
    assert _cut_words(b"", []) == b""


@pytest.mark.parametrize("character", ["x", "é", "字", "😀"])
def test_text_without_long_words_stays_as_it_is(character: str) -> None:
    for text in (
        PLAIN * 100,
        f"{character * 1000} " * 50,
        f"\n{character * 1000}\t{character * 999}",
        character * 1000,
    ):
        data, long = text.encode(), list[int]()
        assert _cut_words(data, long) is data
        assert not long


class PanicException(BaseException):
    """As Rust's libraries raise where they panic: known by its name."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error", [RuntimeError("Internal: [check]\nmore"), PanicException("index out of bounds"), ValueError()]
)
def test_an_error_of_a_library_is_one_line(
    kind: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", fails)

    monkeypatch.setattr("data_pipeline.vocabulary.train.Tokenizer", _failing_tokenizer(fails))
    with pytest.raises(
        UserError, match=r"data\.sources: (the tokenizers library|SentencePiece) cannot learn"
    ) as caught:
        train_vocabulary([Document("0", PLAIN * 9)], VocabularySettings(kind=kind, size=300))
    assert "\n" not in str(caught.value)
    assert (str(error).split("\n")[0] or "ValueError") in str(caught.value)
    for other in (KeyboardInterrupt(), MemoryError()):
        error = other
        with pytest.raises(type(other)):
            train_vocabulary([Document("0", PLAIN * 9)], VocabularySettings(kind=kind, size=300))


def _failing_tokenizer(fails: Callable[..., None]) -> type:
    class Failing:
        """The library's tokenizer, whose training fails."""

        def __init__(self, *_: object) -> None:
            pass

        @staticmethod
        def from_str(_text: str) -> "Failing":
            return Failing()

        train_from_iterator = staticmethod(fails)

    return Failing


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_says_what_it_cut(kind: str, tmp_path: Path, maskmill: Maskmill) -> None:
    (tmp_path / "a.txt").write_text(f"{PLAIN}\n\n{_base64(30_000)}\n\n{PLAIN}\n")
    own = [f"data.sources=[{tmp_path}/a.txt]", f"data.vocab={tmp_path}/vocab", f"vocabulary.kind={kind}"]
    said = maskmill("vocab", "demo", *own, "vocabulary.size=2000").stdout
    assert "warning: 1 word of more than 1,000 characters, the longest of 30,000, was cut" in said.replace(
        "\n", " "
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sentences", ["split", "lines"])
def test_long_words_are_prepared_in_seconds(kind: str, sentences: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    long = " ".join(make(5000 if name == "chinese" else 40_000) for name, make in WORDS.items())
    (tmp_path / "corpus/a.txt").write_text(f"{PLAIN}\n\n" * 500)
    settings = settings_for(tmp_path, tmp_path / "out", held_out=0.0, sentences=sentences)
    learn_vocabulary(settings, VocabularySettings(kind=kind, size=300), silent)
    (tmp_path / "corpus/a.txt").write_text(f"{PLAIN * 20}\n\n{long}\n\n" + f"{PLAIN}\n\n" * 2000)
    started = time.process_time()
    index, _ = prepare(settings, silent)
    assert time.process_time() - started < 20
    assert index.train.examples

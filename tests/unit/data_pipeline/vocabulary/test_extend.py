"""New words of an existing vocabulary: chosen by what they save, one piece each, with every old id kept."""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.records import Document
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.extend import NEW_WORDS, extend_vocabulary
from data_pipeline.vocabulary.files import load_vocabulary, parse_tokenizer_json, save_vocabulary
from data_pipeline.vocabulary.new_words import NewWord, WordCounts, choose, measure, old_pieces
from data_pipeline.vocabulary.train import ONLY_EXTENDING, VOCABULARY_LOG, learn_vocabulary
from data_pipeline.vocabulary.unigram import best_score
from tests.factories.vocabularies import SAMPLE, trained

KINDS = ("wordpiece", "bpe", "unigram")
SPECIALIST = (
    "Nephrology saw glomerulonephritis, nephropathy; glomerulonephritis (dialysis) and “nephrology”! "
    "Dialysis for naïveté in Straßenbahnen: nephrology. क्षेत्रीय क्षेत्रीय nephrology-dialysis 12345678 12345678 "
)
WORDS = {
    "nephrology", "glomerulonephritis", "nephropathy", "dialysis", "naïveté", "Straßenbahnen", "Nephrology",
    "Dialysis",
}  # fmt: skip


def counts(text: str) -> WordCounts:
    return WordCounts.of([Document("0", text)])


def chosen_of(old: Vocabulary, text: str, **settings: int | float) -> list[NewWord]:
    return choose(counts(text), old, VocabularySettings(**{"min_frequency": 1, **settings}))


def extended_by(old: Vocabulary, text: str) -> Vocabulary:
    return old.extended([word.piece for word in chosen_of(old, text)])


def pieces_of(vocabulary: Vocabulary, text: str) -> list[str]:
    return [vocabulary.tokens[i] for i in WordCache(vocabulary).encode([text])[0]]


def bare(piece: str) -> str:
    return piece.removeprefix("Ġ").removeprefix("▁")


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_word_is_one_piece_and_old_ids_stay(kind: str, lowercase: bool) -> None:
    old = trained(kind, lowercase)
    extended = extended_by(old, SPECIALIST)
    assert extended.tokens[: old.size] == old.tokens
    assert extended.specials == old.specials
    assert (extended.mask, extended.unk) == (old.mask, old.unk)
    for text in (
        "nephrology",
        "a nephrology, b",
        "NEPHROLOGY" if lowercase else "nephrology.",
        "a\tnephrology;",
    ):
        assert "nephrology" in map(bare, pieces_of(extended, text)), text
    for word in chosen_of(old, SPECIALIST):
        assert len(extended.tokenizer.model.tokenize(word.piece)) == 1
        assert word.cut_into > 1
    assert len(set(extended.tokens)) == extended.size
    assert not extended.continuation[[extended.ids[w.piece] for w in chosen_of(old, SPECIALIST)]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_word_cache_gives_the_librarys_ids(kind: str) -> None:
    extended = extended_by(trained(kind, False), SPECIALIST)
    sentences = [
        *SAMPLE.read_text("utf-8").split("\n")[:30],
        SPECIALIST,
        "nephrologynephrology xnephrology nephrologyx ☃nephrology☃ \U0010ffff nephro\u0301logy",
        f"{extended.specials.mask} nephrology [UNK] <unk>",
    ]
    library = [
        extended.tokenizer.encode(extended.cuts.before + s, add_special_tokens=False).ids for s in sentences
    ]
    ids, lengths = WordCache(extended).encode(sentences)
    assert ids.tolist() == [i for sentence in library for i in sentence]
    assert lengths.tolist() == list(map(len, library))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_extension_loads_equal_and_can_be_extended_again(kind: str, tmp_path: Path) -> None:
    extended = extended_by(trained(kind), SPECIALIST)
    save_vocabulary(extended, tmp_path)
    again = load_vocabulary(tmp_path)
    assert again.json == extended.json
    assert parse_tokenizer_json(again.json, "").sha256 == extended.sha256
    more = extended_by(again, "dermatology dermatology cardiologist")
    assert more.tokens[: again.size] == again.tokens
    assert {"dermatology", "cardiologist"} <= {bare(token) for token in more.tokens[again.size :]}
    assert chosen_of(more, SPECIALIST) == [], "what is one piece is not new"


def test_those_that_save_most_are_chosen() -> None:
    old = trained("wordpiece")
    found = chosen_of(old, SPECIALIST)
    saved = [(-word.saved, word.piece) for word in found]
    assert saved == sorted(saved)
    assert found[0] == NewWord("nephrology", 4, len(old.tokenizer.model.tokenize("nephrology")))
    assert {word.piece for word in found} >= {
        word.lower().replace("ï", "i").replace("é", "e") for word in WORDS
    }
    assert not any("12345678" in word.piece for word in found), "a number is no word"
    assert chosen_of(old, SPECIALIST, new_words=2) == found[:2]
    assert {w.piece for w in chosen_of(old, SPECIALIST, min_frequency=4)} == {"nephrology"}
    words = counts(SPECIALIST).total
    least = found[1].saved * 1_000_000 / words
    assert chosen_of(old, SPECIALIST, min_gain=least) == [w for w in found if w.saved >= found[1].saved]


def test_the_order_of_the_text_is_irrelevant() -> None:
    old, words = trained("unigram"), SPECIALIST.split()
    documents = [
        Document(str(i), f"{a} {b}") for i, (a, b) in enumerate(zip(words, words[::-1], strict=True))
    ]
    settings = VocabularySettings(min_frequency=1)
    for order in (documents, documents[::-1]):
        assert choose(WordCounts.of(order), old, settings) == choose(WordCounts.of(documents), old, settings)


def test_a_word_with_an_unknown_character_counts_as_its_characters() -> None:
    old = trained("wordpiece", False)
    [word] = chosen_of(old, "β-xβ")
    assert (word.piece, word.cut_into) == ("xβ", 2)
    extended = extended_by(old, "β-xβ")
    assert pieces_of(extended, "xβ") == ["xβ"]
    assert old_pieces(old, extended)[-1] == []


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_words_of_unknown_characters_have_no_old_pieces(kind: str, tmp_path: Path) -> None:
    old, words = trained(kind, False), ("스프레드시트", "저장하기")
    assert {c for word in words for c in word}.isdisjoint("".join(old.tokens))
    (tmp_path / "text.txt").write_text("스프레드시트 스프레드시트 저장하기 dialysis\n", "utf-8")
    data = DataSettings(sources=[str(tmp_path / "text.txt")], vocab=str(tmp_path / "vocabulary"))
    facts, _ = extend_vocabulary(data, VocabularySettings(min_frequency=1), old, stage)
    found = {entry["word"]: entry for entry in facts["entries"]}
    assert [found[word]["old_ids"] for word in words] == [[], []]
    assert len(found["dialysis"]["old_ids"]) > 1
    tokens = len(WordCache(old).encode([words[0]])[0])
    assert found[words[0]]["saved_per_thousand_words"] == 1000 * 2 * (tokens - 1) / 4, "[UNK] is a token"
    saved = sum(entry["saved_per_thousand_words"] for entry in found.values())
    text = facts["text"]
    assert 1000 * (text["tokens_before"] - text["tokens_after"]) / text["words"] == saved


@pytest.mark.parametrize("kind", KINDS)
def test_old_pieces_are_those_of_the_text_of_a_new_entry(kind: str) -> None:
    old = trained(kind, False)
    extended = extended_by(old, SPECIALIST)
    found = dict(zip(extended.tokens[old.size :], old_pieces(old, extended), strict=True))
    for word in ("nephrology", "glomerulonephritis"):
        [piece] = [piece for piece in found if bare(piece) == word]
        assert found[piece] == WordCache(old).encode([word])[0].tolist()
    assert all(0 <= i < old.size for pieces in found.values() for i in pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_savings_are_what_the_text_shows(kind: str) -> None:
    old = trained(kind, False)
    words = chosen_of(old, SPECIALIST + SAMPLE.read_text("utf-8"), new_words=3)
    extended = old.extended([word.piece for word in words])
    lines = [SPECIALIST, *SAMPLE.read_text("utf-8").split("\n")]
    found = measure(counts("\n".join(lines)), words, old, extended)
    assert found.words == sum(len(line.split()) for line in lines)
    assert found.tokens_before == len(WordCache(old).encode(lines)[0])
    assert found.tokens_after == len(WordCache(extended).encode(lines)[0])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_without_new_words_keeps_its_pieces(kind: str) -> None:
    """Of byte-level BPE, where no word begins with the two pieces that a new word begins with."""
    old = trained(kind, False)
    new = [word.piece for word in chosen_of(old, SPECIALIST)]
    extended = old.extended(new)
    first = {tuple(token.id for token in old.tokenizer.model.tokenize(piece)[:2]) for piece in new}
    words = sorted(set(SAMPLE.read_text("utf-8").split()) - set(map(bare, new)))
    (then, sizes), (now, sizes_now) = WordCache(old).encode(words), WordCache(extended).encode(words)
    kept = 0
    for before, after in zip(
        np.split(then, sizes.cumsum()[:-1]), np.split(now, sizes_now.cumsum()[:-1]), strict=True
    ):
        if kind == "unigram" or tuple(before[:2]) not in first:
            assert after.tolist() == before.tolist()
            kept += 1
        assert len(after) <= len(before)
    assert kept > 0.9 * len(words)


def test_a_longer_word_of_wordpiece_is_cut_behind_a_new_one() -> None:
    old = trained("wordpiece", False)
    extended = old.extended(["nephro"])
    assert pieces_of(extended, "nephron") == ["nephro", "##n"]
    found = measure(counts("nephron nephro the"), [NewWord("nephro", 1, 5)], old, extended)
    assert found.cut_otherwise == 1


def test_the_best_score_is_that_of_the_library() -> None:
    old = trained("unigram", False)
    scores = dict(zip(old.tokens, old.scores, strict=True))  # type: ignore[attr-defined]
    unknown = min(scores.values()) - 10
    for word in ("▁nephrology", "▁the", "▁glomerulonephritis", "▁x\U0010ffffy"):
        pieces = [token.value for token in old.tokenizer.model.tokenize(word)]
        total = sum(scores.get(p, unknown) for p in pieces)
        assert best_score(word, scores, unknown) == pytest.approx(total)


def settings_for(folder: Path) -> DataSettings:
    (folder / "text.txt").write_text(SPECIALIST * 3)
    return DataSettings(sources=[str(folder / "text.txt")], vocab=str(folder / "vocabulary"))


def stage(name: str, total: int) -> nullcontext:
    return nullcontext(lambda _: None)


def test_an_extension_is_written_once(tmp_path: Path) -> None:
    old, data, chosen = trained("bpe"), settings_for(tmp_path), VocabularySettings(new_words=4)
    facts, fresh = extend_vocabulary(data, chosen, old, stage)
    assert fresh
    there = load_vocabulary(data.vocab)
    assert json.loads((tmp_path / "vocabulary" / NEW_WORDS).read_bytes()) == facts
    assert facts["extends"] == {"sha256": old.sha256, "size": old.size}
    assert (facts["sha256"], facts["size"]) == (there.sha256, there.size)
    assert [entry["id"] for entry in facts["entries"]] == [*range(old.size, there.size)]
    assert [entry["old_ids"] for entry in facts["entries"]] == old_pieces(old, there)
    assert Counter("word" in entry for entry in facts["entries"])[True] == 4
    assert extend_vocabulary(data, chosen, old, stage) == (facts, False)
    for settings, vocabulary in ((replace(chosen, new_words=5), old), (chosen, trained("bpe", True))):
        with pytest.raises(UserError, match="holds another vocabulary"):
            extend_vocabulary(data, settings, vocabulary, stage)
    with pytest.raises(UserError, match="holds another vocabulary"):
        learn_vocabulary(data, VocabularySettings(size=400), stage)
    assert load_vocabulary(data.vocab).sha256 == there.sha256


def test_a_text_without_new_words_is_refused(tmp_path: Path) -> None:
    data = settings_for(tmp_path)
    with pytest.raises(UserError, match="of 57 words none is worth an entry") as caught:
        extend_vocabulary(
            data, VocabularySettings(min_gain=1e6, min_frequency=20), trained("wordpiece"), stage
        )
    assert "vocabulary.min_gain" in str(caught.value)
    assert not (tmp_path / "vocabulary").exists()


def test_settings_of_an_extension_are_no_part_of_a_trained_vocabulary(tmp_path: Path) -> None:
    data = settings_for(tmp_path)
    _, fresh = learn_vocabulary(data, VocabularySettings(size=100), stage)
    assert fresh
    log = json.loads((tmp_path / "vocabulary" / VOCABULARY_LOG).read_bytes())
    assert not {f"vocabulary.{name}" for name in ONLY_EXTENDING} & log["made_from"].keys()
    _, fresh = learn_vocabulary(data, VocabularySettings(size=100, new_words=7), stage)
    assert not fresh

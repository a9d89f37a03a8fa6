"""Documents -> sentences: both rules, abbreviations and dialogue, text without an end, nasty white space."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_pipeline.records import Document
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts
from data_pipeline.tokenize import sentences
from data_pipeline.tokenize.sentences import LONGEST, split
from tests.linear_time import is_linear

RUNNING, LINES = DataSettings(sentences="split"), DataSettings(sentences="lines")


def cut(text, rule=RUNNING):
    return list(split(Document("a", text), rule, Counts()).sentences)


def letters(text):
    return "".join(text.split())


def test_each_line_is_a_sentence_unchanged():
    counts = Counts()
    found = split(
        Document("a:1", " One. Two. \n\n \t\n\u00a0\nThree\u2028four\n" + "x" * 20_000), LINES, counts
    )
    assert found.id == "a:1"
    assert list(found.sentences) == ["One. Two.", "Three\u2028four", "x" * 20_000]
    assert counts.sentences == 3


@pytest.mark.parametrize(
    "sentences",
    [
        [
            "Mr. Smith went to Washington, D.C. on Jan. 5th.",
            "He met Dr. J. R. Jones, Ph.D., at 5 p.m.",
            "It rained.",
        ],
        ['"Are you sure?" he asked.', '"Yes!" she cried; "quite sure."', "Then they left."],
        ["“Why?” asked Tom.", "“Because.”", "\u2018No.\u2019", "It cost $3.50.", "Bye."],
        ["The U.S. is big.", "See Fig. 3.", "She paused...", "What?!", "Really."],
    ],
)
def test_abbreviations_and_dialogue(sentences):
    assert cut(" ".join(sentences)) == sentences
    assert cut("\n".join(sentences)) == sentences


def test_a_blank_line_ends_a_sentence_and_a_line_feed_is_a_space():
    assert cut("A title\n\nIt was Mr.\nSmith, and he\nleft\n \t \nfor good. Yes.") == [
        "A title",
        "It was Mr. Smith, and he left",
        "for good.",
        "Yes.",
    ]


@pytest.mark.parametrize("space", sentences._WIDE_SPACES)
def test_white_space_that_the_splitter_panics_at(space):
    assert cut(f"Plan B{space}. One{space}two. Three.") == ["Plan B .", "One two.", "Three."]


NASTY = st.text(
    st.one_of(
        st.sampled_from("aA. !?\n\n\"'“”()1,字か。\u0301\u200d\u2028\u00a0\u3000\x85\x00"), st.characters()
    )
)


@given(NASTY, st.sampled_from([RUNNING, LINES]))
@example("A\u3000.", RUNNING)
@settings(deadline=None)
def test_no_character_is_lost_and_no_sentence_is_empty(text, rule):
    text = text.encode("utf-8", "replace").decode()
    found = cut(text, rule)
    assert letters("".join(found)) == letters(text)
    assert all(s == s.strip() != "" for s in found)


@given(
    st.lists(st.sampled_from(["word ", "end. ", "字。", "字", "“x. ", "\n", "\n\n", "Mr. "]), max_size=300)
)
@settings(deadline=None)
def test_windows_and_groups_lose_nothing(parts):
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "LONGEST", 40)
        patch.setattr(sentences, "GROUP", 200)
        found = cut(text)
    assert letters("".join(found)) == letters(text)
    assert all(len(s) <= 40 for s in found)


@given(
    parts=st.lists(
        st.sampled_from(
            [
                "word ",
                "end. ",
                "字。",
                "“x. ",
                "\n",
                "\n\n",
                "Mr. ",
                " ",
                " \n",
                "\u3000",
                "x" * 30,
                " " * 150,
            ]
        ),
        max_size=120,
    ),
    rule=st.sampled_from([RUNNING, LINES]),
    longest=st.sampled_from([20, 37]),
)
@example(["x" * 30, " " * 150, " \n", "\n\n", " ", "end. ", "word "], RUNNING, 20)
@example(["x" * 30, "\n\n", "   ", "word " * 8], RUNNING, 20)
@example(["a" * 9, "\n\n", "word word word word.", "\n\n", "end"], RUNNING, 20)
@settings(deadline=None, max_examples=200)
def test_how_much_is_split_at_once_changes_nothing(parts, rule, longest):
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "LONGEST", longest)
        patch.setattr(sentences, "LONGEST_LINE", longest)
        together = cut(text, rule)
        patch.setattr(sentences, "GROUP", 30)
        assert cut(text, rule) == together


def test_a_long_line_is_cut_at_a_space(monkeypatch):
    monkeypatch.setattr(sentences, "LONGEST_LINE", 10)
    assert cut("aaaa bbbb cccc\n" + "d" * 25, LINES) == ["aaaa bbbb", "cccc", "d" * 10, "d" * 10, "d" * 5]


def test_groups_are_cut_at_blank_lines_only(monkeypatch):
    text = "\n\n".join(f"Paragraph {i} has one sentence. It has two." for i in range(500))
    whole = cut(text)
    assert len(whole) == 1000
    monkeypatch.setattr(sentences, "GROUP", 300)
    assert cut(text) == whole


def test_a_long_paragraph_keeps_its_sentences():
    one = "This sentence, by Mr. Brown, is one of very many in its paragraph."
    assert cut(" ".join([one] * 1000)) == [one] * 1000


def test_text_without_an_end_is_cut_at_spaces():
    found = cut("word " * 2000 + "x" * (2 * LONGEST + 5))
    assert max(map(len, found)) <= LONGEST
    assert set(" ".join(found[:2]).split()) == {"word"}
    assert [len(s) for s in found[-3:]] == [LONGEST, LONGEST, 5]


@pytest.mark.parametrize("pattern", ["“x. ", '"a. ', "(a. ", "字。", "Mr. ", "x", "\n", " ", "A. "])
def test_splitting_takes_linear_time(pattern):
    assert is_linear(lambda size: cut(pattern * (size // len(pattern))))

"""Answers in texts: windows, targets and decoding, and scores as the official scripts of SQuAD count them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import Split
from pretrain.tasks.inputs import windows
from pretrain.tasks.questions import Answer, Question, best_over, best_threshold, exact, normalized, overlap
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import ENCODERS, encoder_folder
from tests.factories.tasks import write

TASK = FINE_TUNED["squad2"]
SENTENCE = (
    "the quick fox jumped over some lazy dogs, that slept all day in the U.S. and did not wake up at all "
)
TEXT = (SENTENCE * 6).strip()


def question(text: str, context: str = TEXT, occurrence: int = 0) -> Question:
    start = -1
    for _ in range(occurrence + 1):
        start = context.index(text, start + 1)
    return Question("1", "who slept?", context, (Answer(text, start),))


@pytest.mark.parametrize(
    ("gold", "predicted", "em", "f1"),
    [
        ("The U.S.", "us", 1, 1),
        ("a  fox", "the fox!", 1, 1),
        ("lazy dogs", "dogs", 0, 2 / 3),
        ("dogs dogs", "dogs", 0, 2 / 3),
        ("lazy dogs", "cats", 0, 0),
        ("", "", 1, 1),
        ("The", "a", 1, 1),
        ("dogs", "", 0, 0),
        ("“dogs”", "dogs", 0, 0),  # only ASCII punctuation is dropped
    ],
)
def test_answers_are_compared_as_in_the_official_script(
    gold: str, predicted: str, em: float, f1: float
) -> None:
    """Both scripts alike, but where nothing is left of both: 1.1's has no word in common then."""
    assert exact(gold, predicted) == em
    assert overlap(gold, predicted, may_be_none=True) == pytest.approx(f1)
    expected = f1 if normalized(gold) else 0
    assert overlap(gold, predicted, may_be_none=False) == pytest.approx(expected)


def test_the_best_of_several_answers_counts_each_metric_apart() -> None:
    for may_be_none in (False, True):
        assert best_over(["lazy dogs", "dogs"], "dogs", may_be_none) == (1, 1)
    assert best_over([], "", True) == (1, 1)
    assert normalized("A an THE  then") == "then"


@pytest.mark.parametrize(
    ("golds", "said", "first", "second"),
    [
        (["the"], "a", (1, 0), (1, 1)),  # nothing is left of both
        (["the"], "", (1, 0), (1, 1)),
        (["the", "dogs"], "a", (1, 0), (0, 0)),  # 2.0 leaves out an answer of which nothing is left
        (["the", "dogs"], "cats", (0, 0), (0, 0)),
        (["the", "lazy dogs"], "dogs", (0, 2 / 3), (0, 2 / 3)),
    ],
)
def test_answers_of_which_nothing_is_left_are_scored_as_each_script_does(
    golds: list[str], said: str, first: tuple[float, float], second: tuple[float, float]
) -> None:
    """By hand from evaluate-v1.1.py and evaluate-v2.0.py."""
    assert best_over(golds, said, may_be_none=False) == pytest.approx(first)
    assert best_over(golds, said, may_be_none=True) == pytest.approx(second)


def test_a_file_is_scored_as_2_0_where_a_question_has_no_answer() -> None:
    empty = Question("1", "?", "the dogs", (Answer("the", 0),))
    none = Question("2", "?", "the dogs", ())
    for items, f1 in (([empty], 0), ([empty, none], 100)):
        split = Split("dev", items)
        assert TASK.baseline(split, TaskData(split, (split,))) == {"exact": 100, "f1": f1}


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-5, 5), st.booleans()),
        min_size=1,
        max_size=12,
        unique_by=lambda row: row[1],
    )
)
@settings(max_examples=100, deadline=None)
def test_the_best_threshold_is_the_best_of_all(rows: list[tuple[float, float, bool]]) -> None:
    scores, odds, has = zip(*rows, strict=True)
    every = [sum((s if h else 0.0) if o <= t else float(not h) for s, o, h in rows) for t in [-np.inf, *odds]]
    assert best_threshold(scores, odds, has) == pytest.approx(100 * max(every) / len(rows))


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "causal"])
def test_windows_hold_the_whole_text_and_targets_the_answer(name: str) -> None:
    builder = Encoder(encoder_folder(name)).builder(48)
    parts = windows(builder, "who slept?", TEXT, 64, 16)
    assert len(parts) > 3
    assert all(len(window.input.ids) <= 48 for window in parts)
    texts = ("lazy dogs", "who slept?") if builder.left_padded else ("who slept?", "lazy dogs")
    pair = Encoder(encoder_folder(name)).builder(64).pair(*texts)
    short = windows(builder, "who slept?", "lazy dogs", 64, 16)
    assert [(one.input.ids, one.input.segments) for one in short] == [(pair.ids, pair.segments)]
    covered = {i for window in parts for span in window.spans if span for i in range(*span)}
    assert covered == {i for i, character in enumerate(TEXT) if character != " "}
    widest = [
        span
        for one in parts
        for span, is_widest in zip(one.spans, one.is_widest, strict=True)
        if span and is_widest
    ]
    assert sorted(widest) == sorted({span for one in parts for span in one.spans if span}), (
        "in one window each"
    )
    found = 0
    for feature in TASK.features([question("lazy dogs", occurrence=3)], builder, None):  # type: ignore[arg-type]
        _, window = feature.extra
        start, end = feature.targets["start_positions"], feature.targets["end_positions"]
        assert window.input.ids[window.cls] == builder.tokenizer.cls_token_id
        if start == window.cls:
            assert end == window.cls
        else:
            assert TEXT[window.spans[start][0] : window.spans[end][1]] == "lazy dogs"
            found += 1
    assert found >= 1


def planted(item: Question, wanted: tuple[int, int], null: float = -3.0) -> dict[str, float]:
    """Score a model whose logits point to these characters, and to no answer with a sum of `null`."""
    builder = Encoder(encoder_folder("bert")).builder(48)
    features = TASK.features([item], builder, None)  # type: ignore[arg-type]
    answers = []
    for feature in features:
        _, window = feature.extra
        logits = np.full((len(window.spans), 2), -9.0)
        logits[window.cls] = null / 2
        for place, span in enumerate(window.spans):
            if span and window.is_widest[place]:
                logits[place, 0] += 10 * (span[0] == wanted[0])
            if span:
                logits[place, 1] += 10 * (span[1] == wanted[1])
        answers.append(logits)
    split = Split("dev", [item])
    return TASK.score(ModelAnswers([item], features, answers, TaskData(split, (split,))))


def test_the_likeliest_answer_of_all_windows_is_given() -> None:
    item = question("slept", occurrence=4)
    start = item.answers[0].start
    assert planted(item, (start, start + 5)) == {"f1": 100, "exact": 100}
    assert planted(item, (4, 9))["exact"] == 0


def test_an_answer_is_neither_longer_than_thirty_tokens_nor_backwards() -> None:
    item = question("slept", occurrence=4)
    start = item.answers[0].start
    assert planted(item, (start, start - 8))["f1"] == 0
    assert planted(item, (0, TEXT.index("slept", start)))["f1"] < 50


def test_no_answer_is_given_where_that_is_likelier() -> None:
    none = Question("1", "who slept?", TEXT, ())
    assert planted(none, (4, 9), null=9.0) == {"f1": 100, "exact": 100, "best_exact": 100, "best_f1": 100}
    said = planted(none, (4, 9), null=-9.0)
    assert (said["f1"], said["best_f1"]) == (0, 100)


def test_texts_not_questions_are_divided(tmp_path: Path) -> None:
    paragraphs = [
        {
            "context": f"{TEXT} {i}",
            "qas": [
                {"id": f"{i} {j}", "question": "?", "answers": [{"text": "fox", "answer_start": 10}]}
                for j in range(3)
            ],
        }
        for i in range(10)
    ]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    task = FINE_TUNED["questions"]
    data = task.read(tmp_path, EvaluationSettings(carve=0.5))
    texts = [{item.context for item in split.items} for split in (data.train, data.scored[0])]
    assert [len(data.train.items), len(data.scored[0].items)] == [15, 15]
    assert not texts[0] & texts[1]
    with pytest.raises(UserError, match=r"carve=0\.5"):
        task.read(tmp_path, EvaluationSettings())


def content(count: int, **more: object) -> list[str]:
    qas = [
        {"id": str(i), "question": "?", "answers": [{"text": "fox", "answer_start": 10}]}
        for i in range(count)
    ]
    paragraphs = [{"context": f"{TEXT} {i}", "qas": [one]} for i, one in enumerate(qas)]
    return [json.dumps({"data": [{"paragraphs": paragraphs}], **more})]


def test_a_single_file_is_the_dev_file_whatever_its_name(tmp_path: Path) -> None:
    """As COVID-QA's covidqa_200423.json, or XQuAD's of one language."""
    task, folder = (
        FINE_TUNED["questions"],
        write(tmp_path / "task", {"xquad.en.json": content(4, version="1.1")}),
    )
    scored = task.read(folder, EvaluationSettings(epochs=0))
    assert (len(scored.train.items), [(s.name, len(s.items)) for s in scored.scored]) == (0, [("dev", 4)])
    assert scored.notes == ("dev is xquad.en.json",)
    assert scored.version == "1.1"
    assert scored.files.keys() == {"xquad.en.json"}
    data = task.read(folder, EvaluationSettings(carve=0.5))
    assert [len(split.items) for split in (data.train, *data.scored)] == [2, 2]
    with pytest.raises(UserError, match=r"carve=0\.5"):
        task.read(folder, EvaluationSettings())
    write(folder, {"train.json": content(3)})
    data = task.read(folder, EvaluationSettings())
    assert [len(split.items) for split in (data.train, *data.scored)] == [3, 4]
    write(folder, {"dev.json": content(5)})
    assert [len(split.items) for split in task.read(folder, EvaluationSettings()).scored] == [5]
    other = write(tmp_path / "other", {"xquad.en.json": content(4)})
    with pytest.raises(UserError, match=r"has no files dev-v1\.1\.json"):
        FINE_TUNED["squad1"].read(other, EvaluationSettings(epochs=0))


def test_files_of_several_languages_are_scored_each(tmp_path: Path) -> None:
    task = FINE_TUNED["questions"]
    folder = write(tmp_path / "task", {"xquad.en.json": content(4), "xquad.de.json": content(5)})
    data = task.read(folder, EvaluationSettings(epochs=0))
    assert [(split.name, len(split.items)) for split in data.scored] == [("xquad.de", 5), ("xquad.en", 4)]
    message = r"has no train\*\.json, and 2 files to score: xquad\.de\.json, xquad\.en\.json .*epochs=0"
    with pytest.raises(UserError, match=message):
        task.read(folder, EvaluationSettings(carve=0.5))
    write(folder, {"train-v1.1.json": content(3)})
    assert len(task.read(folder, EvaluationSettings()).train.items) == 3


def test_an_answer_that_is_not_in_its_place_is_skipped_and_counted(tmp_path: Path) -> None:
    good = {"id": "1", "question": "?", "answers": [{"text": "fox", "answer_start": 10}]}
    bad = {"id": "2", "question": "?", "answers": [{"text": "fox", "answer_start": 11}]}
    none = {
        "id": "3",
        "question": "?",
        "is_impossible": True,
        "answers": [],
        "plausible_answers": [{"text": "x"}],
    }
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        text = {"data": [{"paragraphs": [{"context": TEXT, "qas": [good, bad, none]}]}]}
        (tmp_path / name).write_text(json.dumps(text))
    data = TASK.read(tmp_path, EvaluationSettings())
    assert [item.id for item in data.train.items] == ["1", "3"]
    assert [item.id for item in data.scored[0].items] == ["1", "2", "3"], (
        "none is left out where it is scored"
    )
    assert "1 questions skipped" in data.notes[0]
    assert TASK.baseline(data.scored[0], data) == {
        "f1": pytest.approx(100 / 3),
        "exact": pytest.approx(100 / 3),
    }
    (tmp_path / "dev-v2.0.json").write_text('{"data": [{"paragraphs": [{}]}]}')
    with pytest.raises(UserError, match="is not in SQuAD's format"):
        TASK.read(tmp_path, EvaluationSettings())


@pytest.mark.parametrize("start", [9, 10])
def test_white_space_around_an_answer_is_not_part_of_it(start: int, tmp_path: Path) -> None:
    """Whether its place is that of the space or of the first word, as of one in seven of COVID-QA's answers."""
    asked = [{"id": "1", "question": "?", "answers": [{"text": " fox ", "answer_start": start}]}]
    text = json.dumps({"data": [{"paragraphs": [{"context": TEXT, "qas": asked}]}]})
    folder = write(tmp_path / "task", {"train.json": [text], "dev.json": [text]})
    data = FINE_TUNED["questions"].read(folder, EvaluationSettings())
    assert data.train.items[0].answers == (Answer("fox", 10),)
    assert data.notes == ()


def test_inputs_are_as_long_as_published() -> None:
    assert settings_for("squad1", {}).max_length == 384
    assert settings_for("squad2", {"recipe": "electra"}).max_length == 512
    assert settings_for("squad1", {"max_length": 96}).max_length == 96


def test_no_room_for_text_is_refused() -> None:
    builder = Encoder(encoder_folder("bert")).builder(12)
    with pytest.raises(UserError, match="leave no room for text beside a question"):
        windows(builder, "who did not jump over the quick lazy fox at all?", TEXT, 64, 16)

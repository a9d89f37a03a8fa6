"""The n best answers to a question, when none is given, and the files of both."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.errors import UserError
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import Split
from pretrain.tasks.questions import (
    Answer,
    Candidate,
    Question,
    Said,
    answer_files,
    best_threshold,
    candidate,
    tuned_threshold,
)
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder

TASK = FINE_TUNED["squad2"]
TEXT = "the quick fox jumped over some lazy dogs, that slept all day in the U.S. and did not wake up. " * 5
ITEMS = [
    Question("one", "who slept?", TEXT, (Answer("dogs", TEXT.index("dogs")),)),
    Question("two", "who ran?", "the fox " * 60, ()),  # the same answers at many places
    Question("three", "who jumped?", TEXT[:60], (Answer("fox", TEXT.index("fox")),)),
]


def asked(items: list[Question], nulls: list[float] | None = None) -> tuple[Any, ...]:
    """Items, their features and a model's random answers, [CLS] with half of these sums, where they are given."""
    draw = np.random.Generator(np.random.PCG64(5))
    features = TASK.features(items, Encoder(encoder_folder("bert")).builder(48), None)  # type: ignore[arg-type]
    answers = []
    for feature in features:
        number, window = feature.extra
        answers.append(draw.normal(size=(len(window.spans), 2)).astype(np.float32))
        if nulls is not None:
            answers[-1][window.cls] = nulls[number] / 2
    return items, features, answers


def data(items: list[Question], threshold: float | None = 0.0) -> TaskData:
    split = Split("dev", items)
    return TaskData(split, (split,), null_threshold=threshold)


def every_answer(item: Question, told: tuple[Any, ...]) -> tuple[dict[str, float], float]:
    """Of each text that may be the answer the highest sum of logits, by trying all pairs; and the lowest of [CLS]."""
    found: dict[str, float] = {}
    null = np.inf
    for feature, logits in zip(told[1], told[2], strict=True):
        number, window = feature.extra
        if told[0][number] is not item:
            continue
        null = min(null, float(logits[window.cls, 0]) + float(logits[window.cls, 1]))
        best = [set(np.argsort(-logits[:, side], kind="stable")[:20].tolist()) for side in (0, 1)]
        for start, first in enumerate(window.spans):
            for end, last in enumerate(window.spans[start : start + 30], start):
                if first and last and window.is_widest[start] and start in best[0] and end in best[1]:
                    text = item.context[first[0] : last[1]].strip()
                    score = float(logits[start, 0]) + float(logits[end, 1])
                    found[text] = max(score, found.get(text, -np.inf))
    return found, null


@pytest.mark.parametrize("may_be_none", [False, True])
def test_the_twenty_best_different_answers_are_listed(may_be_none: bool) -> None:
    """In their order, with the softmax of their logits; where a question may have no answer with that there is none, in
    its place or at the end."""
    items = ITEMS if may_be_none else [ITEMS[0], ITEMS[2]]
    fifth = sorted(every_answer(items[0], asked(items))[0].values())[-5]
    told = asked(items, [fifth - 1e-3, -9.0, 9.0] if may_be_none else None)
    files = TASK.predictions(ModelAnswers(*told, data(items)))
    listed = json.loads(files["nbest_predictions.json"])
    assert list(listed) == [item.id for item in items]
    places = []
    for item in items:
        texts, null = every_answer(item, told)
        wanted = sorted(texts, key=lambda text: -texts[text])[:20]
        assert len(wanted) == 20
        rows = listed[item.id]
        assert all(row["text"] in item.context for row in rows)
        assert len({row["text"] for row in rows}) == len(rows)
        assert [row["text"] for row in rows if row["text"]] == wanted[: len(rows) - may_be_none]
        scores = np.array([row["start_logit"] + row["end_logit"] for row in rows])
        assert scores.tolist() == [texts.get(row["text"], null) for row in rows]
        shares = [row["probability"] for row in rows]
        assert shares == pytest.approx((np.exp(scores) / np.exp(scores).sum()).tolist())
        places += [i for i, row in enumerate(rows) if not row["text"]]
        assert shares == sorted(shares, reverse=True)
    assert len(places) == (3 if may_be_none else 0)
    if may_be_none:
        assert places == [5, 20, 0], "behind five likelier ones, behind twenty, and the likeliest of all"
        assert [len(listed[item.id]) for item in items] == [20, 21, 20]


def test_the_files_say_what_is_given_and_how_likely_it_is_that_there_is_no_answer() -> None:
    told = asked(ITEMS, [2.0, -9.0, 9.0])
    best = TASK.candidates(ModelAnswers(*told, data(ITEMS)))
    odds = [null - max(texts.values()) for texts, null in (every_answer(item, told) for item in ITEMS)]
    assert odds[1] < odds[0] < 0 < odds[2]
    for threshold in (0.0, (odds[0] + odds[1]) / 2, 99.0):
        files = {
            name: json.loads(text)
            for name, text in TASK.predictions(ModelAnswers(*told, data(ITEMS, threshold))).items()
        }
        assert files["null_odds.json"] == dict(zip(("one", "two", "three"), odds, strict=True))
        given = ["" if one > threshold else said.text for one, said in zip(odds, best, strict=True)]
        assert list(files["predictions.json"].values()) == given
        for item, said in zip(ITEMS, best, strict=True):
            rows = files["nbest_predictions.json"][item.id]
            assert next(row["text"] for row in rows if row["text"]) == said.text
    with_answers = [ITEMS[0], ITEMS[2]]
    _, *answered = asked(with_answers, [9.0, 9.0])
    files = TASK.predictions(ModelAnswers(with_answers, *answered, data(with_answers)))
    assert files.keys() == {"predictions.json", "nbest_predictions.json"}
    assert all(json.loads(files["predictions.json"]).values()), "as in 1.1, none is withheld"
    said = TASK.candidates(ModelAnswers(with_answers, *answered, data(with_answers)))
    right = [
        one._replace(answers=(Answer(best.text, 0),)) for one, best in zip(with_answers, said, strict=True)
    ]
    assert TASK.score(ModelAnswers(right, *answered, data(right))) == {"f1": 100, "exact": 100}


def test_a_question_without_a_candidate_has_no_answer_in_any_file() -> None:
    """As where the likeliest starts are all outside of the text; and JSON has no infinite numbers."""
    _, (feature, *_), (logits, *_) = asked(ITEMS)
    window = replace(feature.extra[1], is_widest=(False,) * len(feature.extra[1].spans))
    found = candidate(TEXT, [(window, logits)], 20)
    files = answer_files(["one"], [found], 0.0)
    assert json.loads(files["predictions.json"]) == {"one": ""}
    (row,) = json.loads(files["nbest_predictions.json"])["one"]
    assert (row["text"], row["probability"]) == ("", 1.0)
    assert np.isfinite(json.loads(files["null_odds.json"], parse_constant=pytest.fail)["one"])
    assert json.loads(answer_files(["one"], [found], None)["nbest_predictions.json"]) == {"one": []}


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([-2.0, -1.5, 0.0, 3.0, 7.5]), st.booleans()
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=100, deadline=None)
def test_the_chosen_threshold_has_the_best_score_that_one_can_have(
    rows: list[tuple[float, float, bool]],
) -> None:
    """Of questions with the same odds all are answered, or none."""
    scores, odds, has = zip(*rows, strict=True)

    def at(threshold: float) -> float:
        return sum((s if h else 0.0) if o <= threshold else float(not h) for s, o, h in rows)

    chosen = tuned_threshold(scores, odds, has)
    assert np.isfinite(chosen)
    every = [at(threshold) for threshold in (-99.0, *odds)]
    assert at(chosen) == max(every)
    assert best_threshold(scores, odds, has) >= 100 * max(every) / len(rows) - 1e-9
    assert chosen < min(odds) or chosen in odds


def test_a_threshold_is_chosen_where_it_is_asked_for() -> None:
    told = asked(ITEMS, [-6.0, -2.0, -9.0])
    scores = TASK.score(ModelAnswers(*told, data(ITEMS)))
    decided = TASK.decided(ModelAnswers(*told, data(ITEMS, None)))
    assert decided.null_threshold is not None
    assert decided.null_threshold < 0
    better = TASK.score(ModelAnswers(*told, decided))
    assert better["f1"] == pytest.approx(scores["best_f1"])
    assert better["f1"] > scores["f1"]
    assert TASK.decided(ModelAnswers(*told, data(ITEMS, 1.5))).null_threshold == 1.5
    answered = [ITEMS[0], ITEMS[2]]
    with pytest.raises(
        UserError, match="no question without an answer among the 2 that are kept to choose by"
    ):
        TASK.decided(ModelAnswers(*asked(answered, [1.0, 1.0]), data(answered, None)))


def test_odds_are_a_difference_of_sums() -> None:
    null = Said("", 1.0, 0.5)
    assert Candidate([Said("a", 3.0, 1.0)], null).no_answer == -2.5
    assert Candidate([Said("a", 3.0, 1.0)], null).given(-2.5) == "a", "not above it"
    assert Candidate([Said("a", 3.0, 1.0)], null).given(-2.6) == ""


def test_what_is_no_threshold_is_refused() -> None:
    with pytest.raises(UserError, match="null_threshold: must be a number, or tune, got often"):
        settings_for("squad2", {"null_threshold": "often"})
    with pytest.raises(UserError, match="must be a number, or tune, got nan"):
        settings_for("squad2", {"null_threshold": "nan"})
    with pytest.raises(UserError, match="null_threshold=tune: needs tune_share"):
        settings_for("squad2", {"null_threshold": "tune"})
    assert settings_for("squad2", {"null_threshold": "tune", "tune_share": 0.1}).null_threshold == "tune"

"""A study's file is read whole, or refused in one line; the command line changes what arms have in common."""

from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.studies.design import Changes, Design, parse_design, require_given

STUDY: dict[str, Any] = {
    "title": "A title",
    "question": "A question?",
    "recipe": "demo",
    "settings": {"train": {"steps": 8}, "run.ranks": 1},
    "arms": {
        "one": {"label": "first"},
        "two": {"settings": {"optim": {"lr": 0.1}}},
        "three": {"model_of": "two"},
    },
    "evaluate": ["blimp", {"task": "mrpc", "seeds": 2}],
    "hour": {"arms": ["one", "three"], "seeds": 2, "scoring": ["mrpc"], "evaluation": {"epochs": 1}},
    "long": {"settings": {"train.steps": 80}},
}


def read(changes: Changes | None = None, **other: Any) -> Design:
    changes = changes or Changes()
    return parse_design("name", STUDY | other, changes, "name.yaml")


def test_forms_differ_in_arms_seeds_settings_and_tasks() -> None:
    hour, long = read(), read(Changes(form="long", seeds=4))
    assert list(hour.arms) == ["one", "two", "three"]  # two: three takes its model
    assert (hour.seeds, long.seeds) == ((1, 2), (1, 2, 3, 4))
    assert hour.settings == {"train.steps": 8, "run.ranks": 1}
    assert long.settings == {"train.steps": 80, "run.ranks": 1}
    assert [s.task for s in hour.evaluate] == ["mrpc"]
    assert [s.seeds for s in long.evaluate] == [1, 2]
    assert [s.settings for s in (*hour.evaluate, *long.evaluate)] == [{"epochs": 1}, {}, {}]
    assert (hour.reference, hour.label("one"), hour.label("two")) == ("one", "first", "two")
    assert list(read(Changes(arms=("two",))).arms) == ["two"]
    assert read(Changes(arms=("two",))).reference == "two"


def test_what_is_equal_is_so_in_all_arms_that_train_or_in_some() -> None:
    assert read(equal=["masks"]).equal == {"masks": ("one", "two")}
    arms = {"one": {}, "two": {}, "three": {}}
    some = {"equal": {"masks": ["one", "three"], "weights": ["two", "three"]}, "arms": arms, "hour": {}}
    assert read(**some).equal == {"masks": ("one", "three"), "weights": ("two", "three")}
    few = read(Changes(arms=("one", "two")), **some)
    assert few.equal == {"masks": ("one",), "weights": ("two",)}, "nothing to compare in this form"


def test_the_command_line_changes_what_arms_have_in_common_and_nothing_else() -> None:
    assert read(Changes(settings={"train.steps": "4"})).settings["train.steps"] == "4"
    with pytest.raises(UserError, match=r"the arms differ in optim\.lr"):
        read(Changes(settings={"optim.lr": "0.5"}))
    tuned = {"tune": {"optim.lr": [0.1, 0.2]}, "arms": {"one": {}, "two": {}}, "hour": {}}
    assert read(Changes(settings={"optim.lr": [0.3]}), **tuned).tune == {"optim.lr": (0.3,)}
    with pytest.raises(UserError, match=r"optim\.lr is tuned"):
        read(Changes(settings={"optim.lr": "0.3"}), **tuned)


PHASES = [{"name": "short", "train": {"steps": 2}}, {"name": "long", "data": {"sequence_length": 64}}]


@pytest.mark.parametrize("key", ["train.steps", "data.sequence_length", "phases", "phases.short.train.steps"])
def test_a_setting_of_a_phase_of_one_arm_is_none_that_arms_have_in_common(key: str) -> None:
    arms = {"one": {}, "two": {"settings": {"phases": PHASES}}}
    with pytest.raises(UserError, match=f"the arms differ in {key}"):
        read(Changes(settings={key: "4"}), arms=arms, hour={})
    assert read(Changes(settings={"optim.lr": "4"}), arms=arms, hour={}).settings["optim.lr"] == "4"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"titel": "x"}, "unknown key titel"),
        ({"question": ""}, "has no question"),
        ({"arms": {"one": {"labels": "x"}}}, "unknown key labels"),
        ({"arms": {"One": {}}, "hour": {}}, "cannot name an arm 'One'"),
        ({"arms": {"one": {"model_of": "four"}}, "hour": {}}, "four"),
        ({"arms": {"one": {"segments": "1S"}}, "hour": {}}, "segments needs model_of"),
        ({"arms": {"one": {}, "two": {"model_of": "one", "recipe": "x"}}, "hour": {}}, "trains nothing"),
        ({"arms": ["one"]}, "is no mapping"),
        ({"hour": {"arms": ["twoo"]}}, "no such arm: twoo"),
        ({"hour": {"seeds": 0}}, "hour, seeds: must be at least 1, got 0"),
        ({"reference": "four"}, "no such arm: four"),
        ({"equal": ["everything"]}, "unknown 'everything'"),
        ({"equal": {"everything": ["one"]}}, "unknown 'everything'"),
        ({"equal": {"masks": ["one", "three"]}}, "no such arm that trains: three"),
        ({"equal": {"masks": "one"}}, "is no list"),
        ({"tune": {"optim.lr": [0.1]}}, "cannot be tuned"),
        ({"tune": {"optim.lr": []}, "arms": {"one": {}}, "hour": {}}, "an empty grid"),
        ({"evaluate": [{"task": "held_out", "data": "shards of four"}], "hour": {}}, "shards of four"),
        ({"evaluate": [{"seeds": 2}]}, "has no task"),
    ],
)
def test_a_wrong_study_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(**wrong)


def test_an_arm_beside_another_needs_both() -> None:
    arms = {"a": {}, "b": {}, "both": {"model_of": "a", "beside": "b"}}
    found = read(Changes(arms=("both",)), arms=arms)
    assert set(found.arms) == {"a", "b", "both"}
    with pytest.raises(UserError, match="beside needs model_of"):
        read(arms={"a": {}, "b": {"beside": "a"}}, hour={})
    with pytest.raises(UserError, match="no such arm that trains: c"):
        read(arms={"a": {}, "b": {"model_of": "a", "beside": "c"}}, hour={})
    needy = read(requires=["data.languages"])
    with pytest.raises(UserError, match=r"needs data\.languages"):
        require_given(needy)


def test_settings_of_tasks_are_those_of_all_or_of_one() -> None:
    tasks = {"evaluate": [{"task": "mrpc", "settings": {"epochs": 3}}, {"task": "mrpc", "name": "again"}]}
    form = {"hour": {"evaluation": {"batch": 8, "again": {"batch": 4}, "again.lr": 0.1}}}

    def settings(*arms: dict[str, Any], **given: object) -> list[dict[str, Any]]:
        named = {f"arm{n}": arm for n, arm in enumerate(arms or [{}])}
        changes = Changes(settings={f"evaluate.again.{key}": value for key, value in given.items()})
        return [one.settings for one in read(changes, arms=named, **tasks, **form).evaluate]

    assert settings() == [{"epochs": 3, "batch": 8}, {"batch": 4, "lr": 0.1}]
    assert settings(batch=2) == [{"epochs": 3, "batch": 8}, {"batch": 2, "lr": 0.1}]
    with pytest.raises(UserError, match="the arms differ in bilstm"):
        settings({}, {"evaluation": {"bilstm": True}}, bilstm=True)
    with pytest.raises(UserError, match=r"name\.yaml, hour, evaluation: other is not scored"):
        read(hour={"evaluation": {"other.batch": 4}})

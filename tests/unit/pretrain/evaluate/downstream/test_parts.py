"""What is scored: the evaluations of the chosen tasks, refused before anything is trained where they do not fit."""

from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.evaluate.evaluate import Evaluation, evaluations_of
from pretrain.tasks.registry import chosen_tasks
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write


def chosen(
    data: Path, names: list[str], suite: str = "", changes: dict[str, Any] | None = None, **more: Any
) -> list[Evaluation]:
    tasks = chosen_tasks(names, suite, data)[0]
    return evaluations_of(tasks, changes or {}, [encoder_folder("bert")], data / "out", [1], **more)


@pytest.mark.parametrize(
    ("names", "changes", "setting", "said"),
    [
        (["mrpc"], {"part": 0.1}, "part", "is not for mrpc"),
        (["mrpc", "rte"], {"lr": 1e-4, "text": "title"}, "text", "is not for mrpc or rte"),
        (["blimp"], {"recipe": "small"}, "recipe", "is not for blimp"),
        (["attention"], {"precision": "bf16"}, "precision", "is not for attention"),
        (["mrpc"], {"test": True}, "test", "is not for mrpc"),
    ],
)
def test_a_setting_that_no_chosen_task_can_use_is_refused(
    names: list[str], changes: dict[str, Any], setting: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as found:
        chosen(tmp_path, names, changes=changes)
    assert str(found.value).startswith(f"{setting}: {said} (expected one of ")


def test_a_setting_that_one_of_them_can_use_is_not(tmp_path: Path) -> None:
    both = chosen(tmp_path, ["blimp", "mrpc"], changes={"part": 0.1, "recipe": "small"})
    assert [one.settings.part for one in both] == [0.1, 0.1]
    assert chosen(tmp_path, ["snli"], changes={"test": True})[0].settings.test


def test_two_results_of_one_name_are_refused(tmp_path: Path) -> None:
    for version in ("v2.13", "v2.14"):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "UD_English-EWT", FILES["ud"])
    with pytest.raises(UserError) as found:
        chosen(tmp_path, [], "ud")
    first, second = (tmp_path / version / "UD_English-EWT" for version in ("v2.13", "v2.14"))
    assert str(found.value) == (
        f"--data: holds ud-English-EWT twice: {first} and {second} (expected one folder of each name;"
        f" --data {tmp_path / 'v2.14'})"
    )
    assert [one.name for one in chosen(tmp_path / "v2.14", [], "ud")] == ["ud-English-EWT"]


@pytest.mark.parametrize(("names", "suite"), [(["mnli"], ""), ([], "glue"), (["rte"], "all")])
def test_no_chosen_task_starts_from_itself(names: list[str], suite: str, tmp_path: Path) -> None:
    for task in ("rte", "mnli"):
        write(tmp_path / task.upper(), FILES[task])
    with pytest.raises(UserError, match="--start-from: mnli cannot start from itself"):
        chosen(tmp_path, names, suite, start_from="mnli")
    with pytest.raises(UserError, match="no such task: mnlii"):
        chosen(tmp_path, ["rte"], start_from="mnlii")
    assert chosen(tmp_path, ["rte"], start_from="mnli")[0].name == "rte-from-mnli"

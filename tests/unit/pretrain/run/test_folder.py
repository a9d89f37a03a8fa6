"""The files of a run folder and its checkpoints have versions; another one is refused in one line with what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from pretrain.checkpoint.marker import Marker, marked, parsed_marker, sealed
from pretrain.report.html.record import read_run as read_record
from pretrain.report.inspection import describe
from pretrain.report.status import read_status
from pretrain.run.folder import CONFIG, FORMAT, RUN, read_config, read_run

OLD = {"identity": {"optim.lr": 0.01}, "id": "abc", "lives": 2}
NEW = {"format": FORMAT, "identity": {"optim.lr": 0.01}, "id": "abc", "attempts": 2}


@pytest.mark.parametrize("reader", [read_run, read_config, read_record, read_status, describe])
def test_a_run_folder_of_another_version_is_refused_in_one_line(
    reader: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / CONFIG).write_text("run: {dir: x}\n")
    (tmp_path / RUN).write_text(json.dumps(NEW))
    reader(tmp_path)
    for values, format in ((OLD, "1"), (NEW | {"format": FORMAT + 1}, str(FORMAT + 1))):
        (tmp_path / RUN).write_text(json.dumps(values))
        with pytest.raises(UserError) as refused:
            reader(tmp_path)
        assert f"run folder of format {format} (expected format {FORMAT}; finish and export it" in str(
            refused.value
        )
        assert "\n" not in str(refused.value)


def test_a_checkpoint_of_another_version_is_refused_in_one_line() -> None:
    marker = Marker(3, {}, {}, [])
    values = json.loads(marked(marker))
    assert parsed_marker(sealed(values), "here") == marker
    with pytest.raises(
        UserError, match=r"^here: checkpoint of format 2 \(expected format 3; finish and export"
    ):
        parsed_marker(sealed(values | {"format": 2}), "here")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"identity": 3}', json.dumps(NEW | {"attempts": -1})])
def test_a_malformed_run_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(text)
    with pytest.raises(UserError, match=r"run\.json: (malformed|run folder of format)"):
        read_run(tmp_path)

"""The files of a run folder and its checkpoints have versions; another one is refused in one line with what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import sealed_json
from pretrain.checkpoint.store import Marker, marked, parsed_marker, sealed
from pretrain.report.inspection import describe, run_headlines
from pretrain.report.record import read_run as read_record
from pretrain.report.status import in_words, read_status
from pretrain.run.folder import (
    CONFIG,
    FORMAT,
    RUN,
    SUMMARY,
    read_config,
    read_run,
    read_summary,
    sealed_lines,
    write_summary,
)

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


FIGURES = {"status": "finished", "step": 9, "steps": 9, "loss": 1.5, "data": {"held_out": {"examples": 3}}}
CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a setting": (RUN, lambda data: data.replace(b"0.01", b"0.02")),
    "a digit of the seal": (RUN, lambda data: data.replace(b'"sha256": "', b'"sha256": "0')),
    "the seal's name": (RUN, lambda data: data.replace(b'"sha256"', b'"sha257"')),
    "the id": (RUN, lambda data: data.replace(b'"abc"', b'"abd"')),
    "a figure": (SUMMARY, lambda data: data.replace(b"1.5", b"1.4")),
    "a count": (SUMMARY, lambda data: data.replace(b'"examples": 3', b'"examples": 2')),
    "the status": (SUMMARY, lambda data: data.replace(b"finished", b"funished")),
}


def sealed_run(folder: Path) -> None:
    (folder / CONFIG).write_bytes(sealed_lines("run: {dir: x}\n"))
    (folder / RUN).write_bytes(sealed_json(NEW))
    write_summary(folder, FIGURES)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_refused_by_what_decides_and_shown_with_a_warning(
    tmp_path: Path, name: str
) -> None:
    sealed_run(tmp_path)
    assert (read_run(tmp_path), read_summary(tmp_path)) == (NEW, FIGURES)
    file, change = CHANGES[name]
    path = tmp_path / file
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    for refuses in (read_run if file == RUN else read_summary, describe):
        with pytest.raises(
            UserError, match=rf"{file}: was changed since it was written: its sha256 does not"
        ):
            refuses(tmp_path)
    status = read_status(tmp_path)
    assert f"WARNING     {file} was changed since it was written" in in_words(status, "")
    assert any(file in complaint for complaint in read_record(tmp_path).complaints)


def test_files_of_an_older_version_have_no_seal_and_inspect_says_so(tmp_path: Path) -> None:
    sealed_run(tmp_path)
    assert describe(tmp_path)["not_sealed"] == []
    (tmp_path / RUN).write_text(json.dumps(NEW))
    (tmp_path / SUMMARY).write_text(json.dumps(FIGURES))
    assert (read_run(tmp_path), read_summary(tmp_path)) == (NEW, FIGURES)
    assert read_status(tmp_path).warnings == []
    facts = describe(tmp_path)
    assert facts["not_sealed"] == [RUN, SUMMARY]
    assert any(name == "not sealed" for name, _ in run_headlines(facts, []))

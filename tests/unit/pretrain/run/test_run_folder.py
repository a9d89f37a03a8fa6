"""The files of a run folder and its checkpoints have versions; another one is refused in one line with what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import sealed_json
from launch.recipe import load_config
from pretrain.checkpoint.store import Marker, marked, parsed_marker, sealed
from pretrain.report.inspection import describe, run_headlines
from pretrain.report.record import read_run as read_record
from pretrain.report.status import in_words, read_status
from pretrain.run.files import CONFIG, RUN, SUMMARY
from pretrain.run.folder import (
    FORMAT,
    SEALS_CONFIG,
    not_sealed,
    parsed_config,
    read_config,
    read_run,
    read_summary,
    sealed_config,
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


# A config.yaml that was cut short or changed is never taken for the settings of the run.


CONFIGURED = load_config("demo", ["optim.lr=0.0123", "monitor.project=néẞ漢"])
TEXT = sealed_config(CONFIGURED)
SAID = "was cut short or changed since the run wrote it"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    about = {"format": 2, "identity": {"optim.lr": 0.0123}, "id": "abc", "attempts": 1, SEALS_CONFIG: True}
    (tmp_path / RUN).write_bytes(sealed_json(about))
    (tmp_path / CONFIG).write_bytes(TEXT)
    return tmp_path


def test_what_was_written_is_read(run: Path) -> None:
    assert read_config(run) == CONFIGURED
    assert parsed_config(TEXT.decode(), "a mirror") == CONFIGURED
    assert not_sealed(run) == []
    assert sealed_lines(TEXT.decode()) == TEXT


def test_a_file_cut_short_at_any_byte_is_refused(run: Path) -> None:
    for length in range(len(TEXT)):
        (run / CONFIG).write_bytes(TEXT[:length])
        with pytest.raises(UserError, match=rf"{SAID}|malformed") as caught:
            read_config(run)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"lr: 0.0123", b"lr: 0.0124"),
        lambda text: text.replace(b"heads: ", b"heads: 1"),
        lambda text: text + b"train: {steps: 3}\n",
        lambda text: b"\n" + text,
        lambda text: text[:-2] + (b"0" if text[-2:-1] != b"0" else b"1") + b"\n",
        lambda text: text.rpartition(b"# ")[0],
        lambda text: b"",
    ],
    ids=["value", "heads", "appended", "put before", "hash", "without its hash", "empty"],
)
def test_a_changed_file_is_refused_or_said_by_every_reader(
    run: Path, change: Callable[[bytes], bytes]
) -> None:
    changed = change(TEXT)
    assert changed != TEXT
    (run / CONFIG).write_bytes(changed)
    for reader in (read_config, describe):
        with pytest.raises(UserError, match=SAID):
            reader(run)
    assert f"{CONFIG} cannot be read: {SAID}." in read_record(run).complaints
    status = read_status(run)
    assert f"{CONFIG} cannot be read: {SAID}." in status.warnings
    assert SAID in in_words(status, "maskmill train demo")


def test_a_file_that_an_older_version_wrote_is_read(run: Path) -> None:
    (run / RUN).write_bytes(sealed_json({"format": 2, "identity": {}, "id": "abc", "attempts": 1}))
    (run / CONFIG).write_bytes(TEXT.rpartition(b"# ")[0])
    assert read_config(run) == CONFIGURED
    assert not_sealed(run) == [CONFIG]
    assert describe(run)["not_sealed"] == [CONFIG]


def test_credentials_are_not_written() -> None:
    config = load_config("demo", [])
    config.data.sources = ["https://canary@host/x"]
    assert b"canary" not in sealed_config(config)

"""A config.yaml that was cut short or changed is never taken for the settings of the run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import sealed_json
from launch.recipe import load_config
from pretrain.report.inspection import describe
from pretrain.report.record import read_run as read_record
from pretrain.report.status import in_words, read_status
from pretrain.run.folder import (
    CONFIG,
    RUN,
    SEALS_CONFIG,
    not_sealed,
    parsed_config,
    read_config,
    sealed_config,
    sealed_lines,
)

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

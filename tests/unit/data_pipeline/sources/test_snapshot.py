"""Which sources count as those that shards were made from, where their folder's log is all that tells."""

import json
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings
from data_pipeline.sources.snapshot import (
    as_stated,
    described_sources,
    other_sources,
    source_names,
    stated_sources,
)
from pretrain.config.settings import RunConfig
from pretrain.preflight.check_run import check_sources, with_sources_of_shards

KEYS = "s3://key:secret@bucket/de/part.jsonl?X-Amz-Signature=abc"


def texts(folder: Path, *names: str, words: str = "A text.") -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{words} {name}\n")
    return [str(folder / name) for name in names]


def made_from(shards: Path, sources: list[str], rows: list[Any] | None = None, **log: Any) -> str:
    """A folder with the log of a preparation from these sources."""
    settings = DataSettings(sources=sources)
    shards.mkdir()
    log = {"stated": as_stated(settings), "sources": rows or described_sources(settings), **log}
    (shards / "prepare.log.json").write_text(json.dumps(log))
    return str(shards)


def differs(shards: str, *sources: str) -> str:
    return other_sources(DataSettings(sources=list(sources)), shards)


def test_other_sources_are_named(tmp_path: Path) -> None:
    shards = made_from(tmp_path / "shards", texts(tmp_path / "a", "text.txt"))
    (other,) = texts(tmp_path / "a", "other.txt")
    (namesake,) = texts(tmp_path / "b", "text.txt", words="Another text of the same name.")
    for sources in ([other], [str(tmp_path / "nowhere.txt")], [namesake], [str(tmp_path / "a")]):
        assert differs(shards, *sources) == "text.txt"
    assert differs(shards, f"{tmp_path}/a/text.txt", other) == "text.txt"


def test_moved_relative_and_missing_ones_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = texts(tmp_path / "a", "en.txt", "de.txt")
    shards = made_from(tmp_path / "shards", both)
    assert differs(shards, *both) == ""
    monkeypatch.chdir(tmp_path / "a")
    assert differs(shards, "en.txt", "./de.txt") == ""
    assert differs(shards, "de.txt", "en.txt") != "", "weights and languages go by their order"
    (tmp_path / "a").rename(tmp_path / "moved")
    assert differs(shards, str(tmp_path / "moved/en.txt"), str(tmp_path / "moved/de.txt")) == ""
    assert differs(shards, "/mnt/en.txt", "/mnt/de.txt") == "", "a machine that has the shards alone"
    assert differs(shards) == ""


def test_what_changed_in_the_place_that_is_stated_does_not_matter(tmp_path: Path) -> None:
    texts(tmp_path / "a", "one.txt")
    shards = made_from(tmp_path / "shards", [str(tmp_path / "a")])
    texts(tmp_path / "a", "two.txt")
    assert differs(shards, str(tmp_path / "a")) == ""


@pytest.mark.parametrize(
    ("stated", "same"),
    [
        (KEYS, True),
        ("s3://bucket/de/part.jsonl", True),
        ("gs://other/part.jsonl?token=new", True),
        ("s3://bucket/de/other.jsonl", False),
    ],
)
def test_uris_are_compared_by_their_names_without_what_is_secret(
    tmp_path: Path, stated: str, same: bool
) -> None:
    shards = made_from(tmp_path / "shards", [KEYS], rows=[["part.jsonl", 7, "etag"]])
    assert (differs(shards, stated) == "") == same
    assert "secret" not in (tmp_path / "shards/prepare.log.json").read_text()
    assert "abc" not in (tmp_path / "shards/prepare.log.json").read_text()


@pytest.mark.parametrize("stated", [None, 3, ["a", 4]])
def test_an_older_or_odd_log_tells_as_much_as_it_can(tmp_path: Path, stated: object) -> None:
    (source,) = texts(tmp_path / "a", "text.txt")
    shards = made_from(tmp_path / "shards", [source], stated=stated)
    assert stated_sources(shards) == []
    assert source_names(shards) == ["text.txt"]
    assert differs(shards, source) == ""
    assert differs(shards, *texts(tmp_path / "a", "other.txt")) == "text.txt"
    assert differs(shards, "/nowhere/other.txt") == "", "it may be a folder's name"
    (tmp_path / "shards/prepare.log.json").unlink()
    assert (differs(shards, "other.txt"), source_names(shards)) == ("", [])


def test_a_run_states_the_sources_of_its_shards(tmp_path: Path) -> None:
    (source,) = texts(tmp_path / "a", "text.txt")
    (other,) = texts(tmp_path / "a", "other.txt")
    config = RunConfig()
    config.data.out, config.data.sources = made_from(tmp_path / "shards", [source]), [other]
    with pytest.raises(
        UserError, match=r"made from text\.txt, not from data\.sources=.*other\.txt \(leave"
    ) as caught:
        check_sources(config)
    assert "\n" not in str(caught.value)
    assert with_sources_of_shards(config).data.sources == [source]
    config.train.shards, config.data.out = config.data.out, str(tmp_path / "elsewhere")
    check_sources(config)  # as they are
    assert with_sources_of_shards(config).data.sources == [source]
    second = made_from(tmp_path / "second", [other])
    config.train.shards, config.data.out = "", str(tmp_path / "shards")
    config.phases = [{"name": "a"}, {"name": "b", "data": {"out": second}}]
    with pytest.raises(UserError, match=r"made from text\.txt"):
        check_sources(config)
    phases = with_sources_of_shards(config).phases
    assert [phase["data"]["sources"] for phase in phases] == [[source], [other]]

"""Folders that Hugging Face `datasets` wrote: what their descriptions name is read, nothing else, and it is said."""

import json
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from data_pipeline.errors import UserError
from data_pipeline.settings import DataSettings
from data_pipeline.sources.cleaning import Counts
from data_pipeline.sources.passed_over import PassedOver, is_summary, lines
from data_pipeline.sources.read import discover, read, source_files
from tests.command_line import Maskmill, setting
from tests.factories.saved_datasets import saved, saved_dict, with_caches, write_stream

ROWS = {"text": ["one", None, "três\n\nthree", "four", "five"], "key": [5, 6, 7, 8, 9]}


def documents(*names: object, **options: object) -> list[tuple[str, str]]:
    chosen = DataSettings(sources=[str(n) for n in names], **options)  # type: ignore[arg-type]
    return [(d.id, d.text) for unit in discover(chosen) for d in read(unit, chosen, Counts())]


def texts(*names: object, **options: object) -> list[str]:
    return [text for _, text in documents(*names, **options)]


def said(*names: object, **options: object) -> list[str]:
    """The lines about what is taken and what is left."""
    passed_over = PassedOver()
    source_files(DataSettings(sources=[str(n) for n in names], **options), passed_over)  # type: ignore[arg-type]
    summary = json.loads(json.dumps(passed_over.summary()))
    assert is_summary(summary)
    return lines(summary)


def error(*names: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        documents(*names, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_saved_data_set_is_read_as_its_state_says(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ROWS)
    one, two = "data-00000-of-00002.arrow", "data-00001-of-00002.arrow"
    expected = [
        (f"{one}:1", "one"),
        (f"{one}:3", "três\n\nthree"),
        (f"{two}:1", "four"),
        (f"{two}:2", "five"),
    ]
    assert documents(folder) == expected
    assert documents(folder, id_field="key")[-1] == (f"{two}:9", "five")
    assert "no column 'body' (expected one of text, key" in error(folder, text_field="body")


def test_a_saved_data_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", ROWS)
    file = folder / "data-00001-of-00002.arrow"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) * 2 // 3])
    assert "data-00001-of-00002.arrow: not a whole table" in error(folder)
    file.write_bytes(whole[:-8])
    assert "not a whole table: it does not end as the format demands" in error(folder)
    file.unlink()
    assert "names data-00001-of-00002.arrow, which is not there" in error(folder)
    (folder / "state.json").write_text("{}")
    assert "does not describe a saved data set" in error(folder)
    chosen = saved(tmp_path / "chosen", ROWS)
    state = json.loads((chosen / "state.json").read_text())
    (chosen / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "i.arrow"}]}))
    assert "flatten_indices()" in error(chosen)


@pytest.mark.parametrize("pattern", ["", "*.arrow", "*", "data-*"])
def test_caches_beside_a_saved_data_set_are_not_read(tmp_path: Path, pattern: str) -> None:
    folder = with_caches(saved(tmp_path / "set", {"text": ["a", "b"]}, files=1))
    source = folder / pattern if pattern else folder
    assert texts(source) == ["a", "b"]
    [line] = said(source)
    assert line.startswith(f"data set {source}: 1 file that state.json names")
    left = (
        ", not 3 beside: cache-1ae089d5583eea56.arrow, cache-345c2397637937f3.arrow, indices-27cb8c05.arrow"
    )
    assert line.endswith("names" if pattern == "data-*" else left)


def test_anything_else_in_the_folder_of_a_saved_data_set_is_left(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", {"text": ["a"]}, files=1)
    (folder / "notes.txt").write_text("notes")
    saved(folder / "later", {"text": ["later"]}, files=1)
    assert texts(folder) == ["a"]
    assert "not 2 beside: later/data-00000-of-00001.arrow, notes.txt" in said(folder)[0]
    assert texts(folder / "notes.txt") == ["notes"], "what is named is read"


def test_data_sets_below_the_source_are_read_beside_other_files(tmp_path: Path) -> None:
    with_caches(saved(tmp_path / "a" / "deep" / "set", {"text": ["a"]}, files=1))
    with_caches(
        saved(tmp_path / "b", {"text": ["b"]}, files=1, _format_columns=["key"], _format_type="numpy")
    )
    saved_dict(tmp_path / "c", {"test": ["no"], "train": ["c"]})
    (tmp_path / "d.txt").write_text("d")
    (tmp_path / "state.json").write_text('{"text": "no description"}\n')
    (tmp_path / "cache-1.jsonl").write_text('{"text": "no cache"}\n')
    assert texts(tmp_path) == ["a", "b", "c", "no cache", "d", "no description"]
    first, *others = said(tmp_path)
    assert first.startswith("data set a/deep/set: 1 file that state.json names, not 3 beside: cache-1ae0")
    assert others[1:] == [
        "data set c: the split train, not test (data.split)",
        "data set c/train: 1 file that state.json names",
    ]


def test_many_data_sets_are_counted(tmp_path: Path) -> None:
    for number in range(7):
        saved(tmp_path / str(number), {"text": [str(number)]}, files=1)
    assert texts(tmp_path) == list("0123456")
    assert said(tmp_path)[5:] == [
        "2 more data sets that Hugging Face `datasets` saved: as their state.json says"
    ]


@pytest.mark.parametrize("pattern", ["", "*", "*/*.arrow", "t*"])
def test_one_split_of_a_saved_dict_is_read(tmp_path: Path, pattern: str) -> None:
    folder = saved_dict(tmp_path / "set", {"train": ["a"], "validation": ["b"], "test": ["c"]})
    with_caches(folder / "train")
    source = folder / pattern if pattern else folder
    assert texts(source) == ["a"]
    line, own = said(source)
    assert line == f"data set {source}: the split train, not validation, test (data.split)"
    assert own.startswith("data set train: 1 file that state.json names, not 3 beside: ")
    assert documents(source, split="test") == [("test/data-00000-of-00001.arrow:1", "c")]
    assert texts(folder / "validation") == ["b"], "a split that is named is read"
    assert texts(folder / "test" / "*.arrow") == ["c"]


def test_a_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = saved_dict(tmp_path / "set", {"a": ["a"], "b": ["b"]})
    assert f"{folder}: the data set has no split 'train' (expected one of a, b; set data.split)" == error(
        folder
    )
    assert "no split '../b'" in error(folder, split="../b")
    assert texts(folder, split="b") == ["b"]
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "a"]}')
    assert "dataset_dict.json: names the split train, which is not there" in error(folder)
    (folder / "dataset_dict.json").write_text('{"splits": 7}')
    assert "dataset_dict.json: does not describe a saved data set" in error(folder)


def test_a_split_where_there_are_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert error(tmp_path, split="test").startswith(
        "data.split: is test, and no source is a folder with splits"
    )


def test_the_librarys_own_cache_is_read_by_its_splits(tmp_path: Path) -> None:
    """~/.cache/huggingface/datasets: no state.json, a file for each split, and what `.map()` left."""
    for name in ("wiki-train-00000-of-00002", "wiki-train-00001-of-00002", "wiki-test", "cache-01"):
        write_stream(tmp_path / f"{name}.arrow", pa.table({"text": [name]}))
    (tmp_path / "dataset_info.json").write_text('{"splits": {"train": {}, "test": {}}}')
    (tmp_path / "wiki_builder.lock").write_text("")
    assert texts(tmp_path) == ["wiki-train-00000-of-00002", "wiki-train-00001-of-00002"]
    assert said(tmp_path)[0].endswith(
        "2 files of the split train, not 3 beside: cache-01.arrow, wiki-test.arrow, wiki_builder.lock"
    )
    assert texts(tmp_path, split="test") == ["wiki-test"]
    assert "no split 'dev'" in error(tmp_path, split="dev")


@pytest.mark.parametrize(
    "state",
    [
        {"_indices_data_files": [{"filename": "i.arrow"}]},
        {"_indices_files": [{"filename": "i.arrow"}]},
        {"_data_files": [{"filename": "data-00000-of-00002.arrow", "skip": 0, "take": 1}]},
    ],
)
def test_a_selection_of_rows_by_an_old_version_is_refused(tmp_path: Path, state: dict[str, object]) -> None:
    assert "flatten_indices()" in error(saved(tmp_path / "set", ROWS, **state))


@pytest.mark.parametrize(
    "content", ["", "[", "[]", "7", "{}", '{"_data_files": 7}', '{"_data_files": [7]}', "[" * 100_000]
)
def test_a_state_that_says_nothing_is_refused(tmp_path: Path, content: str) -> None:
    folder = saved(tmp_path / "set", ROWS)
    (folder / "state.json").write_text(content)
    assert "state.json: does not describe a saved data set" in error(folder)


def test_a_saved_data_set_without_rows_or_files_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", {"text": ["a"]}, files=1)
    (folder / "data-00000-of-00001.arrow").unlink()
    assert "state.json: names data-00000-of-00001.arrow, which is not there" in error(folder)
    (folder / "state.json").write_text('{"_data_files": []}')
    assert "no file to read here" in error(folder)


def test_data_sets_on_a_store_are_read_as_local_ones(tmp_path: Path) -> None:
    folder = saved_dict(tmp_path / "set", {"train": ["a"], "test": ["b"]})
    with_caches(folder / "train")
    store = fsspec.filesystem("memory")
    store.put(f"{folder}/", "/saved-sets/", recursive=True)
    try:
        for source in ("memory://saved-sets", "memory://saved-sets/*/*.arrow"):
            assert texts(source) == ["a"]
            assert said(source)[0].startswith(f"data set {source}: the split train, not test")
        assert texts("memory://saved-sets", split="test") == ["b"]
    finally:
        store.rm("/saved-sets", recursive=True)


def test_prepare_and_vocab_say_what_is_read(maskmill: Maskmill, tiny: list[str], tmp_path: Path) -> None:
    text = Path(setting(tiny, "data.sources")).read_text()
    folder = saved_dict(tmp_path / "set", {"train": text.split("\n\n"), "test": ["a"]})
    own = [*tiny, f"data.sources={folder}", f"data.out={tmp_path}/shards"]
    line = f"data set {folder}: the split train, not test (data.split)"
    for _ in ("made", "there already"):
        assert line in maskmill("prepare", "demo", *own).stdout.replace("\n", " ")
    log = json.loads((tmp_path / "shards" / "prepare.log.json").read_bytes())
    assert log["passed_over"]["saved"]["first"][0] == line.removeprefix("data set ")
    assert (
        "its sources had other names" in maskmill("prepare", "demo", *own, "data.split=test", code=2).stderr
    )
    vocab = maskmill("vocab", "demo", *own, f"data.vocab={tmp_path}/vocab", "vocabulary.size=300").stdout
    assert line in vocab.replace("\n", " ")

"""Files of the tasks in their official shapes: rows, labels, quirks, and what is refused in one line."""

from pathlib import Path

import pytest

from data_pipeline.errors import UserError
from pretrain.downstream.settings import settings_for
from pretrain.downstream.tasks.base import TaskData
from pretrain.downstream.tasks.registry import FINE_TUNED, chosen_tasks, folder_of
from tests.factories.tasks import FILES, write


def read(task: str, folder: Path, **settings: object) -> TaskData:
    return FINE_TUNED[task].read(folder, settings_for(task, settings))


def test_every_task_has_its_files_here() -> None:
    assert FILES.keys() == FINE_TUNED.keys()


@pytest.mark.parametrize("task", FILES)
def test_official_files_are_read(task: str, tmp_path: Path) -> None:
    data = read(task, write(tmp_path / "task", FILES[task]))
    assert bool(data.train.items) == (task != "ax")
    assert all(split.items for split in data.scored)
    assert set(data.files) == set(FILES[task])
    for split in data.scored:
        trivial = FINE_TUNED[task].trivial(split, data)
        assert FINE_TUNED[task].headline in trivial


def test_rows_are_as_they_were_published(tmp_path: Path) -> None:
    def data(task: str) -> TaskData:
        return read(task, write(tmp_path / task, FILES[task]))

    assert [i.first for i in data("cola").train.items] == ["Our friends won't buy this.", 'The "car honked.']
    assert data("mrpc").train.items[0] == ('He said " no .', "No , he said .", "1")
    assert data("mnli").labels == ("contradiction", "entailment", "neutral")
    assert [split.name for split in data("mnli").scored] == ["dev_matched", "dev_mismatched"]
    assert data("mnli").scored[0].items[0].label == "contradiction"
    assert data("stsb").labels == ()
    endings = ("He sits, down", "He runs", "He eats", "He is")
    assert data("swag").train.items == [("He sits.", endings, 0)]
    assert data("codah").scored[0].items[0].label == 3
    entities = data("conll2003")
    assert entities.train.items == [(("EU", "#"), ("B-ORG", "O")), (("Rome",), ("B-LOC",))]
    assert entities.scored[0].items[0].tags == ("B-LOC", "B-LOC")
    assert data("uner").train.items == [(("Al", "."), ("B-ORG", "O")), (("X",), ("O",))]
    assert [item.words for item in data("wnut17").train.items] == [("#hash", "Empire", "State"), ("I",)]
    assert data("tagging").train.items == [(("a", "c"), ("B-A", "O"))]


def test_what_is_skipped_is_counted_and_said(tmp_path: Path) -> None:
    questions = read("qqp", write(tmp_path / "qqp", FILES["qqp"]))
    assert (len(questions.train.items), questions.train.skipped) == (1, 1)
    assert questions.notes == ("train: 1 malformed rows skipped",)
    inference = read("snli", write(tmp_path / "snli", FILES["snli"]))
    assert inference.scored[0].skipped == 1
    assert "dev: 1" in inference.notes[0]


@pytest.mark.parametrize(
    ("task", "name", "line", "message"),
    [
        ("rte", "dev.tsv", "1\tA.\tB.", r"dev.tsv, line 3: has 3 columns \(expected 4\)"),
        ("rte", "dev.tsv", "1\tA.\tB.\tmaybe", r"dev.tsv: example 2 has the label 'maybe' \(expected one of"),
        ("stsb", "dev.tsv", "0\tn\tf\t2012\t1\ts\ts\tA.\tB.\tx", "label 'x' .expected a number"),
        ("codah", "dev.tsv", "o\tA\ta\tb\tc\td\t4", "example 2 has the label '4'"),
        ("swag", "val.csv", "0,v,1,A b,He sits.,She,gold,a,b,c,d", "row 2 has another number of columns"),
        ("conll2003", "eng.testa", "Paris NNP I-NP", "has 3 columns"),
        ("wnut17", "emerging.dev.conll", "Bill\tperson", "has the tag 'person'"),
        ("own", "train.jsonl", "[1]", "line 3: is no JSON object"),
        ("own", "dev.tsv", "2\tworse", "example 2 has the label '2'"),
    ],
)
def test_a_bad_line_is_one_message(task: str, name: str, line: str, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "task", FILES[task])
    with (folder / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=message):
        read(task, folder)


@pytest.mark.parametrize("task", sorted(FILES))
def test_a_missing_or_empty_file_is_refused(task: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "task", FILES[task])
    name = list(FILES[task])[-1]
    (folder / name).write_text("")
    with pytest.raises(UserError):
        read(task, folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=r"no such file|has no"):
        read(task, folder)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "task", FILES["rte"])
    (folder / "dev.tsv").write_bytes(b"index\tsentence1\tsentence2\tlabel\n0\t\xff\tB\tentailment\n")
    with pytest.raises(UserError, match="is not UTF-8"):
        read("rte", folder)


def test_a_dev_file_can_be_divided_where_there_is_no_training_file(tmp_path: Path) -> None:
    rows = [f"{i}\tWhat is {i}?\tIt is {i}.\tentailment" for i in range(100)]
    folder = write(tmp_path / "task", {"dev.tsv": ["index\tquestion\tsentence\tlabel", *rows]})
    with pytest.raises(UserError, match=r"carve=0\.5"):
        read("qnli", folder)
    data = read("qnli", folder, carve=0.3)
    train, dev = ({item.first for item in split.items} for split in (data.train, data.scored[0]))
    assert (len(train), len(dev)) == (30, 70)
    assert not train & dev
    assert "30%" in data.notes[0]
    assert read("qnli", folder, carve=0.3).train == data.train


def test_own_numbers_are_a_regression(tmp_path: Path) -> None:
    lines = [f'{{"body": "text {i}", "stars": {i / 10}}}' for i in range(40)]
    folder = write(tmp_path / "task", {"train.jsonl": lines, "dev.jsonl": lines})
    data = read("own", folder, text="body", label="stars")
    assert data.labels == ()
    assert FINE_TUNED["own"].headline == "pearson"
    with pytest.raises(UserError, match="has no column text or sentence or"):
        read("own", folder)


def test_a_task_is_found_in_the_folder_of_its_official_name(tmp_path: Path) -> None:
    (tmp_path / "MRPC").mkdir()
    assert folder_of("mrpc", tmp_path) == tmp_path / "MRPC"
    assert folder_of("rte", tmp_path) == tmp_path
    found, missing = chosen_tasks([], "glue", tmp_path)
    assert found == [("mrpc", tmp_path / "MRPC")]
    assert "rte" in missing
    with pytest.raises(UserError, match="did you mean mrpc"):
        chosen_tasks(["mrcp"], "", tmp_path)
    with pytest.raises(UserError, match="no task to score"):
        chosen_tasks([], "", tmp_path)

"""Files of the tasks in their official shapes: rows, labels, quirks and counts."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.files import Split, drawn
from pretrain.tasks.registry import FINE_TUNED, check_setting, chosen_tasks, folder_of
from pretrain.tasks.settings import settings_for
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
        trivial = FINE_TUNED[task].baseline(split, data)
        assert FINE_TUNED[task].headline in trivial


def test_rows_are_as_they_were_published(tmp_path: Path) -> None:
    def data(task: str) -> TaskData:
        return read(task, write(tmp_path / task, FILES[task]))

    assert [i.first for i in data("cola").train.items] == [
        "Our friends won't buy this.",
        '"The car honked.',
        'The "car honked.',
    ]
    assert data("mrpc").train.items == [
        ('He said " no .', "No , he said .", "1"),
        ('" No , he said .', "He said no .", "1"),
        ("A", "B", "0"),
    ]
    assert data("mnli").labels == ("contradiction", "entailment", "neutral")
    assert [split.name for split in data("mnli").scored] == ["dev_matched", "dev_mismatched"]
    assert [item.label for item in data("mnli").train.items] == ["neutral", "entailment"]
    assert [split.items[0].label for split in data("mnli").scored] == ["contradiction", "entailment"]
    assert [split.items[0].label for split in (data("snli").train, *data("snli").scored)] == [
        "neutral",
        "entailment",
    ]
    assert data("stsb").labels == ()
    endings = ("He sits, down", "He runs", "He eats", "He is")
    assert data("swag").train.items == [("He sits.", endings, 0)]
    assert data("codah").scored[0].items[0].label == 3
    entities = data("conll2003")
    assert entities.train.items == [(("EU", "#"), ("B-ORG", "O")), (("Rome",), ("B-LOC",))]
    assert entities.scored[0].items[0].tags == ("B-LOC", "B-LOC")
    assert data("uner").train.items == [(("Al", ".", "!"), ("B-ORG", "O", "O")), (("X",), ("O",))]
    assert [item.words for item in data("wnut17").train.items] == [("#hash", "Empire", "State"), ("I",)]
    assert data("tagging").train.items == [(("a", "c"), ("B-A", "O"))]


TESTS = {
    "conll2003": ("eng.testa", "eng.testb"),
    "uner": ("en_ewt-ud-dev.iob2", "en_ewt-ud-test.iob2"),
    "wnut17": ("emerging.dev.conll", "emerging.test.annotated"),
    "tagging": ("dev.txt", "test.txt"),
    "codah": ("dev.tsv", "test.tsv"),
    "own": ("dev.tsv", "test.tsv"),
    "ud": ("en_test-ud-dev.conllu", "en_test-ud-test.conllu"),
}
"""Task -> its dev file in FILES, and the name under which a test file is published."""


@pytest.mark.parametrize("task", TESTS)
def test_a_labelled_test_file_is_scored_if_asked_for(task: str, tmp_path: Path) -> None:
    dev, test = TESTS[task]
    folder = write(tmp_path / "task", FILES[task])
    with pytest.raises(UserError, match="test"):
        read(task, folder, test=True)
    write(folder, {test: FILES[task][dev]})
    assert [split.name for split in read(task, folder).scored] == ["dev"]
    data = read(task, folder, test=True)
    assert [split.name for split in data.scored] == ["dev", "test"]
    assert data.scored[1].items == data.scored[0].items
    assert set(data.files) == {*FILES[task], test}


def test_of_each_metric_the_best_constant_answer_is_trivial(tmp_path: Path) -> None:
    """Of F1 it is always 1, though most questions are no duplicates."""
    rows = [f"{i}\t1\t2\tWhy?\tHow?\t{int(i < 3)}" for i in range(10)]
    files = {name: [FILES["qqp"]["dev.tsv"][0], *rows] for name in ("train.tsv", "dev.tsv")}
    data = read("qqp", write(tmp_path / "qqp", files))
    assert FINE_TUNED["qqp"].baseline(data.scored[0], data) == pytest.approx({"f1": 600 / 13, "accuracy": 70})


def test_every_word_an_entity_is_a_trivial_answer_too(tmp_path: Path) -> None:
    """It finds all those of one word."""
    lines = ["A\tB-X", "b\tO", "c\tO", "d\tO", "", "E\tB-X", "f\tI-X"]
    files = dict.fromkeys(FILES["wnut17"], lines)
    data = read("wnut17", write(tmp_path / "task", files))
    found = FINE_TUNED["wnut17"].baseline(data.scored[0], data)
    assert found == pytest.approx({"f1": 25, "precision": 100 / 6, "recall": 50})


@pytest.mark.parametrize("task", ["tagging", "wnut17", "conll2003"])
def test_a_word_may_hold_a_space_that_is_not_ascii(task: str, tmp_path: Path) -> None:
    """As French numbers and units have it."""
    words = ["10\u00a0000", "a\u3000b", "c\x85d"]
    rest = " NNP I-NP" if task == "conll2003" else ""
    lines = [f"{word}{rest}  I-X" for word in words]
    folder = write(tmp_path / "task", dict.fromkeys(FILES[task], lines))
    assert read(task, folder).train.items[0].words == tuple(words)


def test_snli_is_read_as_its_own_page_has_it(tmp_path: Path) -> None:
    names = (
        "gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1"
    )
    names += " sentence2 captionID pairID label1 label2 label3 label4 label5"
    row = "{}\t(\t(\t(\t(\tA dog.\tIt runs.\tc\tp\tneutral\t\t\t\t"
    files = {
        f"snli_1.0_{name}.txt": [names.replace(" ", "\t"), row.format("neutral"), row.format("-")]
        for name in ("train", "dev", "test")
    }
    data = read("snli", write(tmp_path / "snli", files), test=True)
    assert [(split.name, len(split.items), split.skipped) for split in (data.train, *data.scored)] == [
        ("train", 1, 1),
        ("dev", 1, 1),
        ("test", 1, 1),
    ]
    assert data.train.items == [("A dog.", "It runs.", "neutral")]
    assert data.files.keys() == files.keys()


def test_of_questions_rows_that_are_cut_short_are_skipped_and_no_others(tmp_path: Path) -> None:
    """Those with too few columns are in the published file; one with too many has a tab in a text."""
    head, *rows = FILES["qqp"]["train.tsv"]
    files = {**FILES["qqp"], "train.tsv": [head, *rows, "2\t1\t2\tWhy?\tWhy\tnot?\t0"]}
    with pytest.raises(UserError, match=r"train\.tsv, line 4: has 7 columns \(expected 6, separated by tabs"):
        read("qqp", write(tmp_path / "qqp", files))


def test_what_is_skipped_is_counted_and_said(tmp_path: Path) -> None:
    questions = read("qqp", write(tmp_path / "qqp", FILES["qqp"]))
    assert (len(questions.train.items), questions.train.skipped) == (1, 1)
    assert questions.notes == ("train: 1 malformed rows skipped",)
    inference = read("snli", write(tmp_path / "snli", FILES["snli"]))
    assert inference.scored[0].skipped == 1
    assert inference.notes == ("dev: 1 rows without a label skipped",)
    lines = [*FILES["snli"]["dev.tsv"], "", FILES["snli"]["dev.tsv"][1]]
    both = read("snli", write(tmp_path / "snli", {"dev.tsv": lines}))
    assert both.scored[0].skipped == 2
    assert both.notes == ("dev: 1 malformed rows skipped", "dev: 1 rows without a label skipped")


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


def test_examples_are_drawn_by_number_or_share() -> None:
    split = Split("train", range(1250))
    sizes = [len(drawn(split, wanted, 1).items) for wanted in (0, 5, 5.0, 0.1, 0.9999, 1e-9, 1.0, 2000)]
    assert sizes == [1250, 5, 5, 125, 1250, 1, 1, 1250]
    assert drawn(split, 0.1, 1) == drawn(split, 125, 1) != drawn(split, 125, 2)
    assert list(drawn(split, 0.1, 1).items) == sorted(drawn(split, 0.1, 1).items)


def test_a_task_knows_its_settings() -> None:
    known = [
        "ud carve",
        "mrpc carve",
        "squad1 carve",
        "uner crf",
        "own label",
        "blimp part",
        "blimp threads",
        "uner test",
        "snli test",
        "mrpc precision",
        "blimp precision",
    ]
    for task, setting in map(str.split, [*known, "rte bilstm", "ud epochs"]):
        check_setting([task], setting)
    for task, setting in map(
        str.split,
        ["uner carve", "mrpc crf", "ud label", "ud part", "blimp epochs", "mrpc test", "pairs precision"],
    ):
        with pytest.raises(UserError, match=f"{setting}: is not for {task}"):
            check_setting([task], setting)
    check_setting(["mrpc", "uner"], "crf")
    with pytest.raises(UserError, match=r"label: is not for mrpc or uner \(expected one of own\)"):
        check_setting(["mrpc", "uner"], "label")


def test_own_numbers_may_be_classes_and_the_other_way_round(tmp_path: Path) -> None:
    lines = [f'{{"text": "text {i}", "label": {i}}}' for i in range(40)]
    folder = write(tmp_path / "many", {"train.jsonl": lines, "dev.jsonl": lines})
    classes = read("own", folder, labels="classes")
    assert len(classes.labels) == 40
    assert FINE_TUNED["own"].headline_of(classes) == "accuracy"
    few = write(tmp_path / "few", {"train.jsonl": lines[:5], "dev.jsonl": lines[:5]})
    assert len(read("own", few).labels) == 5
    assert read("own", few, labels="numbers").labels == ()
    words = write(
        tmp_path / "words", {f"{name}.tsv": ["text\tlabel", "A.\tgood"] for name in ("train", "dev")}
    )
    with pytest.raises(UserError, match=r"has the label 'good' \(expected a number\)"):
        read("own", words, labels="numbers")


def test_own_files_of_both_kinds_are_scored_side_by_side(tmp_path: Path) -> None:
    """What one folder's files say of its metrics is not said of another's, read before or behind it."""
    rows = ["text\tlabel", *(f"text {n}\t{n}" for n in range(40))]
    both = [
        read("own", write(tmp_path / kind, {"train.tsv": rows, "dev.tsv": rows}), labels=kind)
        for kind in ("numbers", "classes")
    ]
    task = FINE_TUNED["own"]
    ids = [both[1].labels.index(str(n)) for n in range(40)]
    answers = [[np.array([float(n)]) for n in range(40)], [*np.eye(40)[ids]]]
    measured = (("pearson", "spearman"), ("accuracy",))
    for data, said, names in zip(both, answers, measured, strict=True):
        assert task.headline_of(data) == names[0]
        assert task.score(ModelAnswers(data.scored[0].items, [], said, data)) == pytest.approx(
            dict.fromkeys(names, 100)
        )
        assert tuple(task.baseline(data.scored[0], data)) == names


def test_own_numbers_are_the_same_label_however_they_are_written(tmp_path: Path) -> None:
    """What one program writes as 1 another writes as 1.0. Texts are what they are."""
    lines = [
        f'{{"text": "a", "label": {label}}}' for label in ("1", "1.0", "10e-1", '"1"', "0.5", "0", "-0.0")
    ]
    folder = write(tmp_path / "task", {"train.jsonl": lines, "dev.jsonl": lines})
    assert read("own", folder).labels == ("0", "0.5", "1")
    lines = [f'{{"text": "a", "label": "{label}"}}' for label in ("1", "1.0")]
    assert read("own", write(folder, {"train.jsonl": lines, "dev.jsonl": lines})).labels == ("1", "1.0")


def test_own_numbers_are_a_regression(tmp_path: Path) -> None:
    lines = [f'{{"body": "text {i}", "stars": {i / 10}}}' for i in range(40)]
    folder = write(tmp_path / "task", {"train.jsonl": lines, "dev.jsonl": lines})
    data = read("own", folder, text="body", label="stars")
    assert data.labels == ()
    assert FINE_TUNED["own"].headline_of(data) == "pearson"
    with pytest.raises(UserError, match="has no column text or sentence or"):
        read("own", folder)


def test_a_task_is_found_in_the_folder_of_its_official_name(tmp_path: Path) -> None:
    (tmp_path / "MRPC").mkdir()
    assert folder_of("mrpc", tmp_path) == tmp_path / "MRPC"
    assert folder_of("rte", tmp_path) == tmp_path
    file = tmp_path / "text.txt"
    file.write_text("One sentence.")
    assert folder_of("perplexity", file) == file
    with pytest.raises(UserError, match=r"text\.txt: no such folder"):
        folder_of("rte", file)
    found, missing = chosen_tasks([], "glue", tmp_path)
    assert found == [("mrpc", tmp_path / "MRPC")]
    assert "rte" in missing
    assert chosen_tasks(["mrpc", "mrpc"], "glue", tmp_path)[0] == found, "each once"
    with pytest.raises(UserError, match="did you mean mrpc"):
        chosen_tasks(["mrcp"], "", tmp_path)
    with pytest.raises(UserError, match="no task to score"):
        chosen_tasks([], "", tmp_path)


def test_of_a_suite_a_task_whose_file_is_not_in_the_folder_it_shares_is_missing(tmp_path: Path) -> None:
    """SQuAD 1.1 and 2.0 have one folder: with the files of one of them, the suite goes on without the other."""
    squad, every = tmp_path / "SQuAD", ["squad1", "squad2"]
    write(squad, FILES["squad1"])
    found, missing = chosen_tasks([], "all", tmp_path)
    assert found == [("squad1", squad)]
    assert "squad2" in missing
    assert "squad1" not in missing
    write(squad, {"train-v2.0.json": FILES["squad2"]["train-v2.0.json"]})
    assert chosen_tasks([], "all", tmp_path)[0] == [("squad1", squad)], "nothing to score is in it"
    write(squad, FILES["squad2"])
    assert chosen_tasks([], "all", tmp_path)[0] == [(name, squad) for name in every]
    (squad / "dev-v1.1.json").unlink()
    assert chosen_tasks([], "all", tmp_path)[0] == [("squad2", squad)]
    assert chosen_tasks(["squad1"], "", tmp_path)[0] == [("squad1", squad)], (
        "named, so its files are asked for"
    )

"""Every kind of task with every fault of its files: one line that names the file and what to do, or a skip that is
counted and said. Never a smaller test set without a word."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.errors import UserError
from pretrain.evaluate.evaluate import Evaluation, score_parts
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.registry import FINE_TUNED, UNTRAINED
from pretrain.tasks.settings import settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import ARTICLES, FILES, SQUAD, TREES, write, write_pairs

SCORED = {name: list(files)[-1] for name, files in FILES.items()}
"""The file of each task that is scored."""


def read(task: str, folder: Path, **settings: object) -> Any:
    wanted = settings_for(task, settings)
    return (UNTRAINED.get(task) or FINE_TUNED[task]).read(folder, wanted)


def refused(task: str, folder: Path, **settings: object) -> str:
    with pytest.raises(UserError) as found:
        read(task, folder, **settings)
    message = str(found.value)
    assert "\n" not in message
    assert found.value.expected or found.value.remedy, message
    return message


def folder_of(task: str, place: Path) -> Path:
    return write_pairs(place) if task == "blimp" else write(place, FILES[task])


def broken(place: Path, task: str, name: str, change: Callable[[list[str]], list[str]]) -> Path:
    """The files of a task with one of them changed."""
    folder = folder_of(task, place)
    lines = (folder / name).read_text().removesuffix("\n").split("\n")
    (folder / name).write_text("\n".join(change(lines)) + "\n")
    return folder


@pytest.mark.parametrize("task", [*FILES, "blimp"])
@pytest.mark.parametrize("part", ["train", "scored"])
def test_a_file_is_missing(task: str, part: str, tmp_path: Path) -> None:
    folder = folder_of(task, tmp_path / "task")
    names = sorted(path.name for path in folder.iterdir())
    name = SCORED.get(task, names[-1]) if part == "scored" else next(iter(FILES.get(task, [names[0]])))
    (folder / name).unlink()
    if task == "blimp":
        assert read(task, folder).notes[0] == "2 sets, of the 67 of BLiMP"
    else:
        assert re.search(r"no such file|has no (files )?\W*\w+", refused(task, folder))


@pytest.mark.parametrize("task", [*FILES, "blimp"])
@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_is_empty(task: str, content: bytes, tmp_path: Path) -> None:
    folder = folder_of(task, tmp_path / "task")
    name = SCORED.get(task, "two.jsonl")
    (folder / name).write_bytes(content)
    assert name in refused(task, folder)


@pytest.mark.parametrize("task", ["sst2", "mrpc", "qqp", "stsb", "mnli", "snli", "ax", "own", "swag"])
def test_a_file_has_names_of_columns_alone(task: str, tmp_path: Path) -> None:
    folder = broken(tmp_path / "task", task, SCORED[task], lambda lines: lines[:1])
    assert f"{SCORED[task]}: has no example" in refused(task, folder)


@pytest.mark.parametrize("task", [*FILES, "blimp"])
def test_a_file_is_not_utf8(task: str, tmp_path: Path) -> None:
    folder = folder_of(task, tmp_path / "task")
    path = folder / SCORED.get(task, "two.jsonl")
    path.write_bytes(path.read_bytes().rstrip() + b"\n\xff\xfe\n")
    assert re.search("is not UTF-8|can't decode", refused(task, folder))


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("cola", "gj04\t1\tThe sailors rode.", r"dev.tsv, line 2: has 3 columns \(expected 4, separated by tabs"),
        ("sst2", "a\tb\t1", r"dev.tsv, line 3: has 3 columns \(expected 2"),
        ("mrpc", "1\t7\t8\tA", r"dev.tsv, line 3: has 4 columns \(expected 5"),
        ("stsb", "0\t5.0", r"dev.tsv, line 3: has 2 columns \(expected 10"),
        ("mnli", "0\t1", r"dev_mismatched.tsv, line 3: has 2 columns \(expected 16"),
        ("snli", "0\t1", r"dev.tsv, line 4: has 2 columns"),
        ("rte", "1\tA.\tB.", r"dev.tsv, line 3: has 3 columns \(expected 4"),
        ("ax", "A.\tB.", r"diagnostic-full.tsv, line 3: has 2 columns \(expected 8"),
        ("own", "1\tfine\tx", r"dev.tsv, line 3: has 3 columns \(expected 2"),
        ("codah", "i\tHe\truns.\tis.\twas.\t3", r"dev.tsv, line 2: has 6 columns \(expected 7"),
        ("swag", "0,v,1,A b,He sits.,She,gold,a,b,c,d", r"val.csv, line 3: has another number of columns.*12, sep"),
        ("conll2003", "Paris NNP I-NP", r"eng.testa, line 6: has 3 columns \(expected at least 4"),
        ("uner", "2\tB", r"dev.iob2, line 2: has 2 columns \(expected at least 3"),
        ("wnut17", "Bill", r"dev.conll, line 4: has 1 columns \(expected at least 2"),
        ("tagging", "New York B-LOC", r"dev.txt, line 2: has 3 columns \(expected 2, as in"),
        ("ud", "1\tA\ta", r"dev.conllu: is refused by the official scorer: .* 10 tab-separated columns at line 17"),
        ("squad2", "{}", "dev-v2.0.json: is not in SQuAD's format behind 0 questions"),
        ("blimp", '{"sentence_good": "a"}', r"two.jsonl, line 21: is no pair of BLiMP \(expected the keys"),
    ],
)  # fmt: skip
def test_a_line_has_another_number_of_columns(task: str, line: str, message: str, tmp_path: Path) -> None:
    name = SCORED.get(task, "two.jsonl")
    folder = broken(
        tmp_path / "task", task, name, lambda lines: [*[one for one in lines if one != "\ufeff"], line]
    )
    assert re.search(message, refused(task, folder))


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("cola", "gj04\t2\t\tThe sailors rode.", r"dev.tsv, line 2: has the label '2' \(expected one of 0, 1\)"),
        ("qqp", "2\t1\t2\tA?\tB?\t", r"dev.tsv, line 3: has the label ''"),
        ("stsb", "0\tn\tf\t2012\t1\ts\ts\tA.\tB.\tnan", r"dev.tsv, line 3: has the label 'nan' \(expected a number\)"),
        ("mnli", "\t".join(["0"] * 8 + ["A.", "B."] + ["-"] * 6), r"dev_mismatched.tsv, line 3: has the label '-'"),
        ("snli", "0\tc\tp\t(\t(\t(\t(\tA.\tB.\tneutral\tmaybe", r"dev.tsv, line 4: has the label 'maybe'"),
        ("ax", "Q\t\t\t\tNews\tA.\tB.\tmaybe", r"line 3: has the label 'maybe'"),
        ("own", "2\tworse", r"dev.tsv, line 3: has the label '2' \(expected one of 0, 1\)"),
        ("codah", "o\tA\ta\tb\tc\td\t4", r"dev.tsv, line 2: has the label '4' \(expected a number from 0 to 3\)"),
        ("swag", "0,v,1,A b,He sits.,She,gold,a,b,c,d,", r"val.csv, line 3: has the label ''"),
        ("conll2003", "Paris NNP I-NP S-LOC", r"eng.testa, line 6: has the tag 'S-LOC' \(expected O, B-TYPE or I-TYPE"),
        ("uner", "2\tB\tLOC\t-\tx", r"dev.iob2, line 2: has the tag 'LOC'"),
        ("wnut17", "Bill\tperson", r"dev.conll, line 4: has the tag 'person'"),
        ("tagging", "Bill person", r"dev.txt, line 2: has the tag 'person'"),
    ],
)  # fmt: skip
def test_a_label_is_none_of_the_task(task: str, line: str, message: str, tmp_path: Path) -> None:
    name = SCORED[task]
    folder = broken(
        tmp_path / "task", task, name, lambda lines: [*[one for one in lines if one != "\ufeff"], line]
    )
    assert re.search(message, refused(task, folder))


def swag(ending: str, rest: str = ",b,c,d,2") -> str:
    return f"0,v,1,A b,He sits.,She,gold,{ending}{rest}"


@pytest.mark.parametrize(
    ("rows", "line", "message"),
    [
        # as one record these three have as many columns as the first line
        ([swag('"a'), swag("c"), swag('e"')], 3, "unexpected end of data"),
        ([swag('"a'), *[swag("c" * 1000)] * 200], 3, "unexpected end of data"),
        ([swag("c"), swag('"' + "a" * 140_000)], 4, "field larger than field limit"),
        ([swag("c"), swag("a", ',b,c,d,"2')], 4, "unexpected end of data"),
        ([swag("c"), swag('"a"b')], 4, "',' expected after '\"'"),
        ([swag("c"), swag("a\rb")], 4, "new-line character seen in unquoted field"),
    ],
)
def test_a_stray_quote_takes_in_no_rows(rows: list[str], line: int, message: str, tmp_path: Path) -> None:
    folder = broken(tmp_path / "task", "swag", "val.csv", lambda lines: [*lines, *rows])
    found = refused("swag", folder)
    assert f"val.csv, line {line}: is no row of comma-separated values: {message}" in found
    assert "every quote closed" in found


HALF = r"cut \ud83d"
"""JSON in which an emoji was cut in two."""


@pytest.mark.parametrize(
    ("task", "name", "row"),
    [
        ("own", "train.jsonl", {"text": HALF, "label": 1}),
        (
            "blimp",
            "two.jsonl",
            {"sentence_good": HALF, "sentence_bad": "a", "linguistics_term": "b", "UID": "c"},
        ),
        ("squad2", "dev-v2.0.json", {"data": [{"paragraphs": [{"context": HALF, "qas": []}]}]}),
    ],
)
@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\ud83d\ud83d\ude00", r"\ude00\ud83d"])
def test_half_a_character_is_refused_at_its_line(
    task: str, name: str, row: dict[str, Any], half: str, tmp_path: Path
) -> None:
    """json.loads takes it; tokenizers raise TypeError, which was after other tasks had trained."""
    text = json.dumps(row).replace(json.dumps(HALF)[1:-1], rf"whole \ud83d\ude00 \\ud83d cut {half}")
    whole = task == "squad2"
    folder = broken(
        tmp_path / "task", task, name, lambda lines: ["", "", text] if whole else [*lines[:2], text]
    )
    message = refused(task, folder)
    assert re.search(rf"{name}, line 3: has {re.escape(half[:6])}, half of a character", message)
    (folder / name).write_text((folder / name).read_text().replace(f"cut {half}", "cut"))
    if whole:
        assert "has no example" in refused(task, folder)
    else:
        read(task, folder)


@pytest.mark.parametrize("task", ["conll2003", "wnut17", "tagging"])
def test_a_type_of_entities_that_training_lacks_is_scored_and_said(task: str, tmp_path: Path) -> None:
    word = {"conll2003": "Al NNP I-NP I-NEW", "wnut17": "Al\tB-NEW", "tagging": "Al B-NEW"}[task]
    folder = broken(tmp_path / "task", task, SCORED[task], lambda lines: [word, *lines])
    data = read(task, folder)
    assert re.fullmatch("dev: tags never seen in training: B-NEW(, B-person)?", *data.notes)
    assert "B-NEW" in data.scored[0].items[0].tags


def test_labels_of_trees_that_training_lacks_are_counted_and_said(tmp_path: Path) -> None:
    text = "\n".join(TREES)
    for old, new in (("ADP\tIN", "X\tNEW"), ("3\tjumped\tjump", "3\tjumped\tleap"), ("\tobl", "\tobj")):
        text = text.replace(old, new)
    folder = write(tmp_path / "task", {"x-train.conllu": TREES, "x-dev.conllu": text.split("\n")})
    data = read("ud", folder)
    assert data.notes == (
        "dev: labels never seen in training: upos of 1 words, xpos of 1 words, lemma of 1 words, deprel of 1 words",
    )
    assert len(data.scored[0].items) == 2, "they are scored"
    (folder / "x-dev.conllu").write_text("\n".join(TREES) + "\n")
    assert read("ud", folder).notes == ()
    (folder / "x-train.conllu").unlink()
    assert read("ud", folder, epochs=0.0).notes == (), "nothing is trained"


@pytest.mark.parametrize("task", ["rte", "own", "codah", "swag"])
def test_empty_lines_between_rows_are_counted_and_said(task: str, tmp_path: Path) -> None:
    def split(lines: list[str]) -> list[str]:
        return [*lines, "", lines[-1], ""]

    data = read(task, broken(tmp_path / "task", task, SCORED[task], split))
    assert (len(data.scored[0].items), data.scored[0].skipped) == (2, 1)
    assert re.search("dev: 1 (malformed|empty) rows skipped", " ".join(data.notes))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"text": null, "label": 1}'], "train.jsonl, line 1: has no column text"),
        (
            ['{"text": "a", "label": 1}', '{"text": null, "label": 1}'],
            "line 2: has no text .expected a text or",
        ),
        (['{"text": "a", "label": 1}', '{"text": ["b"], "label": 1}'], "line 2: has no text"),
        (['{"text": "a", "label": 1}', '{"text": "b"}'], "line 2: has no label"),
        (['{"text": "a", "label": 1}', '["b"]'], "line 2: is no JSON object"),
        (['{"text": "a", "label": 1}', "[" * 100_000], "line 2: is no JSON object"),
        (
            ['{"text": null, "label": 1}', '{"text": "a", "label": 1}'],
            "train.jsonl, line 1: has no text .exp",
        ),
        (
            ['{"text": "a", "label": 1}', '{"text": "b", "text2": "c", "label": 1}'],
            "train.jsonl, line 1: has no text2 .expected a text or",
        ),
        (
            ['{"text": "a", "text2": null, "label": 1}', '{"text": "b", "hypothesis": "c", "label": 1}'],
            "train.jsonl, line 1: has no hypothesis",
        ),
        (
            ['{"text": "a", "text2": "b", "label": 1}', '{"text": "b", "text2": null, "label": 1}'],
            "train.jsonl, line 2: has no text2",
        ),
        (
            ['{"text": "a", "text2": "b", "label": 1}'],
            "dev.jsonl, line 1: has no column text2 or sentence2 or hypothesis .expected one of text, label; text=",
        ),
        (
            ['{"body": "a", "label": 1}'],
            "has no column text or sentence or .*expected one of body, label; text=",
        ),
    ],
)
def test_own_json_lines(lines: list[str], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "task", {"train.jsonl": lines, "dev.jsonl": ['{"text": "a", "label": 1}']})
    assert re.search(message, refused("own", folder))


@pytest.mark.parametrize("labels", ["auto", "classes", "numbers"])
@pytest.mark.parametrize("label", ["", " ", "nan", "-inf", "Infinity"])
def test_own_labels_that_are_none(label: str, labels: str, tmp_path: Path) -> None:
    """As programs write a missing value; it was a class, or made classes of all numbers."""
    rows = ["text\tlabel", *(f"text {n}\t{n / 10}" for n in range(40))]
    for name, other in (("train", "dev"), ("dev", "train")):
        folder = write(tmp_path / name, {f"{name}.tsv": [*rows, f"text\t{label}"], f"{other}.tsv": rows})
        message = refused("own", folder, labels=labels)
        assert f"{name}.tsv, line 42: has the label {label!r} (expected a finite number, or" in message
    lines = ['{"text": "a", "label": 1}', '{"text": "a", "label": NaN}']
    folder = write(tmp_path / "json", {"train.jsonl": lines, "dev.jsonl": lines[:1]})
    assert "train.jsonl, line 2: has no label" in refused("own", folder, labels=labels)


def test_own_second_texts_of_the_dev_file_alone_are_asked_of_the_training_file(tmp_path: Path) -> None:
    files = {"train.jsonl": ['{"text": "a", "label": 1}'], "dev.tsv": ["text\ttext2\tlabel", "a\tb\t1"]}
    assert "train.jsonl, line 1: has no column text2 or" in refused("own", write(tmp_path / "task", files))


def test_the_diagnostic_file_without_labels_is_not_the_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "task", {"diagnostic.tsv": ["index\tsentence1\tsentence2", "0\tA.\tB."]})
    assert re.search(
        r"diagnostic-full\.tsv: no such file .*diagnostic\.tsv.* has no labels", refused("ax", folder)
    )


@pytest.mark.parametrize("setting", ["epochs", "tune_share"])
def test_the_diagnostic_set_is_not_trained_on(setting: str, tmp_path: Path) -> None:
    """Not even divided: as `rte ax epochs=5` or `carve` might ask."""
    message = refused("ax", write(tmp_path / "task", FILES["ax"]), carve=0.5, **{setting: 0.5})
    assert message.startswith(f"{setting}=0.5: ax has no training examples (expected {setting}=0; ")


def test_own_columns_of_one_name(tmp_path: Path) -> None:
    folder = broken(tmp_path / "task", "own", "dev.tsv", lambda lines: ["text\ttext\tlabel", "a\tb\t1"])
    assert "dev.tsv, line 1: has several columns of the same name: text" in refused("own", folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4\tnsubj", "1\tnsubj", "There is a cycle in the sentence that ends at line 8"),
        ("2\tdet", "0\troot", "There are multiple roots in the sentence that ends at 8"),
        ("2\tdet", "77\tdet", "points outside of the sentence that ends at line 8"),
        ("2\tdet\t", "", "10 tab-separated columns at line 2"),
        ("2\tdet", "_\tdet", "dev.conllu, line 2: has the head '_' .expected the number of a word"),
        ("4\taux", "x\taux", "dev.conllu, line 5: has the head 'x'"),  # within a multi-word token
        ("2\tdet\t_", "2\tdet\tx", "is refused by the official scorer"),  # an enhanced dependency
        ("1\tThe", "2\tThe", "Incorrect word ID '2'"),
        ("3-4\t", "3-x\t", "Cannot parse multi-word token ID"),
    ],
)  # fmt: skip
def test_a_tree_is_none(old: str, new: str, message: str, tmp_path: Path) -> None:
    lines = [TREES[0], *(line.replace(old, new) for line in TREES[1:7]), *TREES[7:]]
    assert lines != TREES
    found = refused("ud", write(tmp_path / "task", {"x-train.conllu": TREES, "x-dev.conllu": lines}))
    assert re.search(message, found)
    assert "dev.conllu" in found


def test_a_span_does_not_match_its_text(tmp_path: Path) -> None:
    """Where questions are learnt they are left out and counted, where they are scored none is left out, and that is
    said as well."""
    text = ARTICLES["data"][0]["paragraphs"][0]["context"]
    moved = [{**SQUAD, "answers": [{"text": "fox", "answer_start": start}]} for start in (11, -8, 400)]
    content = json.dumps({"data": [{"paragraphs": [{"context": text, "qas": [SQUAD, *moved]}]}]})
    data = read("squad2", write(tmp_path / "task", {f"{n}-v2.0.json": [content] for n in ("train", "dev")}))
    assert (len(data.train.items), len(data.scored[0].items)) == (1, 4)
    assert data.notes == (
        "train: 3 questions skipped whose answer is not in the text at its place",
        "dev: 3 questions, scored by the words of their answers, whose answer is not in the text at its place",
    )


def test_a_set_of_pairs_is_not_whole(tmp_path: Path) -> None:
    notes = read("blimp", write_pairs(tmp_path), part=0.5).notes
    assert notes == ("3 sets, of the 67 of BLiMP", "3 sets have not 1,000 pairs", "50% of each set")


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_share_leaves_nothing_to_train_on_or_to_score(share: float, tmp_path: Path) -> None:
    folder = write(tmp_path / "task", FILES["qnli"])
    (folder / "train.tsv").unlink()
    assert f"carve={share}: leaves" in refused("qnli", folder, carve=share)


def no_words(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    fields = {**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps({key: value for key, value in fields.items() if key != "cls_token"}))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)


def fewer_rows(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 50}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "unheard"}'), "cannot be read"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json: cannot be read"),
        (lambda folder: [path.unlink() for n in ("tok", "voc") for path in folder.glob(f"{n}*")], "has no tokenizer"),
        (fewer_rows, r"ids up to \d+ .expected ids below 50"),
        (no_words, "puts no classification token"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no .*safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"xx"), "is damaged"),
        (lambda folder: None, "the head cannot be read"),
    ],
)  # fmt: skip
def test_a_model_lacks_what_it_needs(change: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    shutil.copytree(encoder_folder("bert"), tmp_path / "model")
    change(tmp_path / "model")
    settings = settings_for("ud", {"epochs": 0.0 if "head" in message else 0.1, "max_length": 64})
    folder = write(tmp_path / "task", FILES["ud"])
    with pytest.raises(UserError, match=message) as found:
        Evaluation("ud", Encoder(tmp_path / "model"), folder, tmp_path / "out", settings, [1], False).run(
            lambda name, total: nullcontext(lambda n: None)
        )
    assert "\n" not in str(found.value)
    assert found.value.expected or found.value.remedy
    assert not (tmp_path / "out").exists()


def test_all_files_are_read_before_anything_is_trained(tmp_path: Path) -> None:
    """What is wrong with the last of several tasks is not said after hours."""
    both = [
        Evaluation(
            task, Encoder(encoder_folder("bert")), folder_of(task, tmp_path / task), tmp_path / "out",
            settings_for(task, {"epochs": 1.0}), [1], False,
        )
        for task in ("rte", "uner")
    ]  # fmt: skip
    (tmp_path / "uner" / SCORED["uner"]).write_text("1\n")
    with pytest.raises(UserError, match=r"dev\.iob2, line 1: has 1 columns"):
        score_parts(both, lambda name, total: nullcontext(lambda n: None))
    assert not (tmp_path / "out").exists()

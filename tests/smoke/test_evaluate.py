"""`maskmill evaluate` as a user calls it: a table, results that resume, models that load, one line for bad input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

from data_pipeline.errors import UserError
from launch import cli
from pretrain.evaluate import evaluate as page
from pretrain.tasks.inputs import InputBuilder
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write, write_pairs

QUICK = ["epochs=1", "max_length=32", "batch=2", "threads=1"]


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    (tmp_path / "glue").mkdir()
    for name in ("RTE", "CoLA", "MNLI"):
        write(tmp_path / "glue" / name, FILES[name.lower()])
    return tmp_path / "glue"


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def error(*arguments: object) -> str:
    with pytest.raises(UserError) as found:
        CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert "\n" not in str(found.value)
    return str(found.value)


def result(out: Path, task: str) -> dict[str, Any]:
    return json.loads((out / task / "result.json").read_text())


def test_a_score_stands_beside_its_floors(glue: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = call(encoder_folder("bert"), "rte", "mnli", "--data", glue, "--seeds", 2, "--out", out, *QUICK)
    assert all(word in shown for word in ("rte", "mnli dev_matched", "mnli dev_mismatched", "not pretrained"))
    note = result(out, "rte")
    assert note["seeds"] == [1, 2]
    assert len(note["scores"]["dev"]["accuracy"]["values"]) == 2
    assert note["not_pretrained"]["dev"]["accuracy"].keys() == note["scores"]["dev"]["accuracy"].keys()
    assert note["trivial"] == {"dev": {"accuracy": 100}}  # one example
    assert note["files"].keys() == {"train.tsv", "dev.tsv"}
    assert note["settings"]["epochs"] == 1
    assert {"torch", "transformers", "scikit-learn"} <= note["conditions"][0]["versions"].keys()
    assert note["details"]["examples"] == {"train": 1, "dev": 1}


def test_finished_seeds_are_not_repeated(glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(encoder_folder("bert"), model)
    done: list[tuple[int, bool]] = []
    work = page.Evaluation._fine_tune

    def counted(self: Any, part: Any, *rest: Any, **more: Any) -> Any:
        done.append((part.seed, part.encoder.pretrained))
        return work(self, part, *rest, **more)

    monkeypatch.setattr(page.Evaluation, "_fine_tune", counted)
    same = [model, "rte", "--data", glue, "--out", out, *QUICK]
    first = call(*same)
    assert done == [(1, True), (1, False)]
    assert call(*same) == first
    assert len(done) == 2
    call(*same, "--seeds", 2)
    assert done[2:] == [(2, True), (2, False)]
    path = out / "rte" / "seed-2.json"
    older = json.loads(path.read_text())  # of a version without a setting, with other threads
    del older["identity"]["settings"]["labels"]
    older["result"]["conditions"]["threads"] += 1
    path.write_text(json.dumps(older))
    assert "rte: seeds were scored with different threads\n" in call(*same, "--seeds", 2, "patience=0")
    assert len(done) == 4
    call(*same, "lr=1e-4")  # other settings
    assert len(done) == 6
    model_file = model / "model.safetensors"
    bert = transformers.BertForPreTraining.from_pretrained(model)
    bert.bert.pooler.dense.bias.data += 1
    model_file.unlink()
    bert.save_pretrained(model)
    call(*same, "lr=1e-4")  # other weights: their floor is the same
    assert done[6:] == [(1, True)]


def test_fine_tuned_models_load_and_predict_the_same(glue: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = [f"{i}\tA fox {i}.\tIt jumped {i * i}.\tentailment" for i in range(9)]
    lines = ["index\tsentence1\tsentence2\tlabel", *rows, "9\tA fox.\tIt slept.\tnot_entailment"]
    (glue / "RTE" / "dev.tsv").write_text("\n".join(lines) + "\n")
    call(encoder_folder("bert"), "rte", "--data", glue, "--out", out, "--save", "--no-floor", *QUICK)
    classify = transformers.pipeline("text-classification", model=str(out / "rte" / "seed-1"), device="cpu")
    given = [{"text": row.split("\t")[1], "text_pair": row.split("\t")[2]} for row in lines[1:]]
    right = [
        found["label"] == row.split("\t")[3] for found, row in zip(classify(given), lines[1:], strict=True)
    ]
    accuracy = result(out, "rte")["scores"]["dev"]["accuracy"]["median"]
    assert accuracy == pytest.approx(100 * sum(right) / len(right))
    assert result(out, "rte")["not_pretrained"] == {}


def test_blimp_needs_no_training(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = call(
        encoder_folder("electra"), "--suite", "blimp", "--data", write_pairs(tmp_path / "blimp"), "--out", out
    )
    assert "ellipsis" in shown
    note = result(out, "blimp")
    assert note["details"]["paradigms"].keys() == {"one", "two", "three"}
    mean = sum(note["details"]["groups"].values()) / 2
    assert note["scores"]["dev"]["group_accuracy"]["median"] == pytest.approx(mean)
    assert set(note["not_pretrained"]["dev"]) == set(note["trivial"]["dev"]) == {"accuracy", "group_accuracy"}
    assert f"blimp dev: group_accuracy {mean:.1f}\n" in shown


def test_a_task_starts_from_the_models_of_another(glue: Path, tmp_path: Path) -> None:
    write(tmp_path / "glue" / "AX", FILES["ax"])
    write(tmp_path / "glue" / "STS-B", FILES["stsb"])
    both = ["--data", glue, "--out", tmp_path / "out", "--seeds", 2, *QUICK[1:]]
    assert "evaluate mnli first, with --save" in error(
        encoder_folder("bert"), "rte", *both, "--start-from", "mnli"
    )
    assert "lacks weights of BertForSequenceClassification" in error(encoder_folder("bert"), "ax", *both)
    call(encoder_folder("bert"), "mnli", *both, "--save", "--no-floor", "epochs=20", "lr=1e-3")
    shown = call(encoder_folder("bert"), "rte", "stsb", "ax", *both, "--start-from", "mnli")
    assert "rte-from-mnli: started from mnli" in shown
    assert "pearson" in result(tmp_path / "out", "stsb-from-mnli")["scores"]["dev"], "one number, not classes"
    started = result(tmp_path / "out", "rte-from-mnli")
    assert started["not_pretrained"]
    assert "not pretrained: trained on rte alone, without mnli" in started["notes"]
    other = error(encoder_folder("roberta"), "rte", *both, "--start-from", "mnli")
    assert "seed-1: is not known to be fine-tuned from the weights, config.json and tokenizer in" in other
    longer = call(encoder_folder("bert"), "rte", *both, "--start-from", "mnli", "epochs=2")
    assert f"rte-from-mnli: replaces a result of other settings in {tmp_path}" in longer
    scored = result(tmp_path / "out", "ax-from-mnli")
    assert (scored["settings"]["epochs"], scored["not_pretrained"], scored["seeds"]) == (0, {}, [1, 2])
    assert not [line for line in scored["notes"] if "not pretrained" in line]
    for chosen in (["mnli"], ["--suite", "glue"]):
        refused = error(encoder_folder("bert"), *chosen, *both, "--start-from", "mnli")
        assert "mnli cannot start from itself" in refused


def test_a_suite_scores_what_is_there_and_names_what_is_not(glue: Path, tmp_path: Path) -> None:
    shown = call(
        encoder_folder("bert"), "--suite", "glue", "--data", glue, "--out", tmp_path, "--no-floor", *QUICK
    )
    assert "not scored" in shown
    assert "sst2" in shown.split("not scored")[1]
    assert {path.parent.name for path in tmp_path.glob("*/result.json")} == {"cola", "mnli", "rte"}


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        ("text text2 label", []),
        ("sentence sentence2 score", []),
        ("premise hypothesis target", []),
        ("title reply stars", ["text=title", "second_text=reply", "label=stars"]),
        ("text reply label", ["second_text=reply"]),
        ("text text2 reply label", ["second_text=reply"]),
    ],
)
def test_own_files_of_two_texts(
    names: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, second, label = names.split()
    row = {name: f"the {name}" for name in names.split()} | {label: "x"}
    rows = [row, {**row, label: "y"}]
    lines = ["\t".join(row), *("\t".join(one.values()) for one in rows)]
    write(tmp_path, {"train.jsonl": [json.dumps(one) for one in rows], "dev.tsv": lines})
    pairs: set[tuple[str, ...]] = set()
    pair = InputBuilder.pair

    def spied(self: Any, *texts: str) -> Any:
        pairs.add(texts)
        return pair(self, *texts)

    monkeypatch.setattr(InputBuilder, "pair", spied)
    same = [
        encoder_folder("bert"),
        "own",
        "--data",
        tmp_path,
        "--no-floor",
        "--out",
        tmp_path / "out",
        *QUICK,
    ]
    assert "accuracy" in call(*same, *changes)
    assert pairs == {(f"the {first}", f"the {second}")}
    assert result(tmp_path / "out", "own")["details"]["labels"] == {"x": 0, "y": 1}
    others = [change for change in changes if not change.startswith("second_text")]
    missing = error(*same, *others, "second_text=answer")
    assert "train.jsonl, line 1: has no column answer (expected one of " in missing
    assert "text=, second_text= and label= name the columns" in missing


def test_a_run_of_two_models_is_scored_by_the_one_that_fits(glue: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name, kind in (("discriminator", "discriminator"), ("generator", "electra")):
        shutil.copytree(encoder_folder(kind), tmp_path / "run" / name)
    call(tmp_path / "run", "rte", "--data", glue, "--no-floor", *QUICK)
    call(tmp_path / "run", "blimp", "--data", write_pairs(tmp_path / "blimp"), "--no-floor")
    out = tmp_path / "run" / "evaluation"
    assert result(out, "rte")["encoder"]["folder"].endswith("discriminator")
    assert result(out, "blimp")["encoder"]["folder"].endswith("generator")


def test_settings_are_listed() -> None:
    shown = call("x", "--settings")
    assert "layer_decay = 1.0" in shown
    assert "AdamW's betas" in shown


def test_bad_input_is_one_line(glue: Path, tmp_path: Path) -> None:
    model = encoder_folder("bert")
    assert "no such task: rtee" in error(model, "rtee", "--data", glue)
    assert "--data: is missing" in error(model, "rte")
    assert "no such folder" in error(model, "rte", "--data", tmp_path / "nowhere")
    assert "unknown key lrr (expected one of lr" in error(model, "rte", "--data", glue, "lrr=1")
    assert "epochs" in error(model, "rte", "--data", glue, "epochs=many")
    assert "part: is not for rte or cola (expected one of attention, blimp," in error(
        model, "rte", "cola", "--data", glue, "part=0.1"
    )
    assert "is no Hugging Face model" in error(tmp_path, "rte", "--data", glue)
    assert "no such suite: superglue" in error(model, "--suite", "superglue", "--data", glue)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    assert "maskmill export" in error(tmp_path / "run", "rte", "--data", glue)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(model / "config.json", bare)
    assert "has no tokenizer" in error(bare, "rte", "--data", glue)
    shutil.copy(model / "tokenizer.json", bare)
    (bare / "pytorch_model.bin").write_bytes(b"\x80")
    assert "could run code and is not read" in error(bare, "rte", "--data", glue)
    shutil.copy(model / "model.safetensors", bare)
    (bare / "config.json").write_text('{"model_type": "unheard"}')
    assert "config.json: cannot be read" in error(bare, "rte", "--data", glue)


def test_a_folder_whose_encoder_lacks_weights_is_refused(glue: Path, tmp_path: Path) -> None:
    deeper = tmp_path / "deeper"
    shutil.copytree(encoder_folder("bert"), deeper)
    config = json.loads((deeper / "config.json").read_text())
    (deeper / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "lacks weights of BertForSequenceClassification: bert.encoder.layer.2" in error(
        deeper, "rte", "--data", glue
    )


def without_times(note: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in note.items() if key != "seconds"}


@pytest.mark.slow
def test_side_by_side_and_in_shares_the_results_are_the_same(glue: Path, tmp_path: Path) -> None:
    same = [encoder_folder("bert"), "rte", "cola", "--data", glue, "--seeds", 2, *QUICK]
    shown = call(*same, "--out", tmp_path / "one")
    call(*same, "--out", tmp_path / "jobs", "--jobs", 2)
    for number in range(3):
        said = call(*same, "--out", tmp_path / "shares", "--share", f"{number}/3")
        assert said == f"share {number}/3: {3 if number < 2 else 2} scores of a task and seed\n"
        assert not (tmp_path / "shares" / "rte" / "result.json").exists()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "shares").rglob("*seed-*.json")}
    assert len(times) == 8
    gathered = call(*same, "--out", tmp_path / "shares")
    assert all(path.stat().st_mtime_ns == time for path, time in times.items()), "work was done again"
    assert gathered == shown.replace(str(tmp_path / "one"), str(tmp_path / "shares"))
    for task in ("rte", "cola"):
        results = [without_times(result(tmp_path / name, task)) for name in ("one", "jobs", "shares")]
        assert results[0] == results[1] == results[2]


@pytest.mark.slow
def test_an_error_in_a_process_of_its_own_is_one_line(glue: Path, tmp_path: Path) -> None:
    same = [encoder_folder("bert"), "rte", "cola", "--data", glue, "--out", tmp_path, *QUICK]
    assert "lacks weights of BertForSequenceClassification" in error(*same, "--jobs", 2, "epochs=0")
    assert "NUMBER/OF" in error(encoder_folder("bert"), "rte", "--data", glue, "--share", "3/3")


def test_suites_look_for_their_tasks_in_the_folder_and_below(glue: Path, tmp_path: Path) -> None:
    for name in ("UD_English-A", "UD_English-B"):
        write(tmp_path / name, FILES["ud"])
    quick = [*QUICK, "max_length=64", "--no-floor", "--out", tmp_path / "out"]
    shown = call(encoder_folder("bert"), "--suite", "ud", "--data", tmp_path, *quick)
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["ud-English-A", "ud-English-B"]
    shown = call(encoder_folder("bert"), "--suite", "all", "--data", tmp_path, *quick)
    assert [line.split()[0] for line in shown.splitlines()[1:7]] == [
        *["cola", "mnli", "mnli", "rte", "ud-English-A", "ud-English-B"]
    ]
    assert "has no folder or files of theirs: blimp, sst2" in shown

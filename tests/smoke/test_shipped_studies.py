"""Shipped studies end to end, tiny: what their arms must have in common is checked, and their tasks score every arm."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch.studies.read import find_study
from tests.command_line import TINY, Maskmill, write_text
from tests.factories.tasks import TREES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning"
    ),  # of what training imports
]
ARMS = ("both_and_segments", "neither_gap", "period")
WORDS = (("The", "O"), ("ship", "O"), ("Jonah", "B-PER"), ("sailed", "O"))
Figures = dict[str, dict[str, float]]


LENGTH = ("data.sequence_length", "train.steps", "train.global_batch", "train.micro_batch")
"""In what the phases of an arm may differ, which a command line then cannot set."""


def result_of(folder: Path) -> dict[str, Any]:
    """The result of a study in which nothing is missing."""
    result = json.loads((folder / "out/result.json").read_text())
    assert result["missing"] == []
    return result


def figures_of(folder: Path) -> Figures:
    """The figures of each arm's only run."""
    return {one["arm"]: one["figures"] for one in result_of(folder)["measured"]}


def small_study(
    maskmill: Maskmill,
    folder: Path,
    name: str,
    arms: Sequence[str],
    *more: str,
    without: Collection[str] = (),
) -> str:
    """Run a study of one seed, three steps and one small layer, `without` these of its settings; what it says."""
    small = [*TINY, "encoder.layers=1", "train.steps=3"]
    small = [setting for setting in small if setting.partition("=")[0] not in without]
    if not any(word.startswith("--source") for word in more):
        if not (folder / "text.txt").exists():
            write_text(folder / "text.txt", documents=60)
        small.append(f"data.sources={folder}/text.txt")
    options = [f"--arms={','.join(arms)}", "--seeds=1", f"--out={folder}/out"]
    return maskmill("study", name, *options, *more, *small).stdout


def test_separators(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    said = small_study(maskmill, tmp_path, "sep", ARMS)
    assert "content, content masks, shared weights equal in all 3 arms" in said
    assert len(list((tmp_path / "out/data").glob("shards-*"))) == 1
    figures = figures_of(tmp_path)
    assert set(figures) == set(ARMS)
    cells = [f"held_out.mask_loss_{label}_segment_{n}" for label in ("is_next", "not_next") for n in "ab"]
    for arm, own in figures.items():
        assert [name for name in cells if name not in own] == []
        assert "held_out_nsp_accuracy" in own
        # the export is scored in the arm's own format: the loss is that of training's evaluation
        scored = json.loads(
            next((tmp_path / f"out/runs/{arm}-1/evaluation").glob("*/held_out/result.json")).read_text()
        )
        assert scored["scores"]["dev"]["mask_loss"]["mean"] == pytest.approx(
            own["held_out_mask_loss"], abs=1e-3
        )
    assert figures["neither_gap"]["attention.sep_attention"] == 0
    assert "attention.blocked_loss" not in figures["neither_gap"]
    assert figures["period"]["attention.sep_attention"] > 0
    assert {f"attention.sep_{what}_layer_1" for what in ("attention", "gradient")} <= figures["period"].keys()
    config = json.loads((tmp_path / "out/runs/neither_gap-1/export/config.json").read_text())
    assert (config["separators"], config["separator_gap"], config["type_vocab_size"]) == ("none", True, 1)
    frames = [_frame(tmp_path / f"out/runs/{arm}-1/export") for arm in ARMS]
    assert frames == [(["[CLS]", "[SEP]", "[SEP]"], True), (["[CLS]"], False), (["[CLS]", ".", "."], True)]


def _frame(folder: Path) -> tuple[list[str], bool]:
    """The tokens that a tokenizer puts around two texts, and whether it gives segments."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    pair = tokenizer("ship", "sea")
    text = [*tokenizer.tokenize("ship"), *tokenizer.tokenize("sea")]
    tokens = tokenizer.convert_ids_to_tokens(pair["input_ids"])
    for token in text:
        tokens.remove(token)
    return tokens, "token_type_ids" in pair


def test_pairs(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    said = small_study(maskmill, tmp_path, "pairs", ("half", "all_next"))
    assert "weights equal in all 2 arms" in said
    figures = figures_of(tmp_path)
    for own in figures.values():
        assert {
            "pairs.use_segment_b",
            "pairs.harm_segment_a",
            "held_out.mask_loss_not_next_segment_b",
        } <= own.keys()
    labels = {}
    for path in (tmp_path / "out/data").glob("shards-*/index.json"):
        index = json.loads(path.read_text())
        labels[index["settings"]["sequences"]] = index["statistics"]["train"]["pair_labels"]
    assert min(labels["segment_pair"].values()) > 0
    assert sum(count > 0 for count in labels["sentence_order"].values()) == 1  # no pair is swapped


def test_a_ramp_of_lengths(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    (tmp_path / "ramp.yaml").write_text(
        "title: T\nquestion: Q?\nrecipe: demo\nevaluate: [{task: held_out, data: shards}]\n"
        "settings: {data.sequence_length: 32}\narms: {ramp: {settings: {phases: ["
        "{name: short, data: {sequence_length: 16}, train: {steps: 2}}, {name: long, train: {steps: 3}}]}}}"
    )
    small_study(
        maskmill,
        tmp_path,
        str(tmp_path / "ramp.yaml"),
        ("ramp",),
        without=("data.sequence_length", "train.steps"),
    )
    [folder] = (tmp_path / "out/runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["step"] == 5
    lengths = {
        json.loads(path.read_text())["settings"]["sequence_length"]: path.parent.name
        for path in (tmp_path / "out/data").glob("shards-*/index.json")
    }
    assert sorted(lengths) == [16, 32]
    own = figures_of(tmp_path)["ramp"]  # scored on the examples of its last phase
    assert own["held_out.mask_loss"] == pytest.approx(own["held_out_mask_loss"], abs=1e-3)


def test_objectives(
    tmp_path: Path, maskmill: Maskmill, study_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.studies.budget.EVERY", 1)
    said = small_study(maskmill, tmp_path, "objectives", ("bert", "electra"))
    assert "timing a step of 2 arms" in said
    times = json.loads((tmp_path / "out/step_times.json").read_text())
    [electra] = times.values()
    steps = round(3 * electra["reference_ms"] / electra["step_ms"])
    assert (
        f"Steps at equal time: masked tokens and next sentences 3; replaced tokens (ELECTRA) {steps}" in said
    )
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert {one["arm"]: one["curve"][-1]["step"] for one in result["measured"]} == {
        "bert": 3,
        "electra": steps,
    }
    assert "Steps at equal time" in (tmp_path / "out/README.md").read_text()


def test_directions(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    folder = tmp_path / "tasks/UNER_English-EWT"
    folder.mkdir(parents=True)
    sentence = "".join(f"{n}\t{word}\t{tag}\t-\t-\n" for n, (word, tag) in enumerate(WORDS, 1))
    for name in ("en_ewt-ud-train.iob2", "en_ewt-ud-dev.iob2"):
        (folder / name).write_text(f"# text = a ship\n{sentence}\n" * 12)
    arms = ("left_to_right", "side_by_side_whole")
    small_study(maskmill, tmp_path, "elmo-gpt", arms, f"--data={tmp_path}/tasks")
    figures = figures_of(tmp_path)
    assert set(figures) == {"left_to_right", "right_to_left", "side_by_side_whole"}
    assert all("uner_features.f1" in own for own in figures.values())
    assert {arm: "uner.f1" in own for arm, own in figures.items()} == {
        "left_to_right": True, "right_to_left": True, "side_by_side_whole": False
    }  # fmt: skip
    result = json.loads((tmp_path / "out/result.json").read_text())
    named, words = sum(tag != "O" for _, tag in WORDS), len(WORDS)
    always = 200 * named / (named + words)  # every word an entity of one word
    assert all(one["trivial"]["uner_features.f1"] == pytest.approx(always) for one in result["measured"])


def test_languages(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    refused = maskmill("study", "languages", "--plan", code=2)
    assert "needs data.languages" in refused.stderr
    (tmp_path / "text").mkdir()
    for seed, name in enumerate(("en.txt", "fi.txt")):
        write_text(tmp_path / "text" / name, documents=40, seed=seed)
    arms = ("across", "within", "within_null")
    small_study(maskmill, tmp_path, "languages", arms, f"--source={tmp_path}/text")
    figures = figures_of(tmp_path)
    for own in figures.values():
        assert {"same_language.nsp_accuracy_not_next", "mixed_languages.mask_loss"} <= own.keys()
    assert figures["within"]["same_language.mask_loss"] != figures["within_null"]["same_language.mask_loss"]


def test_formats(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    arms = ("segment_pair", "doc_sentences")
    assert "shared weights equal in all 2 arms" in small_study(maskmill, tmp_path, "formats", arms)
    figures = figures_of(tmp_path)
    assert all("held_out.mask_loss" in figures[arm] for arm in arms)
    assert ["held_out_nsp_accuracy" in figures[arm] for arm in arms] == [True, False]
    scored = [tmp_path / f"out/runs/{arm}-1/evaluation/0/held_out/result.json" for arm in arms]
    assert len({json.dumps(json.loads(path.read_text())["files"]) for path in scored}) == 1, "the same text"
    cell, summary = (
        tmp_path / f"out/{name}"
        for name in ("cells/doc_sentences-1.json", "runs/doc_sentences-1/summary.json")
    )
    changed = json.loads(summary.read_text()) | {"seconds": 5000.0}
    del changed["sha256"]
    summary.write_text(json.dumps(changed))
    cell.unlink()
    small_study(maskmill, tmp_path, "formats", arms)
    assert 5000 <= json.loads(cell.read_text())["seconds"] < 5600, "training of a process before counts"


def test_bert_ablations(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    said = small_study(maskmill, tmp_path, "bert-ablations", ("bert", "no_nsp_pairs", "mask_100_0_0"))
    assert "seed 1: examples, shared weights equal in all 3 arms" in said
    assert "seed 1: masks equal in bert, no_nsp_pairs" in said
    assert (
        "equal in *BERT*, *no NSP, the same pairs*: seed 1: masks "
        in (tmp_path / "out/README.md").read_text()
    )
    figures = figures_of(tmp_path)
    assert all("held_out.mask_loss" in own for own in figures.values())
    losses = [figures[arm]["held_out_mask_unigram_loss"] for arm in ("bert", "no_nsp_pairs")]
    assert losses[0] == pytest.approx(losses[1])


def test_segments(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    """On a treebank that has no training file, scored by epoch, and without the files of its other task."""
    folder = tmp_path / "tasks/UD_English-Own"
    folder.mkdir(parents=True)
    (folder / "en_own-ud-dev.conllu").write_text("\n".join([*TREES * 6, ""]))
    settings = [f"evaluate.ud.{each}" for each in ("carve=0.5", "epochs=2", "by_epoch=true")]
    small_study(maskmill, tmp_path, "segments", ("ones", "null"), f"--data={tmp_path}/tasks", *settings)
    result = result_of(tmp_path)
    assert {one["arm"] for one in result["measured"]} == {"original", "ones", "null"}
    for one in result["measured"]:
        assert one["notes"] == []
        curve = one["by_epoch"]["ud-English-Own.LAS"]
        assert len(curve) == 2
        assert curve[-1] == one["figures"]["ud-English-Own.LAS"]
    page = (tmp_path / "out/README.md").read_text()
    assert "LAS by epoch, means and ranges over seeds**" in page
    assert "- not scored: mrpc: no folder of its files" in page
    assert (tmp_path / "out/epochs.svg").is_file()
    assert "![ud-English-Own, LAS](picture.svg)" in page, "of the first figure that was measured"


def test_plateau(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    """Its ramp of lengths, with steps and batches of a few."""
    values = yaml.safe_load(find_study("plateau").read_text())
    values["settings"] |= {"train.steps": 3, "train.global_batch": 8, "train.micro_batch": 8}
    for phase, batch in zip(values["arms"]["ramp_128"]["settings"]["phases"], (8, 4), strict=True):
        phase["train"] = {"steps": 2, "global_batch": batch, "micro_batch": batch}
    (tmp_path / "plateau.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    arms = ("length_64", "ramp_128")
    refused = maskmill(
        "study", str(tmp_path / "plateau.yaml"), f"--arms={','.join(arms)}", "train.steps=4", code=2
    )
    assert "the arms differ in train.steps" in refused.stderr
    small_study(maskmill, tmp_path, str(tmp_path / "plateau.yaml"), arms, without=LENGTH)
    measured = {one["arm"]: one for one in result_of(tmp_path)["measured"]}
    assert {arm: one["curve"][-1]["step"] for arm, one in measured.items()} == {"length_64": 3, "ramp_128": 4}
    settings = {}
    for path in (tmp_path / "out/data").glob("shards-*/index.json"):
        settings[json.loads(path.read_text())["settings"]["sequence_length"]] = path
    assert sorted(settings) == [64, 128]


TWO_ARMS = "title: T\nquestion: Q?\nrecipe: demo\nequal: [examples]\narms: {a: {}, b: {settings: {encoder.heads: 1}}}\n"


def test_parts_of_a_study_come_to_the_whole(tmp_path: Path, maskmill: Maskmill, study_here: None) -> None:
    """As jobs of a cluster do them; and two runs at a time, in processes of their own."""
    (tmp_path / "two.yaml").write_text(TWO_ARMS)

    def study(*more: str) -> str:
        two = str(tmp_path / "two.yaml")
        return small_study(maskmill, tmp_path, two, ("a", "b"), *more, without=["encoder.heads"])

    def cells() -> list[str]:
        return sorted(path.stem for path in (tmp_path / "out/cells").glob("*.json"))

    assert "examples equal in all 2 arms" in study("--prepare")
    assert not (tmp_path / "out/runs").exists()
    assert list((tmp_path / "out/data").glob("shards-*/index.json"))
    assert "preparing" not in study("--share=1/2")
    assert cells() == ["b-1"]
    study("--share=0/2")
    assert cells() == ["a-1", "b-1"]
    assert not (tmp_path / "out/README.md").exists()
    assert "a-1: " not in study(), "measured already"
    said = study("--seeds=2", "--jobs=2")
    assert "a-2: held_out_mask_loss" in said
    assert "b-2: held_out_mask_loss" in said
    assert cells() == ["a-1", "a-2", "b-1", "b-2"]
    assert "What is missing" not in (tmp_path / "out/README.md").read_text()

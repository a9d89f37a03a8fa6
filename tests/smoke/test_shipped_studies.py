"""Shipped studies end to end, tiny: what their arms must have in common is checked, and their tasks score every arm."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tests.command_line import TINY, Maskmill, write_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning"
    ),  # of what training imports
]
ARMS = ("both_and_segments", "neither_gap", "period")
WORDS = (("The", "O"), ("ship", "O"), ("Jonah", "B-PER"), ("sailed", "O"))
Figures = dict[str, dict[str, float]]


def figures_of(folder: Path) -> Figures:
    """The figures of each arm's only run."""
    result = json.loads((folder / "out/result.json").read_text())
    assert result["missing"] == []
    return {one["arm"]: one["figures"] for one in result["measured"]}


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
    monkeypatch.setattr("launch.studies.time_arms.EVERY", 1)
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
    assert {one["trivial"]["uner_features.f1"] for one in result["measured"]} == {0.0}


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

"""What a score is known by: all that decides it, so that what is corrected is scored again, and nothing else."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation
from pretrain.evaluate.results import saved_model
from pretrain.tasks import encoders
from pretrain.tasks.encoders import NOT_PRETRAINED, UNINFLUENTIAL, Encoder, TwoWay
from pretrain.tasks.settings import identity, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write, write_pairs

SILENT: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(encoder_folder("bert"), tmp_path / "model")


def change(folder: Path, file: str, **fields: Any) -> None:
    path = folder / f"{file}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def evaluation(task: str, model: Path, folder: Path, **changes: Any) -> Evaluation:
    wanted = settings_for(task, {"max_length": 32, "threads": 1, **changes})
    return Evaluation(task, Encoder(model), folder, folder.parent / "out", wanted, [1], has_floor=False)


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("config", {"id2label": {"0": "yes", "1": "no"}}),
        ("config", {"is_decoder": True}),
        ("config", {"hidden_act": "relu"}),
        ("config", {"separators": "period"}),
        ("config", {"direction": "right_to_left"}),
        ("tokenizer_config", {"padding_side": "left"}),
        ("tokenizer_config", {"model_input_names": ["input_ids", "attention_mask"]}),
        ("tokenizer_config", {"do_lower_case": False}),
        ("special_tokens_map", {"cls_token": "[SEP]"}),
    ],
)
def test_what_decides_scores_beside_the_weights_is_in_the_identity(
    file: str, fields: dict[str, Any], model: Path
) -> None:
    before = [Encoder(model, pretrained).identity for pretrained in (True, False)]
    change(model, file, **fields)
    after = [Encoder(model, pretrained).identity for pretrained in (True, False)]
    for was, now in zip(before, after, strict=True):
        assert now != was
        assert now["weights"] == was["weights"]
    assert before[1] == {**before[0], "weights": NOT_PRETRAINED}


def test_what_decides_none_is_not(model: Path) -> None:
    before = Encoder(model).identity
    fields = dict.fromkeys(UNINFLUENTIAL - {"architectures", "dtype", "torch_dtype"}, "other")
    change(model, "config", **fields, architectures=["BertModel"], dtype="bfloat16")
    change(model, "tokenizer_config", model_max_length=99, truncation_side="left")
    used = Encoder(model)
    used.tokenizer(["a", "the quick fox"], padding=True, truncation=True, max_length=8)
    assert Encoder(model).identity == used.identity == before


def test_the_vocabulary_alone_is_told_from_what_is_stated_of_inputs(model: Path) -> None:
    """Perplexities per token stand beside those of the same vocabulary, whatever the side of the padding."""
    change(model, "tokenizer_config", padding_side="left")
    assert Encoder(model).identity["tokenizer"] == Encoder(encoder_folder("bert")).identity["tokenizer"]


def test_both_of_two_models_are_in_the_identity(tmp_path: Path) -> None:
    one, other = (shutil.copytree(encoder_folder("causal"), tmp_path / name) for name in "ab")
    before = TwoWay(one, other=other).identity
    change(other, "config", hidden_act="relu")
    assert TwoWay(one, other=other).identity != before


def test_a_finished_model_is_scored_again_when_its_labels_are_corrected(model: Path, tmp_path: Path) -> None:
    rows = [f"{n}\tA fox {n}.\tIt slept.\t{'not_' * (n > 2)}entailment" for n in range(4)]
    folder = write(tmp_path / "task", {"dev.tsv": [FILES["rte"]["dev.tsv"][0], *rows]})
    finished = transformers.BertForSequenceClassification.from_pretrained(model, num_labels=2)
    finished.classifier.bias.data = torch.tensor([9.0, -9.0])
    finished.save_pretrained(model)
    one = evaluation("rte", model, folder, epochs=0.0)
    assert one.run(SILENT)["scores"]["dev"]["accuracy"]["median"] == 75, "in the order of the task's classes"
    change(model, "config", id2label={"0": "not_entailment", "1": "entailment"})
    again = evaluation("rte", model, folder, epochs=0.0)
    assert again.replaced() == f"rte: replaces a result of other encoder in {tmp_path / 'out' / 'rte'}"
    assert again.run(SILENT)["scores"]["dev"]["accuracy"]["median"] == 25


def test_a_saved_model_is_of_the_configuration_that_it_was_trained_with(model: Path, tmp_path: Path) -> None:
    one = evaluation("rte", model, write(tmp_path / "task", FILES["rte"]), epochs=1.0)
    replace(one, save=True).run(SILENT)
    saved = tmp_path / "out" / "rte" / "seed-1"
    assert saved_model(one.out, "rte", 1, Encoder(model)) == saved
    change(model, "config", hidden_act="relu")
    with pytest.raises(UserError, match="is not known to be fine-tuned from the weights, config"):
        saved_model(one.out, "rte", 1, Encoder(model))


def test_scores_of_another_precision_are_not_taken_for_these(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_pairs(tmp_path / "blimp", 4)
    auto, fp32, bf16 = (
        evaluation("blimp", model, folder, precision=precision) for precision in ("auto", "fp32", "bf16")
    )
    assert bf16.run(SILENT)["conditions"][0]["precision"] == "bf16"
    assert auto.replaced() == f"blimp: replaces a result of other precision in {tmp_path / 'out' / 'blimp'}"
    assert fp32.run(SILENT)["conditions"][0]["precision"] == "fp32"
    assert (auto.replaced(), fp32.replaced()) == ("", "")
    monkeypatch.setattr(encoders, "_is_gpu", lambda where: True)
    assert auto.replaced() == "", "without training auto is fp32 on a GPU too"
    rte = evaluation("rte", model, write(tmp_path / "task", FILES["rte"]))
    assert rte.known_by(rte.parts[0])["precision"] == "bf16"


def test_settings_that_say_nothing_about_a_task_make_no_other_result(model: Path, tmp_path: Path) -> None:
    blimp, rte = write_pairs(tmp_path / "blimp", 4), write(tmp_path / "task", FILES["rte"])

    def settings(task: str, folder: Path, **changes: Any) -> dict[str, Any]:
        one = evaluation(task, model, folder, **changes)
        return one.known_by(one.parts[0])["settings"]

    assert settings("blimp", blimp) == settings("blimp", blimp, recipe="small", carve=0.5, max_length=64)
    assert settings("blimp", blimp) != settings("blimp", blimp, part=0.5)
    others = {"part": 0.5, "test": True, "null_threshold": "1", "text": "title", "labels": "classes"}
    assert settings("rte", rte) == settings("rte", rte, **others)
    assert settings("rte", rte) == identity(evaluation("rte", model, rte).settings)
    for used in ({"recipe": "small"}, {"max_length": 64}, {"bilstm": True}, {"tune_share": 0.1}):
        assert settings("rte", rte) != settings("rte", rte, **used)


def test_a_result_of_an_older_version_is_made_again_and_named(model: Path, tmp_path: Path) -> None:
    one = evaluation("blimp", model, write_pairs(tmp_path / "blimp", 4))
    one.run(SILENT)
    path = tmp_path / "out/blimp/seed-1.json"
    older = json.loads(path.read_text())
    path.write_text(json.dumps({**older, "format": older["format"] - 1}))
    assert one.replaced() == f"blimp: replaces a result of an older version in {path.parent}"
    one.run(SILENT)
    assert one.replaced() == ""

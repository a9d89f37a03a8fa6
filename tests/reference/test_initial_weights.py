"""Weights from a Hugging Face folder: what goes in comes out, positions grow, heads that lack are fresh."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import NOTE
from data_pipeline.vocabulary.files import load_vocabulary
from launch.recipe import load_config
from pretrain.config.settings import RunConfig
from pretrain.export.export import export
from pretrain.export.tokenizer import INPUTS
from pretrain.huggingface.base import POSITIONS
from pretrain.huggingface.load import quiet
from pretrain.run.folder import model_folders
from pretrain.training.initial_weights import (
    EXTENSIONS,
    InitialWeights,
    from_folder,
    interpolated,
    repeated,
    with_fresh_rows,
)
from tests.factories.encoders import encoder_folder, write_encoder
from tests.factories.exports import CARD
from tests.factories.published import SAME, assert_same_model, written
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples


def settings(folder: Path, *overrides: str) -> RunConfig:
    """The settings of a run that starts from the folder, and states no more than it must."""
    return load_config("domain", [f"init_from={folder}", "data.sequence_length=48", *overrides])


def started(config: RunConfig) -> InitialWeights:
    return from_folder(config, load_vocabulary(config.data.vocab))


def exported(config: RunConfig, weights: dict[str, Tensor], folder: Path) -> Path:
    pairs = config.objective.name in ("bert", "albert", "ernie")
    vocabulary = load_vocabulary(config.data.vocab)
    examples = masked_examples(6, vocabulary.size, pairs=pairs)
    export(weights, config, vocabulary.json, folder, examples, CARD)
    return folder


@pytest.mark.parametrize("name", SAME)
def test_what_is_imported_is_exported_again(name: str, tmp_path: Path) -> None:
    folder = written(SAME[name], tmp_path / "in")
    config = settings(folder, *SAME[name].overrides)
    assert config.objective.name == (SAME[name].objective or name), "nothing said so"
    initial = started(config)
    assert initial.notes == []
    out = exported(config, initial.weights, tmp_path / "out")
    assert [m.name for m in model_folders(out)][1:] == [m.name for m in model_folders(folder)][1:]
    for before, after in zip(model_folders(folder), model_folders(out), strict=True):
        assert_same_model(before, after, SAME[name].kind)


def test_a_distilbert_is_a_bert_without_segments(tmp_path: Path) -> None:
    config = settings(encoder_folder("distilbert"))
    assert (config.objective.name, config.encoder.segments, config.encoder.layer_norm_eps) == (
        "mlm",
        0,
        1e-12,
    )
    exported(config, started(config).weights, tmp_path / "out")
    with quiet():
        student = transformers.DistilBertForMaskedLM.from_pretrained(encoder_folder("distilbert"))
        bert = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(10, 22)[None]
    torch.testing.assert_close(bert.eval()(ids).logits, student.eval()(ids).logits, rtol=0, atol=1e-5)


def test_an_encoder_alone_gets_fresh_heads(tmp_path: Path) -> None:
    fresh = tmp_path / "headless"
    write_encoder(fresh, "BertModel", trained("wordpiece"), INPUTS, {})
    alone = started(settings(fresh))
    assert (alone.run.objective.name, len(alone.notes)) == ("mlm", 1)
    assert alone.notes[0].startswith("WARNING: the folder lacks mlm_head.")
    both = started(settings(fresh, "objective.name=bert"))
    stored = load_file(fresh / "model.safetensors")
    assert both.weights["nsp_head.pooler.weight"].equal(stored["pooler.dense.weight"])
    assert "nsp_head.classifier.weight" in both.notes[0]
    assert "nsp_head.pooler" not in both.notes[0]
    assert both.weights["mlm_head.dense.weight"].equal(both.fresh["mlm_head.dense.weight"])
    del stored["encoder.layer.1.attention.self.key.bias"]
    save_file(stored, fresh / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks encoder.layers.1.attention.key.bias"):
        started(settings(fresh))


def test_layers_behind_those_that_are_counted_are_left_out_and_named(tmp_path: Path) -> None:
    folder = written(SAME["mlm"], tmp_path / "in")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    (folder / NOTE).unlink(missing_ok=True)
    initial = started(settings(folder))
    assert initial.run.encoder.layers == 1
    assert initial.notes == [
        "WARNING: config.json counts 1 layers: those from 1 to 1 of the weights are left out"
    ]


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("how", EXTENSIONS)
def test_positions_grow(name: str, how: str, tmp_path: Path) -> None:
    folder = encoder_folder(name)
    before = started(settings(folder))
    config = settings(
        folder, "encoder.max_positions=150", "data.sequence_length=150", f"init_positions={how}"
    )
    after = started(config)
    old, new = before.weights[POSITIONS], after.weights[POSITIONS]
    assert new.shape == (150, 32)
    expected = {"repeat": repeated, "interpolate": interpolated, "fresh": with_fresh_rows}[how]
    assert new.equal(expected(old, after.fresh[POSITIONS]))
    assert all(after.weights[key].equal(tensor) for key, tensor in before.weights.items() if key != POSITIONS)
    assert [f"{len(old)} positions extended to 150 (init_positions={how})"] == after.notes
    exported(config, after.weights, tmp_path / "out")  # as transformers computes it, at all lengths
    with pytest.raises(UserError, match=rf"encoder.max_positions=40 \(there: {len(old)}\)"):
        settings(folder, "encoder.max_positions=40", "data.sequence_length=40")


def test_rows_of_longer_tables() -> None:
    table = torch.tensor([[0.0, 4.0], [1.0, 2.0], [2.0, 0.0]])
    fresh = torch.full((7, 2), 9.0)
    assert repeated(table, fresh)[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert with_fresh_rows(table, fresh)[:, 0].tolist() == [0, 1, 2, 9, 9, 9, 9]
    assert interpolated(table, torch.empty(5, 2)).T.tolist() == [[0, 0.5, 1, 1.5, 2], [4, 3, 2, 1, 0]]

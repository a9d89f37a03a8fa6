"""What training would refuse of the weights of a folder is refused, in the same line, before shards are made."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from data_pipeline.errors import UserError
from data_pipeline.vocabulary.files import load_vocabulary
from pretrain.export.tokenizer import INPUTS
from pretrain.huggingface.load import quiet
from pretrain.training.initial_weights_check import check_hugging_face
from tests.factories.encoders import NO_SEGMENTS, write_encoder
from tests.factories.published import DISTILBERT, SAME, written
from tests.factories.vocabularies import trained
from tests.reference.test_initial_weights import settings, started

FILE = "model.safetensors"
SOURCES = {**SAME, "distilbert": DISTILBERT}


def check(folder: Path, *overrides: str) -> None:
    config = settings(folder, *overrides)
    check_hugging_face(config, load_vocabulary(config.data.vocab))


def refusals(folder: Path) -> tuple[str, str]:
    """What is said before a preparation, and what training would say without that."""
    with pytest.raises(UserError) as before:
        check(folder)
    with pytest.raises(UserError) as later:
        started(settings(folder))
    return str(before.value), str(later.value)


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE, {"format": "pt"})


@pytest.mark.parametrize("name", SOURCES)
def test_a_whole_folder_passes(name: str, tmp_path: Path) -> None:
    check(written(SOURCES[name], tmp_path / "in"), *SOURCES[name].overrides)


@pytest.mark.parametrize(
    ("class_name", "kind", "fields"),
    [
        ("BertForSequenceClassification", "wordpiece", {}),
        ("RobertaForTokenClassification", "bpe", {"type_vocab_size": 1}),
    ],
)
def test_a_classifier_is_refused(class_name: str, kind: str, fields: dict, tmp_path: Path) -> None:
    inputs = NO_SEGMENTS if fields else INPUTS
    write_encoder(tmp_path / "in", class_name, trained(kind), inputs, fields)
    before, later = refusals(tmp_path / "in")
    assert "holds tensors of another kind of model: classifier." in before
    assert before == later


REMOVED = {
    "bert": (".layer.1.attention.self.key.bias", "lacks encoder.layers.1.attention.key.bias"),
    "roberta": ("position_embeddings.weight", "lacks encoder.embeddings.position.weight"),
    "modernbert": ("layers.1.attn.Wo.weight", "lacks encoder.layers.1.attention.output.weight"),
}


@pytest.mark.parametrize("name", REMOVED)
def test_an_encoder_that_is_not_whole_is_refused(name: str, tmp_path: Path) -> None:
    folder, (removed, said) = written(SAME[name], tmp_path / "in"), REMOVED[name]
    edit(folder, lambda tensors: tensors.pop(next(key for key in tensors if key.endswith(removed))))
    before, later = refusals(folder)
    assert said in before
    assert before == later


@pytest.mark.parametrize(
    ("name", "ending", "said"),
    [
        ("bert", ".attention.self.query.bias", "encoder.layers.0.attention.query.bias, encoder.layers.1."),
        ("bert", "embeddings.LayerNorm.bias", "encoder.embeddings.norm.bias"),
        ("bert", "token_type_embeddings.weight", "encoder.embeddings.segment.weight"),
        ("albert", "embedding_hidden_mapping_in.weight", "encoder.projection.weight"),
        ("xlnet", "rel_attn.r_s_bias", "encoder.layers.0.attention.for_segment, encoder.layers.1."),
        ("modernbert", ".mlp_norm.weight", "encoder.layers.0.feed_forward_norm.weight"),
    ],
)
def test_what_all_layers_lack_is_refused(name: str, ending: str, said: str, tmp_path: Path) -> None:
    folder = written(SAME[name], tmp_path / "in")
    edit(folder, lambda tensors: [tensors.pop(key) for key in list(tensors) if key.endswith(ending)])
    before, later = refusals(folder)
    assert f"{folder}: lacks {said}" in before
    assert before == later


def test_a_whole_layer_that_is_missing_is_refused(tmp_path: Path) -> None:
    folder = written(SAME["albert"], tmp_path / "in")
    group = "albert_layer_groups.1."
    edit(folder, lambda tensors: [tensors.pop(key) for key in list(tensors) if group in key])
    before, later = refusals(folder)
    assert "lacks encoder.layers.2.attention.key.bias, encoder.layers.2.attention.key.weight" in before
    assert before == later


@pytest.mark.parametrize(
    ("ending", "shape", "said"),
    [
        (
            "layer.1.attention.output.dense.weight",
            (32, 16),
            "encoder.layers.1.attention.output.weight has shape",
        ),
        (
            "layer.0.intermediate.dense.weight",
            (48, 32),
            "encoder.layers.0.feed_forward.intermediate.weight has",
        ),
        ("word_embeddings.weight", (100, 32), "encoder.embeddings.word.weight has shape [100, 32]"),
        ("attention.self.key.weight", (16, 32), "encoder.layers.0.attention.key.weight has shape [16, 32]"),
        ("output.LayerNorm.bias", (16,), "encoder.layers.0.attention_norm.bias has shape [16]"),
        ("intermediate.dense.bias", (48,), "encoder.layers.0.feed_forward.intermediate.bias has shape [48]"),
    ],
)
def test_other_shapes_are_refused(ending: str, shape: tuple[int, ...], said: str, tmp_path: Path) -> None:
    folder = written(SAME["bert"], tmp_path / "in")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if name.endswith(ending):
                tensors[name] = torch.zeros(shape)

    edit(folder, change)
    before, later = refusals(folder)
    assert said in before
    assert before == later


def test_a_table_of_positions_is_as_long_as_the_folder_states(tmp_path: Path) -> None:
    folder = written(SAME["bert"], tmp_path / "in")
    check(folder, "encoder.max_positions=100")
    name = "bert.embeddings.position_embeddings.weight"
    edit(folder, lambda tensors: tensors.update({name: tensors[name][:60].clone()}))
    for longer in ((), ("encoder.max_positions=100",)):
        with pytest.raises(UserError, match=r"position.weight has shape \[60, 32\] \(expected \[66, 32\]\)"):
            check(folder, *longer)


def test_a_pointer_of_git_lfs_is_told_from_damage(tmp_path: Path) -> None:
    folder = written(SAME["bert"], tmp_path / "in")
    (folder / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4a\nsize 4404\n")
    with pytest.raises(UserError, match=r"is damaged: .*Git LFS's pointer to one: `git lfs pull`"):
        check(folder)
    (folder / FILE).write_text("version")
    with pytest.raises(UserError) as caught:
        check(folder)
    assert "LFS" not in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = written(SAME["bert"], tmp_path / "in")
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-100])
    before, later = refusals(folder)
    assert f"{folder}/{FILE}: is damaged" in before
    assert before == later


def test_weights_in_several_files_are_one_model(tmp_path: Path) -> None:
    whole = written(SAME["mlm"], tmp_path / "in")
    parts = written(SAME["mlm"], tmp_path / "parts")
    with quiet():
        transformers.BertForMaskedLM.from_pretrained(whole).save_pretrained(parts, max_shard_size="20KB")
    (parts / FILE).unlink()
    files = sorted(parts.glob("model-*.safetensors"))
    assert len(files) > 2
    check(parts)
    one, other = started(settings(whole)).weights, started(settings(parts)).weights
    assert one.keys() == other.keys()
    assert all(other[name].equal(tensor) for name, tensor in one.items())
    files[1].unlink()
    with pytest.raises(UserError, match=r"index\.json: names 'model-00002-.*safetensors' \(expected"):
        check(parts)

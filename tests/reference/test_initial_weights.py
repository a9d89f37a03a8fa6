"""Weights from a Hugging Face folder: what goes in comes out, positions grow, heads that lack are fresh."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.shards.schema import VocabularyStamp
from data_pipeline.vocabulary.files import load_vocabulary
from launch.settings.recipe import load_config
from pretrain.config.settings import RunConfig
from pretrain.export.families.weight_names import POSITIONS
from pretrain.export.parity import quiet
from pretrain.export.tokenizer import INPUTS, PROBES
from pretrain.export.writer import export
from pretrain.model.initialize import without_padding
from pretrain.objectives.registry import load
from pretrain.run.folder import model_folders
from pretrain.training.initial_weights.check import check_hugging_face
from pretrain.training.initial_weights.load import InitialWeights, initial_weights
from pretrain.training.initial_weights.positions import EXTENSIONS, interpolated, repeated, with_fresh_rows
from tests.factories.encoders import NO_SEGMENTS, encoder_folder, write_encoder
from tests.factories.exports import CARD
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples


class Source(NamedTuple):
    """A folder to start from, and what is exported again."""

    models: dict[str, tuple[str, dict[str, Any]]]
    """Folder in it -> class, fields of its config."""
    kind: str = "wordpiece"
    specials: str = ""
    inputs: tuple[str, ...] = INPUTS
    overrides: tuple[str, ...] = ()


GENERATOR = {"embedding_size": 32, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
UNMASKED = ("data.masking=none", "data.dynamic_masking=false")
CAUSAL = {"is_decoder": True, "bos_token_id": None, "eos_token_id": None}
SAME = {
    "bert": Source({"": ("BertForPreTraining", {"hidden_act": "relu", "layer_norm_eps": 1e-6})}),
    "mlm": Source({"": ("BertForMaskedLM", {"hidden_act": "gelu_pytorch_tanh"})}),
    "roberta": Source({"": ("RobertaForMaskedLM", {"type_vocab_size": 1})}, "bpe", "", NO_SEGMENTS),
    "xlmr": Source(
        {"": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1})}, "unigram", "roberta", NO_SEGMENTS
    ),
    "albert": Source(
        {
            "": (
                "AlbertForPreTraining",
                {"embedding_size": 16, "num_hidden_groups": 2, "num_hidden_layers": 4},
            )
        },
        "unigram",
    ),
    "electra": Source(
        {
            "discriminator": ("ElectraForPreTraining", {"embedding_size": 32}),
            "generator": ("ElectraForMaskedLM", GENERATOR),
        }
    ),
    "ernie": Source({"": ("ErnieForPreTraining", {})}),
    "xlnet": Source({"": ("XLNetLMHeadModel", XLNET)}, "unigram", "xlnet"),
    "causal": Source(
        {"": ("BertLMHeadModel", CAUSAL)},
        overrides=UNMASKED,
    ),
}
"""Objective -> a folder that it continues and exports as what it was."""
OF_USE = {"use_cache", "mem_len", "use_mems_eval", "bos_token_id", "eos_token_id"}
"""Fields of config.json about how a model is used, not what it computes."""


def written(source: Source, folder: Path) -> Path:
    for name, (class_name, fields) in source.models.items():
        vocabulary = trained(source.kind, specials=source.specials)
        write_encoder(folder / name, class_name, vocabulary, source.inputs, fields)
    if "generator" in source.models:  # the embeddings are one table
        theirs = load_file(folder / "discriminator/model.safetensors")
        own = load_file(folder / "generator/model.safetensors")
        shared = {name: tensor for name, tensor in theirs.items() if ".embeddings." in name}
        save_file(own | shared, folder / "generator/model.safetensors", {"format": "pt"})
    return folder


def settings(folder: Path, *overrides: str) -> RunConfig:
    """The settings of a run that starts from the folder, and states no more than it must."""
    return load_config("domain", [f"init_from={folder}", "data.sequence_length=48", *overrides])


def started(config: RunConfig) -> InitialWeights:
    vocabulary = load_vocabulary(config.data.vocab)
    check_hugging_face(config, vocabulary)
    objective, stamp = load(config), VocabularyStamp.of(vocabulary)
    model = objective.build_model(stamp)
    named = without_padding(model, dict(model.named_parameters()))
    return initial_weights(objective, stamp, {name: list(p.shape) for name, p in named.items()})


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
    assert config.objective.name == name, "nothing said so"
    initial = started(config)
    assert initial.notes == []
    out = exported(config, initial.weights, tmp_path / "out")
    assert [m.name for m in model_folders(out)][1:] == [m.name for m in model_folders(folder)][1:]
    for before, after in zip(model_folders(folder), model_folders(out), strict=True):
        _assert_same_model(before, after)


def _assert_same_model(before: Path, after: Path) -> None:
    old, new = (_folded(load_file(path / "model.safetensors")) for path in (before, after))
    copies = old.keys() - new.keys()  # of tensors that are tied
    assert new.keys() <= old.keys()
    assert not {name for name in copies if "decoder" not in name and "lm_loss" not in name}
    assert all(old[name].equal(tensor) for name, tensor in new.items())
    was, now = (json.loads((path / "config.json").read_text()) for path in (before, after))
    if was.get("hidden_act") == "gelu_new":
        was["hidden_act"] = "gelu_pytorch_tanh"  # the same function
    differing = {key: (was[key], now[key]) for key in was.keys() & now.keys() if was[key] != now[key]}
    assert {key: found for key, found in differing.items() if key not in OF_USE} == {}
    one, two = (transformers.AutoTokenizer.from_pretrained(path) for path in (before, after))
    assert [one(text)["input_ids"] for text in PROBES] == [two(text)["input_ids"] for text in PROBES]
    assert one.get_vocab() == two.get_vocab()


def _folded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with a single segment added to all positions that tokens have: every token shows it."""
    for name, table in list(tensors.items()):
        segments = tensors.get(name.replace("position_embeddings", "token_type_embeddings"), table)
        if "position_embeddings" in name and len(segments) == 1:
            tensors[name] = table[2:] + segments
            tensors[name.replace("position", "token_type")] = torch.zeros_like(segments)
    return tensors


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

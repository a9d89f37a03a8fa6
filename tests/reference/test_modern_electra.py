"""ELECTRA whose embeddings are disentangled or separate, on both bodies: exported, proven, and started from again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import NOTE
from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export import export
from pretrain.export.hub import gather
from pretrain.export.parity import check_parity
from pretrain.huggingface.folder import folder_settings
from pretrain.huggingface.modernbert import HEAD_FILE, MODERNBERT_FOR_MASKED_LM
from pretrain.huggingface.registry import chosen_families, family_of
from pretrain.model.encoder import add_up
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.registry import load
from pretrain.training.initial_weights import InitialWeights, initial_weights
from tests.factories.exports import CARD, WORDS
from tests.factories.models import config_of, scattered_model
from tests.reference.test_modernbert import modern

STAMP = VocabularyStamp.of_size(WORDS)
BERT = EncoderSettings(
    layers=3, hidden=24, heads=2, intermediate=40, max_positions=48, dropout=0.0, attention_dropout=0.0, segments=0
)  # fmt: skip
BODIES = {"bert": BERT, "modernbert": modern(MODERNBERT_FOR_MASKED_LM, max_positions=48, global_every=2)}


def run_of(body: str, embeddings: str, **changes: object) -> RunConfig:
    """A run with a generator of two layers of three; as wide as the discriminator where it is a ModernBERT's."""
    run = config_of("electra", replace(BODIES[body], **changes))
    electra = run.objective.electra
    electra.embeddings, electra.generator_layers = embeddings, 2
    electra.generator_share = 0.5 if body == "bert" or embeddings == "separate" else 1.0
    return run


def weights_of(run: RunConfig) -> dict[str, Tensor]:
    model = scattered_model(run, STAMP).float()
    return without_padding(model, {name: p.detach() for name, p in model.named_parameters()})


def started(run: RunConfig, folder: Path) -> InitialWeights:
    objective = load(replace(run, init_from=str(folder)))
    model = objective.build_model(STAMP)
    named = without_padding(model, dict(model.named_parameters()))
    return initial_weights(objective, STAMP, {name: list(p.shape) for name, p in named.items()})


@pytest.mark.parametrize(
    "embeddings",
    ["disentangled", *(pytest.param(each, marks=pytest.mark.slow) for each in ("shared", "separate"))],
)
@pytest.mark.parametrize("body", BODIES)
def test_what_is_exported_is_proven_and_started_from(
    body: str, embeddings: str, tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    run, folder = run_of(body, embeddings), tmp_path / "model"
    state = weights_of(run)
    parity = export.export(state, run, tokenizer_json, folder, streams, CARD)
    assert parity.keys() == {"mlm", "rtd"} | ({"hidden"} if body == "modernbert" else set())
    classes = [family_of(folder / name)[0].export_class for name in ("discriminator", "generator")]
    assert (
        classes
        == {
            "bert": ["ElectraForPreTraining", "ElectraForMaskedLM"],
            "modernbert": ["ModernBertModel", "ModernBertForMaskedLM"],
        }[body]
    )
    stated = folder_settings(folder)
    assert stated["objective.electra.embeddings"] == embeddings
    assert stated["objective.electra.generator_layers"] == 2
    assert stated["objective.electra.generator_share"] == run.objective.electra.generator_share
    back = started(run, folder)
    assert back.notes == []
    assert back.weights.keys() == state.keys()
    for name, tensor in state.items():  # what is added to the generator's tables was rounded in their sum
        allowed = 1e-6 if ".delta." in name else 0.0
        torch.testing.assert_close(back.weights[name], tensor, rtol=0, atol=allowed)
    once_more = tmp_path / "again"
    export.export(back.weights, run, tokenizer_json, once_more, streams, CARD)
    for name in ("discriminator", "generator"):
        one, two = (load_file(path / name / "model.safetensors") for path in (folder, once_more))
        for key, tensor in one.items():
            torch.testing.assert_close(two[key], tensor, rtol=0, atol=1e-6)


def test_the_discriminator_of_a_modernbert_has_its_head_beside(
    tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    run = run_of("modernbert", "disentangled")
    state = weights_of(run)
    export.export(state, run, tokenizer_json, tmp_path / "model", streams, CARD)
    folder = tmp_path / "model" / "discriminator"
    head = load_file(folder / HEAD_FILE)
    assert head.keys() == {name for name in state if name.startswith("rtd_head.")}
    assert HEAD_FILE in gather(folder, "a/b").files
    whole = transformers.AutoModel.from_pretrained(folder).embeddings.tok_embeddings.weight
    added = state["encoder.embeddings.word.delta.weight"]
    assert added.abs().max() > 0.1
    assert whole.equal(state["generator.embeddings.word.weight"] + added)
    assert "replaced_token_head" in (folder / "README.md").read_text("utf-8")

    other = {name: tensor + (name == "rtd_head.prediction.bias") for name, tensor in head.items()}
    (folder / NOTE).unlink()  # which has the hash of what is changed
    save_file(other, folder / HEAD_FILE)
    model = load(run).build_model(STAMP)
    load_parameters(model, state)
    add_up(model)
    with pytest.raises(UserError, match="the rtd logits of the exported model differ"):
        check_parity(model, folder, family_of(folder)[0], streams, pad=0)


@pytest.mark.parametrize("body", BODIES)
def test_a_discriminator_alone_gives_the_generator_its_tables(
    body: str, tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    run = run_of(body, "shared")
    export.export(weights_of(run), run, tokenizer_json, tmp_path / "model", streams, CARD)
    alone = tmp_path / "model" / "discriminator"
    found = started(run_of(body, "disentangled"), alone)
    whole = started(run, tmp_path / "model").weights["encoder.embeddings.word.weight"]
    assert found.weights["generator.embeddings.word.weight"].equal(whole)
    assert not found.weights["encoder.embeddings.word.delta.weight"].any()
    assert any("lacks generator.layers.0" in note or "generator.layers.0" in note for note in found.notes)
    with pytest.raises(UserError, match="ELECTRA's generator alone"):
        folder_settings(tmp_path / "model" / "generator")


def test_positions_of_both_tables_grow(tokenizer_json: str, streams: Examples, tmp_path: Path) -> None:
    run = run_of("bert", "disentangled")
    state = weights_of(run)
    export.export(state, run, tokenizer_json, tmp_path / "model", streams, CARD)
    longer = started(run_of("bert", "disentangled", max_positions=70), tmp_path / "model")
    assert longer.notes == ["48 positions extended to 70 (init_positions=repeat)"]
    for name in ("generator.embeddings.position.weight", "encoder.embeddings.position.delta.weight"):
        expected = state[name][torch.arange(70) % 48]
        torch.testing.assert_close(longer.weights[name], expected, rtol=0, atol=1e-6)


def test_a_narrow_generator_of_a_modernbert_needs_embeddings_of_its_own() -> None:
    run = run_of("modernbert", "disentangled")
    run.objective.electra.generator_share = 0.5
    with pytest.raises(UserError, match=r"no class of transformers .* the generator's 12 as its layers"):
        chosen_families(load(run).families, run)
    run.objective.electra.embeddings = "separate"
    assert len(chosen_families(load(run).families, run)) == 2

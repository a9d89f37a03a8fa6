"""Families: models of more than one folder, and visibility of the past alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export import export
from pretrain.export.hub import exported_folders, gather
from pretrain.export.parity import check_parity
from pretrain.export.tokenizer import write_tokenizer
from pretrain.huggingface import registry
from pretrain.huggingface.base import Family
from pretrain.huggingface.bert import BERT_DECODER, BERT_FOR_MASKED_LM, BERT_FOR_PRETRAINING
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.registry import FAMILIES, family_of
from pretrain.huggingface.roberta import ROBERTA_FOR_MASKED_LM
from pretrain.model.attention_tiles import CAUSAL, FULL, Visibility
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from pretrain.model.heads import MaskedTokenHead
from pretrain.model.initialize import initialize, load_parameters
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load
from pretrain.report.inspection import describe
from pretrain.run.folder import model_folders
from tests.factories.exports import CARD, Exporter, random_weights
from tests.factories.models import config_of

STAMP = VocabularyStamp("", 85, cls=2, sep=3, mask=4, pad=0, unk=1)


class LeftToRight(Model):
    """Predicts words from what a token sees; the past alone, unless told otherwise."""

    def __init__(self, settings: EncoderSettings, visibility: Visibility) -> None:
        super().__init__(Encoder(settings, STAMP.size))
        self.mlm_head, self.visibility = MaskedTokenHead(self.encoder, STAMP.mask), visibility
        initialize(self, seed=4, std=0.3)

    def logits(self, batch: MicroBatch) -> dict[str, Tensor]:
        hidden_TH = self.encoder(batch, visibility=self.visibility)
        return {"causal": self.mlm_head.logits(hidden_TH, batch)}


def write(model: Model, family: Family, config: RunConfig, folder: Path) -> Path:
    folder.mkdir()
    fields = family.config(config, STAMP)
    export.write_config(family, fields, folder)
    export.write_weights(model, family, fields, folder)
    return folder


def test_a_decoder_sees_the_past_alone(
    settings: EncoderSettings, examples: Examples, tokenizer_json: str, tmp_path: Path
) -> None:
    config = config_of("mlm", settings)
    folder = write(LeftToRight(settings, CAUSAL), BERT_DECODER, config, tmp_path / "model")
    parity = check_parity(LeftToRight(settings, CAUSAL), folder, BERT_DECODER, examples, pad=0)
    assert set(parity) == {"causal"}
    with pytest.raises(UserError, match="the causal logits of the exported model differ"):
        check_parity(LeftToRight(settings, FULL), folder, BERT_DECODER, examples, pad=0)
    both_ways = replace(BERT_DECODER, fixed=BERT_FOR_PRETRAINING.fixed)
    wrong = write(LeftToRight(settings, CAUSAL), both_ways, config, tmp_path / "wrong")
    with pytest.raises(UserError, match="the causal logits of the exported model differ"):
        check_parity(LeftToRight(settings, CAUSAL), wrong, BERT_DECODER, examples, pad=0)

    write_tokenizer(tokenizer_json, folder, 48)
    generate = transformers.pipeline("text-generation", model=str(folder))  # as the card shows it
    assert isinstance(generate.model, transformers.BertLMHeadModel)
    [continued] = generate("[CLS] the quick", add_special_tokens=False, max_new_tokens=3, do_sample=False)
    assert continued["generated_text"].startswith("[CLS] the quick")
    assert family_of(folder)[0] is BERT_DECODER
    expected = dict(LeftToRight(settings, CAUSAL).named_parameters())
    back = read_weights(folder, config, STAMP.size)
    assert all(back[n].equal(p[: len(back[n])]) for n, p in expected.items())


def test_a_model_from_right_to_left_reads_reversed_ids(
    settings: EncoderSettings, examples: Examples, tokenizer_json: str, tmp_path: Path
) -> None:
    config, folder = config_of("causal", settings), tmp_path / "model"
    config.objective.causal.direction = "right_to_left"
    state = random_weights("causal", settings)
    assert set(export.export(state, config, tokenizer_json, folder, examples, CARD)) == {"causal"}
    exported = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    assert exported.config.direction == "right_to_left"
    assert "reads from right to left" in " ".join((folder / "README.md").read_text("utf-8").split())

    model = load(config).build_model(STAMP)
    load_parameters(model, state)
    ids = [[2, 5, 6, 7, 9, 3], [2, 40, 41, 3]]
    term = model.eval()(MicroBatch.from_lists(ids))[0]["causal"]
    losses = torch.zeros(())
    for text in ids:
        backwards = torch.tensor([text]).flip(-1)
        logits = exported(input_ids=backwards).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, backwards[0, 1:], reduction="sum")
    assert term.count.item() == 8
    assert term.sum.item() == pytest.approx(losses.item(), rel=1e-5)

    with pytest.raises(UserError, match=r"causal\.direction is left_to_right, direction right_to_left"):
        read_weights(folder, config_of("causal", settings), STAMP.size)


@pytest.fixture
def two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective `bert` leaves two models: all of it, and one without the head of pairs."""
    words = replace(BERT_FOR_MASKED_LM, folder="words", left_out=("nsp_head",))
    monkeypatch.setitem(FAMILIES, words.export_class, words)
    whole = replace(BERT_FOR_PRETRAINING, folder="whole")
    monkeypatch.setitem(FAMILIES, whole.export_class, whole)
    monkeypatch.setattr("pretrain.objectives.bert.Bert.families", (whole.export_class, words.export_class))


@pytest.mark.usefixtures("two_folders")
def test_an_objective_may_leave_several_folders(
    settings: EncoderSettings, tokenizer_json: str, examples: Examples, tmp_path: Path
) -> None:
    exporter, out = Exporter(settings, tokenizer_json, examples), tmp_path / "model"
    assert set(exporter.export(out)) == {"mlm", "nsp"}
    assert sorted(p.name for p in out.iterdir()) == ["whole", "words"]
    assert exported_folders(out) == model_folders(out) == [out / "whole", out / "words"]
    assert "# model-words\n" in (out / "words" / "README.md").read_text("utf-8")
    for folder in exported_folders(out):
        hashes = json.loads((folder / "maskmill.json").read_text())["sha256"]
        assert hashes.keys() == {p.name for p in folder.iterdir()} - {"maskmill.json"}
        assert set(gather(folder, "a/b").files) == hashes.keys() | {"maskmill.json"}
    facts = describe(out)
    assert [facts[name]["hashes"] for name in ("whole", "words")] == ["all hold"] * 2
    assert facts["words"]["architectures"] == ["BertForMaskedLM"]
    weights = random_weights("bert", settings)
    back = read_weights(out, config_of("bert", settings), STAMP.size)
    assert back.keys() == weights.keys()
    assert all(back[name].equal(weights[name]) for name in back)

    other = Exporter(settings, tokenizer_json, examples)
    other.settings = replace(settings, initializer_range=0.2)
    other.export(tmp_path / "other")
    (out / "words").rename(tmp_path / "words")
    (tmp_path / "other" / "words").rename(out / "words")
    with pytest.raises(UserError, match="differs between its folders"):
        read_weights(out, config_of("bert", settings), STAMP.size)


def test_no_family_reads_a_foreign_folder(settings: EncoderSettings, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"model_type is 'gpt2' \(expected 'bert' or "):
        read_weights(tmp_path, config_of("bert", settings), STAMP.size)
    (tmp_path / "config.json").write_text('["bert"]')
    with pytest.raises(UserError, match=r"config\.json: cannot be read"):
        read_weights(tmp_path, config_of("bert", settings), STAMP.size)


def test_a_parameter_without_a_place_is_told(settings: EncoderSettings) -> None:
    with pytest.raises(
        UserError, match=r"BertForMaskedLM has no place for encoder\.embeddings\.project\.weight"
    ):
        BERT_FOR_MASKED_LM.to_hugging_face({"encoder.embeddings.project.weight": torch.ones(2, 2)}, {})
    left_out = replace(BERT_FOR_MASKED_LM, left_out=("encoder.embeddings.project",))
    assert left_out.to_hugging_face({"encoder.embeddings.project.weight": torch.ones(2, 2)}, {}) == {}


def test_settings_and_fields_translate_both_ways(settings: EncoderSettings) -> None:
    for family in registry.FAMILIES.values():
        config = config_of("bert", replace(settings, **family.implied))
        config.objective.electra.generator_share = 1.0  # a ModernBERT has no projection
        fields = family.config(config, STAMP)
        found, encoder = family.settings(fields), family.encoder(config)
        assert {n: found[n] for n in family.fields} == {n: getattr(encoder, n) for n in family.fields}
        assert {n: found[n] for n in family.implied} == family.implied
        assert family.differences(fields, config, STAMP.size) == []
        for name, value in family.implied.items():
            other = not value if isinstance(value, bool) else value + 2 if isinstance(value, int) else "other"
            changed = config_of("bert", replace(config.encoder, **{name: other}))
            told = f"encoder.{name} is {other}, {family.export_class} has {value}"
            kept = (
                getattr(family.encoder(changed), name) == other
            )  # a generator of one head shares it with none
            assert told in family.differences(fields, changed, STAMP.size) or not kept


def test_a_folder_without_positions_has_no_segments_to_add_to_them() -> None:
    family = ROBERTA_FOR_MASKED_LM
    stored = {family.segment_table: torch.ones(1, 4)}
    assert family.from_hugging_face(stored, {}, Path("folder")) == {}, (
        "what is missing is said when it is loaded"
    )

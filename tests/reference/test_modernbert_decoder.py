"""A one-directional ModernBERT against transformers' with equal weights, both ways; its window counts itself."""

from pathlib import Path

import pytest
import torch
import transformers

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.export import export
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.folder import folder_settings, read_weights
from pretrain.huggingface.modernbert import MODERNBERT_DECODER, MODERNBERT_FOR_MASKED_LM
from pretrain.huggingface.registry import chosen_families, family_of
from pretrain.objectives.registry import load
from tests.factories.exports import CARD, WORDS, random_weights
from tests.factories.models import config_of
from tests.reference.test_modernbert import modern


@pytest.mark.parametrize("window", [2, 8, 128])
def test_it_is_exported_and_comes_back(
    window: int, tokenizer_json: str, streams: Examples, tmp_path: Path
) -> None:
    sizes = {"layers": 3, "global_every": 2, "local_attention": window, "rope_theta": 300.0}
    encoder = modern(MODERNBERT_FOR_MASKED_LM, **sizes, biases=False, norm_biases=False)
    run, folder = config_of("causal", encoder), tmp_path / "model"
    state = random_weights("causal", encoder)
    assert export.export(state, run, tokenizer_json, folder, streams, CARD).keys() == {"causal"}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(theirs).__name__ == "ModernBertDecoderForCausalLM"
    assert theirs.config.sliding_window == window // 2 + 1, "the token itself is one"
    assert family_of(folder)[0] is MODERNBERT_DECODER
    stated = folder_settings(folder)
    assert stated["encoder.local_attention"] == window
    assert stated["objective.name"] == "causal"
    back = read_weights(folder, run, WORDS)
    assert back.keys() == state.keys()
    assert all(back[name].equal(state[name]) for name in back)
    with torch.no_grad():  # what comes later changes nothing before it
        ids = torch.arange(10, 30)[None]
        other = ids.clone()
        other[0, 12:] = 50
        one, two = (theirs.eval()(x).logits[0, :12] for x in (ids, other))
    torch.testing.assert_close(one, two)


def test_other_bodies_have_no_such_class() -> None:
    run = config_of("causal", modern(EUROBERT_FOR_MASKED_LM))
    with pytest.raises(UserError, match=r"no class .*\(expected BertLMHeadModel or ModernBertDecoder"):
        chosen_families(load(run).families, run)
    plain = config_of("causal", EncoderSettings())
    assert [family.name for family in chosen_families(load(plain).families, plain)] == ["BertLMHeadModel"]

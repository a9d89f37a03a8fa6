"""From text to a model that transformers loads, with vocabularies of RoBERTa's and ALBERT's kind."""

import json
from pathlib import Path

import pytest
import transformers

from data_pipeline.masking.masker import Masker
from data_pipeline.settings import DataSettings
from data_pipeline.shards.index import Index
from data_pipeline.vocabulary.files import load_vocabulary
from tests.command_line import TINY, Maskmill, described, write_text

pytestmark = pytest.mark.slow


@pytest.mark.multirank
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_text_to_model(kind: str, maskmill: Maskmill, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt")
    settings = [
        *TINY,
        *(f"data.{name}={tmp_path}/{value}" for name, value in (("sources", "text.txt"), ("out", "shards"))),
        f"data.vocab={tmp_path}/vocabulary",
        f"run.dir={tmp_path}/run",
        f"vocabulary.kind={kind}",
        "vocabulary.lowercase=false",
        "data.whole_word=true",
        "train.steps=2",
        "run.ranks=1",
    ]
    for verb in ("vocab", "prepare", "train"):
        maskmill(verb, "demo", *settings)
    vocabulary = load_vocabulary(tmp_path / "vocabulary")
    stamp = Index.load(tmp_path / "shards").vocabulary
    for role in ("size", "cls", "sep", "mask", "pad", "unk"):
        assert getattr(stamp, role) == getattr(vocabulary, role)
    masker = Masker.from_settings(DataSettings(whole_word=True), vocabulary)
    assert masker.rule.continuation.tolist() == vocabulary.continuation.tolist()

    shards = str(tmp_path / "shards")
    shown = maskmill("inspect", shards).stdout
    assert vocabulary.specials.cls in shown.split("one example")[1]
    examples = [
        json.loads(line)
        for line in maskmill("inspect", shards, "--examples", "all", "--json").stdout.splitlines()
    ]
    for example in examples:
        ids, positions = example["input_ids"], example["masked_lm_positions"]
        for position, original in zip(positions, example["masked_lm_ids"], strict=True):
            ids[position] = original
        for (
            position
        ) in positions:  # with the words whole, what follows a masked piece in its word is masked too
            following = position + 1
            if vocabulary.continuation[ids[following]]:
                assert following in positions

    model = tmp_path / "model"
    maskmill("export", str(tmp_path / "run"), "--out", str(model))
    assert described(maskmill, model)["hashes"] == "all hold"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(model)
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == (vocabulary.specials.mask, vocabulary.mask)
    assert loaded.config.vocab_size == len(tokenizer) == vocabulary.size
    assert loaded.config.pad_token_id == vocabulary.pad
    for mask in ("[MASK]", vocabulary.specials.mask):
        assert maskmill("fill", str(model), f"the captain of the {mask}.").stdout.count("%") == 5
    assert "0 blanks" in maskmill("fill", str(model), "no blank here.", code=2).stderr

"""Extended vocabularies of Hugging Face folders: transformers gives our ids, with the old folder's inputs and frame."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import transformers

from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.tokenize.tokenize import WordCache
from data_pipeline.vocabulary.extend import extend_vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from pretrain.export.tokenizer import write_extended_tokenizer
from tests.factories.encoders import encoder_folder
from tests.factories.vocabularies import SAMPLE

NEW = "nephrology glomerulonephritis Dialysis naïveté Straßenbahnen क्षेत्रीय xβ 東京湾"
SENTENCES = [
    "Nephrology (nephrology), “nephrology”; NEPHROLOGY-nephrology. xnephrology nephrologyx",
    "Dialysis/dialysis naïveté, naivete\u0301! Straßenbahnen... क्षेत्रीय\u200b xβ 東京湾 ☃nephrology \U0010ffff",
    *SAMPLE.read_text("utf-8").split("\n")[:20],
]


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "xlnet"])
def test_transformers_gives_our_ids(name: str, tmp_path: Path) -> None:
    old, folder = encoder_folder(name), tmp_path / "vocabulary"
    (tmp_path / "text.txt").write_text(f"{NEW} " * 3, "utf-8")
    data = DataSettings(sources=[str(tmp_path / "text.txt")], vocab=str(folder))
    before = load_vocabulary(old)
    extend_vocabulary(data, VocabularySettings(), before, lambda *_: nullcontext(lambda _: None))
    write_extended_tokenizer(folder, old)

    extended = load_vocabulary(folder)
    assert extended.size > before.size
    theirs, theirs_old = (transformers.AutoTokenizer.from_pretrained(path) for path in (folder, old))
    ids, lengths = WordCache(extended).encode(SENTENCES)
    expected = [row.tolist() for row in np.split(ids, lengths.cumsum()[:-1])]
    assert theirs(SENTENCES, add_special_tokens=False)["input_ids"] == expected
    assert any(i >= before.size for i in expected[0])
    assert len(theirs) == extended.size
    assert theirs.model_input_names == theirs_old.model_input_names
    assert theirs.model_max_length == theirs_old.model_max_length
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{role}_token_id") == getattr(theirs_old, f"{role}_token_id")
    assert dict(theirs("a", "b")) == dict(theirs_old("a", "b")), "the frame is the old one's"

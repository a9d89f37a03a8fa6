"""Folders that bring code of their own: none of it is run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from data_pipeline.errors import UserError
from pretrain.tasks.encoders import Encoder
from tests.factories.encoders import encoder_folder

CODE = """from pathlib import Path
from transformers import BertConfig as Config, BertForMaskedLM as Model, BertTokenizerFast as Tokenizer
Path({!r}).write_text("was run")
"""
KINDS = ("", "ForMaskedLM", "ForSequenceClassification")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the folder's module would write."""
    return tmp_path / "ran"


def with_code(ran: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    """A BERT whose files name classes of a module beside them. `config`, `tokenizer`: further fields."""
    folder = ran.parent / "model"
    shutil.copytree(encoder_folder("bert"), folder)
    (folder / "own.py").write_text(CODE.format(str(ran)))
    classes = {"AutoConfig": "own.Config", **{f"AutoModel{kind}": "own.Model" for kind in KINDS}}
    maps = {
        "config.json": classes,
        "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
    }
    for (name, auto_map), fields in zip(maps.items(), (config, tokenizer), strict=True):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": auto_map, **fields}))
    return folder


def test_a_known_model_is_read_by_the_class_of_transformers(ran: Path) -> None:
    folder = with_code(ran, {}, {})
    encoder = Encoder(folder)
    assert type(encoder.config) is transformers.BertConfig
    assert encoder.tokenizer.get_vocab() == Encoder(encoder_folder("bert")).tokenizer.get_vocab()
    for pretrained in (True, False):
        found = [type(Encoder(folder, pretrained).load(kind, 1)) for kind in KINDS]
        assert found == [getattr(transformers, f"Bert{kind or 'Model'}") for kind in KINDS]
    assert not ran.exists()


def test_a_model_that_only_its_own_code_knows_is_refused(ran: Path) -> None:
    encoder = Encoder(with_code(ran, {"model_type": "own"}, {}))
    with pytest.raises(
        UserError, match=r"config\.json: cannot be read: .*expected the configuration of one"
    ) as found:
        _ = encoder.config
    assert "\n" not in str(found.value)
    assert not ran.exists()


def test_a_tokenizer_that_only_its_own_code_knows_is_read_as_its_file_describes_it(ran: Path) -> None:
    encoder = Encoder(with_code(ran, {}, {"tokenizer_class": "OwnTokenizer"}))
    plain = Encoder(encoder_folder("bert")).tokenizer
    assert (
        encoder.tokenizer("the quick fox", "jumped").input_ids == plain("the quick fox", "jumped").input_ids
    )
    assert not ran.exists()

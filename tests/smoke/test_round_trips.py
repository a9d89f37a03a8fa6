"""Import, checkpoint and export without a step give a folder of every class back. One rank, in this process."""

from pathlib import Path

import pytest
import torch
import transformers

from pretrain.export.tokenizer import PROBES
from pretrain.huggingface.registry import FAMILIES
from pretrain.run.folder import model_folders
from tests.command_line import Maskmill, write_text
from tests.factories.published import DISTILBERT, SAME, Source, assert_same_model, written

# what DeepSpeed's imports give rise to in a process of pytest's
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NO_STEP = [
    "init_from=in",
    "data.sources=text.txt",
    "data.out=shards",
    "data.held_out=0.2",
    "data.sequence_length=48",
    "data.workers=1",
    "run.dir=run",
    "run.threads=1",
    "train.steps=0",
]


def round_trip(source: Source, maskmill: Maskmill, folder: Path) -> None:
    """Start from the source in the folder's `in`, without a step, and export the run to `out`."""
    written(source, folder / "in")
    write_text(folder / "text.txt", documents=12)
    for verb in ("prepare", "train"):
        maskmill(verb, "domain", *NO_STEP, *source.overrides, cwd=folder)
    maskmill("export", "run", "--out", "out", cwd=folder)


def test_the_sources_are_of_every_class_that_is_read() -> None:
    classes = {name for source in (*SAME.values(), DISTILBERT) for name, _ in source.models.values()}
    assert classes == {family.export_class for family in FAMILIES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_a_folder_comes_back(name: str, here: None, maskmill: Maskmill, tmp_path: Path) -> None:
    round_trip(SAME[name], maskmill, tmp_path)
    before, after = (model_folders(tmp_path / folder) for folder in ("in", "out"))
    assert [one.name for one in before[1:]] == [one.name for one in after[1:]]
    for one, other in zip(before, after, strict=True):
        assert_same_model(one, other, SAME[name].kind)


@pytest.mark.slow
def test_a_distilbert_comes_back_as_a_bert(here: None, maskmill: Maskmill, tmp_path: Path) -> None:
    round_trip(DISTILBERT, maskmill, tmp_path)
    student = transformers.DistilBertForMaskedLM.from_pretrained(tmp_path / "in").eval()
    bert = transformers.BertForMaskedLM.from_pretrained(tmp_path / "out").eval()
    assert bert.get_input_embeddings().weight.equal(student.get_input_embeddings().weight)
    assert not bert.bert.embeddings.token_type_embeddings.weight.any()
    ids = torch.arange(10, 22)[None]
    torch.testing.assert_close(bert(ids).logits, student(ids).logits, rtol=0, atol=1e-5)
    for field in ("max_position_embeddings", "vocab_size", "pad_token_id"):
        assert getattr(bert.config, field) == getattr(student.config, field)
    assert (bert.config.hidden_act, bert.config.layer_norm_eps) == (student.config.activation, 1e-12)
    one, two = (transformers.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("in", "out"))
    assert all(one(text)["input_ids"] == two(text)["input_ids"] for text in PROBES)

"""data.masking=none: the text as it is, from the sources to a micro-batch, with no masked position on the way."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import DynamicMasking, Shares, order_of, shards_vocabulary
from data_pipeline.loader.packing import caps_for
from data_pipeline.masking.budget import MaskBudget
from data_pipeline.masking.masker import Masker, Unmasked, corruption_of
from data_pipeline.prepare import prepare
from data_pipeline.settings import DataSettings, VocabularySettings, mask_stages
from data_pipeline.shards.index import Index
from data_pipeline.shards.lint import lint
from data_pipeline.shards.shard import BlockReader
from data_pipeline.shards.show import report
from data_pipeline.vocabulary.train import learn_vocabulary
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.model.batch import MicroBatch, Shape
from pretrain.preflight.check_run import check_data
from tests.command_line import write_text
from tests.factories.pairs import vocabulary
from tests.factories.preparations import hashes, settings_for, silent

pytestmark = pytest.mark.usefixtures("worker_here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards without masks in `none`, the same with two workers in `two`, and masked ones in `token`."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "corpus").mkdir()
    write_text(folder / "corpus" / "a.txt", documents=60, seed=1)
    settings = DataSettings(sources=[f"{folder}/corpus"], vocab=f"{folder}/vocabulary")
    learn_vocabulary(settings, VocabularySettings(size=300), silent)
    prepare(settings_for(folder, folder / "none", masking="none"), silent)
    prepare(settings_for(folder, folder / "two", masking="none", workers=2), silent)
    prepare(settings_for(folder, folder / "token"), silent)
    return folder


@pytest.fixture(scope="module")
def index(folder: Path) -> Index:
    return Index.load(folder / "none")


def text_of(index: Index) -> list[list[int]]:
    """The tokens of each training example before masking."""
    found = []
    for block in BlockReader(index, index.train).all_blocks():
        tokens = block.tokens.copy()
        rows = np.repeat(block.offsets[:-1], np.diff(block.masked_offsets)) + block.masked_positions
        tokens[rows] = block.masked_ids
        found += [tokens[a:b].tolist() for a, b in zip(block.offsets[:-1], block.offsets[1:], strict=True)]
    return found


def test_shards_hold_the_text_itself(folder: Path, index: Index) -> None:
    assert hashes(folder / "none") == hashes(folder / "two")
    assert (index.train.masked, index.train.max_masked) == (0, 0)
    assert index.statistics["train"]["masked"] == 0
    assert all(
        (len(b.masked_ids), len(b.masked_positions)) == (0, 0)
        for b in BlockReader(index, index.train).all_blocks()
    )
    assert text_of(index) == text_of(Index.load(folder / "token"))


def test_inspect_objects_to_no_missing_mask(folder: Path, index: Index) -> None:
    facts = lint(index, silent)
    assert not [finding for finding in facts["findings"] if "mask" in finding["what"]]
    assert "masks     none" in report(facts)


def test_the_loader_packs_them(index: Index) -> None:
    caps = caps_for(index.train, 4, 128)
    order = order_of(index, seed=3, global_batch=8)
    share = Shares(index, order, caps).read(0)
    texts = text_of(index)
    for packed in share.micro_batches:
        batch = MicroBatch.from_packed(packed)
        assert batch.masked_index.shape == batch.masked_ids.shape == (0,)
        for e, member in enumerate(packed.members):
            row = batch.input_ids[batch.cu_seqlens[e] : batch.cu_seqlens[e + 1]].tolist()
            assert row in texts
            assert 0 <= share.numbers[member] < index.train.examples
        shape = Shape.of(caps, 128)
        assert batch.padded(shape).masked_ids.tolist() == [-1] * caps.masked
        MicroBatch.empty(1, 2).padded(shape)
    assert share.masked == 0


def test_dynamic_masking_masks_shards_without_masks_as_it_does_others(folder: Path, index: Index) -> None:
    masking = DynamicMasking.from_settings(DataSettings(), shards_vocabulary(index), 3)
    caps = caps_for(index.train, 4, 128, masking.masker(0))
    shares = [
        Shares(i, order_of(i, seed=3, global_batch=8), caps, masking=masking).read(0)
        for i in (index, Index.load(folder / "token"))
    ]
    assert shares[0].masked == shares[1].masked > 0
    for one, other in zip(*(share.micro_batches for share in shares), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_what_is_counted_on_before() -> None:
    none = DataSettings(masking="none")
    assert isinstance(corruption_of(none, vocabulary(100)), Unmasked)
    assert isinstance(corruption_of(DataSettings(), vocabulary(100)), Masker)
    assert (corruption_of(none, vocabulary(100)).max_rows(512), Unmasked().expected(512.0)) == (0, 0.0)
    assert corruption_of(DataSettings(), vocabulary(100)).max_rows(512) == 77
    budget = MaskBudget.of(none)
    assert (budget.count(512), budget.mean_count(512), budget.note(512)) == (0, 0.0, "")
    assert MaskBudget.stored({"masking": "none", "masked_lm_prob": 0.15, "max_predictions": 2}) == budget
    assert [stage.kind for stage in mask_stages(none)] == ["none"]
    with pytest.raises(UserError, match="cannot read 'none'"):
        mask_stages(DataSettings(mask_stages=["token:3", "none"]))


def test_objectives_that_predict_masks_refuse_shards_without(folder: Path, index: Index) -> None:
    config = RunConfig(objective=ObjectiveSettings(name="bert"))
    config.data.sequences = "segment_pair"
    config.train.shards = str(folder / "none")
    with pytest.raises(UserError, match="no token of the shards is masked, and"):
        check_data(config, index, config.train.shards)
    config.data.dynamic_masking = True
    check_data(config, index, config.train.shards)

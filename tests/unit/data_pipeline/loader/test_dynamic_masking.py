"""Dynamic masking: the text stays, masks are a function of (seed, epoch, number, stage), and of nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.loader.loader import (
    DynamicMasking,
    Loader,
    Shares,
    loader_state,
    order_of,
    resumed_batch,
    shards_vocabulary,
)
from data_pipeline.loader.packing import (
    StepShare,
    assign,
    caps_for,
    example_keys,
    fitting_tokens,
    original_tokens,
)
from data_pipeline.records import Segments
from data_pipeline.rng import DYNAMIC_MASK
from data_pipeline.settings import DataSettings, MaskStage, mask_stages
from data_pipeline.shards.index import Index, Split
from pretrain.config.phases import phases_of
from pretrain.config.settings import RunConfig
from pretrain.preflight.check_run import Plan
from tests.factories.pairs import vocabulary
from tests.factories.shards import SIZE, shard_folder

COUNTS = [20, 8, 3, 17, 30, 1]
SETTINGS = DataSettings(masking="token", masked_lm_prob=0.3, max_predictions=7, dynamic_masking=True)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return shard_folder(tmp_path_factory.mktemp("shards"), COUNTS)[0]


def masking(seed: int = 3, **changes: object) -> DynamicMasking:
    return DynamicMasking.from_settings(replace(SETTINGS, **changes), vocabulary(SIZE, 3), seed)  # type: ignore[arg-type]


def shares(
    index: Index, masks: DynamicMasking | None, batch: int = 12, rank: int = 0, world: int = 1
) -> Shares:
    order = order_of(index, seed=3, global_batch=batch)
    caps = caps_for(index.train, 4, 24, masks and masks.masker(0))
    return Shares(index, order, caps, rank, world, masks)


def masks_of(share: StepShare) -> dict[tuple[int, int], tuple[list[int], list[int], list[int]]]:
    """(epoch, number) -> (the text before masking, what the encoder sees, masked places)."""
    found = {}
    for micro in share.micro_batches:
        for e, member in enumerate(micro.members.tolist()):
            low, high = micro.cu_seqlens[e], micro.cu_seqlens[e + 1]
            here = (micro.masked_index >= low) & (micro.masked_index < high)
            text = micro.input_ids[low:high].copy()
            text[micro.masked_index[here] - low] = micro.masked_ids[here]
            found[int(share.epochs[member]), int(share.numbers[member])] = (
                text.tolist(),
                micro.input_ids[low:high].tolist(),
                (micro.masked_index[here] - low).tolist(),
            )
    assert len(found) == share.examples
    return found


def test_the_text_stays_and_the_masks_are_new(index: Index) -> None:
    static, dynamic = shares(index, None), shares(index, masking())
    for step in range(3):
        before, after = masks_of(static.read(step)), masks_of(dynamic.read(step))
        assert {key: text for key, (text, *_) in before.items()} == {k: t for k, (t, *_) in after.items()}
        assert sum(before[key][2] == after[key][2] for key in before) < 4
        for text, _, places in after.values():
            assert len(places) == min(7, max(1, round(0.3 * len(text))), sum(t > 2 for t in text))


def test_masks_are_the_same_in_every_world_batch_and_order_of_reading(index: Index) -> None:
    everything = {}
    reader = shares(index, masking())
    for step in range(20):
        everything |= masks_of(reader.read(step))
    for world in (2, 3, 5, 12):
        parts = [masks_of(shares(index, masking(), rank=r, world=world).read(7)) for r in range(world)]
        joined = {key: value for part in parts for key, value in part.items()}
        assert joined == masks_of(shares(index, masking()).read(7))
    other = masks_of(shares(index, masking(), batch=40).read(1))
    assert other.items() <= everything.items(), "another global batch changes nothing"
    with Loader(index, reader.order, reader.caps, start_batch=9, masking=masking()) as loader:
        assert masks_of(next(loader)).items() <= everything.items()


def test_every_epoch_and_seed_has_masks_of_its_own(index: Index) -> None:
    reader, other = shares(index, masking()), shares(index, masking(seed=4))
    everything: dict = {}
    for step in range(15):
        everything |= masks_of(reader.read(step))
    both = [n for epoch, n in everything if epoch == 1 and (0, n) in everything]
    assert len(both) == index.train.examples
    assert sum(everything[0, n][2] == everything[1, n][2] for n in both) < 0.2 * len(both)
    seeded = masks_of(other.read(0))
    assert sum(everything[key] == seeded[key] for key in seeded) < 4


def test_keys_are_unique() -> None:
    epochs, numbers = (grid.ravel() for grid in np.meshgrid(np.arange(5), np.arange(1000) * 10**9))
    assert len(np.unique(example_keys(epochs, numbers))) == 5000


def test_stages_follow_the_batch(index: Index) -> None:
    stages = masking(mask_stages=["token:2", "span:3", "ngram"])
    assert [stages.masker(b) for b in range(7)] == [stages.maskers[i] for i in (0, 0, 1, 1, 1, 2, 2)]
    for batch, kind in ((1, "token"), (2, "span"), (4, "span"), (5, "ngram"), (99, "ngram")):
        raw, epochs, numbers = shares(index, None)._windows.take(
            order_of(index, seed=3, global_batch=12).stream_ranges(batch, 0, 1)
        )
        keys = example_keys(epochs, numbers)
        texts = Segments(original_tokens(raw), raw.offsets, raw.first_lengths, raw.labels, keys)
        expected = masking(masking=kind).masker(0)(texts, 3, DYNAMIC_MASK)
        assert stages(raw, batch, epochs, numbers) == expected


def test_stages_are_read_and_nonsense_refused() -> None:
    assert mask_stages(SETTINGS) == [MaskStage(0, "token")]
    found = mask_stages(replace(SETTINGS, mask_stages=["token:1000", " phrase : 500", "entity"]))
    assert found == [MaskStage(0, "token"), MaskStage(1000, "phrase"), MaskStage(1500, "entity")]
    for wrong in (["token:5"], ["token", "span"], ["words:5", "token"], ["token:0", "span"], ["token:-1", "span"],
                  ["token:x", "span"], ["token:", "span"], [""]):  # fmt: skip
        with pytest.raises(UserError, match="mask_stages"):
            mask_stages(replace(SETTINGS, mask_stages=wrong))


def test_caps_follow_the_masker(index: Index) -> None:
    """The shards have a sixth of their tokens masked: a masker that covers half of them needs other caps."""
    heavy = masking(masked_lm_prob=0.6, max_predictions=20).masker(0)
    caps = caps_for(index.train, 4, 24, heavy)
    assert caps[:2] == caps_for(index.train, 4, 24)[:2]
    assert caps.masked >= 0.6 * 4 * 24
    assert caps.masked % 8 == 0
    light = masking(masked_lm_prob=0.05, max_predictions=1).masker(0)
    assert caps_for(index.train, 4, 24, light).masked < caps_for(index.train, 4, 24).masked
    share = shares(index, masking(masked_lm_prob=0.6, max_predictions=20), batch=40).read(0)
    filled = [len(m.input_ids) for m in share.micro_batches][:-1]
    assert min(filled) > 0.8 * 4 * 24, "the cap on masked rows does not bind"
    free = masking(masked_lm_prob=0.6, max_predictions=0).masker(0)
    assert caps_for(index.train, 4, 24, free) == caps, "the longest example has 14 masked rows, cap or none"
    assert heavy.expected(2.0) == 1.2
    assert heavy.expected(100.0) == 20.0


def test_held_out_examples_keep_their_masks_and_caps(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, [40], held_out=(9,))
    heavy = masking(masked_lm_prob=0.6, max_predictions=20)
    config = RunConfig()
    config.train.micro_batch = 4
    plan = Plan(phases_of(config)[0], index, 4, "fp32", heavy)
    assert plan.caps(index.train, config) == caps_for(index.train, 4, 24, heavy.masker(0))
    assert plan.caps(index.held_out, config) == caps_for(index.held_out, 4, 24)


def test_caps_of_one_shape_are_those_of_a_share(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, [40])
    config = RunConfig()
    config.train.micro_batch, config.train.global_batch = 4, 10
    plan = Plan(phases_of(config)[0], index, 4, "fp32", None)
    assert plan.caps_of_one_shape(config, 2) == plan.caps(index.train, config), "no lengths are known"
    histogram = [0, 0, 4, 4, 4, 4, 4, 4]
    known = replace(index, statistics={"train": {"length_histogram": histogram}})
    plan = replace(plan, index=known)
    for ranks, share in ((1, 10), (2, 5), (3, 4)):
        mean = known.train.tokens / known.train.examples
        tokens = fitting_tokens(mean, known.length_variance or 0.0, 24, share, 4 * 24)
        assert plan.caps_of_one_shape(config, ranks) == caps_for(known.train, 4, 24, None, tokens)
    assert tokens < 4 * 24


@pytest.mark.parametrize("share", [32, 64, 256])
def test_micro_batches_of_one_shape_are_full_of_examples_of_full_length(tmp_path: Path, share: int) -> None:
    """As pairs of segments are: nine in ten are at the end of the histogram's last bin, not in its middle."""
    generator = np.random.default_rng(0)
    draws = np.where(generator.random((40, share)) < 0.9, 128, generator.integers(5, 129, (40, share)))
    index, _ = shard_folder(tmp_path, [40])
    counts = {"examples": draws.size, "tokens": int(draws.sum()), "masked": 0, "max_tokens": 128}
    split = Split("train", [index.train.shards[0]._replace(**counts)])
    histogram = np.bincount((draws.ravel() - 1) // 8, minlength=16).tolist()
    index = replace(
        index,
        settings={**index.settings, "sequence_length": 128},
        statistics={"train": {"length_histogram": histogram}},
        splits={**index.splits, "train": split},
    )
    config = RunConfig()
    config.train.micro_batch, config.train.global_batch = 32, share
    caps = Plan(phases_of(config)[0], index, 4, "fp32", None).caps_of_one_shape(config, 1)
    bins = [assign(x, np.zeros(share, np.int64), caps)[1] for x in draws]
    assert draws.sum() / (sum(len(b) - 1 for b in bins) * caps.tokens) > 0.9


def test_another_masking_at_resume_is_refused(index: Index) -> None:
    order = order_of(index, seed=3, global_batch=12)
    dynamic = json.loads(json.dumps(loader_state(index, order, 5, masking())))
    static = json.loads(json.dumps(loader_state(index, order, 5)))
    assert resumed_batch(dynamic, index, order, masking()) == 5
    assert resumed_batch(static, index, order) == 5
    with pytest.raises(UserError, match="masked_lm_prob"):
        resumed_batch(dynamic, index, order, masking(masked_lm_prob=0.2))
    with pytest.raises(UserError, match="mask_stages"):
        resumed_batch(dynamic, index, order, masking(mask_stages=["token:3", "span"]))
    for state, now in ((dynamic, None), (static, masking())):
        with pytest.raises(UserError, match="dynamic_masking"):
            resumed_batch(state, index, order, now)


def test_the_vocabulary_beside_the_shards_is_checked(tmp_path: Path) -> None:
    index, _ = shard_folder(tmp_path, [4])
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="missing"):
        shards_vocabulary(index)

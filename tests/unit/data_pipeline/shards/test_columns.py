"""The schema of columns: a column beyond the required ones travels from sequences to a micro-batch like the others."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.files import sealed_json
from data_pipeline.loader.loader import DynamicMasking, Shares, held_out, order_of
from data_pipeline.loader.packing import caps_for
from data_pipeline.masking.masker import Unmasked, corruption_of
from data_pipeline.records import COLUMNS, OFFSETS, REQUIRED, Examples, Segments, concatenate
from data_pipeline.settings import DataSettings
from data_pipeline.shards.index import Index, write_index
from data_pipeline.shards.shard import (
    BlockError,
    BlockReader,
    check_examples,
    decode_block,
    encode_block,
    problems,
    write_shard,
)
from data_pipeline.stages.tasks import spill
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.preflight.check_run import check_data
from tests.factories.pairs import vocabulary
from tests.factories.shards import SIZE, StubVocabulary, blocks_of, random_examples

COUNTS = {"train": (40, 13), "held_out": (9,)}


def with_segments(examples: Examples) -> Examples:
    """Three segments in each example: the token's place in it, modulo 3."""
    places = np.arange(len(examples.tokens)) - np.repeat(examples.offsets[:-1], examples.lengths)
    return replace(examples, segment_ids=(places % 3).astype(np.uint8))


def examples_of(name: str) -> list[Examples]:
    return [with_segments(random_examples(n, seed)) for seed, n in enumerate(COUNTS[name])]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("shards")
    splits = {
        name: [
            write_shard(folder / f"{name}-{i:06d}.tar", blocks_of(part, 8))
            for i, part in enumerate(examples_of(name))
        ]
        for name in COUNTS
    }
    return write_index(
        folder, splits=splits, settings={"sequences": "segment_pair", "sequence_length": 24}, block_examples=8,
        vocabulary=StubVocabulary(), statistics={}, columns={"segment_ids": 3},  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_schema_is_that_of_examples() -> None:
    assert tuple(COLUMNS) == tuple(f.name for f in fields(Examples))
    assert OFFSETS == ("offsets", "masked_offsets")
    assert tuple(random_examples(1).columns) == REQUIRED


def test_a_further_column_is_read_back(index: Index) -> None:
    assert list(problems(index)) == []
    blocks = list(BlockReader(index, index.train).all_blocks())
    assert concatenate(blocks) == concatenate(examples_of("train"))


def test_shards_without_it_have_the_same_bytes_as_before(index: Index) -> None:
    block = random_examples(5)
    encoded = encode_block(0, block)
    assert encode_block(0, with_segments(block)).startswith(encoded)
    assert b"segment_ids" not in encoded
    data = np.frombuffer(encode_block(0, with_segments(block)), np.uint8)
    with pytest.raises(BlockError, match="too short"):
        decode_block(0, data)
    with pytest.raises(BlockError, match=r"expected the member 000000\.segment_ids\.npy"):
        decode_block(0, np.frombuffer(encoded + bytes(512), np.uint8), ["segment_ids"])


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_reaches_the_micro_batch(index: Index, dynamic: bool) -> None:
    """Through windows, several of a stream in one step, dynamic masking and packing."""
    masking = DynamicMasking.from_settings(DataSettings(), vocabulary(SIZE), 3) if dynamic else None
    caps = caps_for(index.train, 8, 24, masking and masking.masker(0))
    shares = Shares(index, order_of(index, seed=3, global_batch=48, streams=2), caps, masking=masking)
    seen = 0
    for packed in [
        *shares.read(0).micro_batches,
        *shares.read(1).micro_batches,
        *held_out(index, 9, caps).micro_batches,
    ]:
        assert np.array_equal(packed.segment_ids, packed.positions % 3)
        assert np.array_equal(MicroBatch.from_packed(packed).segment_ids.numpy(), packed.positions % 3)
        seen += len(packed.lengths)
    assert seen == 48 + 48 + 9


def test_without_it_segments_follow_from_first_lengths() -> None:
    plain = random_examples(6)
    batch = MicroBatch.from_examples(plain)
    first = np.repeat(plain.first_lengths, plain.lengths)
    assert np.array_equal(batch.segment_ids.numpy(), batch.positions.numpy() >= first)
    assert np.array_equal(
        MicroBatch.from_examples(with_segments(plain)).segment_ids.numpy(), batch.positions.numpy() % 3
    )


def test_corruption_hands_it_on(tmp_path: Path) -> None:
    plain = with_segments(random_examples(6))
    segments = Segments(
        plain.tokens, plain.offsets, plain.first_lengths, plain.labels, np.arange(6, dtype=np.uint64),
        segment_ids=plain.segment_ids,
    )  # fmt: skip
    for corruption in (Unmasked(), corruption_of(DataSettings(), vocabulary(SIZE))):
        made = corruption(segments, 1)
        assert np.array_equal(made.columns["segment_ids"], plain.columns["segment_ids"])
        assert spill([made, made], tmp_path) == concatenate([made, made])


def test_values_beyond_what_the_index_says_are_damage(index: Index) -> None:
    with pytest.raises(BlockError, match="column segment_ids has a value beyond 1"):
        check_examples(with_segments(random_examples(5)), SIZE, 24, 2, {"segment_ids": 2})
    short = with_segments(random_examples(5))
    with pytest.raises(BlockError, match="segment_ids and tokens differ in length"):
        check_examples(replace(short, segment_ids=np.zeros(3, np.uint8)), SIZE, 24)


def test_a_model_with_fewer_segments_is_refused(index: Index) -> None:
    config = RunConfig(objective=ObjectiveSettings(name="bert"))
    config.data.sequences = "segment_pair"
    with pytest.raises(UserError, match=r"number 3 segments, encoder\.segments=2"):
        check_data(config, index, index.folder)


@pytest.mark.parametrize("columns", [{"tokens": 3}, {"colours": 3}, {"segment_ids": 0}, {"segment_ids": "3"}])
def test_an_index_with_other_columns_is_refused(
    index: Index, tmp_path: Path, columns: dict[str, object]
) -> None:
    document = json.loads(Path(index.path("index.json")).read_bytes()) | {"columns": columns}
    (tmp_path / "index.json").write_bytes(sealed_json(document))
    with pytest.raises(UserError, match=r"index\.json: column '\w+' of"):
        Index.load(tmp_path)

"""How a shard holds its examples: shuffled, in the documents' order, or binned by length; what padding costs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline import rng
from data_pipeline.errors import UserError
from data_pipeline.loader.loader import Shares, loader_state, order_of, resumed_batch
from data_pipeline.loader.packing import Caps, original_tokens
from data_pipeline.prepare import prepare
from data_pipeline.records import Examples, concatenate
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader, arrangement
from data_pipeline.shards.statistics import PaddingCounter, packed_rows, padded_tokens
from data_pipeline.vocabulary.train import learn_vocabulary
from launch.recipe import load_config
from pretrain.config.settings import RunConfig
from tests.command_line import write_text
from tests.factories.preparations import silent

pytestmark = pytest.mark.usefixtures("worker_here")

RNG = np.random.default_rng(0)
LENGTHS = np.where(RNG.random(1003) < 0.5, 128, RNG.integers(5, 129, 1003))


def arranged(number: int = 3, **options: object) -> np.ndarray:
    return arrangement(LENGTHS, DataSettings(block_examples=16, **options), number)  # type: ignore[arg-type]


def test_shuffled_by_default_as_ever() -> None:
    assert np.array_equal(arranged(), rng.permutation(12345, 3, rng.SHUFFLE, len(LENGTHS)))
    assert np.array_equal(arranged(order="sequential"), np.arange(len(LENGTHS)))


@pytest.mark.parametrize("width", [1, 16, 32, 128])
def test_blocks_hold_one_bin_each(width: int) -> None:
    order = arranged(bin_width=width)
    assert sorted(order) == list(range(len(LENGTHS)))
    bins = (LENGTHS[order] - 1) // width
    blocks = [bins[i : i + 16] for i in range(0, len(bins), 16)]
    assert len(blocks[-1]) == 1003 % 16
    pure = sum(len(set(block)) == 1 for block in blocks[:-1])
    assert pure >= sum(np.bincount(bins) // 16)  # every full block that a bin can fill
    alone = [block[0] for block in blocks[:-1] if len(set(block)) == 1]
    assert len(set(alone)) == 1 or alone != sorted(alone), "blocks of a bin do not stand side by side"
    assert not np.array_equal(order, arranged(number=4, bin_width=width))


def test_examples_within_a_bin_are_shuffled() -> None:
    order = arranged(bin_width=128)
    assert (np.diff(order) == 1).sum() < 10
    full = arranged(bin_width=32)[:16]
    assert not np.array_equal(full, np.sort(full))


# --- padding


@given(st.lists(st.integers(1, 40), max_size=90), st.integers(1, 20), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_padding_against_the_plain_way(lengths: list[int], batch: int, width: int) -> None:
    column = np.array(lengths, np.int64)
    batches = [lengths[i : i + batch] for i in range(0, len(lengths), batch)]
    assert padded_tokens(column, batch) == sum(max(b) * len(b) for b in batches)

    def rows_of(batch: list[int]) -> int:
        rows: list[int] = []
        for length in batch:
            place = next((i for i, filled in enumerate(rows) if filled + length <= 40), len(rows))
            rows[place:] = [(rows[place] if place < len(rows) else 0) + length, *rows[place + 1 :]]
        return len(rows)

    assert packed_rows(column, batch, 40) == sum(map(rows_of, batches))
    by_bin = [[n for n in lengths if (n - 1) // width == i] for i in range(40)]
    binned = sum(padded_tokens(np.array(one, np.int64), batch) for one in by_bin)
    counter = PaddingCounter(batch, width, 40)
    for part in np.array_split(column, 4):
        counter.add(part)
    assert counter.result() == (
        padded_tokens(column, batch),
        binned,
        packed_rows(column, batch, 40) * 40,
    )


# --- prepared for real


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_text(folder / "text.txt", documents=80)
    one = DataSettings(sources=[f"{folder}/text.txt"], vocab=f"{folder}/vocabulary")
    learn_vocabulary(one, VocabularySettings(size=300), silent)
    return folder


def prepared(text: Path, out: Path, **options: object) -> Index:
    values = {"sequence_length": 32, "max_predictions": 5, "shard_tokens": 1500, "block_examples": 8}
    values |= {"sequences": "doc_sentences", "workers": 1} | options
    one = DataSettings(sources=[f"{text}/text.txt"], vocab=f"{text}/vocabulary", out=str(out), **values)  # type: ignore[arg-type]
    return prepare(one, silent)[0]


def content(index: Index) -> Examples:
    return concatenate(list(BlockReader(index, index.train).all_blocks()))


def text_of(examples: Examples) -> list[bytes]:
    tokens = original_tokens(examples)
    return [tokens[a:b].tobytes() for a, b in zip(examples.offsets, examples.offsets[1:], strict=False)]


def test_sequential_shards_are_the_documents_in_order(text: Path, tmp_path: Path) -> None:
    """Streams without short ones cut nothing: all examples one after the other are the corpus itself."""
    index = prepared(text, tmp_path / "a", order="sequential", short_seq_prob=0.0)
    assert len(index.train.shards) > 2
    examples = content(index)
    special = np.isin(original_tokens(examples), [index.vocabulary.cls, index.vocabulary.sep])
    kept = original_tokens(examples)[~special]
    one_shard = prepared(text, tmp_path / "b", order="sequential", short_seq_prob=0.0, shard_tokens=10**9)
    assert text_of(content(one_shard)) == text_of(examples)
    mixed = content(prepared(text, tmp_path / "c", short_seq_prob=0.0))
    assert sorted(text_of(mixed)) == sorted(text_of(examples))
    assert text_of(mixed) != text_of(examples)
    assert len(kept) == index.statistics["reading"]["tokens"]


@pytest.mark.parametrize("both", [False, True])
def test_streams_read_on_where_their_last_example_ended(text: Path, tmp_path: Path, both: bool) -> None:
    index = prepared(text, tmp_path / "a", order="sequential")
    everything = text_of(content(index))
    order = order_of(index, seed=1, global_batch=6, sequential=True, both_directions=both)
    assert order.streams == 6
    place = {one: i for i, one in enumerate(everything)}
    assert len(place) == len(everything)
    reader = Shares(index, order, Caps(10**6, 10**6, 10**6))
    rows = []
    for step in range(2 * order.examples // 6):
        (micro,) = reader.read(step).micro_batches
        ids = micro.input_ids.copy()
        ids[micro.masked_index] = micro.masked_ids
        row = np.empty(6, np.int64)
        for e, member in enumerate(micro.members):
            one = ids[micro.cu_seqlens[e] : micro.cu_seqlens[e + 1]].astype(np.uint16)
            row[member] = place[one.tobytes()]
        rows.append(row)
    steps = np.diff(np.array(rows), axis=0)
    onward = np.array([1, -1] * 3) if both else 1
    assert (steps == onward).sum() >= steps.size - 6  # each stream goes back to its stretch's beginning once
    with pytest.raises(UserError, match="hold their examples shuffled"):
        order_of(prepared(text, tmp_path / "b"), seed=1, global_batch=6, sequential=True)


def test_bins_save_padding_and_change_no_example(text: Path, tmp_path: Path) -> None:
    mixed = prepared(text, tmp_path / "a")
    binned = prepared(text, tmp_path / "b", bin_width=8)
    assert sorted(text_of(content(mixed))) == sorted(text_of(content(binned)))
    counts, other = binned.statistics["train"], mixed.statistics["train"]
    assert counts["tokens"] <= counts["padded_tokens"] < counts["padded_tokens_mixed"]
    assert counts["tokens"] <= counts["packed_tokens"]
    assert other["padded_tokens"] == other["padded_tokens_mixed"]
    blocks = list(BlockReader(binned, binned.train).all_blocks())
    assert counts["padded_tokens"] == sum(b.lengths.max() * len(b) for b in blocks)
    assert counts["packed_tokens"] == 32 * sum(packed_rows(b.lengths, 8, 32) for b in blocks)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        (["data.order=sequential", "data.bin_width=16"], "data.bin_width=0, or data.order=shuffled"),
        (
            ["data.mode=exact", "data.sentences=lines", "data.held_out=0", "data.order=sequential"],
            "exact shuff",
        ),
        (
            ["data.mode=exact", "data.sentences=lines", "data.held_out=0", "data.bin_width=8"],
            "exact shuffles",
        ),
    ],
)
def test_orders_that_contradict_each_other(settings_: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("demo", settings_)


def test_a_run_reads_in_the_order_of_its_settings(text: Path, tmp_path: Path) -> None:
    """From data.order to the order that the loader and the checkpoint get; shuffled shards stay shuffled."""
    from pretrain.preflight.check_run import check_run

    prepared(text, tmp_path / "a", order="sequential")
    prepared(text, tmp_path / "b")

    def run(shards: str, *options: str) -> RunConfig:
        chosen = (f"train.shards={tmp_path}/{shards}", "data.vocab=", "train.global_batch=24", "run.dir=none")
        small = ("encoder.max_positions=32", "data.sequence_length=32", "data.held_out=0")
        return load_config("mlm_tiny", [*chosen, *small, *options])

    config = run("a", "data.order=sequential")
    (plan,) = check_run(config, 1)
    order = plan.order(config)
    assert (order.sequential, order.streams, plan.streams) == (True, 24, 24)
    state = loader_state(plan.index, order, 7)
    assert resumed_batch(state, plan.index, order) == 7
    shuffled = run("a", "data.streams=24")
    assert not check_run(shuffled, 1)[0].order(shuffled).sequential
    with pytest.raises(UserError, match="sequential differ"):
        resumed_batch(state, plan.index, check_run(shuffled, 1)[0].order(shuffled))
    with pytest.raises(UserError, match="hold their examples shuffled"):
        check_run(run("b", "data.order=sequential"), 1)


def test_states_from_before_there_was_another_order_go_on(text: Path, tmp_path: Path) -> None:
    index = prepared(text, tmp_path / "a")
    order = order_of(index, seed=1, global_batch=6)
    state = loader_state(index, order, 5)
    del state["order"]["sequential"]
    assert resumed_batch(state, index, order) == 5

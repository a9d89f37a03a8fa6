"""Examples of 8,192 tokens: one is prepared, and a small ModernBERT learns from it; local layers compute what is in
their reach alone. One rank, this process."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.records import concatenate
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader
from pretrain.config.encoder import EncoderSettings
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from pretrain.model import attention, attention_tiles
from pretrain.model.attention_tiles import Visibility
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder
from tests.command_line import WORDS, Maskmill
from tests.factories.models import fresh_model

pytestmark = pytest.mark.slow

LENGTH, REACH, LAYERS = 8192, 64, 3
SMALL = EncoderSettings(
    layers=LAYERS, hidden=16, heads=1, intermediate=24, max_positions=LENGTH, global_every=LAYERS,
    local_attention=2 * REACH, rope_theta=160_000, dropout=0.0, attention_dropout=0.0, initializer_range=0.3,
    **MODERNBERT_FOR_MASKED_LM.implied,
)  # fmt: skip


@pytest.fixture(scope="module")
def index(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Shards of one document that is longer than an example."""
    folder = tmp_path_factory.mktemp("long")
    words = np.random.RandomState(0).choice(WORDS, (1500, 8))
    (folder / "text.txt").write_text(" ".join(" ".join(sentence).capitalize() + "." for sentence in words))
    long = [f"data.sources={folder}/text.txt", f"data.out={folder}/shards", "objective.name=mlm"]
    long += [
        f"data.sequence_length={LENGTH}",
        f"encoder.max_positions={LENGTH}",
        "data.sequences=doc_sentences",
    ]
    long += [
        "data.masked_lm_prob=0.3",
        "data.max_predictions=2458",
        "data.short_seq_prob=0",
        "data.held_out=0",
    ]
    maskmill("prepare", "demo", *tiny, *long)
    return Index.load(folder / "shards")


@pytest.fixture(scope="module")
def example(index: Index) -> MicroBatch:
    examples = concatenate(list(BlockReader(index, index.train).all_blocks()))
    longest = int(np.diff(examples.offsets).argmax())
    return MicroBatch.from_examples(examples.take(np.array([longest])))


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The window and the number of attention scores of each plan of tiles that is made."""
    made: list[tuple[int, int]] = []
    planned: Callable[..., attention_tiles.TilePlan] = attention_tiles.plan_tiles

    def counted(*arguments: object) -> attention_tiles.TilePlan:
        plan = planned(*arguments)
        made.append((int(str(arguments[4])), sum(t.examples * t.length * t.keys for t in plan.tiles)))
        return plan

    attention._plan.cache_clear()
    monkeypatch.setattr(attention, "plan_tiles", counted)
    return made


def test_a_modernbert_learns_from_it(
    index: Index, example: MicroBatch, scores: list[tuple[int, int]]
) -> None:
    assert LENGTH - 20 < example.tokens <= LENGTH
    assert len(example.masked_ids) == round(0.3 * example.tokens)
    vocabulary = index.vocabulary
    model = fresh_model("mlm", SMALL, vocabulary.size, mask_id=vocabulary.mask)
    terms, _ = model(example)
    loss = terms["mlm"].sum / terms["mlm"].count
    loss.backward()
    assert 1 < loss.item() < 20
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    found = dict(scores)
    assert found.keys() == {0, REACH}
    assert found[0] == example.tokens**2
    assert found[REACH] <= 3 * REACH * (example.tokens + REACH), "keys out of reach are skipped"


def test_a_window_in_it_is_a_dense_mask_over_an_excerpt(
    example: MicroBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(SMALL, 320).double()
    draws = torch.Generator().manual_seed(0)
    for parameter in encoder.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=draws, dtype=torch.float64)

    def learnt(batch: MicroBatch, first: int) -> list[Tensor]:
        """Hidden states of some rows, from `first` on, and what they alone do to the parameters."""
        encoder.zero_grad()
        rows = encoder(batch, visibility=Visibility(window=REACH))[first : first + 9]
        rows.square().sum().backward()
        return [rows, *(p.grad for p in encoder.parameters())]

    def excerpt(margin: int) -> MicroBatch:
        """The rows with so many tokens on either side, in their places."""
        cut = slice(begin - margin, begin + 9 + margin)
        alone = MicroBatch.from_lists([example.input_ids[cut].tolist()], masked=None)
        return replace(alone, positions=example.positions[cut])

    begin, margin = 5000, LAYERS * REACH
    whole = learnt(example, begin)
    monkeypatch.setattr(attention_tiles, "keys_of_block", lambda window: LENGTH)  # nothing is cut into blocks
    for one, other in zip(whole, learnt(excerpt(margin), margin), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    narrow = margin - 1
    assert not torch.allclose(whole[0], learnt(excerpt(narrow), narrow)[0], rtol=1e-11, atol=1e-11), (
        "all is in reach"
    )

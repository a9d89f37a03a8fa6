"""XLNet against its definition: orders, targets whose words are put back, memory, and what it costs."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.model.batch import IGNORED, MicroBatch, Shape
from pretrain.objectives.base import Model
from pretrain.objectives.registry import keeps_memory, load
from pretrain.objectives.xlnet import EPOCH_BIT, factorization_ranks
from pretrain.training import feed
from tests.factories.models import config_of

CLS, SEP, MASK = 3, 4, 6
STAMP = VocabularyStamp("", 90, cls=CLS, sep=SEP, mask=MASK, pad=5, unk=0)
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
LEAST = torch.iinfo(torch.int64).min


def config(memory_length: int = 0) -> RunConfig:
    found = config_of("xlnet", TINY, seed=5)
    found.objective.xlnet.memory_length = memory_length
    return found


def build(memory_length: int = 0) -> Model:
    return load(config(memory_length)).fresh_model(STAMP).double()


def text(shown: tuple[int, ...] = (10, 25, 31)) -> MicroBatch:
    sequences = [
        [CLS, shown[0], 11, 12, SEP],
        [CLS, 20, 21, 22, 23, 24, shown[1], 26, SEP],
        [CLS, 30, shown[2], SEP],
    ]
    return MicroBatch.from_lists(sequences, masked=[{1: 10}, {2: 21, 6: 25}, {2: 31}])


def test_all_orders_are_equally_likely_and_drawn_again_in_every_epoch() -> None:
    keys = torch.arange(100_000)
    batch = MicroBatch.from_arrays(
        tokens=np.tile([CLS, 10, 11, 12, 13, SEP], len(keys)),
        lengths=np.full(len(keys), 6),
        first_lengths=np.full(len(keys), 6),
        masked_positions=np.tile([1, 3], len(keys)),
        masked_ids=np.tile([10, 12], len(keys)),
        masked_counts=np.full(len(keys), 2),
        labels=np.full(len(keys), -1),
    )
    ranks = factorization_ranks(replace(batch, keys=keys), CLS, SEP, 7).view(-1, 6)
    assert (ranks[:, [2, 4]] == LEAST).all(), "words that are no targets are before all others"
    assert (ranks[:, [0, 1, 3, 5]] > LEAST).all()
    orders = ranks[:, [0, 1, 3, 5]].argsort(1)
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 24
    expected = len(keys) / 24
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 49.7  # chi-squared of 23, p = 0.001
    again = factorization_ranks(replace(batch, keys=keys + (1 << EPOCH_BIT)), CLS, SEP, 7).view(-1, 6)
    same = (again[:, [0, 1, 3, 5]].argsort(1) == orders).all(1).double().mean()
    assert same == pytest.approx(1 / 24, abs=0.002)  # three deviations of what independent orders share
    assert not factorization_ranks(replace(batch, keys=keys), CLS, SEP, 8).view(-1, 6).equal(ranks)


def test_an_order_belongs_to_the_example_wherever_it_lies() -> None:
    batch = replace(text(), keys=torch.tensor([4, 5, 6]))
    moved = MicroBatch.from_lists([[CLS, 30, 31, SEP], [CLS, 10, 11, 12, SEP]], masked=[{2: 31}, {1: 10}])
    moved = replace(moved, keys=torch.tensor([6, 4]))
    here, there = (factorization_ranks(b, CLS, SEP, 1) for b in (batch, moved))
    assert here[:5].equal(there[4:])
    assert here[-4:].equal(there[:4])


def test_targets_are_the_masked_tokens_with_their_words_put_back() -> None:
    module, found = build(), []
    with torch.no_grad():
        for shown in ((10, 25, 31), (MASK, MASK, 50)):
            terms, memory = module(text(shown))
            found.append(terms["plm"])
            assert memory is None
    assert found[0].sum.equal(found[1].sum)
    assert (found[0].count.item(), found[0].weight) == (4, 1.0)


def test_spare_rows_count_nowhere() -> None:
    module, batch = build(), text()
    padded = batch.padded(Shape(40, 6, 8, 16))
    with torch.no_grad():
        one, two = (module(b)[0] for b in (batch, padded))
    assert two["plm"].count.item() == 4
    torch.testing.assert_close(one["plm"].sum, two["plm"].sum, rtol=0, atol=1e-12)
    answers = two.answers_R
    assert answers.tolist() == [*one.answers_R.tolist(), *[IGNORED] * 4]
    assert one.metrics["plm_accuracy"].count.item() == 4


def test_the_memory_is_zero_at_the_start_and_where_a_stream_begins_again() -> None:
    module, batch = build(memory_length=6), text()
    objective = load(config(6))
    assert dict(objective.memory) == {"hidden": (2, 6, 16), "epoch": ()}
    with torch.no_grad():
        zero = {"hidden": torch.zeros(3, 2, 6, 16), "epoch": torch.zeros(3)}
        fresh, kept = module(batch, zero)
        assert fresh["plm"].sum.equal(module(batch)[0]["plm"].sum)
        assert {name: tuple(x.shape[1:]) for name, x in kept.items()} == dict(objective.memory)
        assert all(x.dtype == torch.float32 for x in kept.values())
        assert kept["hidden"].any()
        assert not module(batch, kept)[0]["plm"].sum.allclose(fresh["plm"].sum), "it is read"
        again = replace(batch, keys=batch.keys + (1 << EPOCH_BIT))
        restarted, after = module(again, kept)
        unread = module(again, zero | {"epoch": torch.ones(3)})[0]
    assert restarted["plm"].sum.equal(unread["plm"].sum)
    assert after["epoch"].tolist() == [1.0, 1.0, 1.0]


def test_a_memory_needs_streams_in_the_order_of_documents() -> None:
    assert [keeps_memory(config(length)) for length in (0, 6)] == [False, True]
    assert not keeps_memory(config_of("mlm", TINY))
    with pytest.raises(UserError, match=r"objective\.xlnet\.memory_length: must be in \[0, 65535\], got -1"):
        load_config("xlnet_tiny", ["objective.xlnet.memory_length=-1"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("vocabulary.specials=roberta", "vocabulary.specials=roberta does not fit objective.name=xlnet (choose xlnet)"),
        ("encoder.segments=2", "encoder.segments=2 does not fit objective.name=xlnet (choose 0)"),
        ("data.masking=none", "objective.name=xlnet cannot learn from data.masking=none"),
    ],
)  # fmt: skip
def test_what_is_no_xlnet_is_refused(setting: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("xlnet_tiny", [setting])
    assert said in str(caught.value)


def test_it_is_not_compiled() -> None:
    run = config()
    run.train.compile = "on"
    with pytest.raises(UserError, match=r"train\.compile=on: the attention of objective\.name=xlnet follows"):
        feed.wants_compiling(run, torch.device("cpu"), "fp32", 1.0)
    run.train.compile = "auto"
    assert not feed.wants_compiling(run, torch.device("cuda"), "bf16", 1e20)


def test_targets_counts_and_costs() -> None:
    objective, batch = load(config()), text()
    assert objective.targets(batch, STAMP)["plm"].equal(batch.masked_ids)
    everywhere = {"tokens": 1000, "squares": 100_000, "masked": 160}
    plain, remembering = load(config()), load(config(8))
    assert remembering.flops(100, **everywhere) > plain.flops(100, **everywhere)
    more = plain.flops(100, **everywhere | {"masked": 161}) - plain.flops(100, **everywhere)
    row = 2 * (6 * (2 * 16 * 16 + 2 * 16 * 32) + 18 * 16 * 100) + 6 * 16 * 100  # layers, then the projection
    assert more == pytest.approx(row)


def test_published_recipe() -> None:
    run = load_config("xlnet_base", [])
    assert (run.data.masking, run.data.max_ngram, run.data.order) == ("ngram", 5, "sequential")
    assert round(512 * run.data.masked_lm_prob) == run.data.max_predictions == 85
    assert keeps_memory(run)
    assert not keeps_memory(load_config("xlnet_tiny", []))

"""SpanBERT: spans and their boundaries against the definition, both losses, and the head that is exported beside."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn import functional as F

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.export.export import export
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.load import quiet
from pretrain.model.batch import MicroBatch, Shape
from pretrain.objectives.registry import load
from pretrain.objectives.spanbert import span_rows
from tests.factories.exports import CARD
from tests.factories.models import config_of
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples

CLS, SEP, MASK, WORDS = 2, 3, 4, 60
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, activation="gelu", dropout=0.0,
    attention_dropout=0.0, initializer_range=0.3,
)  # fmt: skip
STAMP = VocabularyStamp("", WORDS, cls=CLS, sep=SEP, mask=MASK, pad=0, unk=1)
masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=4)


def batch_of(masks: list[list[bool]], seed: int = 0) -> MicroBatch:
    draws = np.random.RandomState(seed)
    sequences = [[CLS, *draws.randint(5, WORDS, len(mask)).tolist(), SEP] for mask in masks]
    masked = [{i + 1: int(draws.randint(5, WORDS)) for i, m in enumerate(mask) if m} for mask in masks]
    return MicroBatch.from_lists(sequences, masked=masked)


def expected_rows(masks: list[list[bool]], places: int) -> list[tuple[int, int, int] | None]:
    """(left, right, place) of each masked token, read off sequence by sequence; None where it is not predicted."""
    found: list[tuple[int, int, int] | None] = []
    start = 0
    for mask in masks:
        for i in (i for i, m in enumerate(mask) if m):
            left, right = i - 1, i + 1
            while left >= 0 and mask[left]:
                left -= 1
            while right < len(mask) and mask[right]:
                right += 1
            inside = left >= 0 and right < len(mask) and i - left - 1 < places
            found.append((start + 1 + left, start + 1 + right, i - left - 1) if inside else None)
        start += len(mask) + 2
    return found


@settings(max_examples=60, deadline=None)
@given(masks=masks)
def test_spans_are_maximal_and_their_boundaries_are_text(masks: list[list[bool]]) -> None:
    batch, expected = batch_of(masks), expected_rows(masks, places=4)
    padded = batch.padded(Shape(batch.tokens + 9, len(masks) + 2, len(expected) + 3, 40))
    for shaped in (batch, padded):
        rows = span_rows(shaped, CLS, SEP, places=4)
        predicted = rows.ids_R >= 0
        assert predicted.tolist() == [e is not None for e in expected] + [False] * (
            len(predicted) - len(expected)
        )
        found = torch.stack((rows.left_R, rows.right_R, rows.place_R), 1)[predicted]
        assert found.tolist() == [list(e) for e in expected if e is not None]
        boundaries = torch.cat((rows.left_R, rows.right_R))[predicted.repeat(2)]
        assert not torch.isin(boundaries, batch.masked_index).any()


def test_both_losses_are_as_the_paper_defines_them() -> None:
    config = config_of("spanbert", TINY, seed=3)
    model = load(config).fresh_model(STAMP).double()
    masks = [
        [False, True, True, False, True],
        [True, False, True, False],
        [False] * 3,
        [False, *[True] * 17, False],
    ]
    batch = batch_of(masks)
    terms, _ = model(batch)
    head, hidden = model.sbo_head, model.encoder(batch)
    total = torch.zeros((), dtype=torch.float64)
    rows = expected_rows(masks, places=15)
    for row, target in zip(rows, batch.masked_ids, strict=True):
        if row is None:
            continue
        left, right, place = row
        x = torch.cat((hidden[left], hidden[right], head.place.weight[place]))
        for linear, norm in ((head.first, head.first_norm), (head.second, head.second_norm)):
            x = norm(F.gelu(linear(x)))
        logits = (model.encoder.embeddings.word.weight @ x + head.bias)[:WORDS]
        total = total - logits.log_softmax(-1)[target]
    assert sum(row is None for row in rows) == 4, "at [CLS], at [SEP], and beyond the 15th"
    assert terms["sbo"].sum.item() == pytest.approx(total.item(), abs=1e-9)
    assert terms["sbo"].count.item() == terms["mlm"].count.item() == len(rows)
    assert terms.metrics["sbo_accuracy"].count.item() == len(rows) - 4
    logits = model.logits(batch)["mlm"]
    assert terms["mlm"].sum.item() == pytest.approx(
        F.cross_entropy(logits, batch.masked_ids, reduction="sum").item(), abs=1e-9
    )


def test_the_boundary_head_is_exported_beside_and_read_back(tmp_path: Path) -> None:
    vocabulary = trained("wordpiece")
    config = config_of("spanbert", TINY, seed=1)
    state = dict(load(config).fresh_model(VocabularyStamp.of(vocabulary)).named_parameters())
    examples = masked_examples(4, vocabulary.size, longest=40, pairs=False)
    with quiet():
        parity = export(state, config, vocabulary.json, tmp_path / "model", examples, CARD)
    assert set(parity) == {"mlm"}
    beside = load_file(tmp_path / "model" / "span_boundary_head.safetensors")
    assert beside.keys() == {name for name in state if name.startswith("sbo_head.")}
    assert not any("sbo" in name for name in load_file(tmp_path / "model" / "model.safetensors"))
    back = read_weights(tmp_path / "model", config, vocabulary.size)
    assert back.keys() == state.keys()
    assert all(tensor.equal(state[name].detach()[: len(tensor)]) for name, tensor in back.items())

"""XLNet against transformers' with equal weights, both ways: logits, gradients and memory in float64.

An example at a time, in their order of tokens, with perm_mask, target_mapping and mems as the published rule has them.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import transformers
from hypothesis import Phase, given
from hypothesis import settings as examples_of
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from data_pipeline.shards.index import VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.export.export import export
from pretrain.huggingface.folder import read_weights
from pretrain.huggingface.registry import check_config
from pretrain.huggingface.xlnet import XLNET_LM, same_dtype
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import load_parameters, without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import load
from pretrain.objectives.xlnet import factorization_ranks
from tests.factories.exports import CARD
from tests.factories.models import scattered_model
from tests.factories.vocabularies import trained
from tests.reference.conftest import masked_examples

STAMP = VocabularyStamp("", 70, cls=3, sep=4, mask=6, pad=5, unk=0)


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    heads = draw(st.integers(1, 3))
    encoder = EncoderSettings(
        layers=draw(st.integers(1, 3)),
        hidden=8 * heads,
        heads=heads,
        intermediate=draw(st.integers(5, 40)),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "relu"])),
        max_positions=24,
        segments=0,
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5])),
    )
    run = RunConfig(encoder=encoder)
    run.objective.name, run.run.seed = "xlnet", draw(st.integers(0, 99))
    run.objective.xlnet.memory_length = draw(st.sampled_from([0, 3, 7, 30]))
    run.data.both_directions = draw(st.booleans())
    return run


@st.composite
def batches(draw: st.DrawFn) -> MicroBatch:
    """Pairs of segments; of each the first token and the last but two are targets, with their words in place."""
    words = st.lists(st.integers(9, STAMP.size - 1), min_size=5, max_size=16)
    texts = draw(st.lists(words, min_size=1, max_size=4))
    cuts = [draw(st.integers(1, len(ids) - 1)) for ids in texts]
    sequences = [
        [STAMP.cls, *ids[:cut], STAMP.sep, *ids[cut:], STAMP.sep]
        for ids, cut in zip(texts, cuts, strict=True)
    ]
    masked = [{1: ids[1], len(ids) - 2: ids[-2]} for ids in sequences]
    return MicroBatch.from_lists(sequences, [cut + 2 for cut in cuts], masked)


def state_of(model: Model) -> dict[str, Tensor]:
    return without_padding(model, {n: p.detach() for n, p in model.named_parameters()})


def theirs_of(run: RunConfig) -> transformers.XLNetLMHeadModel:
    """Their model of the run's settings, with weights of its own."""
    torch.manual_seed(3)
    model = (
        transformers.XLNetLMHeadModel(transformers.XLNetConfig(**XLNET_LM.config(run, STAMP))).double().eval()
    )
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    for layer in model.transformer.layer:
        layer.register_forward_pre_hook(same_dtype, with_kwargs=True)
    return model


def memory_of(run: RunConfig, examples: int) -> Tensor | None:
    length = run.objective.xlnet.memory_length
    shape = (examples, run.encoder.layers, length, run.encoder.hidden)
    return (
        torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        if length
        else None
    )


def blocked(functional: Tensor, masked: Tensor, rank: Tensor) -> Tensor:
    """The published rule (`_local_perm`): whether row i is kept from seeing column j, (S, S)."""
    target, ordered = masked & ~functional, masked | functional
    reverse = torch.where(ordered, rank, -1)
    own = torch.where(target, reverse, reverse + 1)
    return (own[:, None] <= reverse[None, :]) & ordered[None, :]


class Their(NamedTuple):
    logits: Tensor
    memory: Tensor | None


def ask_theirs(
    theirs: transformers.XLNetLMHeadModel,
    run: RunConfig,
    batch: MicroBatch,
    number: int,
    memory: Tensor | None,
) -> Their:
    """Logits of the targets of one example, in our order, and its next memory (layers, M, H). In both directions they
    take the second half of a batch as text that is read from its end: the example comes twice, reversed."""
    start, stop = batch.cu_seqlens[number : number + 2].tolist()
    backwards = run.data.both_directions and number % 2 == 1
    theirs.transformer.bi_data, copies = backwards, 2 if backwards else 1
    order = (
        [*range(stop - 1, start, -1), start] if backwards else [*range(start + 1, stop), start]
    )  # [CLS] last
    ids, segments = batch.input_ids[order], batch.segment_ids[order].clone()
    segments[-1] = 2
    rows = [row for row in batch.masked_index.tolist() if start <= row < stop]
    masked = torch.tensor([row in rows for row in order])
    functional = (ids == STAMP.cls) | (ids == STAMP.sep)
    ranks = factorization_ranks(batch, STAMP.cls, STAMP.sep, run.run.seed)[order].argsort().argsort()
    mapping = F.one_hot(torch.tensor([order.index(row) for row in rows]), len(order)).double()
    mems = None if memory is None else list(memory[number].unsqueeze(2).repeat(1, 1, copies, 1))
    given = {
        "input_ids": ids,
        "token_type_ids": segments,
        "perm_mask": blocked(functional, masked, ranks).double(),
        "target_mapping": mapping,
    }
    given = {name: value.repeat(copies, *[1] * value.dim()) for name, value in given.items()}
    found = theirs(**given, mems=mems, use_mems=memory is not None)
    kept = None if memory is None else torch.stack([state[:, -1] for state in found.mems])
    return Their(found.logits[-1], kept)


def compare(ours: Model, theirs: transformers.XLNetLMHeadModel, run: RunConfig, batch: MicroBatch) -> None:
    memory = memory_of(run, len(batch.lengths))
    ranks_T = factorization_ranks(batch, STAMP.cls, STAMP.sep, run.run.seed)
    backwards_E = batch.streams % 2 == 1 if run.data.both_directions else None
    streams = ours.encoder(batch, ranks_T, memory, backwards_E=backwards_E)
    found = [ask_theirs(theirs, run, batch, number, memory) for number in range(len(batch.lengths))]
    expected = torch.cat([one.logits for one in found])
    torch.testing.assert_close(ours.plm_head.logits(streams.query_RH), expected, rtol=0, atol=1e-9)
    if memory is not None:
        kept = torch.stack([one.memory for one in found])
        torch.testing.assert_close(streams.memory, kept, rtol=0, atol=1e-9)
    loss = F.cross_entropy(expected, batch.masked_ids, reduction="sum")
    past = None
    if memory is not None:
        past = {"hidden": memory, "epoch": torch.zeros(len(batch.lengths))}
    term = ours(batch, past)[0]["plm"]
    assert (term.count.item(), term.sum.item()) == (len(expected), pytest.approx(loss.item(), abs=1e-9))
    ours.zero_grad(), theirs.zero_grad()
    term.sum.backward(), loss.backward()
    grads = XLNET_LM.to_hugging_face(
        without_padding(ours, {n: p.grad for n, p in ours.named_parameters()}), theirs.config.to_dict()
    )
    for name, parameter in theirs.named_parameters():
        if name not in XLNET_LM.tied:
            torch.testing.assert_close(grads[name], parameter.grad, rtol=0, atol=1e-8, msg=name)


@examples_of(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(run=runs(), batch=batches())
def test_equal_weights_give_equal_logits_gradients_and_memory(run: RunConfig, batch: MicroBatch) -> None:
    ours, theirs = scattered_model(run, STAMP), theirs_of(run)
    tensors = XLNET_LM.to_hugging_face(state_of(ours), theirs.config.to_dict())
    loading = theirs.load_state_dict(tensors, strict=False)
    assert (loading.missing_keys, loading.unexpected_keys) == (["lm_loss.weight"], [])
    compare(ours, theirs, run, batch)


@examples_of(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(run=runs(), batch=batches())
def test_their_random_weights_give_our_logits(run: RunConfig, batch: MicroBatch) -> None:
    theirs, ours = theirs_of(run), scattered_model(run, STAMP)
    stored = {name: tensor.float() for name, tensor in theirs.state_dict().items()}
    theirs.load_state_dict({name: tensor.double() for name, tensor in stored.items()})
    state = XLNET_LM.from_hugging_face(stored, theirs.config.to_dict(), Path("theirs"))
    load_parameters(ours, {name: tensor.double() for name, tensor in state.items()})
    compare(ours, theirs, run, batch)


def test_the_rule_of_orders_is_the_published_one() -> None:
    """The rows of `_local_perm` for this input, and what a model of two layers then depends on."""
    functional, masked = (torch.tensor(x).bool() for x in ([0, 0, 0, 0, 1, 1], [0, 1, 0, 1, 0, 0]))
    rows = blocked(functional, masked, torch.tensor([3, 0, 5, 2, 1, 4])).int().tolist()
    assert ["".join(map(str, row)) for row in rows] == ["010111"] * 3 + ["000101"] * 2 + ["000000"]


def exported(folder: Path) -> tuple[Model, RunConfig]:
    vocabulary = trained("unigram", specials="xlnet")
    run = RunConfig(encoder=EncoderSettings(
        layers=2, hidden=24, heads=3, intermediate=40, max_positions=48, segments=0, initializer_range=0.3,
    ))  # fmt: skip
    run.objective.name, run.objective.xlnet.memory_length = "xlnet", 5
    model = load(run).fresh_model(VocabularyStamp.of(vocabulary))
    examples: Examples = masked_examples(12, vocabulary.size)
    parity = export(dict(model.named_parameters()), run, vocabulary.json, folder, examples, CARD)
    assert set(parity) == {"plm", "content"}
    assert all(found.difference <= found.allowed for found in parity.values())
    return model, run


def test_an_export_is_what_transformers_expects(tmp_path: Path) -> None:
    model, run = exported(tmp_path / "model")
    vocabulary = trained("unigram", specials="xlnet")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert (config.mem_len, config.use_mems_eval, config.pad_token_id) == (5, False, vocabulary.pad)
    back = read_weights(tmp_path / "model", run, vocabulary.size)
    assert all(back[name].equal(tensor) for name, tensor in state_of(model).items())

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    pair = tokenizer(["the man", "the man and the end"], ["end", "end"], padding=True)
    assert pair["input_ids"][1][-1] == vocabulary.cls
    assert [row[-2] for row in pair["input_ids"]] == [vocabulary.sep] * 2
    assert pair["input_ids"][0][0] == vocabulary.pad, "padding is on the left"
    assert [row[-1] for row in pair["token_type_ids"]] == [2, 2]
    assert pair["token_type_ids"][0][-2] == 1
    single = tokenizer("the man")
    assert (single["input_ids"][-2:], single["token_type_ids"][-2:]) == (
        [vocabulary.sep, vocabulary.cls],
        [0, 2],
    )


def test_another_model_is_no_start(tmp_path: Path) -> None:
    _, run = exported(tmp_path / "model")
    run.encoder.heads = 2
    with pytest.raises(UserError, match=r"encoder\.heads is 2, n_head 3"):
        check_config(tmp_path / "model", run, trained("unigram", specials="xlnet").size)


def test_base_has_its_parameters() -> None:
    """116,750,336 with 32,000 entries."""
    config = load_config("xlnet_base", [])
    with torch.device("meta"):
        model = load(config).build_model(VocabularyStamp.of_size(32_000))
    shapes = without_padding(model, dict(model.named_parameters()))
    assert sum(p.numel() for p in shapes.values()) == 116_750_336
    assert np.prod(load(config).memory["hidden"]) == 12 * 384 * 768

"""The encoder: packed equals alone, recomputation equals storage, initial weights, padding rows, batches."""

import copy
import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.errors import UserError
from data_pipeline.records import Examples
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.distributed.world import World
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import ACTIVATIONS, Encoder, FewRows, encoder_flops, rotated, rotation
from pretrain.model.initialize import initialize, load_parameters, padded, vocabulary_rows, without_padding
from pretrain.training.progress import Position
from pretrain.training.resume import enter
from tests.factories.models import fresh_model

VOCABULARY = 100
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0
)


def encoder(seed: int = 0, **changes: object) -> Encoder:
    module = Encoder(dataclasses.replace(TINY, **changes), VOCABULARY)
    initialize(module, seed, 0.2)
    return module


def batch(lengths: list[int], seed: int = 1) -> MicroBatch:
    draws = np.random.RandomState(seed)
    return MicroBatch.from_lists(
        [draws.randint(0, VOCABULARY, n).tolist() for n in lengths], [max(1, n // 2) for n in lengths]
    )


def test_packed_equals_alone() -> None:
    module, together = encoder().double(), batch([3, 17, 8, 17])
    hidden = module(together)
    start = 0
    for length in together.lengths:
        ids = together.input_ids[start : start + length].tolist()
        alone = module(MicroBatch.from_lists([ids], [max(1, length // 2)]))
        torch.testing.assert_close(hidden[start : start + length], alone, rtol=0, atol=1e-12)
        start += length


def test_a_changed_token_leaves_other_examples_bit_equal() -> None:
    module, together = encoder(), batch([5, 21, 9])
    before = module(together)
    together.input_ids[7] = (together.input_ids[7] + 1) % VOCABULARY  # in the second example
    after = module(together)
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[26:], after[26:])
    assert not torch.equal(before[5:26], after[5:26])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_differ(activation: str) -> None:
    others = ACTIVATIONS.keys() - {activation}
    ours = encoder(activation=activation)(batch([9]))
    assert all(not torch.equal(ours, encoder(activation=other)(batch([9]))) for other in others)


def test_activation_checkpointing_gives_the_same_gradients_with_dropout() -> None:
    gradients = []
    for recompute in (False, True):
        module = encoder(dropout=0.2, attention_dropout=0.2)
        module.activation_checkpointing = recompute
        torch.manual_seed(9)
        module(batch([6, 11])).square().sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_dropout_only_while_training() -> None:
    module = encoder(dropout=0.3, attention_dropout=0.3)
    assert not torch.equal(module(batch([8])), module(batch([8])))
    module.eval()
    assert torch.equal(module(batch([8])), module(batch([8])))


@pytest.mark.parametrize("only", ["dropout", "attention_dropout"])
def test_each_dropout_setting_acts(only: str) -> None:
    module = encoder(**{only: 0.5})
    assert not torch.equal(module(batch([8])), module(batch([8])))


def test_initial_weights() -> None:
    module = Encoder(EncoderSettings(layers=2, hidden=64, heads=2, intermediate=128), 1000)
    initialize(module, 3, 0.02)
    parameters = dict(module.named_parameters())
    for name, p in parameters.items():
        if name.endswith("bias"):
            assert not p.any()
        elif "norm" in name:
            assert (p == 1).all()
        else:
            assert p.abs().max() <= 0.04
            drawn = p[:1000] if name == "embeddings.word.weight" else p
            assert drawn.std().item() == pytest.approx(0.017593, rel=0.1 if drawn.numel() < 1000 else 0.03)
    assert not parameters["embeddings.word.weight"][1000:].any()
    assert len({p.double().sum().item() for n, p in parameters.items() if n.endswith("query.weight")}) == 2


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = encoder(seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    second, third = encoder(seed=4), encoder(seed=5)
    pairs = list(zip(first.parameters(), second.parameters(), third.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)


def test_vocabulary_padding_comes_and_goes() -> None:
    module = encoder()
    assert padded(100) == 128 == module.embeddings.word.weight.shape[0]
    assert padded(128) == 128
    assert vocabulary_rows(copy.deepcopy(module)) == {"embeddings.word.weight": 100}
    state = without_padding(module, dict(module.named_parameters()))
    assert state["embeddings.word.weight"].shape == (100, 16)
    other = encoder(seed=8)
    other.embeddings.word.weight.data[100:] = 1.0
    assert load_parameters(other, state) == []
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_loading_refuses_what_does_not_fit() -> None:
    module = encoder()
    state = {name: p.detach().clone() for name, p in module.named_parameters()}
    word = state.pop("embeddings.word.weight")
    with pytest.raises(UserError, match=r"embeddings\.word\.weight"):
        load_parameters(module, state)
    assert load_parameters(module, state, partial=True) == ["embeddings.word.weight"]
    with pytest.raises(UserError, match=r"shape \(99, 16\)"):
        load_parameters(module, {**state, "embeddings.word.weight": word[:99]})


def test_a_micro_batch_from_columns() -> None:
    examples = Examples(
        tokens=np.array([2, 10, 3, 11, 3, 2, 4, 3], np.uint16),
        offsets=np.array([0, 5, 8]),
        first_lengths=np.array([3, 3], np.uint16),
        labels=np.array([1, -1], np.int8),
        masked_positions=np.array([1, 3, 1], np.uint16),
        masked_ids=np.array([20, 21, 22], np.uint16),
        masked_offsets=np.array([0, 2, 3]),
    )
    made = MicroBatch.from_examples(examples)
    assert made.input_ids.tolist() == [2, 10, 3, 11, 3, 2, 4, 3]
    assert made.segment_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert made.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert made.cu_seqlens.tolist() == [0, 5, 8]
    assert made.cu_seqlens.dtype == torch.int32
    assert made.masked_index.tolist() == [1, 3, 6]
    assert made.masked_ids.tolist() == [20, 21, 22]
    assert made.labels.tolist() == [1, -1]
    assert made.cls_index.tolist() == [0, 5]
    assert (made.lengths, made.max_length, made.tokens) == ((5, 3), 5, 8)
    listed = MicroBatch.from_lists([[2, 10, 3, 11, 3], [2, 4, 3]], [3, 3], [{1: 20, 3: 21}, {1: 22}], [1, -1])
    for name in ("input_ids", "segment_ids", "positions", "masked_index", "masked_ids", "labels"):
        assert torch.equal(getattr(made, name), getattr(listed, name))
    assert torch.equal(made.to("cpu").input_ids, made.input_ids)


def test_narrow_embeddings_are_projected_and_shared() -> None:
    narrow, tokens = encoder(embedding_size=6).double(), batch([9, 4])
    assert narrow.embeddings.word.weight.shape == (padded(VOCABULARY), 6)
    assert narrow.embeddings.norm.weight.shape == (6,)
    assert narrow.projection is not None
    assert encoder().projection is None
    settings = dataclasses.replace(TINY, embedding_size=6, hidden=8, heads=1)
    other = Encoder(settings, VOCABULARY, embeddings=narrow.embeddings)
    initialize(other, 1, 0.2)
    together = torch.nn.ModuleList((narrow, other.double()))
    assert not any("embeddings" in name for name, _ in other.named_parameters())
    assert sum("word" in name for name, _ in together.named_parameters()) == 1
    assert (narrow(tokens).shape, other(tokens).shape) == ((13, 16), (13, 8))
    other(tokens).sum().backward()
    assert narrow.embeddings.position.weight.grad.any()
    embedded = narrow.embeddings(tokens.input_ids, tokens.segment_ids, tokens.positions)
    hidden = narrow.projection(embedded)
    for layer in narrow.layers:
        hidden = layer(hidden, tokens.packing)
    assert torch.equal(narrow(tokens), hidden)


SWITCHES = {
    "norm": {"norm": "rms", "norm_biases": False},
    "norm_place": {"norm_place": "pre"},
    "embedding_norm": {"embedding_norm": False},
    "biases": {"biases": False},
    "norm_biases": {"norm_biases": False},
    "gated": {"gated": True},
    "kv_heads": {"kv_heads": 1},
    "positions": {"positions": "rope"},
    "rope_theta": {"positions": "rope", "rope_theta": 50.0},
    "local_attention": {"global_every": 2, "local_attention": 8},
    "local_rope_theta": {"positions": "rope", "global_every": 2, "local_rope_theta": 50.0},
}
MODERN = {key: value for switch in SWITCHES.values() for key, value in switch.items()}


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_makes_another_encoder_and_packed_equals_alone(switch: str) -> None:
    module, plain = encoder(**SWITCHES[switch]).double(), encoder().double()
    together, own = batch([3, 17, 8, 39]), dict(module.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if name in own and own[name].shape == parameter.shape:
                parameter.copy_(own[name])
    hidden = module(together)
    assert not torch.allclose(hidden, plain(together)) or own.keys() != dict(plain.named_parameters()).keys()
    alone = module(MicroBatch.from_lists([together.input_ids[-39:].tolist()], [19]))
    torch.testing.assert_close(hidden[-39:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"norm_place": "pre"}, MODERN])
def test_the_rows_that_are_asked_for_are_those_of_all(changes: dict) -> None:
    module, together = encoder(**changes).double(), batch([9, 30])
    rows = torch.tensor([4, 0, 38, 4])
    torch.testing.assert_close(module(together, rows), module(together)[rows], rtol=0, atol=1e-12)


def test_a_layer_with_norms_before_is_the_sum_of_what_went_in_and_its_halves() -> None:
    module, together = encoder(norm_place="pre", positions="rope").double(), batch([7])
    first, second = module.layers
    names = {name for name, _ in module.named_parameters()}
    assert "layers.0.attention_norm.weight" not in names
    assert {"layers.1.attention_norm.weight", "final_norm.weight"} <= names
    assert "embeddings.position.weight" not in names
    x = module.embeddings(together.input_ids, together.segment_ids, together.positions)
    by = module._rotations(together.positions)[0]
    for layer, normed in ((first, x), (second, None)):
        read = normed if normed is not None else layer.attention_norm(x)
        x = x + layer.attention(read, together.packing, by=by)
        x = x + layer.feed_forward(layer.feed_forward_norm(x))
    torch.testing.assert_close(module(together), module.final_norm(x), rtol=0, atol=1e-12)
    assert "layers.0.attention_norm.weight" in dict(
        encoder(norm_place="pre", embedding_norm=False).named_parameters()
    )


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def score(at: int, to: int) -> float:
        turned = [rotated(x, rotation(torch.tensor([p]), 100.0, 8)) for x, p in ((q, at), (k, to))]
        return float((turned[0] * turned[1]).sum())

    assert score(3, 7) == pytest.approx(score(20, 24), abs=1e-5)
    assert score(3, 7) != pytest.approx(score(3, 8), abs=1e-3)
    assert score(5, 5) == pytest.approx(float((q * k).sum()), abs=1e-6)


def test_a_phase_changes_the_thetas_of_the_encoders_that_rotate() -> None:
    """The model is then the one that is built with these thetas; entering the phase again, as at a resume, too."""
    switches = {"positions": "rope", "global_every": 2, "local_attention": 8}
    thetas = {"rope_theta": 160_000.0, "local_rope_theta": 500.0}
    together, built = batch([9, 40]), encoder(**switches, **thetas)
    module, learned = encoder(**switches), encoder()
    before = learned.settings
    assert not torch.equal(module(together), built(together))
    engine = SimpleNamespace(module=torch.nn.ModuleList([module, learned]))
    plan = SimpleNamespace(phase=SimpleNamespace(number=1, config=RunConfig(encoder=built.settings)))
    for _ in range(2):
        enter(plan, engine, Position(phase=1), World(), print)  # type: ignore[arg-type]
        assert torch.equal(module(together), built(together))
    assert learned.settings is before


def test_modern_layers_are_recomputed_with_the_same_dropout() -> None:
    gradients = []
    for recompute in (False, True):
        module = encoder(**MODERN, dropout=0.1, attention_dropout=0.2, attention_output_dropout=0.3)
        module.activation_checkpointing = recompute
        torch.manual_seed(9)
        module(batch([6, 39]), torch.tensor([3, 40])).square().sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_only_the_attentions_output_has_a_dropout_of_its_own() -> None:
    module = encoder(attention_output_dropout=0.5)
    assert (module.layers[0].attention_output_dropout.rate, module.layers[0].dropout.rate) == (0.5, 0.0)
    assert encoder(dropout=0.3).layers[0].attention_output_dropout.rate == 0.3
    assert not torch.equal(module(batch([8])), module(batch([8])))


def test_projections_back_into_the_residual_stream_start_smaller() -> None:
    sizes = {"layers": 8, "hidden": 64, "intermediate": 128}
    plain, scaled = (encoder(**sizes, scale_residual_init=on) for on in (False, True))
    for (name, one), other in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        factor = 0.25 if "output" in name else 1.0
        torch.testing.assert_close(other, one * factor, msg=name)


@pytest.mark.parametrize("objective", ["bert", "causal"])
def test_the_head_for_words_starts_smaller_too(objective: str) -> None:
    """As ModernBertPredictionHead's dense in transformers; not the pooler, which no residual stream takes up."""
    sizes = [dataclasses.replace(TINY, layers=8, scale_residual_init=on) for on in (False, True)]
    plain, scaled = (dict(fresh_model(objective, one, 50).named_parameters()) for one in sizes)
    smaller = {name for name, tensor in scaled.items() if not torch.equal(tensor, plain[name])}
    head = "mlm_head.dense.weight"
    assert smaller == {head, *(name for name in plain if name.endswith("output.weight"))}
    torch.testing.assert_close(scaled[head], plain[head] / 4)


def test_operations_of_gates_key_heads_and_windows_are_counted() -> None:
    def count(tokens: int, squares: int, **changes: object) -> float:
        return encoder_flops(dataclasses.replace(TINY, **changes), tokens, squares)

    assert count(10, 0, gated=True) - count(10, 0) == 6 * 2 * 16 * 32 * 10
    assert count(10, 0) - count(10, 0, kv_heads=1) == 6 * 2 * 2 * 16 * 8 * 10
    whole = count(1000, 1_000_000) - count(1000, 0)
    half = count(1000, 1_000_000, global_every=2, local_attention=8) - count(1000, 0)
    assert half == pytest.approx(whole / 2 * (1 + 9 / 1000), rel=1e-12)


def test_a_table_of_few_rows_is_looked_up_by_products() -> None:
    """The same rows to the bit, and the gradient of the definition, without CUDA's lookup gradient."""
    weight, ids = torch.randn(3, 8, dtype=torch.float64), torch.randint(3, (200,))
    table = FewRows.from_pretrained(weight.clone(), freeze=False)
    found = table(ids)
    assert torch.equal(found, weight[ids])
    grown = torch.randn(200, 8, dtype=torch.float64)
    found.backward(grown)
    expected = torch.zeros(3, 8, dtype=torch.float64).index_add_(0, ids, grown)
    torch.testing.assert_close(table.weight.grad, expected, rtol=1e-12, atol=1e-12)
    kinds, functions = set(), [found.grad_fn]
    while functions:
        if (function := functions.pop()) is not None:
            kinds.add(function.name())
            functions += [before for before, _ in function.next_functions]
    assert not any("Embedding" in kind or "Index" in kind for kind in kinds)
    assert type(encoder().embeddings.segment) is FewRows

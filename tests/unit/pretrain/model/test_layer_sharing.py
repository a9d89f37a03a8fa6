"""Layers that share parameters: which do, that each parameter is there once, and that the function is the copies'."""

import copy
import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import (
    HALVES,
    EncoderSettings,
    first_of_group,
    group_of,
    half_of,
    in_layer,
    layer_and_rest,
    owner_of,
)
from pretrain.config.settings import OptimSettings, RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import Encoder, encoder_flops
from pretrain.model.initialize import initialize, load_parameters
from pretrain.optim.base import parameter_groups
from pretrain.preflight.memory import meta_model, states
from pretrain.run.folder import refuse_another

VOCABULARY = 50
TINY = EncoderSettings(
    layers=5, hidden=8, heads=2, intermediate=12, max_positions=20, dropout=0.0, attention_dropout=0.0
)
SHARINGS = [("all", 1), ("all", 2), ("all", 5), ("attention", 1), ("attention", 2), ("feed_forward", 1),
            ("feed_forward", 3), ("none", 1)]  # fmt: skip


def encoder(sharing: str, groups: int, **changes: object) -> Encoder:
    module = Encoder(dataclasses.replace(TINY, sharing=sharing, groups=groups, **changes), VOCABULARY)
    initialize(module, 1, 0.3)
    return module


def batch() -> MicroBatch:
    draws = np.random.RandomState(3)
    return MicroBatch.from_lists([draws.randint(0, VOCABULARY, n).tolist() for n in (7, 4)], [3, 2])


def copies(module: Encoder) -> dict[str, Tensor]:
    """The weights of an encoder that shares nothing and computes the same."""
    own = {f"encoder.{name}": p.detach() for name, p in module.named_parameters()}
    names = (f"encoder.{name}" for name, _ in encoder("none", 1).named_parameters())
    found = {}
    for name in names:
        place = layer_and_rest(name)
        source = name
        if place:
            source = in_layer(owner_of(module.settings, place[0], half_of(place[1])), place[1])
        found[name.removeprefix("encoder.")] = own[source]
    return found


def test_groups_are_consecutive_and_none_is_empty() -> None:
    assert [group_of(n, 12, 1) for n in range(12)] == [0] * 12
    assert [group_of(n, 12, 4) for n in range(12)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [group_of(n, 5, 2) for n in range(5)] == [0, 0, 0, 1, 1]
    for layers in range(1, 49):
        for groups in range(1, layers + 1):
            found = [group_of(n, layers, groups) for n in range(layers)]
            assert sorted(set(found)) == list(range(groups))
            assert all(b - a in (0, 1) for a, b in pairwise(found))
            assert [first_of_group(g, layers, groups) for g in range(groups)] == [
                found.index(g) for g in range(groups)
            ]


def test_owners() -> None:
    settings = dataclasses.replace(TINY, sharing="attention", groups=2)
    assert [owner_of(settings, n, "attention") for n in range(5)] == [0, 0, 0, 3, 3]
    assert [owner_of(settings, n, "feed_forward") for n in range(5)] == [0, 1, 2, 3, 4]
    assert {half_of(f"{module}.weight") for module in HALVES["attention"]} == {"attention"}
    assert layer_and_rest("encoder.layers.12.attention.query.weight") == (12, "attention.query.weight")
    for other in ("generator.encoder.layers.1.x", "encoder.layers.x.y", "encoder.embeddings.word.weight"):
        assert layer_and_rest(other) is None


@pytest.mark.parametrize(("sharing", "groups"), SHARINGS)
def test_sharing_is_as_copies_that_stay_equal(sharing: str, groups: int) -> None:
    module, apart = encoder(sharing, groups).double(), encoder("none", 1)
    load_parameters(apart, copies(module))
    hidden, other = module(batch()), apart.double()(batch())
    assert torch.equal(hidden, other)
    hidden.sin().sum().backward()
    other.sin().sum().backward()
    expected: dict[str, Tensor] = {}
    for name, parameter in apart.named_parameters():
        source, place = name, layer_and_rest(f"encoder.{name}")
        if place:
            owner = owner_of(module.settings, place[0], half_of(place[1]))
            source = in_layer(owner, place[1]).removeprefix("encoder.")
        assert parameter.grad is not None
        expected[source] = expected.get(source, torch.zeros(())) + parameter.grad
    found = {name: p.grad for name, p in module.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("sharing", "groups"), SHARINGS)
def test_every_parameter_is_there_once(sharing: str, groups: int) -> None:
    module, whole = encoder(sharing, groups), encoder("none", 1)
    attention = TINY.layers if sharing in ("none", "feed_forward") else groups
    feed_forward = TINY.layers if sharing in ("none", "attention") else groups
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    assert len(names) == len(set(names)) == len({id(p) for p in module.parameters()})
    assert sum("attention.query.weight" in name for name in names) == attention
    assert sum("feed_forward_norm.bias" in name for name in names) == feed_forward
    assert set(names) <= {name for name, _ in whole.named_parameters()}
    parents: dict[int, int] = {}
    for part in module.modules():
        for child in part.children():
            parents[id(child)] = parents.get(id(child), 0) + 1
    assert set(parents.values()) == {1}, "ZeRO-3 hooks a module once for each parent"
    grouped = [p for group in parameter_groups(module, OptimSettings()) for p in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, module.parameters()))


def test_a_copy_and_a_conversion_keep_the_sharing() -> None:
    module = encoder("all", 2)
    other = copy.deepcopy(module).double()
    assert {p.dtype for p in other.parameters()} == {torch.float64}
    assert torch.equal(other(batch()), module.double()(batch()))
    other.layers[0].attention.query.weight.data.zero_()
    assert not other.layers[2].attention.query.weight.any()
    assert other.layers[3].attention.query.weight.any()
    assert module.layers[2].attention.query.weight.any(), "the copy has its own"
    assert not any(part.training for part in module.eval().modules())


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    gradients = []
    for recompute in (False, True):
        module = encoder("all", 1, dropout=0.2, attention_dropout=0.2)
        module.activation_checkpointing = recompute
        torch.manual_seed(9)
        module(batch()).square().sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_operations_are_every_layers_and_memory_is_of_one() -> None:
    shared = dataclasses.replace(TINY, sharing="all")
    assert encoder_flops(shared, 100, 1000) == encoder_flops(TINY, 100, 1000)
    config = RunConfig(encoder=dataclasses.replace(TINY, layers=4))
    config.objective.name, config.data.sequences = "albert", "sentence_order"
    whole = states(meta_model(config, 64), config, "fp32", 1)
    config.encoder.sharing = "all"
    model = meta_model(config, 64)
    once = states(model, config, "fp32", 1)
    layer = 4 * (8 * 8 + 8) + 8 * 12 + 12 + 12 * 8 + 8 + 4 * 8
    assert whole.weights - once.weights == 3 * 4 * layer
    assert once.weights == 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["encoder.groups=5"], "encoder.groups=5 is above encoder.layers=4 (fewer groups"),
        (["encoder.sharing=none", "encoder.groups=2"], "encoder.groups=2 with encoder.sharing=none"),
        (["encoder.sharing=some"], "encoder.sharing: must be one of none, all, attention, feed_forward"),
        (["objective.name=bert"], "models of objective.name=bert have no encoder.sharing, got all"),
    ],
)
def test_what_cannot_be_shared_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config("albert_tiny", settings)
    assert said in str(caught.value)


def test_a_run_older_than_the_settings_shared_nothing() -> None:
    now = {"encoder.layers": 2, "encoder.sharing": "none", "encoder.groups": 1}
    refuse_another({"encoder.layers": 2}, now, "folder", "remedy")
    with pytest.raises(UserError, match=r"encoder\.sharing=all \(there: none\)"):
        refuse_another({"encoder.layers": 2}, now | {"encoder.sharing": "all"}, "folder", "remedy")
    with pytest.raises(UserError, match=r"train\.steps=1000 \(there: None\)"):
        refuse_another({"phase1.train.steps": 5}, {"train.steps": 1000}, "folder", "remedy")
    refuse_another({"phases": ["a"]}, {"schedule.span": "phase", "a.schedule.decay": 0.2}, "folder", "remedy")


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ((12, 768, 12, 3072), 11_813_810),
        ((24, 1024, 16, 4096), 17_847_474),
        ((24, 2048, 16, 8192), 59_021_490),
        ((12, 4096, 64, 16384), 223_158_450),
    ],
)
def test_alberts_sizes_have_their_parameters(sizes: tuple[int, ...], parameters: int) -> None:
    """What transformers' AlbertForPreTraining counts at the published sizes (Lan et al. 2020, table 1)."""
    names = ("layers", "hidden", "heads", "intermediate")
    config = load_config(
        "albert_base", [f"encoder.{name}={size}" for name, size in zip(names, sizes, strict=True)]
    )
    model = meta_model(config, VocabularyStamp.of_size(30_000).size)
    rows = 30_016 - 30_000  # the table and the bias are padded
    assert sum(p.numel() for p in model.parameters()) - rows * (128 + 1) == parameters

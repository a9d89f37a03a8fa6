"""The benchmark's peers compute the very loss that ours does: same weights, same masks, same parts, same samples."""

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch
from pretrain.model.initialize import without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.registry import OBJECTIVES, load, registered
from tests.benchmarks import family_peers
from tests.benchmarks.family_peers import PEERS, ElectraPeer, Peer, SpanPeer
from tests.factories import models
from tests.factories.members import VARIANTS

ENCODER = EncoderSettings(
    layers=2, hidden=24, heads=3, intermediate=40, max_positions=48, dropout=0.0, attention_dropout=0.0,
    activation="gelu", initializer_range=0.3,
)  # fmt: skip
STAMP = VocabularyStamp("", 85, cls=2, sep=3, mask=4, pad=0, unk=1)


def config_of(member: str) -> RunConfig:
    config = models.config_of(member, ENCODER, vocabulary_size=STAMP.size)
    for name in VARIANTS.keys() & set(registered(member).encoder):
        setattr(config.encoder, name, VARIANTS[name])
    return config


def batch_of(member: str) -> MicroBatch:
    """Two examples of different lengths, with spans of masked tokens and, for pairs, labels."""
    generator = torch.Generator().manual_seed(7)
    first, second = (torch.randint(5, 85, (n,), generator=generator).tolist() for n in (11, 17))
    texts = [[2, *first[:5], 3, *first[5:], 3], [2, *second[:9], 3, *second[9:], 3]]
    masks = [{2: 9, 3: 11}, {4: 30, 12: 31, 13: 32}]
    if registered(member).masking[0] == "none":
        masks = [{}, {}]
    for text, mask in zip(texts, masks, strict=True):
        for place in mask:
            text[place] = STAMP.mask
    pairs = load(config_of(member)).pairs
    first_lengths = [7, 11] if pairs else None
    return MicroBatch.from_lists(texts, first_lengths, masks, [0, 1] if pairs else None)


def same_weights(model: Model, peer: Peer) -> None:
    state = without_padding(model, {name: p.detach() for name, p in model.named_parameters()})
    theirs = [peer.model, peer.generator] if isinstance(peer, ElectraPeer) else [peer.model]
    for family, module in zip(peer.families, theirs, strict=True):
        stored = family.to_hugging_face(state, family.config(peer.config, STAMP))
        missing, unexpected = module.load_state_dict(stored, strict=False)
        assert not unexpected
        assert not [name for name in missing if name not in family.tied and "pooler" not in name]
        module.tie_weights()
    if isinstance(peer, SpanPeer):
        ours = model.sbo_head
        linears = [layer for layer in peer.boundary if not isinstance(layer, nn.GELU)]
        for theirs, layer in zip(
            linears, (ours.first, ours.first_norm, ours.second, ours.second_norm), strict=True
        ):
            theirs.load_state_dict(layer.state_dict())
        peer.place.load_state_dict(ours.place.state_dict())
        peer.bias.data = ours.bias.data[: STAMP.size]


def loss_of(model: Model, batch: MicroBatch) -> Tensor:
    terms, _ = model(batch)
    return sum(term.sum * term.weight / term.count for _, term in terms.items())


@pytest.fixture
def given_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """ELECTRA's samples are these in both: of the five masked words two are as they were."""
    words = torch.tensor([9, 50, 30, 60, 61])
    monkeypatch.setattr("pretrain.objectives.electra.sample_words", lambda *_: words)
    monkeypatch.setattr(family_peers, "sampled", lambda logits: words)


@pytest.mark.usefixtures("given_samples")
@pytest.mark.parametrize("member", OBJECTIVES)
def test_a_peer_has_the_loss_of_its_member(member: str) -> None:
    config, batch = config_of(member), batch_of(member)
    objective = load(config)
    model = objective.fresh_model(STAMP).eval()
    peer = PEERS.get(member, Peer)(config, STAMP, objective.families).eval()
    same_weights(model, peer)
    with torch.no_grad():
        torch.testing.assert_close(peer.loss(batch), loss_of(model, batch), rtol=2e-5, atol=1e-6)


def test_electras_peer_trains_both_models_through_one_set_of_embeddings() -> None:
    config, batch = config_of("electra"), batch_of("electra")
    peer = PEERS["electra"](config, STAMP, load(config).families)
    assert peer.generator.get_input_embeddings() is peer.model.get_input_embeddings()
    torch.manual_seed(0)
    peer.loss(batch).backward()
    parts = (peer.model.discriminator_predictions, peer.generator.generator_predictions)
    for parameter in (
        *(p for part in parts for p in part.parameters()),
        *peer.generator.electra.parameters(),
    ):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0

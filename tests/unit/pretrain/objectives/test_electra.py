"""ELECTRA against its definition: what the discriminator reads and is asked, and what the generator learns from."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import ElectraSettings, EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.model.batch import MicroBatch, Shape
from pretrain.model.encoder import add_up
from pretrain.model.initialize import without_padding
from pretrain.objectives.base import Model
from pretrain.objectives.electra import BINS, LARGEST_LOGIT, Discriminator, Generator, ranking
from pretrain.objectives.registry import load
from pretrain.objectives.teacher import teacher_identity
from pretrain.training.guard import area_under_curve
from tests.factories.models import config_of

MASK = 4
VOCABULARY = VocabularyStamp.of_size(90)._replace(mask=MASK)


def config(**encoder: object) -> RunConfig:
    sizes = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 48, "max_positions": 40, "dropout": 0.0}
    settings = EncoderSettings(**{**sizes, "attention_dropout": 0.0, "initializer_range": 0.3, **encoder})
    found = RunConfig(encoder=settings)
    found.objective.name = "electra"
    found.objective.electra.generator_share = 0.5
    return found


def build(run: RunConfig | None = None) -> Model:
    """A model whose generator has learnt that no masked word is a special token."""
    model = load(run or config()).fresh_model(VOCABULARY).double()
    with torch.no_grad():
        model.mlm_head.bias[:5] = -100.0
    return model


def text(examples: int = 12, seed: int = 0) -> MicroBatch:
    """Examples of 6 to 15 random words, of which three are masked, and one kept."""
    generator = torch.Generator().manual_seed(seed)
    sequences, masked = [], []
    for _ in range(examples):
        length = int(torch.randint(6, 16, (), generator=generator))
        ids = torch.randint(5, 90, (length,), generator=generator).tolist()
        places = (torch.randperm(length - 2, generator=generator)[:4] + 1).tolist()
        masked.append({place: ids[place] for place in places})
        for place in places[:3]:
            ids[place] = MASK
        sequences.append([2, *ids[1:-1], 3])
    return MicroBatch.from_lists(sequences, masked=masked)


def discriminated(model: Model, batch: MicroBatch) -> MicroBatch:
    """What the discriminator reads."""
    seen: list[MicroBatch] = []
    handle = model.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model(batch)
    handle.remove()
    (found,) = seen
    return found


def original(batch: MicroBatch) -> torch.Tensor:
    return batch.input_ids.scatter(0, batch.masked_index, batch.masked_ids)


def test_the_discriminator_reads_the_text_with_samples_and_never_a_mask() -> None:
    model, batch = build(), text()
    found = discriminated(model, batch)
    chosen = torch.zeros(batch.tokens, dtype=torch.bool)
    chosen[batch.masked_index] = True
    assert (batch.input_ids == MASK).sum() == 36
    assert not (found.input_ids == MASK).any()
    assert torch.equal(found.input_ids[~chosen], batch.input_ids[~chosen])
    assert (found.input_ids != original(batch))[chosen].float().mean() > 0.5
    assert found.packing is batch.packing


@pytest.mark.parametrize("shape", [None, Shape(500, 60, 170, 20)])
def test_terms_and_figures_are_those_of_the_definition(shape: Shape | None) -> None:
    model, plain = build(), text(40)
    with torch.no_grad():
        model.mlm_head.bias[5:20] += 8.0  # so that some samples are the original word
        terms, _ = model(plain.padded(shape) if shape else plain)
        found = discriminated(model, plain)
        scores = model.logits(found)["rtd"]
        words = model.logits(plain)["mlm"]
    replaced = found.input_ids != original(plain)
    at_masks = replaced[plain.masked_index]
    assert 0 < int((~at_masks).sum()) < len(at_masks)  # label 0 where the sample is the original
    mlm = F.cross_entropy(words, plain.masked_ids, reduction="sum")
    rtd = F.binary_cross_entropy_with_logits(scores, replaced.double(), reduction="sum")
    assert {name: (t.sum.item(), t.count.item(), t.weight) for name, t in terms.items()} == {
        "mlm": (pytest.approx(mlm.item()), len(plain.masked_ids), 1.0),
        "rtd": (pytest.approx(rtd.item()), plain.tokens, 50.0),
    }
    figures = {name: (x[0].sum().item(), x[1].sum().item()) for name, x in terms.metrics.items()}
    assert tuple(figures) == load(config()).metrics
    flagged, total, count = scores > 0, plain.tokens, int(replaced.sum())
    assert figures["sampled_accuracy"] == (int((~at_masks).sum()), len(at_masks))
    assert figures["rtd_accuracy"] == (int((flagged == replaced).sum()), total)
    assert figures["rtd_majority"] == (total - count, total)
    assert figures["rtd_recall"] == (int((flagged & replaced).sum()), count)
    assert figures["rtd_auc"] == (count, total - count)
    better = (scores[replaced][:, None] > scores[~replaced]).double().mean().item()
    assert area_under_curve(*terms.metrics["rtd_auc"]) == pytest.approx(better, abs=0.01)


def test_samples_are_keyed_by_seed_example_and_epoch_and_by_nothing_else() -> None:
    run, batch = config(), text()
    model = build(run)
    found = discriminated(model, batch).input_ids
    order = [5, 0, 11, 3]
    lists, masked = [], []
    for i in order:
        first, last = (int(batch.cu_seqlens[j]) for j in (i, i + 1))
        own = (batch.masked_index >= first) & (batch.masked_index < last)
        lists.append(batch.input_ids[first:last].tolist())
        places = (batch.masked_index[own] - first).tolist()
        masked.append(dict(zip(places, batch.masked_ids[own].tolist(), strict=True)))
    some = replace(MicroBatch.from_lists(lists, masked=masked), keys=torch.tensor(order))
    parts = [found[batch.cu_seqlens[i] : batch.cu_seqlens[i + 1]] for i in order]
    assert torch.equal(discriminated(model, some).input_ids, torch.cat(parts))
    next_epoch = replace(batch, keys=batch.keys + (1 << 40))
    assert not torch.equal(discriminated(model, next_epoch).input_ids, found)
    other = load(replace(run, run=replace(run.run, seed=2))).build_model(VOCABULARY).double()
    other.load_state_dict(model.state_dict())
    assert not torch.equal(discriminated(other, batch).input_ids, found)


def test_the_discriminators_loss_reaches_the_generator_only_through_the_shared_embeddings() -> None:
    model, batch = build(), text()
    terms, _ = model(batch)
    parameters = dict(model.named_parameters())
    of_rtd = torch.autograd.grad(
        terms["rtd"].sum, list(parameters.values()), allow_unused=True, retain_graph=True
    )
    of_mlm = torch.autograd.grad(terms["mlm"].sum, list(parameters.values()), allow_unused=True)
    reached = {
        term: {
            name
            for name, gradient in zip(parameters, found, strict=True)
            if gradient is not None and gradient.any()
        }
        for term, found in (("rtd", of_rtd), ("mlm", of_mlm))
    }
    own = {name for name in parameters if name.startswith(("generator.", "mlm_head."))}
    shared = {name for name in parameters if name.startswith("encoder.embeddings.") and "project" not in name}
    assert reached["mlm"] == own | shared
    assert reached["rtd"] == parameters.keys() - own
    assert {"word", "position", "segment", "norm"} == {name.split(".")[2] for name in shared}
    assert model.generator.embeddings is model.encoder.embeddings
    assert model.mlm_head.decoder is model.encoder.embeddings.word.weight


@pytest.mark.parametrize("embeddings", ["disentangled", "separate"])
def test_the_discriminators_loss_never_moves_the_generator(embeddings: str) -> None:
    run = config()
    run.objective.electra.embeddings = embeddings
    model, batch = build(run), text()
    parameters = dict(model.named_parameters())
    terms, _ = model(batch)
    reached = {}
    for term in ("rtd", "mlm"):
        found = torch.autograd.grad(
            terms[term].sum, list(parameters.values()), allow_unused=True, retain_graph=True
        )
        moved = zip(parameters, found, strict=True)
        reached[term] = {name for name, gradient in moved if gradient is not None and gradient.any()}
    generator = {name for name in parameters if name.startswith(("generator.", "mlm_head."))}
    assert reached["mlm"] == generator
    assert reached["rtd"] == parameters.keys() - generator
    tables = {name for name in parameters if ".embeddings." in name and "norm" not in name}
    kind = ".delta.weight" if embeddings == "disentangled" else ".weight"
    assert tables == {
        f"{encoder}.embeddings.{table}{ending}"
        for encoder, ending in (("encoder", kind), ("generator", ".weight"))
        for table in ("word", "position", "segment")
    }


def test_disentangled_tables_are_the_generators_plus_what_starts_at_zero() -> None:
    run = config()
    run.objective.electra.embeddings = "disentangled"
    model, ids = build(run), torch.arange(90)
    word, base = model.encoder.embeddings.word, model.generator.embeddings.word
    assert not word.delta.weight.any()
    assert base.weight[:90].std() > 0.2
    assert word(ids).equal(base(ids))
    with torch.no_grad():
        base.weight += 1.0  # the generator learns: what the discriminator reads follows
        word.delta.weight[7] += 0.5
    expected = base.weight[:90].clone()
    expected[7] += 0.5
    assert word(ids).equal(expected)
    logits = model.logits(text())
    add_up(model)
    after = model.logits(text())
    assert all(logits[name].equal(after[name]) for name in logits)
    assert "encoder.embeddings.word.weight" in without_padding(model, dict(model.named_parameters()))


@pytest.mark.parametrize(
    ("body", "expected"),
    [({}, (2, 16, 64)), ({"gated": True, "positions": "rope", "segments": 0}, (2, 16, 24))],
)
def test_sizes_of_a_generator(body: dict[str, object], expected: tuple[int, ...]) -> None:
    encoder = config(**body).encoder
    found = ElectraSettings(generator_share=0.5).generator(encoder)
    assert (found.layers, found.hidden, found.intermediate) == expected
    assert found.embedding_size == encoder.hidden
    separate = ElectraSettings(generator_share=0.5, embeddings="separate", generator_layers=1)
    assert (separate.generator(encoder).embedding_width, separate.generator(encoder).layers) == (16, 1)


def test_the_area_under_the_curve_is_that_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(500, generator=generator) * 4
    replaced = torch.rand(500, generator=generator) < torch.sigmoid(scores)
    counted = torch.arange(500) < 450
    found = ranking(scores, replaced, counted)
    assert (found.positives.shape, found.negatives.shape) == ((BINS,), (BINS,))
    scores, replaced = scores[:450], replaced[:450]
    pairs = scores[replaced][:, None] - scores[~replaced]
    expected = ((pairs > 0).double() + (pairs == 0) / 2).mean().item()
    assert area_under_curve(*found) == pytest.approx(expected, abs=2e-3)
    halves = [ranking(scores[i::2], replaced[i::2], counted[i:450:2]) for i in (0, 1)]
    for whole, *parts in zip(found, *halves, strict=True):
        assert torch.equal(whole, sum(parts))
    extremes = torch.tensor([torch.inf, -torch.inf, torch.nan, 2 * LARGEST_LOGIT])
    labels = torch.tensor([True, False, True, False])
    assert [int(x.sum()) for x in ranking(extremes, labels, labels | True)] == [2, 2]


def test_areas_of_simple_curves() -> None:
    def area(positives: list[int], negatives: list[int]) -> float | None:
        return area_under_curve(torch.tensor(positives).double(), torch.tensor(negatives).double())

    assert area([0, 0, 3], [2, 1, 0]) == 1.0
    assert area([2, 0], [0, 5]) == 0.0
    assert area([0, 4], [0, 7]) == 0.5
    assert area([0, 0], [1, 2]) is None
    assert area([1, 1], [1, 1]) == 0.5


@pytest.mark.parametrize(
    ("sizes", "share", "parameters"),
    [
        (
            {"hidden": 256, "heads": 4, "intermediate": 1024, "embedding_size": 128},
            0.25,
            (13_549_057, 4_620_026),
        ),
        ({"hidden": 768, "heads": 12, "intermediate": 3072}, 0.33333, (109_483_009, 33_740_602)),
    ],
)
def test_the_published_sizes(sizes: dict[str, int], share: float, parameters: tuple[int, int]) -> None:
    """Parameters of google/electra-small and -base, discriminator and generator, embeddings counted in both."""
    run = RunConfig(encoder=EncoderSettings(layers=12, **sizes))
    run.objective.name, run.objective.electra.generator_share = "electra", share
    with torch.device("meta"):
        model = load(run).build_model(VocabularyStamp.of_size(30522))
    counted = {name: p.numel() for name, p in without_padding(model, dict(model.named_parameters())).items()}
    of_generator = sum(n for name, n in counted.items() if name.startswith(("generator.", "mlm_head.")))
    shared = sum(n for name, n in counted.items() if name.startswith("encoder.embeddings."))
    assert (sum(counted.values()) - of_generator, of_generator + shared) == parameters


@pytest.mark.parametrize(
    ("hidden", "share", "heads"), [(768, 1 / 3, 4), (768, 0.3, 2), (16, 0.01, 1), (256, 1.0, 4)]
)
def test_a_generator_of_any_share_has_whole_heads(hidden: int, share: float, heads: int) -> None:
    settings = ElectraSettings(generator_share=share).generator(EncoderSettings(hidden=hidden))
    assert settings.heads == heads
    assert (settings.hidden % heads, settings.embedding_size) == (0, hidden)
    assert settings.intermediate == 4 * settings.hidden


# ELECTRA's second stage: a discriminator that starts as its generator, which nothing changes.


WORDS = 90
STAMP = VocabularyStamp("", WORDS, cls=2, sep=3, mask=4, pad=0, unk=1)
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
BATCH = MicroBatch.from_lists(
    [[2, 5, 4, 9, 3], [2, 4, 4, 11, 3], [2, 30, 3]],
    masked=[{2: 7, 3: 8}, {1: 20, 2: 21}, {}],  # the 9 is a random word in place of 8
)


def run_config() -> RunConfig:
    return config_of("electra_two_stage", TINY, vocabulary_size=WORDS)


def generator_of(model: Model) -> Generator:
    [generator] = model.frozen
    assert isinstance(generator, Generator)
    return generator


@pytest.fixture
def model() -> Model:
    return load(run_config()).fresh_model(STAMP).double()


def test_the_discriminator_starts_from_its_generators_weights(model: Model) -> None:
    theirs, own = generator_of(model).encoder, model.encoder
    for name, layer in {0: 0, 1: 2}.items():  # its first layer and its last
        for ours, given in zip(own.layers[name].parameters(), theirs.layers[layer].parameters(), strict=True):
            assert ours.equal(given)
    for ours, given in zip(own.embeddings.parameters(), theirs.embeddings.parameters(), strict=True):
        assert ours.equal(given)
        assert ours is not given


def test_the_term_is_the_loss_of_what_the_generator_puts_in(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row from the definition: the words drawn, the original words, the labels."""
    drawn: list[torch.Tensor] = []
    whole = type(generator_of(model).mlm_head).forward
    monkeypatch.setattr(
        type(generator_of(model).mlm_head),
        "forward",
        lambda self, *given: (found := whole(self, *given), drawn.append(found[1]))[0],
    )
    terms, _ = model(BATCH)
    ids, labels = BATCH.input_ids.clone(), torch.zeros(BATCH.tokens, dtype=torch.float64)
    ids[BATCH.masked_index] = drawn[0]
    labels[BATCH.masked_index] = (drawn[0] != BATCH.masked_ids).double()
    logits = model.rtd_head.logits(model.encoder(MicroBatch.from_lists([ids[:5], ids[5:10], ids[10:]])))
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    assert terms["rtd"].sum.item() == pytest.approx(loss.item(), rel=1e-9)
    assert (int(terms["rtd"].count), terms["rtd"].weight) == (BATCH.tokens, 1.0)
    assert [*dict(terms.items())] == ["rtd"]


def test_the_masked_figures_are_the_generators(model: Model) -> None:
    generator = generator_of(model)
    metrics = model(BATCH)[0].metrics
    logits = generator.mlm_head.logits(generator.encoder(BATCH), BATCH)
    losses = F.cross_entropy(logits, BATCH.masked_ids, reduction="none")
    is_mask = BATCH.input_ids[BATCH.masked_index] == STAMP.mask
    for kind, rows in (("mask", is_mask), ("random", ~is_mask)):
        found = metrics[f"{kind}_loss"]
        assert found.count.item() == rows.sum().item() > 0
        assert found.sum.item() == pytest.approx(losses[rows].sum().item())
    hits = logits.argmax(-1) == BATCH.masked_ids
    assert metrics["mlm_accuracy"].sum.item() == hits.sum().item()


def test_spare_rows_count_nowhere(model: Model) -> None:
    plain, padded = model(BATCH)[0]["rtd"], model(BATCH.padded(Shape(40, 8, 9, 20)))[0]["rtd"]
    assert padded.sum.item() == pytest.approx(plain.sum.item(), rel=1e-12)
    assert int(padded.count) == int(plain.count)


def test_only_the_discriminator_is_trained_and_stored(model: Model) -> None:
    model.train()
    model(BATCH)[0]["rtd"].sum.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert not any(p.requires_grad or p.grad is not None for p in generator_of(model).parameters())
    assert not generator_of(model).training
    assert not any("generator" in name or "mlm" in name for name, _ in model.named_parameters())
    built = load(run_config()).build_model(STAMP)
    assert isinstance(built, Discriminator)
    assert built.frozen == ()


def test_its_weights_are_a_part_of_the_runs_identity() -> None:
    assert [*teacher_identity(run_config())] == ["generator"]


def test_a_missing_generator_is_named_by_its_setting() -> None:
    config = config_of("electra_two_stage", TINY)
    with pytest.raises(UserError, match=r"objective\.electra_two_stage\.generator: is empty"):
        load(config).fresh_model(STAMP)


def test_a_discriminator_of_another_kind_is_refused() -> None:
    config = run_config()
    config.encoder.segments = 3
    with pytest.raises(UserError, match=r"embeddings\.segment\.weight has shape \(2, 16\)"):
        load(config).fresh_model(STAMP)

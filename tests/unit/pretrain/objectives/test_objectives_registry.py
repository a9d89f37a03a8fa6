"""Objectives: terms as sums and counts, metrics by label, spare rows of no weight, one loss for any cut."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import MODERN, VARIANTS, EncoderSettings
from pretrain.config.settings import ObjectiveSettings, RunConfig
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from pretrain.model import vocabulary_losses
from pretrain.model.batch import MicroBatch
from pretrain.model.heads import KINDS
from pretrain.objectives.base import Model, Terms
from pretrain.objectives.registry import OBJECTIVES, load, registered, with_defaults
from tests.factories.models import config_of

VOCABULARY, MASK = 90, 4
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0
)
BODIES: dict[str, dict[str, object]] = {
    "bert": {},
    "modernbert": {
        **MODERNBERT_FOR_MASKED_LM.implied,
        "biases": False,
        "norm_biases": False,
        "activation": "gelu",
        "layers": 3,
        "rope_theta": 50.0,
        "global_every": 2,
        "local_attention": 2,
        "local_rope_theta": 20.0,
        "attention_output_dropout": 0.0,
        "scale_residual_init": True,
    },
    "eurobert": {**EUROBERT_FOR_MASKED_LM.implied, "biases": False, "activation": "silu", "kv_heads": 1},
}
"""Encoders that between them have every setting of the variant MODERN."""
PLACES = [
    (name, body)
    for name, known in OBJECTIVES.items()
    for body in BODIES
    if body == "bert" or {*VARIANTS[MODERN]} <= {*known.encoder}
]
"""Objectives with the encoders that they have a place for."""
EXAMPLES = [  # ids, length of segment 0, {position: original id}, label
    ([2, 5, 4, 3, 9, 3], 4, {2: 7}, 0),
    ([2, 4, 4, 4, 3, 10, 11, 3], 5, {1: 20, 2: 21, 3: 22}, 1),
    ([2, 30, 3, 4, 3], 3, {3: 31}, 1),
    ([2, 40, 41, 42, 4, 43, 3, 44, 3], 7, {4: 45, 7: 44}, 0),
]


def cut(*numbers: int) -> MicroBatch:
    sequences, firsts, masked, labels = zip(*(EXAMPLES[i] for i in numbers), strict=True)
    return replace(MicroBatch.from_lists(sequences, firsts, masked, labels), keys=torch.tensor(numbers))


def model(name: str, body: str = "bert", **options: object) -> Model:
    settings = EncoderSettings(**{**vars(TINY), "initializer_range": 0.3, **BODIES[body]})
    config = config_of(name, settings, seed=2, vocabulary_size=VOCABULARY, **options)
    if not settings.head_transform:
        config.objective.electra.generator_share = 1.0  # a narrower one has hidden states as wide as no word
    return load(config).fresh_model(VocabularyStamp.of_size(VOCABULARY)._replace(mask=MASK))


def gradients(module: Model, batches: list[MicroBatch], totals: dict[str, int]) -> list[torch.Tensor]:
    module.zero_grad()
    for batch in batches:
        terms, _ = module(batch)
        sum(t.weight * t.sum / totals[name] for name, t in terms.items()).backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize(("name", "body"), PLACES)
def test_any_cut_gives_one_gradient(name: str, body: str) -> None:
    module = model(name, body).double()
    totals = {name: term.count.item() for name, term in module(cut(0, 1, 2, 3))[0].items()}
    assert min(totals.values()) > 1
    whole = gradients(module, [cut(0, 1, 2, 3)], totals)
    parts = gradients(module, [cut(2), cut(3, 1), MicroBatch.empty(2, 3), cut(0)], totals)
    for a, b in zip(whole, parts, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_bodies_have_every_switch() -> None:
    changed = {key for body in BODIES.values() for key, value in body.items() if value != getattr(TINY, key)}
    assert {*VARIANTS[MODERN]} <= changed
    assert {body for name, body in PLACES if name == "mlm"} == {*BODIES}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("recompute", [False, True])
def test_an_empty_micro_batch_reaches_every_parameter_with_zeros(name: str, recompute: bool) -> None:
    module = model(name, activation_checkpointing=recompute)
    terms, _ = module(MicroBatch.empty(2, 3))
    assert [(t.sum.item(), t.count.item()) for t in terms.values()] == [(0.0, 0)] * len(terms)
    sum(t.weight * t.sum for t in terms.values()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())
    assert not any(part.any() for figure in terms.metrics.values() for part in figure)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_without_masked_rows_is_no_error(name: str) -> None:
    module = model(name)
    terms, _ = module(MicroBatch.from_lists([[2, 5, 3]], labels=[0]))
    assert "mlm" not in terms or terms["mlm"].count.item() == 0
    sum(t.sum for t in terms.values()).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())


def test_terms_and_metrics_of_bert() -> None:
    module, batch = model("bert"), cut(0, 1, 2, 3)
    terms, memory = module(batch, memory=None)
    logits = module.logits(batch)
    assert memory is None
    assert logits["mlm"].shape == (7, VOCABULARY)
    mlm = F.cross_entropy(logits["mlm"], batch.masked_ids, reduction="none")
    nsp = F.cross_entropy(logits["nsp"], batch.labels, reduction="none")
    right = logits["nsp"].argmax(-1) == batch.labels
    assert {name: (t.sum.item(), t.count.item(), t.weight) for name, t in terms.items()} == {
        "mlm": (pytest.approx(mlm.sum().item()), 7, 1.0),
        "nsp": (pytest.approx(nsp.sum().item()), 4, 1.0),
    }
    assert tuple(terms.metrics) == with_defaults("bert").metrics
    assert all(not r.sum.requires_grad and r.sum.ndim == 0 == r.count.ndim for r in terms.metrics.values())
    found = {name: (r.sum.item(), r.count.item()) for name, r in terms.metrics.items()}
    assert tuple(found) == with_defaults("bert").metrics
    assert found["mlm_accuracy"] == ((logits["mlm"].argmax(-1) == batch.masked_ids).sum().item(), 7)
    assert found["nsp_accuracy"] == (right.sum().item(), 4)
    assert found["nsp_loss_is_next"] == (pytest.approx((nsp[0] + nsp[3]).item()), 2)
    assert found["nsp_loss_not_next"] == (pytest.approx((nsp[1] + nsp[2]).item()), 2)
    assert found["nsp_accuracy_is_next"] == (right[[0, 3]].sum().item(), 2)
    assert found["nsp_accuracy_not_next"] == (right[[1, 2]].sum().item(), 2)


@pytest.mark.parametrize("name", [n for n in OBJECTIVES if "mlm" in with_defaults(n).terms])
def test_figures_are_separate_by_what_the_input_of_a_predicted_token_is(name: str) -> None:
    module = model(name)
    # [MASK] whose original is 7, a kept 8, a 9 in place of 6, [MASK] whose original is [MASK], a spare row
    batch = MicroBatch.from_lists(
        [[2, MASK, 8, 9, MASK, 3]], masked=[{1: 7, 2: 8, 3: 6, 4: MASK, 5: -1}], labels=[0]
    )
    with torch.no_grad():
        terms, _ = module(batch)
    logits = module.logits(batch)["mlm"][:4]
    losses = F.cross_entropy(logits, batch.masked_ids[:4], reduction="none")
    answers = logits.argmax(-1)
    hits = answers == batch.masked_ids[:4]
    for kind, rows in {"mask": [0, 3], "kept": [1], "random": [2]}.items():
        loss, accuracy = terms.metrics[f"{kind}_loss"], terms.metrics[f"{kind}_accuracy"]
        assert (loss.count.item(), accuracy.count.item()) == (len(rows), len(rows))
        assert loss.sum.item() == pytest.approx(losses[rows].sum().item())
        assert accuracy.sum.item() == hits[rows].sum().item()
    parts = [terms.metrics[f"{kind}_loss"] for kind in KINDS]
    assert sum(part.count.item() for part in parts) == terms["mlm"].count.item() == 4
    assert sum(part.sum.item() for part in parts) == pytest.approx(terms["mlm"].sum.item())
    assert terms.answers_R.tolist() == [answers[0].item(), -1, -1, answers[3].item(), -1]


def test_terms_and_metrics_have_the_name_of_the_pair_task() -> None:
    config = config_of("bert", TINY)
    config.data.sequences = "sentence_order"
    objective, batch = load(config), cut(0, 1, 2, 3)
    module = objective.fresh_model(VocabularyStamp.of_size(VOCABULARY))
    terms, _ = module(batch)
    assert tuple(terms) == objective.terms == ("mlm", "sop")
    assert tuple(terms.metrics) == objective.metrics
    right = module.logits(batch)["nsp"].argmax(-1) == batch.labels
    assert terms.metrics["sop_accuracy_in_order"].sum.item() == right[[0, 3]].sum().item()
    assert terms.metrics["sop_accuracy_swapped"].sum.item() == right[[1, 2]].sum().item()
    assert not [name for name in objective.metrics if "nsp" in name or "next" in name]
    targets = objective.targets(batch, VocabularyStamp.of_size(VOCABULARY))
    assert targets["sop"].equal(batch.labels)
    assert dict(module.named_parameters()).keys() == dict(model("bert").named_parameters()).keys()


def test_mlm_has_no_pair_term_and_the_same_encoder() -> None:
    single, paired = model("mlm"), model("bert")
    terms, _ = single(cut(0, 1))
    assert list(terms) == ["mlm"]
    shared = dict(single.named_parameters())
    assert all(torch.equal(p, shared[n]) for n, p in paired.named_parameters() if n in shared)
    assert {n.split(".")[0] for n, _ in paired.named_parameters()} - {n.split(".")[0] for n in shared} == {
        "nsp_head"
    }


def test_the_output_matrix_is_the_word_embedding_and_is_counted_once() -> None:
    module = model("bert")
    assert module.mlm_head.decoder is module.encoder.embeddings.word.weight
    assert sum(p is module.mlm_head.decoder for p in module.parameters()) == 1
    moved = module.double()
    assert moved.mlm_head.decoder is moved.encoder.embeddings.word.weight


def test_padding_rows_get_no_gradient_and_no_probability() -> None:
    module = model("mlm")
    plain = [(t.sum.item(), t.count.item()) for t in module(cut(0, 1))[0].values()]
    with torch.no_grad():
        module.mlm_head.bias[VOCABULARY:] = 1e4
    terms, _ = module(cut(0, 1))
    assert [(t.sum.item(), t.count.item()) for t in terms.values()] == plain
    terms["mlm"].sum.backward()
    assert not module.mlm_head.decoder.grad[VOCABULARY:].any()
    assert not module.mlm_head.bias.grad[VOCABULARY:].any()


def test_registry() -> None:
    assert with_defaults("bert").families[0] == "BertForPreTraining"
    assert with_defaults("mlm").families[0] == "BertForMaskedLM"
    assert [with_defaults(name).pairs for name in ("bert", "mlm")] == [True, False]
    assert [registered(name).sequences[0] for name in ("bert", "mlm")] == ["segment_pair", "doc_sentences"]
    with pytest.raises(UserError, match=r"objective\.name: unknown 'brt' \(expected bert or mlm or "):
        load(RunConfig(objective=ObjectiveSettings(name="brt")))
    assert isinstance(model("bert")(cut(0))[0], Terms)
    for objective in map(with_defaults, OBJECTIVES):
        losses = [f"{term}_loss" for term in objective.terms]
        assert objective.headline in (*objective.metrics, *losses)
        assert {f"{kind}_loss" for kind in objective.words} <= {*objective.metrics, *losses}


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_cross_entropy_equals_the_plain_form(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vocabulary_losses.CHUNK_ELEMENTS, "cpu", rows * 128)
    generator = torch.Generator().manual_seed(0)
    shapes = ((13, 16), (128, 16), (128,))
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    ids = torch.randint(0, VOCABULARY, (13,), generator=generator)
    ids[3] = ids[12] = -1
    ids[5] = (inputs[0] @ inputs[1].T + inputs[2])[5, :VOCABULARY].argmax()
    ours, theirs = (
        function(*inputs, ids, VOCABULARY)
        for function in (
            vocabulary_losses.vocabulary_cross_entropy,
            vocabulary_losses.reference_cross_entropy,
        )
    )
    assert ours.loss.item() == pytest.approx(theirs.loss.item(), rel=1e-13)
    torch.testing.assert_close(ours.losses_R, theirs.losses_R, rtol=0, atol=1e-13)
    assert torch.equal(ours.hits_R, theirs.hits_R)
    assert ours.hits_R.any()
    assert not ours.losses_R.requires_grad
    with torch.no_grad():
        answers = vocabulary_losses.vocabulary_cross_entropy(*inputs, ids, VOCABULARY).answers_R
    assert torch.equal(answers, theirs.answers_R)
    for a, b in zip(
        torch.autograd.grad(3 * ours.loss, inputs), torch.autograd.grad(3 * theirs.loss, inputs), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy_sums_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = [
        (torch.randn(s, generator=generator) * 0.3).to(dtype).requires_grad_()
        for s in ((40, 16), (128, 16), (128,))
    ]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    ids = torch.randint(0, VOCABULARY, (40,), generator=generator)
    ours = vocabulary_losses.vocabulary_cross_entropy(*inputs, ids, VOCABULARY).loss
    theirs = vocabulary_losses.reference_cross_entropy(*exact, ids, VOCABULARY).loss
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6 if dtype == torch.float32 else 1e-3)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, exact), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-5 if dtype == torch.float32 else 3e-2)


def test_cross_entropy_survives_extreme_logits() -> None:
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.zeros(64, 1)
    weight[0] = 300.0
    loss = vocabulary_losses.vocabulary_cross_entropy(
        hidden, weight, torch.zeros(64), torch.tensor([5]), 60
    ).loss
    assert loss.item() == pytest.approx(300.0)
    loss.backward()
    assert torch.isfinite(hidden.grad).all()


def test_cross_entropy_has_one_backward_pass_and_none_without_gradients() -> None:
    inputs = [torch.randn(s, requires_grad=True) for s in ((3, 4), (64, 4), (64,))]
    ids = torch.tensor([1, 2, 3])
    loss = vocabulary_losses.vocabulary_cross_entropy(*inputs, ids, 60).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass only"):
        loss.backward()
    with torch.no_grad():
        assert not vocabulary_losses.vocabulary_cross_entropy(*inputs, ids, 60)[0].requires_grad


def test_cross_entropy_in_groups_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = ((40, 16), (128, 16), (128,))
    inputs = [torch.randn(s, generator=generator).to(torch.bfloat16).requires_grad_() for s in shapes]
    ids = torch.randint(-1, VOCABULARY, (40,), generator=generator)

    def found() -> list[torch.Tensor]:
        found = vocabulary_losses.vocabulary_cross_entropy(*inputs, ids, VOCABULARY)
        return [found.loss.detach(), found.hits_R.sum(), *torch.autograd.grad(found.loss, inputs)]

    whole = found()
    monkeypatch.setitem(vocabulary_losses.CHUNK_ELEMENTS, "cpu", 3 * 128)
    monkeypatch.setattr(vocabulary_losses, "GROUP_ELEMENTS", 8 * 128)
    for a, b in zip(whole, found(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)  # sums of products rounded to 8 bits
    torch.testing.assert_close(whole[0], found()[0], rtol=1e-6, atol=0)

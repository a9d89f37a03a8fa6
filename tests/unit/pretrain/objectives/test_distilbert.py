"""DistilBERT: terms by their definitions, a student that starts from its teacher, a teacher that nothing changes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.huggingface.base import Family
from pretrain.huggingface.eurobert import EUROBERT_FOR_MASKED_LM
from pretrain.huggingface.modernbert import MODERNBERT_FOR_MASKED_LM
from pretrain.huggingface.roberta import ROBERTA_FOR_MASKED_LM
from pretrain.model.batch import MicroBatch, Shape
from pretrain.objectives.base import Model
from pretrain.objectives.distilbert import kept_layers
from pretrain.objectives.mlm import MaskedTokens
from pretrain.objectives.registry import load
from pretrain.objectives.teacher import check_teacher, teacher_identity
from pretrain.preflight.memory import meta_model, states
from tests.factories.models import config_of
from tests.factories.teachers import taught_by, write_bert

WORDS = 90
STAMP = VocabularyStamp("", WORDS, cls=2, sep=3, mask=4, pad=0, unk=1)
TINY = EncoderSettings(
    layers=2, hidden=16, heads=2, intermediate=32, max_positions=40, dropout=0.0, attention_dropout=0.0,
    initializer_range=0.3,
)  # fmt: skip
BATCH = MicroBatch.from_lists(
    [[2, 5, 4, 9, 3], [2, 4, 4, 11, 3], [2, 30, 3]], masked=[{2: 7}, {1: 20, 2: 21, 3: 22}, {}]
)


def run_config(**changes: Any) -> RunConfig:
    config = config_of("distilbert", TINY, vocabulary_size=WORDS)
    for name, value in changes.items():
        setattr(config.objective.distilbert, name, value)
    return config


def model(**changes: Any) -> Model:
    return load(run_config(**changes)).fresh_model(STAMP).double()


def teacher_of(student: Model) -> MaskedTokens:
    [teacher] = student.frozen
    assert isinstance(teacher, MaskedTokens)
    return teacher


def all_rows(module: Model, batch: MicroBatch) -> torch.Tensor:
    """Logits at every token."""
    rows = torch.arange(batch.tokens)
    return module.logits(replace(batch, masked_index=rows, masked_ids=torch.zeros_like(rows)))["mlm"]


@pytest.mark.parametrize("masked_only", [False, True])
def test_the_terms_are_their_definitions(masked_only: bool) -> None:
    student = model(masked_only=masked_only, temperature=3.0, soft_weight=4.0, cos_weight=0.5)
    teacher = teacher_of(student)
    terms, _ = student(BATCH)
    own, taught = (all_rows(one, BATCH) for one in (student, teacher))
    rows = BATCH.masked_index if masked_only else torch.arange(BATCH.tokens)
    soft = F.kl_div(F.log_softmax(own[rows] / 3, -1), F.softmax(taught[rows] / 3, -1), reduction="batchmean")
    hidden = [one.encoder(BATCH) for one in (student, teacher)]
    cos = F.cosine_embedding_loss(*hidden, torch.ones(BATCH.tokens), reduction="mean")
    mlm = F.cross_entropy(own[BATCH.masked_index], BATCH.masked_ids)
    means = {name: (term.sum / term.count).item() for name, term in terms.items()}
    assert means == pytest.approx({"soft": 9 * soft.item(), "mlm": mlm.item(), "cos": cos.item()}, rel=1e-9)
    assert {name: term.weight for name, term in terms.items()} == {"soft": 4.0, "mlm": 2.0, "cos": 0.5}
    agreed = terms.metrics["soft_accuracy"]
    assert agreed.sum.item() == (own.argmax(-1) == taught.argmax(-1))[rows].sum().item()


def test_rows_of_spare_examples_count_nowhere() -> None:
    student = model()
    plain, _ = student(BATCH)
    spare, _ = student(BATCH.padded(Shape(40, 8, 9, 20)))
    assert [int(term.count) for term in plain.values()] == [13, 4, 13]
    for one, other in zip(plain.values(), spare.values(), strict=True):
        assert one.sum.item() == pytest.approx(other.sum.item(), rel=1e-12)
        assert int(one.count) == int(other.count)


@pytest.mark.parametrize(
    ("teacher", "student", "kept"),
    [
        (12, 6, [0, 2, 4, 7, 9, 11]),  # Sanh et al. 2019, scripts/extract_distilbert.py
        (24, 3, [0, 12, 23]),
        (4, 4, [0, 1, 2, 3]),
        (5, 1, [0]),
    ],
)
def test_layers_are_evenly_spaced(teacher: int, student: int, kept: list[int]) -> None:
    assert kept_layers(teacher, student) == kept


def test_a_student_with_all_layers_is_its_teacher() -> None:
    """The segment vector that it lacks is in its positions: the divergence and the cosine's distance are 0."""
    config = run_config()
    config.encoder.layers = 3
    student = load(config).fresh_model(STAMP).double()
    terms, _ = student(BATCH)
    assert terms["soft"].sum.item() == pytest.approx(0, abs=1e-12)
    assert terms["cos"].sum.item() == pytest.approx(0, abs=1e-12)
    assert "encoder.embeddings.segment.weight" not in dict(student.named_parameters())
    assert teacher_of(student).encoder.embeddings.segment is not None


def test_a_roberta_teaches_distilroberta(tmp_path: Path) -> None:
    stamp = STAMP._replace(cls=0, pad=1, sep=2, unk=3)
    write_bert(tmp_path, config_of("roberta", taught_by(TINY)), stamp, ROBERTA_FOR_MASKED_LM)
    config = config_of("distilroberta", TINY)
    config.objective.distilroberta.teacher = str(tmp_path)
    check_teacher(config, Words())  # type: ignore[arg-type]
    config.encoder.layers = 3
    student = load(config).fresh_model(stamp).double()
    terms, _ = student(BATCH)
    assert terms["soft"].sum.item() == pytest.approx(0, abs=1e-12)
    assert terms["mlm"].sum.item() > 1
    assert load(config).families[0] == "RobertaForMaskedLM"


def test_the_student_starts_from_the_first_and_the_last_layer() -> None:
    student = model()
    taught, own = (dict(one.named_parameters()) for one in (teacher_of(student), student))
    for ours, theirs in ((0, 0), (1, 2)):
        name = "encoder.layers.{}.feed_forward.output.weight"
        assert own[name.format(ours)].equal(taught[name.format(theirs)])
    assert own["mlm_head.dense.weight"].equal(taught["mlm_head.dense.weight"])


def test_nothing_changes_the_teacher() -> None:
    student = model()
    teacher = teacher_of(student)
    assert not any(module is teacher for module in student.modules())
    assert not {id(p) for p in student.parameters()} & {id(p) for p in teacher.parameters()}
    before = {name: p.clone() for name, p in teacher.named_parameters()}
    terms, _ = student.train()(BATCH)
    sum(term.sum for term in terms.values()).backward()
    assert all(p.grad is not None for p in student.parameters())
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(p.equal(before[name]) for name, p in teacher.named_parameters())
    assert not any(module.training for module in teacher.modules())
    assert {p.dtype for p in student.to(torch.bfloat16).frozen[0].parameters()} == {torch.bfloat16}


def test_the_forecast_counts_the_teacher() -> None:
    config = run_config()
    student = meta_model(config, WORDS)
    frozen = sum(p.numel() for p in teacher_of(student).parameters())  # type: ignore[arg-type]
    with_it = states(student, config, "fp32", 2)
    student.frozen = ()  # type: ignore[assignment]
    without = states(student, config, "fp32", 2)
    assert with_it.weights - without.weights == 4 * frozen > 0
    assert with_it.total - without.total == 4 * frozen
    config.objective.distilbert.teacher = ""  # not chosen yet: one with twice the layers
    assert len(teacher_of(meta_model(config, WORDS)).encoder.layers) == 4  # type: ignore[arg-type]


def test_flops_are_the_students_and_a_third_of_the_teachers() -> None:
    counts = {"tokens": 100, "squares": 2000, "masked": 15}
    found = load(run_config()).flops(WORDS, **counts)
    student = load(config_of("mlm", TINY)).flops(WORDS, **(counts | {"masked": 115}))
    teacher = load(config_of("mlm", taught_by(TINY))).flops(WORDS, **(counts | {"masked": 100}))
    assert found == pytest.approx(student + teacher / 3)


class Words:
    """A vocabulary of the tests' size."""

    size = WORDS
    tokens = ()


def test_a_teacher_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    check_teacher(run_config(), Words())  # type: ignore[arg-type]
    wide = run_config()
    wide.encoder.hidden, wide.encoder.layers = 24, 9
    with pytest.raises(
        UserError,
        match=r"encoder\.hidden is 24, the teacher's 16; encoder\.layers is 9, above the teacher's 3",
    ):
        check_teacher(wide, Words())  # type: ignore[arg-type]
    other = Words()
    other.size = 91
    with pytest.raises(UserError, match="the vocabulary has 91 entries, the teacher's 90"):
        check_teacher(run_config(), other)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"objective\.distilbert\.teacher: is empty"):
        check_teacher(run_config(teacher=""), Words())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no such folder"):
        check_teacher(run_config(teacher=str(tmp_path / "none")), Words())  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [MODERNBERT_FOR_MASKED_LM, EUROBERT_FOR_MASKED_LM])
def test_a_teacher_whose_head_has_no_biases_or_no_layer_is_taken(family: Family) -> None:
    changes = {"biases": False, "norm_biases": False, "kv_heads": 2 * (family is EUROBERT_FOR_MASKED_LM)}
    config = config_of("distilbert", replace(TINY, **{**changes, **family.implied}), vocabulary_size=WORDS)
    check_teacher(config, Words())  # type: ignore[arg-type]


def test_a_teacher_without_its_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.factories import teachers

    saved = teachers.save_file
    monkeypatch.setattr(
        teachers, "save_file", lambda t, *rest: saved({n: x for n, x in t.items() if "cls." not in n}, *rest)
    )
    write_bert(tmp_path, RunConfig(encoder=taught_by(TINY)), STAMP)
    with pytest.raises(
        UserError, match=r"lacks cls\.predictions\.transform\.dense\.bias, .* its head for masked"
    ):
        check_teacher(run_config(teacher=str(tmp_path)), Words())  # type: ignore[arg-type]


def test_the_identity_is_the_hash_of_the_weights(tmp_path: Path) -> None:
    for seed, name in ((1, "one"), (1, "same"), (2, "other")):
        run = RunConfig(encoder=taught_by(TINY))
        run.run.seed = seed
        (tmp_path / name).mkdir()
        write_bert(tmp_path / name, run, STAMP)
    one, same, other = (
        teacher_identity(run_config(teacher=str(tmp_path / name))) for name in ("one", "same", "other")
    )
    assert one == same != other
    assert len(one["teacher"]) == 64
    assert teacher_identity(RunConfig()) == {}

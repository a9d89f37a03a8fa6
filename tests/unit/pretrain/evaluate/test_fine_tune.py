"""Fine-tuning: as transformers' Trainer from the same start, repeatable, and at the rates that the settings say."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from data_pipeline.errors import UserError
from pretrain.evaluate.fine_tune import FineTuner, Trained, param_groups, rate
from pretrain.tasks.base import ModelAnswers, TaskData
from pretrain.tasks.classification import TextItem
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.files import Split
from pretrain.tasks.heads import BiLstm
from pretrain.tasks.inputs import Feature, collate, sizes, training_batches
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

TASK = FINE_TUNED["rte"]
CPU = torch.device("cpu")
SETTINGS = EvaluationSettings(epochs=2, batch=8, lr=2e-3, dropout=0, eps=1e-8, warmup=0.2, max_length=32)


def items(count: int = 60) -> list[TextItem]:
    words = ["the", "quick", "fox", "jumped", "over", "some", "lazy", "dogs", "that", "slept"]
    rng = np.random.default_rng(0)
    texts = [[" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(2)] for _ in range(count)]
    labels = ["entailment" if "fox" in a + b else "not_entailment" for a, b in texts]
    return [TextItem(a, b, label) for (a, b), label in zip(texts, labels, strict=True)]


DATA = TaskData(Split("train", items()), (Split("dev", items()),), ("entailment", "not_entailment"))


def tuner(settings: EvaluationSettings = SETTINGS, name: str = "bert", seed: int = 1) -> FineTuner:
    encoder = Encoder(encoder_folder(name))
    model = TASK.model(encoder, DATA, seed, settings)
    return FineTuner(TASK, model, encoder.builder(settings.max_length), settings, seed, CPU)


def features(one: FineTuner) -> list[Feature]:
    return TASK.features(DATA.train.items, one.builder, DATA)


def trained(one: FineTuner) -> Trained:
    return one.train(features(one), lambda n: None)


class SameOrder(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """The batches of our loop, for the Trainer."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths, self.epoch = lengths, 0

    def __iter__(self) -> Iterator[list[int]]:
        batches = training_batches(self.lengths, SETTINGS.batch, 1, self.epoch)
        self.epoch += 1
        return iter([batch.tolist() for batch in batches])

    def __len__(self) -> int:
        return -(-len(self.lengths) // SETTINGS.batch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bert", "roberta", "xlnet"])
def test_it_ends_where_transformers_trainer_ends(name: str, tmp_path: Path) -> None:
    ours, theirs = tuner(name=name), tuner(name=name)
    data = features(theirs)

    class Peer(transformers.Trainer):
        def get_train_dataloader(self) -> torch.utils.data.DataLoader:  # type: ignore[type-arg]
            return torch.utils.data.DataLoader(
                data,  # type: ignore[arg-type]
                batch_sampler=SameOrder(sizes(data)),
                collate_fn=lambda rows: collate(rows, theirs.builder, CPU, choices=False),
            )

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=SETTINGS.epochs,
        per_device_train_batch_size=SETTINGS.batch,
        learning_rate=SETTINGS.lr,
        weight_decay=SETTINGS.weight_decay,
        max_grad_norm=SETTINGS.clip,
        warmup_steps=round(SETTINGS.warmup * 16),
        adam_epsilon=SETTINGS.eps,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    peer = Peer(model=theirs.model, args=arguments, train_dataset=data)  # type: ignore[arg-type]
    peer.train()
    losses = [line["loss"] for line in peer.state.log_history if "loss" in line]
    found = trained(ours)
    assert found.updates == len(losses) == 16
    assert found.losses == pytest.approx(losses, abs=2e-4)  # the Trainer rounds to four decimals
    for (key, a), b in zip(ours.model.state_dict().items(), theirs.model.state_dict().values(), strict=True):
        # the gradient of a key's bias is zero in exact arithmetic: rounding alone moves it
        assert key.endswith("key.bias") or torch.allclose(a, b, atol=2e-5), key


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not() -> None:
    settings = replace(SETTINGS, dropout=0.1)
    one, again, other = tuner(settings), tuner(settings), tuner(settings, seed=2)
    losses = [trained(each).losses for each in (one, again, other)]
    assert losses[0] == losses[1] != losses[2]
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.state_dict().values(), again.model.state_dict().values(), strict=True)
    )


def test_it_learns() -> None:
    one = tuner(replace(SETTINGS, epochs=25, lr=3e-3))
    found = trained(one)
    assert np.mean(found.losses[-8:]) < 0.3 < 0.6 < np.mean(found.losses[:4])
    answers = one.answers(features(one), lambda n: None)
    assert TASK.score(ModelAnswers(DATA.train.items, features(one), answers, DATA))["accuracy"] > 90


def test_answers_do_not_depend_on_the_batch() -> None:
    one = tuner()
    rows = features(one)
    together = one.answers(rows, lambda n: None)
    for row, answer in list(zip(rows, together, strict=True))[:10]:
        assert one.answers([row], lambda n: None)[0] == pytest.approx(answer, abs=1e-5)


def test_passes_of_scoring_fit_a_cpus_caches() -> None:
    """8,192 tokens take up to twice as long there; see docs/evidence/benchmarks_cpu.md."""
    one, passes = tuner(), []
    one.model.register_forward_pre_hook(
        lambda module, args, batch: passes.append(batch["input_ids"].numel()), with_kwargs=True
    )
    one.answers(4 * features(one), lambda n: None)
    assert len(passes) > 1
    assert max(passes) <= 1024


def test_the_best_epoch_on_the_tuning_examples_is_kept() -> None:
    one = tuner(replace(SETTINGS, epochs=4, tune_share=0.2, patience=2))
    told = iter([50.0, 80.0, 70.0, 60.0])
    states = []

    def tune() -> float:
        states.append({k: v.clone() for k, v in one.model.state_dict().items()})
        return next(told)

    found = one.train(features(one), lambda n: None, tune)
    assert found.tuned == [50, 80, 70, 60]
    assert all(torch.equal(v, states[1][k]) for k, v in one.model.state_dict().items())
    stopped = tuner(replace(SETTINGS, epochs=9, tune_share=0.2, patience=1))
    values = iter([50.0, 40.0, 90.0])
    assert stopped.train(features(stopped), lambda n: None, lambda: next(values)).epochs == 2


def test_a_loss_that_is_not_finite_ends_with_one_line() -> None:
    one = tuner()
    with torch.no_grad():
        next(iter(one.model.parameters())).fill_(float("inf"))
    with pytest.raises(UserError, match="rte: the loss is nan at update 1"):
        trained(one)


def test_the_rate_rises_and_falls() -> None:
    settings = EvaluationSettings(warmup=0.1)
    shape = [rate(step, 100, settings) for step in range(101)]
    assert shape[0] == 0
    assert shape[10] == 1
    assert shape[55] == pytest.approx(0.5)
    assert shape[100] == 0
    assert rate(99, 100, EvaluationSettings(schedule="constant")) == 1
    assert rate(0, 100, EvaluationSettings(warmup=0)) == 1


def test_a_slanted_triangle_ends_where_it_began() -> None:
    settings = EvaluationSettings(schedule="slanted", warmup=0.2)
    shape = [rate(step, 100, settings) for step in range(101)]
    assert shape[0] == shape[100] == 1 / 32
    assert shape[20] == max(shape) == 1
    assert shape[60] == pytest.approx((1 + 31 / 2) / 32)


def test_the_head_learns_alone_at_first_under_a_schedule_of_its_own() -> None:
    settings = EvaluationSettings(schedule="slanted", warmup=0.2)
    shape = [rate(step, 60, settings, alone=10) for step in range(60)]
    assert (shape[0], shape[2], shape[10], shape[20]) == (1 / 32, 1, 1 / 32, 1)
    one = tuner(settings=replace(SETTINGS, epochs=2.0, head_epochs=1.0, lr=1e-2, head_lr=1e-2, warmup=0.0))
    before = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    seen: list[set[str]] = []

    def after_epoch() -> None:
        moved = {n for n, p in one.model.named_parameters() if not torch.equal(p, before[n])}
        seen.append({"head" if n.startswith(("classifier", "bert.pooler")) else "encoder" for n in moved})

    one.train(features(one), lambda n: None, after_epoch=after_epoch)
    assert seen == [{"head"}, {"head", "encoder"}]
    assert all(p.requires_grad for p in one.model.parameters())


def test_layers_have_rates_as_in_electra() -> None:
    model = tuner(name="discriminator").model
    settings = replace(SETTINGS, lr=1.0, layer_decay=0.8, weight_decay=0.01)
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {}
    for group in param_groups(model, settings):
        for parameter in group["params"]:
            name = names[id(parameter)]
            rates[name] = group["lr"]
            assert group["weight_decay"] == (0.01 if parameter.ndim > 1 else 0)
    assert rates.keys() == dict(model.named_parameters()).keys()
    assert rates["electra.embeddings.word_embeddings.weight"] == pytest.approx(0.8**4)  # two layers
    assert rates["electra.encoder.layer.0.output.dense.weight"] == pytest.approx(0.8**3)
    assert rates["electra.encoder.layer.1.output.dense.bias"] == pytest.approx(0.8**2)
    assert rates["classifier.dense.weight"] == 1


def test_layer_decay_is_refused_where_layers_share_parameters() -> None:
    with pytest.raises(UserError, match="needs layers with parameters of their own"):
        list(param_groups(tuner(name="albert").model, replace(SETTINGS, layer_decay=0.9)))


def test_machamps_recipe() -> None:
    for task in ("ud", "cola"):
        found = settings_for(task, {"recipe": "machamp"})
        assert (found.lr, found.head_lr, found.epochs, found.head_epochs) == (3.8e-5, 1e-4, 20, 1)
        assert (found.schedule, found.warmup, found.betas) == ("slanted", 0.2, [0.9, 0.99])
        assert (found.batch, found.max_length, found.tune_share) == (32, 128, 0.1)


def test_recipes_and_their_exceptions() -> None:
    assert settings_for("rte", {"recipe": "electra"}).epochs == 10
    assert settings_for("rte", {"recipe": "electra", "epochs": 2.0}).epochs == 2
    assert settings_for("mrpc", {"recipe": "electra"}).layer_decay == 0.8
    assert settings_for("mrpc", {}) == EvaluationSettings()
    with pytest.raises(UserError, match=r"recipe: must be one of bert, small, .*got large"):
        settings_for("mrpc", {"recipe": "large"})
    with pytest.raises(UserError, match=r"lr: must be in \(0, 1\), got 5"):
        settings_for("mrpc", {"lr": 5.0})
    with pytest.raises(UserError, match=r"head_epochs: must be below epochs=3, got 3"):
        settings_for("mrpc", {"head_epochs": 3.0})
    with pytest.raises(UserError, match="needs tune_share"):
        settings_for("mrpc", {"patience": 2})


@pytest.mark.parametrize(
    ("recipe", "task", "rate", "batch", "epochs", "length"),
    [
        ("bert", "mrpc", 5e-5, 32, 3, 128),
        ("bert", "squad1", 5e-5, 32, 3, 384),
        ("bert", "squad2", 5e-5, 48, 2, 384),
        ("bert", "questions", 5e-5, 32, 3, 384),
        ("bert", "swag", 2e-5, 16, 3, 128),
        ("bert", "ax", 5e-5, 32, 0, 128),
        ("bert", "ud", 3.8e-5, 32, 20, 256),
        ("small", "mrpc", 1e-4, 32, 4, 128),
        ("small", "swag", 1e-4, 16, 4, 128),
        ("small", "squad2", 1e-4, 48, 2, 384),
        ("small", "ax", 1e-4, 32, 0, 128),
        ("small", "ud", 1e-4, 32, 20, 256),
        ("electra", "mrpc", 1e-4, 32, 3, 128),
        ("electra", "rte", 1e-4, 32, 10, 128),
        ("electra", "stsb", 1e-4, 32, 10, 128),
        ("electra", "squad1", 1e-4, 32, 2, 512),
        ("electra", "squad2", 1e-4, 32, 2, 512),
        ("electra", "swag", 1e-4, 16, 3, 128),
        ("electra", "ax", 1e-4, 32, 0, 128),
        ("electra", "ud", 3.8e-5, 32, 20, 256),
    ],
)
def test_recipes_are_as_published(
    recipe: str, task: str, rate: float, batch: int, epochs: float, length: int
) -> None:
    found = settings_for(task, {"recipe": recipe})
    assert (found.lr, found.batch, found.epochs, found.max_length) == (rate, batch, epochs, length)
    assert found.head_lr == (1e-3 if task == "ud" else 0)
    assert found.layer_decay == (0.8 if recipe == "electra" else 1)
    assert (found.warmup, found.weight_decay, found.clip, found.dropout) == (0.1, 0.01, 1, 0.1)
    assert (found.betas, found.eps, found.schedule, found.tune_share) == ([0.9, 0.999], 1e-6, "linear", 0)


def test_what_no_recipe_names_is_as_the_recipe() -> None:
    named = {"squad1", "squad2", "questions", "swag", "ax", "ud"}
    for recipe, own in (("bert", set()), ("small", set()), ("electra", {"rte", "stsb"})):
        others = [settings_for(task, {"recipe": recipe}) for task in FINE_TUNED.keys() - named - own]
        assert all(one == others[0] for one in others)


def test_a_frozen_encoder_is_read_at_its_own_rate() -> None:
    found = settings_for("conll2003", {"recipe": "electra", "features": "last"})
    assert (found.lr, found.epochs, found.schedule, found.warmup, found.weight_decay) == (
        1e-3,
        20,
        "constant",
        0,
        0,
    )
    assert (found.dropout, found.tune_share, found.patience) == (0.5, 0.1, 3)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert", "discriminator", "ernie", "distilbert", "xlnet", "modernbert"]
)
@pytest.mark.parametrize("task", ["rte", "stsb", "codah", "tagging", "squad2"])
def test_every_encoder_is_tuned_on_every_kind_of_task(name: str, task: str, tmp_path: Path) -> None:
    settings = EvaluationSettings(epochs=1, max_length=32)
    encoder, kind = Encoder(encoder_folder(name)), FINE_TUNED[task]
    data = kind.read(write(tmp_path / "task", FILES[task]), settings)
    one = FineTuner(kind, kind.model(encoder, data, 1, settings), encoder.builder(32), settings, 1, CPU)
    rows = kind.features(data.train.items, one.builder, data)
    assert one.train(rows, lambda n: None).updates == 1
    scored = kind.features(data.scored[0].items, one.builder, data)
    found = kind.score(ModelAnswers(data.scored[0].items, scored, one.answers(scored, lambda n: None), data))
    assert kind.headline in found
    assert all(0 <= abs(value) <= 100 for value in found.values())


@pytest.mark.parametrize("task", ["rte", "stsb"])
@pytest.mark.parametrize(
    ("name", "bilstm"), [("causal", False), ("causal", True), ("bert", True), ("xlnet", True)]
)
def test_texts_are_classified_by_their_last_token_or_a_bilstm(
    name: str, bilstm: bool, task: str, tmp_path: Path
) -> None:
    """The answer depends on every token, not on padding, and is the same once saved."""
    settings = EvaluationSettings(epochs=1, max_length=32, dropout=0.0, bilstm=bilstm)
    kind, encoder = FINE_TUNED[task], Encoder(encoder_folder(name))
    data = kind.read(write(tmp_path / "task", FILES[task]), settings)
    model = kind.model(encoder, data, 1, settings)
    builder = encoder.builder(32)
    one = FineTuner(kind, model, builder, settings, 1, CPU)
    rows = kind.features(data.train.items, builder, data)
    assert one.train(rows, lambda n: None).updates == 1
    texts = ["the quick fox slept", "some quick fox slept", "the fox"]
    asked = kind.features([TextItem(text, None, data.train.items[0].label) for text in texts], builder, data)
    found = one.answers(asked, lambda n: None)
    assert not np.allclose(found[0], found[1])
    assert np.allclose(found[2], one.answers(asked[2:], lambda n: None)[0], atol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    encoder.tokenizer.save_pretrained(tmp_path / "saved")
    saved, _ = kind.finished_model(Encoder(tmp_path / "saved"), data, settings)
    again = FineTuner(kind, saved, builder, settings, 1, CPU).answers(asked, lambda n: None)
    assert np.allclose(found, again, atol=1e-6)
    with pytest.raises(UserError, match="classifies as"):
        kind.finished_model(Encoder(tmp_path / "saved"), replace(data, labels=("x", "y")), settings)
    if name == "causal":
        other = replace(settings, bilstm=not bilstm)
        with pytest.raises(UserError, match="the head has other weights"):
            kind.finished_model(Encoder(tmp_path / "saved"), data, other)


def test_a_bilstm_reads_each_text_as_if_alone() -> None:
    torch.manual_seed(0)
    lstm, vectors = BiLstm(6).eval(), torch.randn(3, 5, 6)
    mask = torch.tensor(
        [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]
    )  # whole, and padded at either side
    found = lstm.read(vectors, mask)
    for row in range(3):
        kept = mask[row].bool()
        alone, (ends, _) = lstm(vectors[row : row + 1, kept])
        torch.testing.assert_close(found.states[row, kept], alone[0])
        assert not found.states[row, ~kept].any()
        torch.testing.assert_close(found.ends[row], ends[-2:, 0].flatten())


def test_choices_are_not_made_by_a_left_to_right_model(tmp_path: Path) -> None:
    settings, kind = EvaluationSettings(), FINE_TUNED["codah"]
    data = kind.read(write(tmp_path / "task", FILES["codah"]), settings)
    with pytest.raises(UserError, match="reads in one direction"):
        kind.model(Encoder(encoder_folder("causal")), data, 1, settings)


def test_dropout_is_what_the_settings_say() -> None:
    one = TASK.model(Encoder(encoder_folder("bert")), DATA, 1, EvaluationSettings(dropout=0.3))
    rates = {module.p for module in one.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {0.3}
    kept = TASK.model(Encoder(encoder_folder("bert")), DATA, 1, EvaluationSettings(dropout=-1))
    assert {module.p for module in kept.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}

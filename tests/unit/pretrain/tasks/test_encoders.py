"""Folders that bring code of their own: none of it is run."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from data_pipeline.errors import UserError
from data_pipeline.records import ShowProgress
from pretrain.evaluate.evaluate import Evaluation, beside
from pretrain.evaluate.probe import ProbeTask
from pretrain.tasks import encoders
from pretrain.tasks.encoders import Encoder, SideBySide, TwoWay
from pretrain.tasks.inputs import windows
from pretrain.tasks.likelihood import score_sentences
from pretrain.tasks.registry import FINE_TUNED
from pretrain.tasks.settings import EvaluationSettings, settings_for
from tests.factories.encoders import encoder_folder, inputs_of
from tests.factories.shards import random_examples, write_folder
from tests.factories.tasks import FILES, write, write_pairs
from tests.factories.vocabularies import trained

CODE = """from pathlib import Path
from transformers import BertConfig as Config, BertForMaskedLM as Model, BertTokenizerFast as Tokenizer
Path({!r}).write_text("was run")
"""
KINDS = ("", "ForMaskedLM", "ForSequenceClassification")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the folder's module would write."""
    return tmp_path / "ran"


def with_code(ran: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> Path:
    """A BERT whose files name classes of a module beside them. `config`, `tokenizer`: further fields."""
    folder = ran.parent / "model"
    shutil.copytree(encoder_folder("bert"), folder)
    (folder / "own.py").write_text(CODE.format(str(ran)))
    classes = {"AutoConfig": "own.Config", **{f"AutoModel{kind}": "own.Model" for kind in KINDS}}
    maps = {
        "config.json": classes,
        "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
    }
    for (name, auto_map), fields in zip(maps.items(), (config, tokenizer), strict=True):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": auto_map, **fields}))
    return folder


def test_a_known_model_is_read_by_the_class_of_transformers(ran: Path) -> None:
    folder = with_code(ran, {}, {})
    encoder = Encoder(folder)
    assert type(encoder.config) is transformers.BertConfig
    assert encoder.tokenizer.get_vocab() == Encoder(encoder_folder("bert")).tokenizer.get_vocab()
    for pretrained in (True, False):
        found = [type(Encoder(folder, pretrained).load(kind, 1)) for kind in KINDS]
        assert found == [getattr(transformers, f"Bert{kind or 'Model'}") for kind in KINDS]
    assert not ran.exists()


def test_a_model_that_only_its_own_code_knows_is_refused(ran: Path) -> None:
    encoder = Encoder(with_code(ran, {"model_type": "own"}, {}))
    with pytest.raises(
        UserError, match=r"config\.json: cannot be read: .*expected the configuration of one"
    ) as found:
        _ = encoder.config
    assert "\n" not in str(found.value)
    assert not ran.exists()


def test_a_tokenizer_that_only_its_own_code_knows_is_read_as_its_file_describes_it(ran: Path) -> None:
    encoder = Encoder(with_code(ran, {}, {"tokenizer_class": "OwnTokenizer"}))
    plain = Encoder(encoder_folder("bert")).tokenizer
    assert (
        encoder.tokenizer("the quick fox", "jumped").input_ids == plain("the quick fox", "jumped").input_ids
    )
    assert not ran.exists()


# Models of one direction: each reads the text in its own order, and two of them stand side by side.


QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
SENTENCE = "the quick fox jumped over some lazy dogs"


def one_way(folder: Path, direction: str, **changes: object) -> Path:
    """A causal model's folder that states this direction."""
    shutil.copytree(encoder_folder("causal"), folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "direction": direction, **changes}))
    return folder


@pytest.fixture
def both(tmp_path: Path) -> TwoWay:
    left, right = (one_way(tmp_path / name, name) for name in ("left_to_right", "right_to_left"))
    return TwoWay(left, other=right).checked()


def test_a_right_to_left_model_scores_each_token_by_what_follows_it(both: TwoWay) -> None:
    encoder = Encoder(both.other)
    found = score_sentences(inputs_of(encoder), [SENTENCE, "the fox"])
    model = encoder.load("ForCausalLM", 1)
    ids = encoder.tokenizer(SENTENCE, return_tensors="pt")["input_ids"].flip(-1)
    with torch.no_grad():
        logits = model(ids).logits.log_softmax(-1)[0]
    words = range(1, ids.shape[1] - 1)
    expected = sum(float(logits[place - 1, ids[0, place]]) for place in words)
    assert found.log_likelihoods[0] == pytest.approx(expected, abs=1e-4)
    forwards = score_sentences(inputs_of(Encoder(both.folder)), [SENTENCE])
    assert found.tokens[0] == forwards.tokens[0] == len(words)
    assert abs(found.log_likelihoods[0] - forwards.log_likelihoods[0]) > 1e-3


def test_a_word_is_tagged_at_its_first_token_in_the_text(both: TwoWay) -> None:
    words = ["unquickable", "fox", "jumpedover"]
    one, other = (encoder.builder(32).words(words) for encoder in (Encoder(both.folder), Encoder(both.other)))
    count = len(one.ids)
    assert other.ids == one.ids[::-1]
    assert count > len(words) + 2, "some words are several tokens"
    assert list(one.first_tokens) == list(other.first_tokens) == [0, 1, 2]
    assert [count - 1 - place for place in other.first_tokens.values()] == list(one.first_tokens.values())
    with pytest.raises(UserError, match="reads from right to left"):
        windows(Encoder(both.other).builder(32), "who?", SENTENCE, 8, 4)


def test_states_of_both_directions_stand_side_by_side(both: TwoWay) -> None:
    """Each token's second half sees the token and what follows it, whatever the padding."""
    model = both.load("", 1)
    assert isinstance(model, SideBySide)
    rows = [both.builder(32).single(text).ids for text in (SENTENCE, "the fox")]
    ids = torch.zeros(2, len(rows[0]), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask)
        for row, tokens in enumerate(rows):
            text = torch.tensor([tokens])
            left = Encoder(both.folder).load("", 1)(text, output_hidden_states=True).hidden_states
            right = Encoder(both.other).load("", 1)(text.flip(-1), output_hidden_states=True).hidden_states
            for layer, states in enumerate(found.hidden_states):
                expected = torch.cat([left[layer], right[layer].flip(1)], -1)[0]
                assert torch.allclose(states[row, : len(tokens)], expected, atol=1e-5)
    assert found.last_hidden_state.shape[-1] == model.config.hidden_size == 64


def test_words_are_tagged_from_both(both: TwoWay, tmp_path: Path) -> None:
    lines = [
        line
        for i in range(20)
        for line in (
            *(f"{w}\t{'B-PER' if w == 'fox' else 'O'}" for w in SENTENCE.split()[i % 2 : 5 + i % 3]),
            "",
        )
    ]
    folder = write(tmp_path / "task", {"train.tsv": lines, "dev.tsv": lines[:30]})
    settings = settings_for(
        "tagging", {"features": "last", "epochs": 2, "threads": 1, "tune_share": 0, "patience": 0}
    )
    note = Evaluation("tagging", both, folder, tmp_path / "out", settings, [1], has_floor=True).run(QUIET)
    assert note["task"] == "tagging-two-way-last"
    assert note["encoder"]["beside"] == Encoder(both.other).identity["weights"]
    assert np.isfinite(note["scores"]["dev"]["f1"]["median"])
    assert note["not_pretrained"]
    for changes, save in (({"features": ""}, False), ({}, True)):
        with pytest.raises(UserError, match="cannot fine-tune tagging, nor be saved"):
            Evaluation(
                "tagging", both, folder, tmp_path / "out", replace(settings, **changes), [1], False, save
            )
    assert "features" not in FINE_TUNED["mrpc"].head_settings


@pytest.mark.parametrize("task", ["squad1", "squad2", "questions", "swag", "codah"])
def test_questions_and_choices_are_refused(task: str, both: TwoWay, tmp_path: Path) -> None:
    kind, settings = FINE_TUNED[task], settings_for(task, {})
    data = kind.read(write(tmp_path / "task", FILES[task]), settings)
    for folder in (both.folder, both.other, encoder_folder("causal")):
        with pytest.raises(UserError, match="reads in one direction") as found:
            kind.model(Encoder(folder), data, 1, settings)
        assert "both ways" in found.value.expected
    early = Evaluation(task, Encoder(folder), tmp_path / "task", tmp_path / "out", settings, [1], False)
    with pytest.raises(UserError, match="reads in one direction"):
        early.check()


def test_models_that_do_not_fit_are_refused(both: TwoWay, tmp_path: Path) -> None:
    assert beside(Encoder(both.folder), None) == Encoder(both.folder)
    assert beside(Encoder(both.folder), both.other) == both
    deeper = one_way(tmp_path / "deeper", "right_to_left", num_hidden_layers=3)
    for encoder, other, words in (
        (both.other, both.other, "reads right to left"),
        (both.folder, both.folder, "reads left to right"),
        (both.folder, encoder_folder("bert"), "reads both ways"),
        (both.folder, deeper, "has 3 layers"),
    ):
        with pytest.raises(UserError, match=words):
            beside(Encoder(encoder), other)


# On a GPU, what is fine-tuned is computed in bf16 and what is scored as it is in fp32, unless asked otherwise; results
# say which. The GPU is pretended: its decisions are taken, and computed on the CPU.


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The precisions of forward passes so far."""
    found: set[str] = set()
    autocast = torch.autocast

    def spied(device_type: str, dtype: torch.dtype | None = None, *, enabled: bool = True) -> Any:
        found.add("bf16" if enabled else "fp32")
        return autocast(device_type, dtype, enabled=enabled)

    monkeypatch.setattr(encoders, "_is_gpu", lambda where: True)
    monkeypatch.setattr(torch, "autocast", spied)
    return found


def files(task: str, folder: Path) -> Path:
    if task == "blimp":
        return write_pairs(folder, 4)
    if task in FILES:
        return write(folder, FILES[task])
    vocabulary = trained("wordpiece")
    aside = random_examples(20, 3, size=vocabulary.size, labels=(0, 1))
    aside.tokens[
        aside.offsets[:-1].repeat(aside.masked_offsets[1:] - aside.masked_offsets[:-1])
        + aside.masked_positions
    ] = vocabulary.mask
    write_folder(folder, [aside], [aside], vocabulary=vocabulary, sequences="segment_pair")
    return folder


@pytest.mark.parametrize(
    ("task", "asked", "expected"),
    [
        ("blimp", "auto", "fp32"),
        ("blimp", "bf16", "bf16"),
        ("held_out", "auto", "fp32"),
        ("held_out", "bf16", "bf16"),
        ("rte", "auto", "bf16"),
        ("rte", "fp32", "fp32"),
        ("attention", "bf16", "fp32"),  # these two have no other one
        ("pairs", "bf16", "fp32"),
    ],
)
def test_a_result_states_the_precision_that_was_used(
    task: str, asked: str, expected: str, used: set[str], tmp_path: Path
) -> None:
    changes = {"precision": asked, **({"epochs": 1.0, "max_length": 32} if task == "rte" else {})}
    where = files(task, tmp_path / "task")
    encoder = Encoder(encoder_folder("bert"))
    one = Evaluation(
        task, encoder, where, tmp_path / "out", settings_for(task, changes), [1], has_floor=False
    )
    [conditions] = one.run(lambda name, total: nullcontext(lambda n: None))["conditions"]
    assert conditions["precision"] == expected
    assert used == (set() if task in ("attention", "pairs") else {expected})


def test_the_probe_reads_pairs_in_the_same_precision_as_an_evaluation(used: set[str], tmp_path: Path) -> None:
    ProbeTask.read("blimp", write_pairs(tmp_path / "blimp", 20)).score(Encoder(encoder_folder("bert")))
    assert used == {"fp32"}


def test_likelihoods_are_those_of_fp32(used: set[str]) -> None:
    def found(precision: str) -> list[float]:
        settings = EvaluationSettings(precision=precision)
        sentences = ["the quick fox jumped over it", "dogs slept"]
        scores = score_sentences(inputs_of(Encoder(encoder_folder("bert")), settings=settings), sentences)
        return scores.log_likelihoods.tolist()

    assert found("auto") == found("fp32") != found("bf16")

"""Model folders from anywhere: every verb that reads one gives one line, or what the folder gives without it."""

import builtins
import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import NOTE
from pretrain.export.fill import fill_blanks
from pretrain.huggingface.load import load_model, load_tokenizer, why_slow
from tests.factories.encoders import encoder_folder
from tests.factories.model_folders import (
    CONFIG,
    GIVEN,
    MORE,
    READERS,
    STATED,
    Damage,
    fields,
    guesses,
    model_folder,
    noted,
    whole,
)
from tests.faults.fuzz import in_time, limited_memory

READ = {
    "adapter", "cfg_attn_impl_hub", "cfg_dtype", "tokcfg_automap", "tokcfg_maxlen", "code beside a known model",
    "an index of numbers", "sharded weights", "weights in half precision", "fused", "an added id below zero",
    "padding without end", "a frame of unknown tokens", "a class of a path", "a vocabulary elsewhere",
    "a mask token that is a number", "no mask token", "a template that runs", "sealed without a step",
}  # fmt: skip
"""What is odd but says all that is needed: `fill` and `evaluate` read it as if it were not."""
MODELS = ("fill", "evaluate perplexity", "evaluate cola", "evaluate features")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No question, no network, no program."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a folder made us ask, connect or run")

    monkeypatch.setattr(builtins, "input", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(os, "system", refused)


def refusal(verb: str, folder: Path, out: Path) -> str:
    """The line that a verb refuses the folder with; empty where it reads it."""
    try:
        with limited_memory(), in_time():
            READERS[verb](folder, out)
    except UserError as error:
        line = str(error)
        assert "\n" not in line
        assert line.strip()
        assert len(line) < 1000
        return line
    return ""


@pytest.mark.parametrize("name", [*GIVEN, *MORE])
def test_every_verb_reads_a_folder_or_refuses_it_in_one_line(name: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (GIVEN | MORE)[name](folder)
    said = {verb: refusal(verb, folder, tmp_path / verb) for verb in READERS}
    refused = {verb for verb in MODELS if said[verb]}
    assert refused == (set() if name in READ else set(MODELS)), said
    assert not (tmp_path / "ran").exists(), "code or a pickle of the folder"


def test_a_whole_folder_is_read_by_every_verb(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    whole(folder)
    assert {verb: refusal(verb, folder, tmp_path / verb) for verb in READERS} == dict.fromkeys(READERS, "")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "vocab.txt"])
@pytest.mark.parametrize("verb", ["fill", "evaluate cola", "init_from", "inspect", "push --dry-run"])
def test_each_file_is_compared_with_its_hash(name: str, verb: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    whole(folder)
    data = bytearray((folder / name).read_bytes())
    data[-2] ^= 1
    (folder / name).write_bytes(data)
    assert f"{name}: is missing or its bytes changed since the export" in refusal(
        verb, folder, tmp_path / "out"
    )


def test_a_card_may_be_edited_and_the_note_removed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    whole(folder)
    (folder / "README.md").write_text("Mine.")
    assert guesses(folder)
    fields(CONFIG, my_own="field")(folder)
    with pytest.raises(UserError, match=r"remove maskmill\.json if the change is your own"):
        guesses(folder)
    (folder / NOTE).unlink()
    assert guesses(folder)


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    """Whoever opens one waits for a writer, for ever: here the test would notice after seconds."""
    folder = model_folder(tmp_path / "model")
    MORE["weights that are a pipe"](folder)
    assert "no weights" in refusal("fill", folder, tmp_path / "out")


def test_weights_of_a_few_bytes_make_no_large_model(tmp_path: Path) -> None:
    """The floor of a score is such a model too, of random weights."""
    folder = model_folder(tmp_path / "model")
    fields(CONFIG, num_hidden_layers=3000)(folder)
    for pretrained in (True, False):
        tracemalloc.start()
        with pytest.raises(UserError, match="describes a model of more than"):
            load_model(folder, "ForMaskedLM", 1, pretrained=pretrained)
        assert tracemalloc.get_traced_memory()[1] < 200e6
        tracemalloc.stop()


# --- fill


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("discriminator", "lacks weights of ElectraForMaskedLM"),
        ("causal", "predicts the next word and fills no blanks"),
        ("xlnet", "cannot be loaded as AutoModelForMaskedLM"),
    ],
)
def test_an_encoder_without_a_head_for_words_fills_nothing(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        list(fill_blanks(encoder_folder(name), ["the quick [MASK] jumped"]))


def headless(folder: Path) -> None:
    import transformers

    from pretrain.huggingface.load import quiet

    with quiet():
        transformers.BertModel.from_pretrained(folder).save_pretrained(folder)


def without_prediction_layer(folder: Path) -> None:
    from tests.factories.model_folders import tensors

    tensors(lambda found: [found.pop(key) for key in list(found) if "predictions.transform" in key])(folder)


@pytest.mark.parametrize("damage", [headless, without_prediction_layer])
def test_a_head_that_is_not_in_the_files_is_not_drawn(damage: Damage, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    damage(folder)
    with pytest.raises(UserError, match=r"lacks weights of BertForMaskedLM: cls\.predictions"):
        guesses(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "0 blanks in ''"),
        ("   ", "0 blanks"),
        ("no blank", "0 blanks in 'no blank'"),
        ("[MASK] and [MASK]", "2 blanks"),
        ("[mask]", "0 blanks"),
        ("the [MASK] " + "fox " * 100, r"has \d+ tokens .expected at most 66"),
        ("[MASK] caf\udce9", "is not UTF-8 text from character 11 on"),
        ("\udcff[MASK]", "is not UTF-8 text from character 1 on"),
        ("[MASK] \ud800", "is not UTF-8 text"),
    ],
)
def test_a_text_that_cannot_be_filled_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        list(fill_blanks(encoder_folder("bert"), [text]))
    line = str(caught.value)
    assert "\n" not in line
    assert line.encode("utf-8")
    assert len(line) < 300


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "albert", "distilbert"])
def test_blanks_are_filled_as_the_pipeline_of_transformers_does(name: str) -> None:
    import transformers

    folder, text = encoder_folder(name), "the quick [MASK] jumped\0 over\tit"
    [(_, found)] = fill_blanks(folder, [text])
    fill = transformers.pipeline("fill-mask", model=str(folder), device="cpu", top_k=5)
    expected = fill(text.replace("[MASK]", fill.tokenizer.mask_token))
    assert [word for word, _ in found] == [one["token_str"].strip() for one in expected]
    assert [share for _, share in found] == pytest.approx([one["score"] for one in expected], rel=1e-5)


def test_bytes_of_the_command_line_are_one_line(maskmill, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    done = maskmill("fill", str(folder), os.fsdecode(b"caf\xe9 [MASK]"), code=2)
    assert "is not UTF-8 text from character 4 on" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- patterns of tokenizers

PUBLISHED = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lm}\p{M}]+(?i:'s|'t|'re)?|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" {2,}",
    r"^\p{M}+",
    r"(?=(\d{3})+(?!\d))",
    r"(?:\r?\n)+(?!\r?\n)|\p{N}",
    r" ?[^(\s|[.,!?])]+",
)


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_patterns_of_published_tokenizers_pass(pattern: str) -> None:
    assert why_slow(pattern) == ""
    assert pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str("a b" * 10)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a*)*$", "(a+)+b", "(a|a)*b", "(a|aa){1,50}c", r"(a)\1+", "((a{1,9}){1,9}){1,9}", "(x+x+)+y", "(?:a+)*+c",
        "a*a*a*a*a*b", "(a?){30}a{30}", "^(([a-z])+.)+$", "(?:[^)]*|b)+c", r"(\p{L}+\s?)+$", "a" * 100_000,
    ],
)  # fmt: skip
def test_patterns_without_end_are_refused(pattern: str) -> None:
    assert why_slow(pattern)


def test_a_slow_pattern_is_not_tried(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    GIVEN["tok_regex_bomb"](folder)
    with pytest.raises(UserError, match=r"tokenizer\.json: has the pattern '\(a\*\)\*\$'"):
        load_tokenizer(folder)
    fields(STATED, note="odd fields are no damage")(folder)
    noted()(folder)
    with pytest.raises(UserError, match="a repetition inside a repetition"):
        load_tokenizer(folder)

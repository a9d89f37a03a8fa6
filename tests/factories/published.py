"""Hugging Face folders of every class that a run can start from, of random weights, and whether two are one model."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from pretrain.export.tokenizer import INPUTS, PROBES
from pretrain.huggingface.modernbert import HEAD, HEAD_FILE
from tests.factories.encoders import NO_SEGMENTS, write_encoder, write_modernbert
from tests.factories.vocabularies import roberta_tokenizer, trained


class Source(NamedTuple):
    """A folder to start from, and what is exported again."""

    models: dict[str, tuple[str, dict[str, Any]]]
    """Folder in it -> class, fields of its config."""
    kind: str = "wordpiece"
    """Of the vocabulary; `modernbert`, `roberta`: its tokenizer as it is published."""
    specials: str = ""
    inputs: tuple[str, ...] = INPUTS
    overrides: tuple[str, ...] = ()
    objective: str = ""
    """Which learns it, if the name of the source is another."""


GENERATOR = {"embedding_size": 32, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64}
SMALL_MODERN = {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3}
ONE_EMBEDDING = {"tie_word_embeddings": True}
DISCRIMINATOR = {**SMALL_MODERN, "electra_part": "discriminator"}
MODERN_GENERATOR = {
    **SMALL_MODERN,
    "electra_part": "generator",
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
UNMASKED = ("data.masking=none", "data.dynamic_masking=false")
CAUSAL = {"is_decoder": True, "bos_token_id": None, "eos_token_id": None}
SAME = {
    "bert": Source({"": ("BertForPreTraining", {"hidden_act": "relu", "layer_norm_eps": 1e-6})}),
    "mlm": Source({"": ("BertForMaskedLM", {"hidden_act": "gelu_pytorch_tanh"})}),
    "roberta": Source({"": ("RobertaForMaskedLM", {"type_vocab_size": 1})}, "bpe", "", NO_SEGMENTS),
    "published roberta": Source(
        {"": ("RobertaForMaskedLM", {"type_vocab_size": 1})}, "roberta", "", NO_SEGMENTS, objective="roberta"
    ),
    "xlmr": Source(
        {"": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1})}, "unigram", "roberta", NO_SEGMENTS
    ),
    "albert": Source(
        {
            "": (
                "AlbertForPreTraining",
                {"embedding_size": 16, "num_hidden_groups": 2, "num_hidden_layers": 4},
            )
        },
        "unigram",
    ),
    "electra": Source(
        {
            "discriminator": ("ElectraForPreTraining", {"embedding_size": 32}),
            "generator": ("ElectraForMaskedLM", GENERATOR),
        }
    ),
    "ernie": Source({"": ("ErnieForPreTraining", {})}),
    "xlnet": Source({"": ("XLNetLMHeadModel", XLNET)}, "unigram", "xlnet"),
    "causal": Source(
        {"": ("BertLMHeadModel", CAUSAL)},
        overrides=UNMASKED,
    ),
    "modernbert": Source({"": ("ModernBertForMaskedLM", {"vocab_size": 512})}, "modernbert", objective="mlm"),
    "modernbert electra": Source(
        {
            "discriminator": ("ModernBertModel", DISCRIMINATOR),
            "generator": ("ModernBertForMaskedLM", MODERN_GENERATOR),
        },
        inputs=NO_SEGMENTS,
        objective="electra",
    ),
    "modernbert decoder": Source(
        {"": ("ModernBertDecoderForCausalLM", SMALL_MODERN)},
        inputs=NO_SEGMENTS,
        overrides=UNMASKED,
        objective="causal",
    ),
    "eurobert": Source(
        {"": ("EuroBertForMaskedLM", {**ONE_EMBEDDING, "num_key_value_heads": 1, "mask_token_id": 4})},
        inputs=NO_SEGMENTS,
        objective="mlm",
    ),
}
"""Name -> a folder that is exported as what it was; the name is the objective's unless that is stated."""
DISTILBERT = Source(
    {"": ("DistilBertForMaskedLM", {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64})},
    inputs=NO_SEGMENTS,
    objective="mlm",
)
"""The one class whose folder comes back as another: as a BERT without segments."""
OF_USE = {"use_cache", "mem_len", "use_mems_eval", "bos_token_id", "eos_token_id"}
"""Fields of config.json about how a model is used, not what it computes."""


def written(source: Source, folder: Path) -> Path:
    """Write the source to a new folder, and return it."""
    for name, (class_name, fields) in source.models.items():
        if source.kind == "modernbert":
            write_modernbert(folder / name, **fields)
            continue
        if source.kind == "roberta":
            write_encoder(folder / name, class_name, trained("bpe", False), source.inputs, fields)
            _publish_tokenizer(folder / name)
            continue
        vocabulary = trained(source.kind, specials=source.specials)
        write_encoder(folder / name, class_name, vocabulary, source.inputs, fields)
    if "generator" in source.models:
        _share_embeddings(folder)
    if source.models.get("discriminator", ("",))[0] == "ModernBertModel":
        _write_head(folder / "discriminator")
    return folder


def _publish_tokenizer(folder: Path) -> None:
    """Replace a RoBERTa's tokenizer by the files that roberta-base has."""
    (folder / "tokenizer.json").write_text(json.dumps(roberta_tokenizer()), "utf-8")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}', "utf-8")
    (folder / "special_tokens_map.json").unlink()


def _share_embeddings(folder: Path) -> None:
    """Give an ELECTRA's generator the embeddings of the discriminator."""
    theirs = load_file(folder / "discriminator/model.safetensors")
    own = load_file(folder / "generator/model.safetensors")
    for name in own:
        if "embeddings." in name:
            own[name] = theirs[name if name in theirs else name.removeprefix("model.")]
    save_file(own, folder / "generator/model.safetensors", {"format": "pt"})


def _write_head(folder: Path) -> None:
    """Write the head that a ModernBERT has beside it as ELECTRA's discriminator."""
    shapes = {
        "dense.weight": (32, 32),
        "dense.bias": (32,),
        "prediction.weight": (1, 32),
        "prediction.bias": (1,),
    }
    generator = torch.Generator().manual_seed(1)
    head = {f"{HEAD}{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(head, folder / HEAD_FILE)


def assert_same_model(before: Path, after: Path, kind: str = "") -> None:
    """The two folders have equal weights, configurations and tokenizers, but for fields of use, and for the rows of a
    table of positions that no token uses, which come back as zeros; a tokenizer of the kinds `modernbert` and `roberta`
    comes back with a space before the first word and one for each run of white space, and with BERT's frame."""
    old, new = (_folded(load_file(path / "model.safetensors")) for path in (before, after))
    for name, table in load_file(after / "model.safetensors").items():
        if "roberta" in name and "position_embeddings" in name:
            assert not table[:2].any(), "of positions 0 and 1, which no token has"
            assert table[2:].any(1).all()
    copies = old.keys() - new.keys()  # of tensors that are tied
    for name in new.keys() - old.keys():  # the copy of a bias, which some versions of transformers read
        assert name.endswith("decoder.bias")
        assert new.pop(name).equal(new[name.replace("decoder.bias", "bias")])
    assert not {name for name in copies if "decoder" not in name and "lm_loss" not in name}
    assert all(old[name].equal(tensor) for name, tensor in new.items())
    was, now = (json.loads((path / "config.json").read_text()) for path in (before, after))
    if was.get("hidden_act") == "gelu_new":
        was["hidden_act"] = "gelu_pytorch_tanh"  # the same function
    assert was.keys() <= now.keys()
    differing = {key: (was[key], now[key]) for key in was if was[key] != now[key]}
    assert {key: found for key, found in differing.items() if key not in OF_USE} == {}
    assert [path.name for path in sorted(after.glob("*_head.safetensors"))] == [
        path.name for path in sorted(before.glob("*_head.safetensors"))
    ]
    for path in before.glob("*_head.safetensors"):
        head = load_file(after / path.name)
        assert all(head[name].equal(tensor) for name, tensor in load_file(path).items())
    one, two = (transformers.AutoTokenizer.from_pretrained(path) for path in (before, after))
    for text in PROBES:
        ids = one(text)["input_ids"]
        if kind in ("modernbert", "roberta"):
            spaced = one(" " + " ".join(text.split()), add_special_tokens=False)["input_ids"]
            assert spaced != one(text, add_special_tokens=False)["input_ids"]
            ids = [one.cls_token_id, *spaced, one.sep_token_id]
        assert two(text)["input_ids"] == ids
    if kind == "roberta":
        (cls, sep), words = (
            (one.cls_token_id, one.sep_token_id),
            one(" a", add_special_tokens=False)["input_ids"],
        )
        assert one(" a", " a")["input_ids"] == [cls, *words, sep, sep, *words, sep]
        assert two("a", "a")["input_ids"] == [cls, *words, sep, *words, sep]
    known = two.get_vocab()
    assert all(known[token] == number for token, number in one.get_vocab().items())


def _folded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with a single segment added to all positions that tokens have: every token shows it. The rows before
    these are left out."""
    for name, table in list(tensors.items()):
        segments = tensors.get(name.replace("position_embeddings", "token_type_embeddings"), table)
        if "position_embeddings" in name and len(segments) == 1:
            tensors[name] = table[2:] + segments
            tensors[name.replace("position", "token_type")] = torch.zeros_like(segments)
    return tensors

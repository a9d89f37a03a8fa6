"""Write a small model folder with one thing wrong in it, or merely odd, and read it as every verb does."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from data_pipeline.io.model_folder import CARD, NOTE
from data_pipeline.records import ShowProgress
from data_pipeline.vocabulary.files import load_vocabulary
from launch.recipe import load_config
from pretrain.evaluate.evaluate import Evaluation
from pretrain.export.fill import fill_blanks
from pretrain.export.hub import gather
from pretrain.export.tokenizer import write_extended_tokenizer
from pretrain.huggingface.folder import read_weights
from pretrain.objectives.teacher import check_teacher
from pretrain.report.inspection import describe
from pretrain.tasks.encoders import Encoder
from pretrain.tasks.settings import settings_for
from pretrain.training.initial_weights_check import check_hugging_face
from tests.factories.encoders import encoder_folder
from tests.factories.tasks import FILES, write

WEIGHTS, CONFIG, TOKENIZER, STATED = (
    "model.safetensors",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
QUIET: ShowProgress = lambda name, total: nullcontext(lambda n: None)  # noqa: E731
Damage = Callable[[Path], object]
DEEP = 100_000


def model_folder(folder: Path, name: str = "bert") -> Path:
    """Copy a small encoder with its heads and its tokenizer."""
    return Path(shutil.copytree(encoder_folder(name), folder))


# --- what is wrong


def fields(name: str, **values: Any) -> Damage:
    """Replace fields of a JSON file."""

    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")

    return damage


def inside(*keys: str, value: Any) -> Damage:
    """Replace a value inside tokenizer.json."""

    def damage(folder: Path) -> None:
        path = folder / TOKENIZER
        found = part = json.loads(path.read_text("utf-8"))
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        path.write_text(json.dumps(found), "utf-8")

    return damage


def text(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, count: int) -> Damage:
    """Take bytes from the end."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-count])


def gone(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """Change the tensors, which are saved again."""

    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file({k: v.contiguous() for k, v in found.items()}, folder / WEIGHTS, {"format": "pt"})

    return damage


def header(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the header of the weights alone."""

    def damage(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        found = json.loads(data[8:end])
        change(found)
        (folder / WEIGHTS).write_bytes(with_header(found) + data[end:])

    return damage


def with_header(found: dict[str, Any]) -> bytes:
    said = json.dumps(found).encode()
    return struct.pack("<Q", len(said)) + said


def index(**weight_map: str) -> Damage:
    """Name other files as those of the weights."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return damage


def sharded(folder: Path) -> None:
    """Two files and their index, as transformers writes large models: nothing is wrong."""
    found = sorted(load_file(folder / WEIGHTS).items())
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {}
    for name, half in zip(names, (found[::2], found[1::2]), strict=True):
        save_file(dict(half), folder / name, {"format": "pt"})
        weight_map |= {key: name for key, _ in half}
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def with_code(folder: Path) -> None:
    """A module beside the model, which leaves a trace beside the folder where it is imported."""
    (folder / "own.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'w').close()\n")
    code = {"AutoConfig": "own.C", "AutoModel": "own.M", "AutoModelForMaskedLM": "own.M"}
    fields(CONFIG, auto_map=code, architectures=["OwnForMaskedLM"])(folder)
    fields(STATED, auto_map={"AutoTokenizer": ["own.T", "own.T"]}, tokenizer_class="OwnTokenizer")(folder)


def with_code_alone(folder: Path) -> None:
    with_code(folder)
    fields(CONFIG, model_type="own")(folder)


def pickled(folder: Path) -> None:
    """A pickle that would leave a trace, and nothing else."""
    (folder / WEIGHTS).unlink()
    canary = str(folder.parent / "ran").encode()
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nmkdir\n(V" + canary + b"\ntR.")


def pickled_and_stray(folder: Path) -> None:
    pickled(folder)
    (folder / "x.safetensors").touch()


def whole(folder: Path) -> None:
    """An export: every verb reads it."""
    noted()(folder)


def noted(change: Callable[[dict[str, Any]], object] = dict) -> Damage:
    """A maskmill.json with the hashes of the files, changed."""

    def damage(folder: Path) -> None:
        from pretrain.export.export import write_hashes

        (folder / CARD).write_text("A card.\n")
        write_hashes(folder, {}, 3)
        note = json.loads((folder / NOTE).read_text())
        note["proof"] = {"mlm": {"difference": 0.0, "allowed": 1e-9}}
        change(note)
        (folder / NOTE).write_text(json.dumps(note))

    return damage


def then(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def flipped(name: str, at: int) -> Damage:
    """Flip one bit."""

    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return damage


def pipe(name: str) -> Damage:
    return lambda folder: [(folder / name).unlink(), os.mkfifo(folder / name)]


def link(name: str, to: str) -> Damage:
    return lambda folder: [(folder / name).unlink(), (folder / name).symlink_to(to)]


def bomb(pattern: str) -> Damage:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return inside("pre_tokenizer", value=split)


def doubling(folder: Path) -> None:
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    inside("normalizer", value={"type": "Sequence", "normalizers": [one] * 40})(folder)


def added(**values: Any) -> Damage:
    token = {"id": 4, "content": "[MASK]", "single_word": False, "lstrip": False, "rstrip": False}
    return inside("added_tokens", value=[token | {"normalized": False, "special": True} | values])


OWN = {
    name: [row for _ in range(count) for row in ("the\tO", "fox\tB-PER", "jumped\tO", "")]
    for name, count in (("train.tsv", 20), ("dev.tsv", 5))
}
"""Tagged sentences."""
TRUNCATION = {"max_length": 0, "strategy": "LongestFirst", "stride": 5, "direction": "Right"}
TRANSPOSED = "bert.encoder.layer.0.intermediate.dense.weight"
UNKNOWN = {"SpecialToken": {"id": "[NO]", "type_id": 0}}
PADDING = {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
GIVEN: dict[str, Damage] = {
    "adapter": text("adapter_config.json", '{"base_model_name_or_path": "/etc", "peft_type": "LORA"}'),
    "auto_map_runs_code": with_code_alone,
    "cfg_attn_impl_hub": fields(
        CONFIG, _attn_implementation="kernels-community/x", attn_implementation="a/x"
    ),
    "cfg_bigint": fields(CONFIG, hidden_size=10**400),
    "cfg_dtype": fields(CONFIG, dtype="os.system"),
    "cfg_heads_0": fields(CONFIG, num_attention_heads=0),
    "cfg_layers_huge": fields(CONFIG, num_hidden_layers=10**7),
    "cfg_null": fields(CONFIG, hidden_size=None),
    "cfg_str": fields(CONFIG, hidden_size="16"),
    "cfg_unknown_type": fields(CONFIG, model_type="nope"),
    "cfg_vocab_neg": fields(CONFIG, vocab_size=-5),
    "note_traversal": text(NOTE, '{"sha256": {"../../../../etc/passwd": "0"}}'),
    "pickle+stray_safetensors": pickled_and_stray,
    "st_big": text(
        WEIGHTS, with_header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}})
    ),
    "st_hdr_100MB": text(WEIGHTS, struct.pack("<Q", 100_000_000)),
    "st_index_traversal": index(a="../../../../etc/passwd"),
    "st_trunc": cut(WEIGHTS, 100),
    "tok_deep": text(TOKENIZER, "[" * DEEP + "]" * DEEP),
    "tok_id_huge": inside("model", "vocab", value={"a": 2**32 - 1, "[UNK]": 1}),
    "tok_list": text(TOKENIZER, "[]"),
    "tok_regex_bomb": bomb("(a*)*$"),
    "tokcfg_automap": fields(STATED, auto_map={"AutoTokenizer": ["e.E", None]}, tokenizer_class="E"),
    "tokcfg_garbage": text(STATED, b"\xff\xfe"),
    "tokcfg_maxlen": text(STATED, '{"model_max_length": 1e400}'),
}
"""What strangers tried: the 24 folders, made again without the hashes that would refuse most of them at once."""
MORE: dict[str, Damage] = {
    "code beside a known model": with_code,
    "a pickle alone": pickled,
    "an index of a pickle": index(a="pytorch_model.bin"),
    "an index of nothing": index(),
    "an index of numbers": text(f"{WEIGHTS}.index.json", '{"weight_map": {"a": 3}}'),
    "sharded weights": sharded,
    "a download cut by one byte": cut(WEIGHTS, 1),
    "weights of LFS": text(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"),
    "no weights": gone(WEIGHTS),
    "empty weights": text(WEIGHTS, b""),
    "weights that are a pipe": pipe(WEIGHTS),
    "weights of integers": tensors(lambda t: t.update({k: v.int() for k, v in t.items()})),
    "weights that are no numbers": tensors(lambda t: [v.fill_(float("nan")) for v in t.values()]),
    "weights in half precision": tensors(lambda t: t.update({k: v.half() for k, v in t.items()})),
    "a layer is missing": tensors(lambda t: [t.pop(k) for k in list(t) if "layer.1." in k]),
    "one tensor is transposed": tensors(lambda t: t.update({TRANSPOSED: t[TRANSPOSED].T})),
    "overlapping tensors": header(lambda h: h.update({k: list(h.values())[-1] for k in list(h)[1:3]})),
    "a header of texts": header(lambda h: h.update({list(h)[-1]: "x"})),
    "config.json is a list": text(CONFIG, "[1]"),
    "config.json is empty": text(CONFIG, ""),
    "config.json is deep": text(CONFIG, '{"a":' * DEEP + "0" + "}" * DEEP),
    "config.json is nested in reason": text(CONFIG, '{"a":' * 500 + "0" + "}" * 500),
    "config.json is a pipe": pipe(CONFIG),
    "config.json is a device": link(CONFIG, "/dev/zero"),
    "config.json is a loop": link(CONFIG, CONFIG),
    "architectures is a number": fields(CONFIG, architectures=3),
    "architectures of nothing": fields(CONFIG, architectures=[None, {}]),
    "model_type is a list": fields(CONFIG, model_type=["bert"]),
    "heads that do not divide": fields(CONFIG, num_attention_heads=3),
    "heads as a fraction": fields(CONFIG, num_attention_heads=2.5),
    "a negative size": fields(CONFIG, intermediate_size=-64),
    "an activation that is none": fields(CONFIG, hidden_act="__import__('os')"),
    "an activation that is a list": fields(CONFIG, hidden_act=["gelu"]),
    "epsilon is a word": fields(CONFIG, layer_norm_eps="small"),
    "positions without end": fields(CONFIG, max_position_embeddings=2**24),
    "more positions than the table": fields(CONFIG, max_position_embeddings=128),
    "no positions": fields(CONFIG, max_position_embeddings=0),
    "labels without end": fields(CONFIG, num_labels=10**9),
    "more layers than weights": fields(CONFIG, num_hidden_layers=4000),
    "wider than its weights": fields(CONFIG, hidden_size=2**20, intermediate_size=2**20),
    "padding far away": fields(CONFIG, pad_token_id=10**9),
    "padding is a word": fields(CONFIG, pad_token_id="0"),
    "quantized": fields(CONFIG, quantization_config={"quant_method": "gptq", "bits": 4}),
    "a backbone elsewhere": fields(CONFIG, backbone="owner/name", use_pretrained_backbone=True),
    "fused": fields(CONFIG, fusion_config={"patch_embeddings": True}),
    "dropout is a table": fields(CONFIG, hidden_dropout_prob={"a": 1}),
    "id2label is a list": fields(CONFIG, id2label=[1, 2]),
    "no tokenizer": gone(TOKENIZER, STATED, "vocab.txt", "special_tokens_map.json"),
    "tokenizer.json is a number": text(TOKENIZER, "7"),
    "tokenizer.json is cut": cut(TOKENIZER, 100),
    "tokenizer.json is a pipe": pipe(TOKENIZER),
    "tokenizer.json is a folder": lambda folder: [(folder / TOKENIZER).unlink(), (folder / TOKENIZER).mkdir()],
    "a token that is no text": added(content=7),
    "an added id without end": added(id=2**31),
    "an added id below zero": added(id=-1),
    "no model in the tokenizer": inside("model", value=None),
    "a model of another kind": inside("model", "type", value="Quantum"),
    "words without end": inside("model", "max_input_chars_per_word", value=10**9),
    "truncation to nothing": inside("truncation", value=TRUNCATION),
    "padding without end": inside("padding", value=PADDING | {"pad_type_id": 0, "pad_token": "[PAD]"}),
    "a frame of unknown tokens": inside("post_processor", "single", value=[UNKNOWN]),
    "another bomb": bomb("(a|a)+$"),
    "a bomb of powers": bomb("a*a*a*a*a*a*b"),
    "no pattern": bomb("("),
    "replacements that double": doubling,
    "a vocabulary of texts": inside("model", "vocab", value={"a": "b"}),
    "tokenizer_config.json is a list": text(STATED, "[]"),
    "a class of a path": fields(STATED, tokenizer_class="../../own"),
    "arguments by place": fields(STATED, init_inputs=["/etc/passwd"]),
    "a vocabulary elsewhere": fields(STATED, vocab_file="/etc/passwd", tokenizer_file="/etc/passwd"),
    "a mask token that is a number": fields(STATED, mask_token=5),
    "no mask token": fields(STATED, mask_token=None),
    "inputs of another kind": fields(STATED, model_input_names=7),
    "added tokens far away": fields(STATED, added_tokens_decoder={"999999999": {"content": "x"}}),
    "special tokens are a list": text("special_tokens_map.json", "[1]"),
    "added tokens are a word": text("added_tokens.json", '"x"'),
    "a template that runs": fields(STATED, chat_template="{{ ''.__class__.__mro__ }}"),
    "sealed, one bit of the tokenizer": then(noted(), flipped(TOKENIZER, 900)),
    "sealed, one bit of the weights": then(noted(), flipped(WEIGHTS, -8)),
    "sealed, the config is changed": then(noted(), fields(CONFIG, hidden_act="relu")),
    "sealed, a file is missing": then(noted(), gone("special_tokens_map.json")),
    "sealed by a list": then(noted(), text(NOTE, "[]")),
    "sealed by numbers": noted(lambda note: note.update(sha256={"config.json": 3})),
    "sealed by a pipe": then(noted(), pipe(NOTE)),
    "sealed without a step": noted(lambda note: note.update(step=[])),
}  # fmt: skip
"""More of each kind."""


# --- who reads it


def _fill(folder: Path, out: Path) -> None:
    assert guesses(folder) == guesses(model_folder(out / "good")), "what the folder without damage says"


def guesses(folder: Path) -> list[tuple[str, float]]:
    """The words of one blank, with rounded probabilities."""
    [(_, found)] = fill_blanks(folder, ["the quick [MASK] jumped"])
    return [(word, round(share, 4)) for word, share in found]


def _evaluate(task: str, has_floor: bool = True, **settings: object) -> Callable[[Path, Path], None]:
    def read(folder: Path, out: Path) -> None:
        out.mkdir(parents=True)
        data = out / "task"
        if task == "perplexity":
            data.mkdir()
            (data / "text.txt").write_text("The quick fox jumped over it. Dogs slept.\n")
        else:
            write(data, OWN if task == "tagging" else FILES[task])
        Evaluation(
            task=task,
            encoder=Encoder(folder),
            folder=data,
            out=out / "scores",
            settings=settings_for(task, {"max_length": 24, "threads": 1, **settings}),
            seeds=[1],
            has_floor=has_floor,
        ).run(QUIET)

    return read


def _start(folder: Path, out: Path) -> None:
    """As prepare and train do, with the vocabulary of the folder."""
    config = load_config("domain", [f"init_from={folder}", "data.sequence_length=32"])
    vocabulary = load_vocabulary(config.data.vocab)
    check_hugging_face(config, vocabulary)
    read_weights(folder, config, vocabulary.size)


def _teach(folder: Path, out: Path) -> None:
    sizes = {
        "hidden": 32,
        "heads": 2,
        "intermediate": 64,
        "layers": 1,
        "max_positions": 48,
        "activation": "gelu",
    }
    student = [f"encoder.{name}={value}" for name, value in sizes.items()]
    student += ["data.sequence_length=32"]
    config = load_config("distilbert", [f"objective.distilbert.teacher={folder}", *student])
    check_teacher(config, load_vocabulary(folder))


def _extend(folder: Path, out: Path) -> None:
    out.mkdir(parents=True)
    (out / "vocab.txt").write_text("\n".join(load_vocabulary(folder).tokens), "utf-8")
    write_extended_tokenizer(out, folder)


READERS: dict[str, Callable[[Path, Path], object]] = {
    "fill": _fill,
    "evaluate perplexity": _evaluate("perplexity"),
    "evaluate cola": _evaluate("cola", epochs=0.4),
    "evaluate features": _evaluate("tagging", has_floor=False, epochs=0.05, features="last"),
    "init_from": _start,
    "teacher": _teach,
    "vocab": lambda folder, out: load_vocabulary(folder),
    "vocab --extend": _extend,
    "inspect": lambda folder, out: describe(folder),
    "push --dry-run": lambda folder, out: gather(folder, "owner/name"),
}
"""Verb -> what it reads of a model folder, with a new folder for what it writes."""

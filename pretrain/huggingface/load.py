"""Load configs, tokenizers and models of any Hugging Face folder: the only use of transformers' loaders.

A folder may come from anywhere. Weights are read from its safetensors alone, by name, and given to transformers as
tensors, so that nothing else in the folder is opened: no pickle, no adapter, no code. What would make a library hang,
or take memory without end, is refused before it sees it, and whatever it raises becomes one line.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import (
    CONFIG_MAPPING,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from data_pipeline.errors import UserError, first_line
from data_pipeline.io.model_folder import check_hashes, read_json
from pretrain.huggingface.config_json import read_config
from pretrain.huggingface.folder import stored_tensors

SAFE = {"local_files_only": True, "trust_remote_code": False}
NOT_OURS = ("auto_map", "dtype", "torch_dtype", "fusion_config", "distributed_config", "transformers_weights")
"""Fields of a config.json that name code, files or kernels, or how weights are stored: every model is float32, and
computed by transformers' own classes."""
DECODERS = ("modernbert-decoder",)
"""Values of model_type whose config.json need not say that they read one way."""
PROBE = 8
"""Tokens that a loaded model is tried on."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and notices."""
    bars, verbosity = (
        transformers.utils.logging.is_progress_bar_enabled(),
        transformers.logging.get_verbosity(),
    )
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def in_one_line(what: str, where: Path, expected: str) -> Iterator[None]:
    """Raise UserError for whatever a library raises on the files of a folder: it may be anything, and the panic of one
    that is written in Rust is no Exception."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {_reason(error)}", where=where, expected=expected) from error


def _reason(error: BaseException) -> str:
    """Return what a library says in a line: the first one of several, with the next one where it only announces it."""
    lines = str(error).strip().splitlines()
    announced = len(lines) > 1 and lines[0].rstrip().endswith(":")
    return " ".join(line.strip() for line in lines[:2]) if announced else first_line(error)


def load_config(folder: Path) -> PreTrainedConfig:
    """Return the folder's config.json as its class of transformers. Raises UserError where there is none."""
    check_hashes(folder, weights=False)
    path, fields = folder / "config.json", read_config(folder)
    expected = "the configuration of one of transformers' encoders"
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UserError(f"cannot be read: model_type is {reprlib.repr(kind)}", where=path, expected=expected)
    known = {
        name: value
        for name, value in fields.items()
        if name not in NOT_OURS and not name.endswith("_implementation")
    }
    with in_one_line("cannot be read", path, expected):
        return CONFIG_MAPPING[kind].from_dict(known, name_or_path=str(folder))


def first_position(config: PreTrainedConfig) -> int:
    """Return the position of a text's first token: RoBERTa and its like count from behind the padding's id."""
    is_offset = config.model_type in ("roberta", "xlm-roberta", "camembert")
    return (config.pad_token_id or 0) + 1 if is_offset else 0


def max_positions(config: PreTrainedConfig) -> int:
    """Return the length of the longest input that a model has positions for."""
    stated = getattr(config, "max_position_embeddings", None)
    if not isinstance(stated, int) or stated <= 0:
        return 1 << 20  # relative positions
    return stated - first_position(config)


def reads_one_way(config: PreTrainedConfig) -> bool:
    """Return whether a token sees only one side of it."""
    return bool(getattr(config, "is_decoder", False)) or config.model_type in DECODERS


def load_tokenizer(folder: Path, config: PreTrainedConfig | None = None) -> PreTrainedTokenizerFast:
    """Return the folder's tokenizer, which neither cuts nor pads. `config`: of its model, if it was read already.

    Raises UserError where there is none, where it has ids that the model has no vector for, and for one that could take
    time or memory without end."""
    if config is None and (folder / "config.json").exists():
        config = load_config(folder)
    check_tokenizer(folder, getattr(config, "vocab_size", None))
    with in_one_line("its tokenizer cannot be read", folder, "tokenizer.json beside a valid config.json"):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, **SAFE)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(
            "its tokenizer is none of the library tokenizers", where=folder, expected="tokenizer.json"
        )
    with in_one_line("its tokenizer cannot be used", folder, "one that frames a text, and two"):
        check_ids(tokenizer.get_vocab().values(), getattr(config, "vocab_size", None), folder)
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        backend.encode("a b")
        backend.encode("a b", "c")
    return tokenizer


def load_model(
    folder: Path,
    kind: str,
    seed: int,
    config: PreTrainedConfig | None = None,
    has_head: bool = False,
    pretrained: bool = True,
) -> PreTrainedModel:
    """Return transformers' model `AutoModel` + `kind` for `config`, by default the folder's, float32 and in evaluation
    mode. A head that the folder lacks, or all weights where it is not `pretrained`, are drawn by `seed`.

    Raises UserError where transformers has no such class for it, where weights of the encoder are absent, and, with
    `has_head`, where those of the head are; for files that are damaged, differ from maskmill.json, or are much smaller
    than what config.json describes; and for a model that computes nothing."""
    config = load_config(folder) if config is None else config
    expected = "whole *.safetensors of what config.json describes"
    auto = getattr(transformers, f"AutoModel{kind}")
    tensors = stored_tensors(folder) if pretrained or any(folder.glob("model*.safetensors")) else None
    torch.manual_seed(seed)
    with in_one_line(f"cannot be loaded as AutoModel{kind}", folder, expected):
        chosen = _class_for(auto, config)
        with _no_larger_than(tensors, folder):
            if not pretrained:
                return auto.from_config(config, trust_remote_code=False).float().eval()
            model, info = _from_tensors(chosen, config, tensors or {}, ignore_mismatched_sizes=True)
    # a head of another number of labels is redrawn
    absent = [str(key) for key in info["missing_keys"]] + [str(key[0]) for key in info["mismatched_keys"]]
    refuse_lacking(model, kind, absent, has_head, folder)
    _try(model, folder)
    return model.eval()


def load_class(folder: Path, name: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the folder's model by the name of its class of transformers, float32, and what transformers says about
    keys that are missing or left over. Raises UserError where it cannot be loaded."""
    config, tensors = load_config(folder), stored_tensors(folder)
    with in_one_line(f"cannot be loaded as {name}", folder, "whole *.safetensors"):
        return _from_tensors(getattr(transformers, name), config, tensors)


def refuse_lacking(
    model: PreTrainedModel, kind: str, absent: list[str], has_head: bool, folder: Path
) -> None:
    """Raise UserError where weights of the encoder, or with `has_head` of the head, are among the absent ones."""
    of_encoder = f"{model.base_model_prefix}." if kind else ""
    lacking = [k for k in absent if has_head or (k.startswith(of_encoder) and "pooler." not in k)]
    if lacking:
        raise UserError(
            f"lacks weights of {type(model).__name__}: {', '.join(sorted(lacking)[:3])}",
            where=folder,
            expected="a model with the head for it" if has_head else "what its config.json describes",
        )


def _class_for(auto: Any, config: PreTrainedConfig) -> Any:
    """Return the class that one of transformers' Auto classes has for a config. Raises KeyError where it has none."""
    found = auto._model_mapping[type(config)]
    if not isinstance(found, list | tuple):
        return found
    named = {one.__name__: one for one in found}
    return next((named[name] for name in config.architectures or () if name in named), found[0])


def _from_tensors(
    model_class: Any, config: PreTrainedConfig, tensors: dict[str, Tensor], **options: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the model with these weights, in the names of any version of transformers, and what they lack."""
    return model_class.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=torch.float32,
        output_loading_info=True,
        **options,
        **SAFE,
    )


@contextmanager
def _no_larger_than(tensors: Mapping[str, Tensor] | None, folder: Path) -> Iterator[None]:
    """Raise UserError as soon as a model that is made meanwhile has far more parameters than the folder's files: a
    config.json may ask for any number of layers. A table that is tied to another one counts twice, a head comes on
    top."""
    stored = tensors or {}
    many = 2 * len(stored) + 100 if tensors else 1 << 16
    large = 3 * sum(tensor.numel() for tensor in stored.values()) + (1 << 25) if tensors else 1 << 34
    count = total = 0

    def counted(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count, total
        count, total = count + 1, total + (0 if parameter is None else parameter.numel())
        if count > many or total > large:
            raise UserError(
                f"config.json describes a model of more than {count - 1:,} tensors or {large:,} numbers",
                where=folder,
                expected=f"one of about {len(stored):,} tensors, as its *.safetensors have",
                remedy="take the config.json that came with the weights",
            )

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def _try(model: PreTrainedModel, folder: Path) -> None:
    """Raise UserError for a model that cannot read a few tokens, or computes no numbers from them."""
    encoder: Any = getattr(model, model.base_model_prefix, model)
    with in_one_line("cannot read a text", folder, "the config.json that came with the weights"):
        rows = int(encoder.get_input_embeddings().weight.shape[0])
        length = min(PROBE, max_positions(model.config))
        states = encoder(input_ids=torch.arange(length)[None] % rows)[0]
        if not bool(states.isfinite().all()):
            raise UserError(
                "computes no finite numbers", where=folder, expected="whole *.safetensors of a trained model"
            )


# Check the files of a tokenizer, before a library sees them.


PIECE_LENGTH = 1 << 14
"""Longest word that WordPiece may be asked to cut: it takes the square of that."""
GROWTH = 1 << 12
"""Factor by which a tokenizer's replacements, one after the other, may make a text longer."""


def check_tokenizer(folder: Path, rows: object) -> None:
    """Raise UserError for files of a tokenizer that a library should not see: that are no files or no JSON, have ids
    from `rows` on, the vocab_size of the model, or patterns and replacements that take time or memory without end."""
    names = {"added_tokens.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}
    for path in sorted(folder.iterdir()):
        if not path.is_file() and re.match(r"tokenizer|vocab|merges|spiece|sentencepiece", path.name):
            raise UserError("is no file", where=path, expected="the tokenizer of a model")
    if not list(folder.glob("tokenizer*")) and not list(folder.glob("vocab*")):
        raise UserError("has no tokenizer", where=folder, expected="tokenizer.json beside config.json")
    found = {name: read_json(folder / name) for name in names if (folder / name).exists()}
    check_ids((i for i in found.get("added_tokens.json", {}).values()), rows, folder)
    stated = found.get("tokenizer_config.json", {})
    if stated.get("init_inputs"):
        raise UserError(
            f"names init_inputs {reprlib.repr(stated['init_inputs'])}",
            where=folder / "tokenizer_config.json",
            expected="a tokenizer that is read from its own files",
        )
    more = stated.get("added_tokens_decoder")
    check_ids(map(int, filter(str.isdecimal, more)) if isinstance(more, dict) else (), rows, folder)
    check_definition(found.get("tokenizer.json", {}), rows, folder)


def check_ids(ids: Any, rows: object, folder: Path) -> None:
    """Raise UserError for an id that the model has no vector for."""
    most = max((i for i in ids if isinstance(i, int)), default=0)
    if isinstance(rows, int) and most >= rows:
        raise UserError(
            f"its tokenizer has ids up to {most}",
            where=folder,
            expected=f"ids below {rows}, the vocab_size in config.json",
            remedy="put the model's own tokenizer beside it",
        )


def check_definition(found: Mapping[str, Any], rows: object, folder: Path) -> None:
    """Check the content of a tokenizer.json, as `check_tokenizer` does."""
    path = folder / "tokenizer.json"
    model, added = found.get("model"), found.get("added_tokens")
    if not isinstance(model, dict):
        if found:
            raise UserError("has no model", where=path, expected="a tokenizer of the library tokenizers")
        return
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        check_ids(vocabulary.values(), rows, folder)
    if isinstance(added, list):
        check_ids((one.get("id") for one in added if isinstance(one, dict)), rows, folder)
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > PIECE_LENGTH:
        raise UserError(
            f"max_input_chars_per_word is {longest}", where=path, expected=f"at most {PIECE_LENGTH:,}"
        )
    parts = [found.get(name) for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")]
    for pattern in _patterns(parts):
        if reason := why_slow(pattern):
            raise UserError(
                f"has the pattern {reprlib.repr(pattern)}, {reason}",
                where=path,
                expected="patterns that take a text in time",
                remedy="put the model's own tokenizer beside it",
            )
    for part in (found.get("normalizer"), found.get("decoder")):
        growth = 1
        for pattern, content in _replacements(part):
            growth *= max(1, -(-len(content) // len(pattern))) if pattern else 1 + len(content)
        if growth > GROWTH:
            raise UserError(
                "has replacements that make a text thousands of times as long",
                where=path,
                expected="the tokenizer of a model",
            )


def _patterns(found: object) -> Iterator[str]:
    """Yield the regular expressions in a part of a tokenizer.json."""
    for one in _tables(found):
        if isinstance(one.get("Regex"), str):
            yield one["Regex"]


def _replacements(found: object) -> Iterator[tuple[str, str]]:
    """Yield what is replaced, empty for a regular expression, and by what."""
    for one in _tables(found):
        if one.get("type") in ("Replace", "Prepend"):
            pattern = one.get("pattern")
            text = pattern.get("String") if isinstance(pattern, dict) else ""
            content = one.get("content", one.get("prepend"))
            yield (text if isinstance(text, str) else ""), (content if isinstance(content, str) else "")


def _tables(found: object) -> Iterator[dict[str, Any]]:
    """Yield a JSON object and those inside it."""
    if isinstance(found, dict):
        yield found
    for value in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _tables(value)


_TOKEN = re.compile(
    r"\\[pP]\{[^}]*\}|\\x\{[^}]*\}|\\.|\[(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?[:=!>i]*(?:<[=!])?[:=!>i]*|\(|\)|\||"
    r"[*+?][+?]?|\{\d*,?\d*\}[+?]?|.",
    re.DOTALL,
)
MANY_TIMES = 8
"""A part that may be repeated as often counts as one that is repeated without end."""
UNBOUNDED_IN_A_ROW = 4
"""Repetitions in one alternative of a pattern: its time grows with a power of the text's length as large."""


def why_slow(pattern: str) -> str:
    """Return why a regular expression may take exponential time, or a large power of a text's length; empty for one
    that does not. A repetition inside a repetition is refused, as alternatives inside one, which may overlap, and a
    reference to what was matched. The patterns of published tokenizers have none.

    >>> why_slow(r"'s| ?[a-z]+|[0-9]{1,3}| +"), why_slow("(a+)+b")
    ('', 'a repetition inside a repetition')
    """
    if len(pattern) > 1 << 16:
        return f"of {len(pattern):,} characters"
    # per open group: repetitions in this alternative, most in any before, alternatives, parts that may be absent
    groups: list[list[int]] = []
    current = [0, 0, 0, 0]
    last = [0, 0, 0]  # repetitions, alternatives and optional parts inside what a quantifier would repeat
    for token in _TOKEN.findall(pattern):
        if token.startswith("("):
            groups.append(current)
            current, last = [0, 0, 0, 0], [0, 0, 0]
        elif token == ")" and groups:
            inside = max(current[:2])
            last = [inside, current[2], current[3]]
            current = groups.pop()
            current[0] += inside
        elif token == "|":
            current = [0, max(current[:2]), current[2] + 1, current[3]]
            last = [0, 0, 0]
        elif (times := _times(token)) is not None:
            if times > 1 and last[0]:
                return "a repetition inside a repetition"
            if times > 1 and last[1]:
                return "alternatives inside a repetition"
            if times > MANY_TIMES and last[2] and token[0] == "{":
                return "a part that may be absent inside a repetition"
            current[3] += times == 1
            if times > MANY_TIMES or (times > 1 and token[0] == "{" and "," in token):
                current[0] += 1
        else:
            if re.fullmatch(r"\\[1-9kg]", token):
                return "a reference to what it matched"
            last = [0, 0, 0]
        if current[0] > UNBOUNDED_IN_A_ROW:
            return f"more than {UNBOUNDED_IN_A_ROW} repetitions in a row"
    return ""


def _times(token: str) -> int | None:
    """Return how often a quantifier repeats at most, 1 for `?`; None for anything else."""
    if token[0] in "*+" and token[1:] in ("", "+", "?"):
        return 1 << 20
    if token[0] == "?":
        return 1
    if found := re.fullmatch(r"\{(\d*)(,?)(\d*)\}[+?]?", token):
        least, is_range, most = found.groups()
        return int(most or (least if not is_range else 1 << 20) or 0)
    return None

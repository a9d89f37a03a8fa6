"""Load encoders of any Hugging Face folder, with or without their weights: in the evaluation on tasks the only use of
transformers' Auto classes.

Only safetensors are read, and no code of a folder is run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from data_pipeline.errors import UserError, first_line
from data_pipeline.settings import SEPARATORS, DataSettings
from pretrain.evaluate.downstream.inputs.builder import InputBuilder, deciding_inputs
from pretrain.export.bundle import weights_hash
from pretrain.export.parity import quiet
from pretrain.run.folder import CONFIG, EXPORT, model_folders

SAFE = {"local_files_only": True, "trust_remote_code": False}
NOT_PRETRAINED = "not pretrained"
DECODERS = ("modernbert-decoder",)
"""Values of model_type whose config.json need not say that they read one way."""
FORWARDS, BACKWARDS = "left_to_right", "right_to_left"


@dataclass(frozen=True)
class Encoder:
    """A Hugging Face folder, and whether its weights are used: the floor of a score is the same encoder without."""

    folder: Path
    pretrained: bool = True

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The folder's config.json. Raises UserError where transformers has no such model."""
        try:
            with quiet():
                return AutoConfig.from_pretrained(self.folder, **SAFE)
        except Exception as error:  # each of transformers' classes checks its fields with errors of its own
            raise UserError(
                f"cannot be read: {first_line(error)}",
                where=self.folder / "config.json",
                expected="the configuration of one of transformers' encoders",
            ) from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The folder's tokenizer. Raises UserError where there is none."""
        if not list(self.folder.glob("tokenizer*")) and not list(self.folder.glob("vocab*")):
            raise UserError(
                "has no tokenizer", where=self.folder, expected="tokenizer.json beside config.json"
            )
        try:
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(self.folder, **SAFE)
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise UserError(
                f"its tokenizer cannot be read: {first_line(error)}",
                where=self.folder,
                expected="tokenizer.json beside a valid config.json",
            ) from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise UserError(
                "its tokenizer is none of the library tokenizers",
                where=self.folder,
                expected="tokenizer.json",
            )
        most, rows = max(tokenizer.get_vocab().values(), default=0), getattr(self.config, "vocab_size", None)
        if isinstance(rows, int) and most >= rows:
            raise UserError(
                f"its tokenizer has ids up to {most}",
                where=self.folder,
                expected=f"ids below {rows}, the vocab_size in config.json",
                remedy="put the model's own tokenizer beside it",
            )
        return tokenizer

    @property
    def max_positions(self) -> int:
        """Longest input that it has positions for."""
        stated = getattr(self.config, "max_position_embeddings", None)
        if not isinstance(stated, int) or stated <= 0:
            return 1 << 20  # relative positions
        return stated - self.first_position

    @property
    def first_position(self) -> int:
        """Position of a text's first token: RoBERTa and its like count from behind the padding's id."""
        is_offset = self.config.model_type in ("roberta", "xlm-roberta", "camembert")
        return (self.config.pad_token_id or 0) + 1 if is_offset else 0

    def builder(self, max_length: int) -> InputBuilder:
        """Return what builds inputs of at most `max_length` tokens, or as many as it has positions for."""
        return InputBuilder(self.tokenizer, min(max_length, self.max_positions), self.direction == BACKWARDS)

    @property
    def reads_one_way(self) -> bool:
        """Whether a token sees only one side of it."""
        return bool(getattr(self.config, "is_decoder", False)) or self.config.model_type in DECODERS

    @property
    def direction(self) -> str:
        """What config.json states of a model that reads in one direction: objective.causal.direction of its run."""
        return str(getattr(self.config, "direction", ""))

    @property
    def input_format(self) -> DataSettings:
        """What config.json states of the separators of pairs that the model was trained on: data.separators and
        data.separator_gap."""
        stated = str(getattr(self.config, "separators", SEPARATORS[0]))
        return DataSettings(
            separators=stated, separator_gap=bool(getattr(self.config, "separator_gap", False))
        )

    @property
    def kind(self) -> str:
        """What a result's name tells it from other ways to evaluate the same folder by; empty for the usual one."""
        return ""

    @cached_property
    def identity(self) -> dict[str, str]:
        """What a score of it is known by: hashes of its weights, where it has some, of config.json with what
        tokenizer_config.json states of inputs, and of its tokenizer."""
        tokens, stated = deciding_inputs(self.tokenizer)
        config = [self._stated, stated]
        known = {
            "config": sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
            "tokenizer": sha256(tokens.encode()).hexdigest(),
        }
        if not self.pretrained:
            return {"weights": NOT_PRETRAINED, **known}
        if not (weights := weights_hash(self.folder)):
            raise UserError(
                "has no *.safetensors",
                where=self.folder,
                expected="a Hugging Face folder; a pytorch_model.bin could run code and is not read",
                remedy="maskmill export RUN writes one",
            )
        return {"weights": weights, **known}

    @property
    def _stated(self) -> dict[str, Any]:
        """The fields of config.json that a score can depend on, as they are in the file: the defaults of the others are
        those of a version of transformers, which a result states."""
        _ = self.config  # refuses a damaged one
        fields = json.loads((self.folder / "config.json").read_text("utf-8"))
        return {name: value for name, value in fields.items() if name not in UNINFLUENTIAL}

    def load(
        self, kind: str, seed: int, config: dict[str, Any] | None = None, has_head: bool = False
    ) -> PreTrainedModel:
        """Return transformers' model `AutoModel` + `kind`, float32 and in evaluation mode. A head that the folder
        lacks, or all weights where the encoder is not pretrained, are drawn by `seed`. `config`: changed fields of its
        config.

        Raises UserError where transformers has no such class for it, where weights of the encoder are absent, and, with
        `has_head`, where those of the head are."""
        auto = getattr(transformers, f"AutoModel{kind}")
        settings = self.config.__class__.from_dict({**self.config.to_dict(), **(config or {})})
        torch.manual_seed(seed)
        try:
            with quiet():
                if not self.pretrained:
                    return auto.from_config(settings, trust_remote_code=False).float().eval()
                _ = self.identity  # refuses a folder without safetensors before transformers looks further
                model, info = auto.from_pretrained(
                    self.folder,
                    config=settings,
                    use_safetensors=True,
                    dtype=torch.float32,
                    ignore_mismatched_sizes=True,  # a head of another number of labels is redrawn
                    output_loading_info=True,
                    **SAFE,
                )
        except (ValueError, OSError, RuntimeError, KeyError, SafetensorError) as error:
            raise UserError(
                f"cannot be loaded as AutoModel{kind}: {first_line(error)}",
                where=self.folder,
                expected="whole *.safetensors of what config.json describes",
            ) from error
        absent = [str(key) for key in info["missing_keys"]] + [str(key[0]) for key in info["mismatched_keys"]]
        self._refuse_lacking(model, kind, absent, has_head)
        return model.eval()

    def _refuse_lacking(self, model: PreTrainedModel, kind: str, absent: list[str], has_head: bool) -> None:
        """Raise UserError where weights of the encoder, or with `has_head` of the head, are among the absent ones."""
        of_encoder = f"{model.base_model_prefix}." if kind else ""
        lacking = [k for k in absent if has_head or (k.startswith(of_encoder) and "pooler." not in k)]
        if lacking:
            raise UserError(
                f"lacks weights of {type(model).__name__}: {', '.join(sorted(lacking)[:3])}",
                where=self.folder,
                expected="a model with the head for it" if has_head else "what its config.json describes",
            )


@dataclass(frozen=True)
class InMemory(Encoder):
    """A folder of config.json and tokenizer, and weights that are not in it: those of a model in training."""

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    """By the names of the class that config.json states."""

    def load(
        self, kind: str, seed: int, config: dict[str, Any] | None = None, has_head: bool = False
    ) -> PreTrainedModel:
        """Return transformers' model with copies of the weights; a head that they lack is drawn by `seed`. See
        Encoder.load.

        Raises UserError where weights of the encoder, or with `has_head` of the head, are absent."""
        model = Encoder(self.folder, pretrained=False).load(kind, seed, config)
        inner = "" if kind else f"{model.base_model_prefix}."
        state = {name.removeprefix(inner): tensor for name, tensor in self.weights.items()}
        model.load_state_dict(state, strict=False)
        given = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if name in state}
        absent = [name for name, p in model.named_parameters() if id(p) not in given]
        self._refuse_lacking(model, kind, absent, has_head)
        return model


def width_of(model: PreTrainedModel) -> int:
    """Return the width of a bare model's hidden states."""
    return int(getattr(model.config, "hidden_size", None) or model.config.d_model)


UNINFLUENTIAL = {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}
"""Fields of a config.json that no score depends on."""


def find_encoders(source: Path) -> list[Path]:
    """Return the models of a Hugging Face folder, or of a run folder's export: several where its objective exports
    several. Raises UserError where there is none."""
    is_run = (source / CONFIG).is_file()
    folder = source / EXPORT if is_run else source
    if found := model_folders(folder):
        return found
    if is_run:
        raise UserError("has not been exported yet", where=source, remedy=f"maskmill export {source}")
    raise UserError("is no Hugging Face model", where=source, expected="a folder with config.json")

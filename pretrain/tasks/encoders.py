"""Load an encoder of any Hugging Face folder, with or without its weights, and choose how it is computed.

An `Encoder` is the model of a folder; `InMemory` is a model in training; `TwoWay` is two models of one direction
each, side by side.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from data_pipeline.errors import UserError
from data_pipeline.io.model_folder import weights_hash
from data_pipeline.settings import SEPARATORS, DataSettings
from pretrain.huggingface.config_json import read_config
from pretrain.huggingface.load import (
    first_position,
    load_config,
    load_model,
    load_tokenizer,
    max_positions,
    reads_one_way,
    refuse_lacking,
)
from pretrain.run.files import CONFIG, EXPORT
from pretrain.run.folder import model_folders
from pretrain.tasks.inputs import InputBuilder, deciding_inputs

# Choose where and how precisely an encoder is computed.


def chosen_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def precision(wanted: str, device: torch.device, *, fine_tuned: bool) -> AbstractContextManager[Any]:
    """Return the autocast of a forward pass: bf16, or none for fp32. Auto is bf16 on CUDA where a model is
    `fine_tuned`, and fp32 elsewhere: the heads of pretraining are judged by log-probabilities as they are, of BLiMP by
    which of two sums of them is larger, and what rounds counts against the encoder."""
    used = used_precision(wanted, device, fine_tuned=fine_tuned)
    return torch.autocast(device.type, torch.bfloat16, enabled=used == "bf16")


def used_precision(wanted: str, device: torch.device, *, fine_tuned: bool) -> str:
    """Return fp32 or bf16: what `wanted` comes to on a device, see `precision`."""
    return wanted if wanted != "auto" else "bf16" if fine_tuned and _is_gpu(device) else "fp32"


def tokens_per_pass(device: torch.device) -> int:
    """Return how many tokens a forward pass without gradients takes: on a CPU what its caches hold, since 8,192 take up
    to twice as long there (docs/evidence/benchmarks_cpu.md), elsewhere enough for the device to be busy."""
    return 8192 if _is_gpu(device) else 1024


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def conditions() -> dict[str, Any]:
    """Return what a score's last digits depend on beside the precision: the CPU threads and the device."""
    device = chosen_device()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"CPU with {torch.backends.cpu.get_cpu_capability()}"
    return {"threads": torch.get_num_threads(), "device": name}


def use_threads(threads: int) -> None:
    """Compute with so many CPU threads; 0: as many as there are cores."""
    if threads:
        torch.set_num_threads(threads)


# Load an encoder of a folder, or of a model in training.


NOT_PRETRAINED = "not pretrained"
FORWARDS, BACKWARDS = "left_to_right", "right_to_left"


@dataclass(frozen=True)
class Encoder:
    """A Hugging Face folder, and whether its weights are used: the floor of a score is the same encoder without."""

    folder: Path
    pretrained: bool = True

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The folder's config.json. Raises UserError where transformers has no such model."""
        return load_config(self.folder)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The folder's tokenizer. Raises UserError where there is none."""
        return load_tokenizer(self.folder, self.config)

    @property
    def max_positions(self) -> int:
        """Longest input that it has positions for."""
        return max_positions(self.config)

    @property
    def first_position(self) -> int:
        """Position of a text's first token."""
        return first_position(self.config)

    def builder(self, max_length: int) -> InputBuilder:
        """Return what builds inputs of at most `max_length` tokens, or as many as it has positions for."""
        return InputBuilder(self.tokenizer, min(max_length, self.max_positions), self.direction == BACKWARDS)

    @property
    def reads_one_way(self) -> bool:
        """Whether a token sees only one side of it."""
        return reads_one_way(self.config)

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
        fields = read_config(self.folder)
        return {name: value for name, value in fields.items() if name not in UNINFLUENTIAL}

    def load(
        self, kind: str, seed: int, config: dict[str, Any] | None = None, has_head: bool = False
    ) -> PreTrainedModel:
        """Return transformers' model `AutoModel` + `kind`, float32 and in evaluation mode. A head that the folder
        lacks, or all weights where the encoder is not pretrained, are drawn by `seed`. `config`: changed fields of its
        config.

        Raises UserError where transformers has no such class for it, where weights of the encoder are absent, and, with
        `has_head`, where those of the head are."""
        if self.pretrained:
            _ = self.identity  # refuses a folder without weights, and says what to do
        settings = self.config.__class__.from_dict({**self.config.to_dict(), **(config or {})})
        return load_model(self.folder, kind, seed, settings, has_head, self.pretrained)


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
        refuse_lacking(model, kind, absent, has_head, self.folder)
        return model


def refuse_discriminator(encoder: Encoder) -> None:
    """Raise UserError for ELECTRA's discriminator."""
    architecture = str((encoder.config.architectures or [""])[0])
    if "ForPreTraining" in architecture and encoder.config.model_type == "electra":
        raise UserError(
            "is a discriminator, which predicts no words",
            where=encoder.folder,
            remedy="score the generator's folder",
        )


@contextmanager
def projected_rows(model: PreTrainedModel, index: Tensor, places: Tensor) -> Iterator[None]:
    """Restrict the model's logits of words, within the block, to the tokens at (index, places), (tokens, vocabulary):
    the projection to the vocabulary would otherwise be most of the work."""
    projection = model.get_output_embeddings()
    assert isinstance(projection, nn.Module)

    def at_places(module: nn.Module, hidden: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (hidden[0][index, places], *hidden[1:])

    hook = projection.register_forward_pre_hook(at_places)
    try:
        yield
    finally:
        hook.remove()


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


# Put the states of two models of one direction each side by side, as ELMo does (Peters et al. 2018): the alternative to
# an encoder that reads both ways, against which Devlin et al. 2019, section 5.1, argue.


class States(NamedTuple):
    """What transformers' bare models return by the same names: (examples, tokens, width of both)."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...]


class SideBySide(nn.Module):
    """Two models, of which the second one reads each example's tokens in reversed order. Padding is on the right."""

    def __init__(self, forwards: PreTrainedModel, backwards: PreTrainedModel) -> None:
        super().__init__()
        self.forwards, self.backwards = forwards, backwards
        self.config = deepcopy(forwards.config)
        self.config.hidden_size += backwards.config.hidden_size

    def forward(self, attention_mask: Tensor, output_hidden_states: bool = True, **batch: Tensor) -> States:
        """Return the states of both at each token of the text, first those of the one that reads forwards."""
        lengths = attention_mask.sum(1, keepdim=True)
        places = torch.arange(attention_mask.shape[1], device=attention_mask.device).expand_as(attention_mask)
        turned = torch.where(places < lengths, lengths - 1 - places, places)  # its own inverse
        batches = batch, {name: values.gather(1, turned) for name, values in batch.items()}
        first, second = (
            model(**one, attention_mask=attention_mask, output_hidden_states=True).hidden_states
            for model, one in zip((self.forwards, self.backwards), batches, strict=True)
        )
        both = tuple(
            torch.cat([one, other.gather(1, turned[..., None].expand_as(other))], -1)
            for one, other in zip(first, second, strict=True)
        )
        return States(both[-1], both)


@dataclass(frozen=True)
class TwoWay(Encoder):
    """A folder whose model reads from left to right, and `other`, whose model reads from right to left."""

    other: Path = Path()

    def checked(self) -> "TwoWay":
        """Return itself. Raises UserError unless both directions are there, of one vocabulary and as many layers."""
        backwards = Encoder(self.other)
        for one, direction in ((self, FORWARDS), (backwards, BACKWARDS)):
            if one.direction != direction:
                raise UserError(
                    f"reads {one.direction.replace('_', ' ') or 'both ways'}",
                    where=one.folder,
                    expected=f"the export of a run with objective.causal.direction={direction}",
                )
        if self.identity["tokenizer"] != backwards.identity["tokenizer"]:
            raise UserError("has another vocabulary", where=self.other, expected=f"that of {self.folder}")
        layers = [encoder.config.num_hidden_layers for encoder in (self, backwards)]
        if len(set(layers)) > 1:
            raise UserError(
                f"has {layers[1]} layers", where=self.other, expected=f"{layers[0]}, as the other"
            )
        return self

    @property
    def kind(self) -> str:
        """See Encoder.kind."""
        return "two-way"

    @property
    def identity(self) -> dict[str, str]:
        """Return the hashes of both; see Encoder.identity."""
        other = self._one(self.other).identity
        hashes = {"beside": other["weights"], "beside_config": other["config"]}
        return {**self._one(self.folder).identity, **hashes}

    def load(self, kind: str, seed: int, config: dict[str, Any] | None = None, has_head: bool = False) -> Any:
        """Return both bare models side by side; see Encoder.load. Raises UserError for a model with a head."""
        if kind:
            raise UserError(
                f"has no AutoModel{kind} of two models",
                where="--beside",
                expected="features=last, or other layers",
            )
        models = [
            self._one(folder).load("", seed + 1000 * i, config)
            for i, folder in enumerate((self.folder, self.other))
        ]
        return SideBySide(*models).eval()

    def _one(self, folder: Path) -> Encoder:
        return replace(Encoder(folder), pretrained=self.pretrained)

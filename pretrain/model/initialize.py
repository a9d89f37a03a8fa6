"""Set the parameters of a module from a seed or from stored tensors, and define vocabulary padding.

A tensor that a module holds twice (the tied embedding) has one name here: the first in definition order, as
`named_parameters` yields it. Checkpoints and exports hold such names and no padding rows.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from pretrain.config.encoder import EncoderSettings

VOCABULARY_MULTIPLE = 64
"""The vocabulary is padded to a multiple of this, which matrix kernels need to be fast."""

_NORMS = (nn.LayerNorm, nn.RMSNorm)
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def padded(vocabulary_size: int) -> int:
    """Return the number of embedding rows for a vocabulary of `vocabulary_size`."""
    return -(-vocabulary_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def bare(kind: type[AnyModule], *sizes: int, **options: Any) -> AnyModule:
    """Build a layer on the default device without setting its parameters or drawing from the global generator;
    `initialize` sets them. As nn.utils.skip_init, which would import sympy to give them storage."""
    layer = kind(*sizes, device="meta", **options)
    for name, shapes in layer.named_parameters(recurse=False):
        setattr(layer, name, nn.Parameter(torch.empty(shapes.shape, dtype=shapes.dtype)))
    return layer


def bare_embedding(rows: int, size: int) -> nn.Embedding:
    """As `bare`. nn.Embedding itself would draw from a normal, which for tensors without storage, as `bare` makes
    them first, imports all of torch.compile: more than a second."""
    return nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)


def vocabulary_rows(module: nn.Module) -> dict[str, int]:
    """Return the parameters of `module` with a row per entry of the padded vocabulary, and their number of real
    rows, as its submodules declare in their attribute `vocabulary_rows`."""
    return {
        f"{prefix}.{name}".lstrip("."): rows
        for prefix, part in module.named_modules()
        for name, rows in getattr(part, "vocabulary_rows", {}).items()
    }


def bare_norm(settings: EncoderSettings, width: int) -> nn.Module:
    """As `bare`: the norm that the settings choose, LayerNorm or RMSNorm (Zhang & Sennrich 2019), for vectors of this
    width."""
    if settings.norm == "rms":
        return bare(nn.RMSNorm, width, eps=settings.layer_norm_eps)
    return bare(nn.LayerNorm, width, eps=settings.layer_norm_eps, bias=settings.norm_biases)


def bare_residual(settings: EncoderSettings, inputs: int, outputs: int) -> nn.Linear:
    """As `bare`: a Linear layer whose weights start smaller the more layers there are, with
    `encoder.scale_residual_init` (Radford et al. 2019, GPT-2, section 2.3)."""
    layer = bare(nn.Linear, inputs, outputs, bias=settings.biases)
    if settings.scale_residual_init:
        layer.initializer_scale = (2 * settings.layers) ** -0.5  # read by `initialize`
    return layer


@torch.no_grad()
def initialize(module: nn.Module, seed: int, std: float) -> None:
    """Set every parameter of `module`: biases 0, norms 1 and 0, weights from a normal of mean 0 and deviation `std`
    cut at two deviations (google-research/bert, modeling.py), padding rows 0. A module with an `initializer_scale` has
    `std` times that; with a scale of 0, zeros.

    Each tensor has its own generator, keyed by seed and name: equal on every rank, independent of other draws, and
    equal for the same encoder under another objective."""
    from data_pipeline.rng import text_key

    real_rows = vocabulary_rows(module)
    norms = {id(p) for m in module.modules() if isinstance(m, _NORMS) for p in m.parameters(False)}
    scales = {id(m.weight): m.initializer_scale for m in module.modules() if hasattr(m, "initializer_scale")}
    for name, parameter in module.named_parameters():
        scale = float(scales.get(id(parameter), 1.0))  # type: ignore[arg-type]
        if name.endswith("bias") or not scale:
            parameter.zero_()
        elif id(parameter) in norms:
            parameter.fill_(1.0)
        else:
            generator = torch.Generator().manual_seed(text_key(f"{seed} {name}"))
            rows = real_rows.get(name, parameter.shape[0])
            drawn = torch.empty((rows, *parameter.shape[1:]))
            deviation = std * scale
            limits = {"a": -2 * deviation, "b": 2 * deviation}
            nn.init.trunc_normal_(drawn, std=deviation, **limits, generator=generator)
            parameter.zero_()
            parameter[:rows].copy_(drawn)


def without_padding(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip vocabulary padding from `state` (names of `module`'s parameters -> tensors of the same shapes)."""
    rows = vocabulary_rows(module)
    return {name: tensor[: rows[name]] if name in rows else tensor for name, tensor in state.items()}


@torch.no_grad()
def load_parameters(
    module: nn.Module, state: Mapping[str, Tensor], *, where: str = "", partial: bool = False
) -> list[str]:
    """Copy `state` into the parameters of `module`, by name, with or without vocabulary padding; padding rows
    become 0. Returns the names that the module has and `state` lacks, or `state` has and the module lacks: none
    unless `partial`. Raises UserError for such names otherwise, and for a shape that does not fit."""
    parameters, real_rows = dict(module.named_parameters()), vocabulary_rows(module)
    unmatched = sorted(parameters.keys() ^ state.keys())
    if unmatched and not partial:
        raise UserError(
            f"weights do not match the model: {_first(unmatched)}",
            where=where,
            expected=f"{len(parameters)} tensors by name, found {len(state)}",
            remedy="check objective.name and encoder.layers",
        )
    for name in parameters.keys() & state.keys():
        rows = real_rows.get(name, parameters[name].shape[0])
        _copy(name, parameters[name], state[name], rows, where)
    return unmatched


def _copy(name: str, parameter: nn.Parameter, tensor: Tensor, rows: int, where: str) -> None:
    if tensor.shape[1:] != parameter.shape[1:] or tensor.shape[0] not in (rows, parameter.shape[0]):
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)}",
            where=where,
            expected=f"{(rows, *parameter.shape[1:])}",
            remedy="check the encoder settings and the vocabulary",
        )
    parameter.zero_()
    parameter[:rows].copy_(tensor[:rows])


def _first(names: list[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")

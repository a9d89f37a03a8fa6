"""Register the objectives by name, each with its data and its model. One line registers one."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.sequences.registry import PAIRS, SINGLES, UNLABELLED
from data_pipeline.settings import MASKINGS, UNMASKED
from pretrain.config.encoder import MODERN, NARROW, SHARED, VARIANTS
from pretrain.config.settings import ObjectiveSettings, RunConfig

if TYPE_CHECKING:
    from pretrain.objectives.base import Objective


class Registered(NamedTuple):
    """Facts about an objective that are available without importing its module and torch."""

    place: str
    """module:class"""
    sequences: tuple[str, ...]
    """Values of data.sequences that it can learn from; the first one is its default."""
    variants: tuple[str, ...] = (MODERN,)
    """The variants of encoders (config/encoder.py) that its models have a place for."""
    masking: tuple[str, ...] = MASKINGS
    """Values of data.masking that it can learn from."""
    judges_pairs: bool = False
    """Whether it learns the labels of pairs: its figures then have the name of their task."""
    has_memory: bool = False
    """Whether its model keeps memory of streams between steps: each row of the global batch is then a stream, in
    document order. Its setting `objective.NAME.memory_length`, if it has one, turns that off with 0."""
    teacher: str = ""
    """Its setting that names the Hugging Face folder of a finished model which its loss reads; empty: it reads none."""
    needs: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    """Further settings that it restricts -> their allowed values."""

    @property
    def encoder(self) -> tuple[str, ...]:
        """The settings of those variants."""
        return tuple(name for variant in self.variants for name in VARIANTS[variant])


_ANY = (*SINGLES, *UNLABELLED, *PAIRS)
_ROBERTAS = ("full_sentences", "doc_sentences", "segment_pair", "sentence_pair")
"""The inputs that its paper compares (Liu et al. 2019, section 4.2); of pairs only the text is learnt from."""
_ROBERTA_NEEDS: Mapping[str, tuple[Any, ...]] = {"encoder.segments": (0,), "encoder.activation": ("gelu",)}

_ALBERTS = ("sentence_order", "segment_pair", "sentence_pair")
"""The pair tasks that its paper compares (Lan et al. 2020, section 4.6)."""

OBJECTIVES = {
    "bert": Registered("pretrain.objectives.bert:Bert", PAIRS, judges_pairs=True),
    "mlm": Registered("pretrain.objectives.mlm:Mlm", _ANY),
    "albert": Registered("pretrain.objectives.bert:Albert", _ALBERTS, (NARROW, SHARED), judges_pairs=True),
    "ernie": Registered("pretrain.objectives.bert:Ernie", PAIRS, judges_pairs=True),
    "causal": Registered("pretrain.objectives.causal:Causal", SINGLES, masking=(UNMASKED,)),
    "electra": Registered("pretrain.objectives.electra:Electra", _ANY, (NARROW, MODERN)),
    "electra_two_stage": Registered(
        "pretrain.objectives.electra:SecondStage", _ANY, variants=(), teacher="generator"
    ),
    "distilbert": Registered(
        "pretrain.objectives.distilbert:DistilBert",
        _ANY,
        teacher="teacher",
        needs={"encoder.segments": (0,)},
    ),
    "spanbert": Registered("pretrain.objectives.spanbert:SpanBert", SINGLES),
    "roberta": Registered(
        "pretrain.objectives.mlm:Roberta",
        _ROBERTAS,
        needs={"vocabulary.kind": ("bpe",), **_ROBERTA_NEEDS},
    ),
    "distilroberta": Registered(
        "pretrain.objectives.distilbert:DistilRoberta",
        _ANY,
        teacher="teacher",
        needs={"vocabulary.kind": ("bpe",), **_ROBERTA_NEEDS},
    ),
    "xlmr": Registered(
        "pretrain.objectives.mlm:XlmR",
        _ROBERTAS,
        needs={"vocabulary.kind": ("unigram",), "vocabulary.specials": ("roberta",), **_ROBERTA_NEEDS},
    ),
    "xlnet": Registered(
        "pretrain.objectives.xlnet:XlNet",
        (*PAIRS, *UNLABELLED, *SINGLES),
        variants=(),
        has_memory=True,
        needs={
            "vocabulary.kind": ("unigram",),
            "vocabulary.specials": ("xlnet",),
            "encoder.segments": (0,),
        },
    ),
}
"""Name in `objective.name` -> objective."""


def registered(name: str) -> Registered:
    """Find the entry of this name. Raises UserError for an unknown one."""
    if name not in OBJECTIVES:
        raise UserError(f"unknown {name!r}", where="objective.name", expected=" or ".join(OBJECTIVES))
    return OBJECTIVES[name]


def keeps_memory(config: RunConfig) -> bool:
    """Return whether the run's model keeps memory of streams between steps."""
    on = config.objective.of_member().get("memory_length", 1) > 0
    return on and registered(config.objective.name).has_memory


def load(config: RunConfig) -> "Objective":
    """Make the objective that a run's settings name; its module is imported only now. Raises UserError for an unknown
    name."""
    module, _, attribute = registered(config.objective.name).place.partition(":")
    objective: Objective = getattr(import_module(module), attribute)(config)
    return objective


def with_defaults(name: str) -> "Objective":
    """Make the objective of this name with default settings, for what asks without a run."""
    config = RunConfig(objective=ObjectiveSettings(name=name))
    config.data.sequences = registered(name).sequences[0]
    meet_needs(config)
    return load(config)


def meet_needs(config: RunConfig) -> None:
    """Set restricted settings with a disallowed value to the objective's first allowed value."""
    for key, values in registered(config.objective.name).needs.items():
        group, _, name = key.partition(".")
        if getattr(getattr(config, group), name) not in values:
            setattr(getattr(config, group), name, values[0])

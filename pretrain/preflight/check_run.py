"""Check shards, vocabulary, lengths and batch of a run, and derive the plan of each phase and the run's identity.

`check_run` is called once, by `check_start` of pretrain/training/before_ranks.py, with the other checks of a start: run
folder, lock, weights to start from, memory, and the space on disk (`check_room` here). Ranks only derive the same plan,
by `plan_phases`. Does not import torch, which takes seconds.
"""

import math
import shutil
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.errors import UserError
from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.loader.loader import DynamicMasking, order_of, shards_vocabulary
from data_pipeline.loader.order import Order
from data_pipeline.loader.packing import Caps, Separators, caps_for, fitting_tokens, separators_of
from data_pipeline.sequences.registry import PairTask, pair_task
from data_pipeline.settings import (
    AFFECTING_MASKS,
    LATER,
    SEPARATORS,
    SEQUENTIAL,
    UNMASKED,
    setting_of,
    settings_affecting_bytes,
)
from data_pipeline.shards.index import Index, Split
from data_pipeline.shards.shard import verify_full
from data_pipeline.sources.snapshot import as_stated, other_sources, stated_sources
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import load_vocabulary
from data_pipeline.vocabulary.unigram import LAYOUTS
from pretrain.checkpoint.store import checkpoints
from pretrain.config.phases import Phase, batch_sizes, on_cpus, phases_of, refuse_idle_ranks
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import resolve_precision, sees_gpus
from pretrain.objectives.registry import load, registered
from pretrain.objectives.teacher import check_teacher, has_teacher, teacher_identity
from pretrain.optim.registry import optimizer_record
from pretrain.run.human import in_bytes
from pretrain.run.time_budget import shares_digest

if TYPE_CHECKING:
    from pretrain.objectives.base import Objective


@dataclass(frozen=True)
class Plan:
    """The checked configuration of one phase, with what follows from it."""

    phase: Phase
    index: Index
    streams: int
    precision: str
    masking: DynamicMasking | None
    """Re-masks training examples, where data.dynamic_masking asks for it."""
    separators: Separators | None = None
    """Changes the [SEP] of all examples, where data.separators asks for it."""

    @cached_property
    def objective(self) -> "Objective":
        """The training objective."""
        return load(self.phase.config)

    def order(self, config: RunConfig) -> Order:
        """Return which examples form which global batch."""
        return order_of(
            self.index,
            seed=config.run.seed,
            global_batch=config.train.global_batch,
            streams=self.streams,
            sequential=config.data.order == SEQUENTIAL,
            ramp_from=config.train.batch_ramp_from,
            ramp_batches=config.train.batch_ramp,
            both_directions=config.data.both_directions,
        )

    @cached_property
    def sizes(self) -> BatchSizes:
        """How many examples each global batch of the phase has."""
        return self.order(self.phase.config).sizes

    def step_flops(self, config: RunConfig) -> float:
        """Return the operations per training step over all ranks, for batches and examples of mean size."""
        split, vocabulary = self.index.train, self.index.vocabulary
        mean, examples = split.tokens / max(split.examples, 1), self.examples // max(config.train.steps, 1)
        masked = round(examples * split.masked / max(split.examples, 1))
        squares = round(examples * mean * mean)
        return self.objective.flops(
            vocabulary.size, tokens=round(examples * mean), squares=squares, masked=masked
        )

    @property
    def examples(self) -> int:
        """Examples of all the phase's steps, if no batch is skipped."""
        return self.sizes.before(self.phase.config.train.steps)

    def caps(self, split: Split, config: RunConfig) -> Caps:
        """Return the maximum contents of a micro-batch of this split's examples."""
        return self._caps(split, config, None)

    def caps_of_one_shape(self, config: RunConfig, ranks: int) -> Caps:
        """Return the caps for training examples, but smaller, so that micro-batches padded to the caps are full."""
        split, variance = self.index.train, self.index.length_variance
        length, share = self.index.settings["sequence_length"], math.ceil(config.train.global_batch / ranks)
        tokens = None
        if variance is not None:
            most = config.train.micro_batch * length
            tokens = fitting_tokens(split.tokens / split.examples, variance, length, share, most)
        return self._caps(split, config, tokens)

    def _caps(self, split: Split, config: RunConfig, tokens: int | None) -> Caps:
        masker = self.masking.masker(0) if self.masking and split is self.index.train else None
        length = self.index.settings["sequence_length"]
        return caps_for(split, config.train.micro_batch, length, masker, tokens)


def plan_phases(config: RunConfig, ranks: int) -> list[Plan]:
    """Return the plan of each phase of the run; where ranks are still to choose train.micro_batch, with that for CPUs.
    Raises UserError for shards that this machine cannot read, or not as the settings ask for."""
    phases = phases_of(on_cpus(config, ranks))
    return [_plan(phase, Index.load(phase.config.train.shards or phase.config.data.out)) for phase in phases]


def _plan(phase: Phase, index: Index) -> Plan:
    config = phase.config
    streams = batch_sizes(config).streams
    plan = Plan(
        phase, index, streams, _precision(config), _masking(config, index), _separators(config, index)
    )
    plan.order(config)  # raises for an order in which these shards cannot be read
    plan.caps(index.train, config)  # raises for examples that do not fit into a micro-batch
    return plan


def verify_shards(plans: list[Plan]) -> None:
    """Raise UserError if data.verify=full and a file of the shards is not what index.json says."""
    for plan in plans:
        if plan.phase.config.data.verify == "full":
            verify_full(plan.index)


def check_run(config: RunConfig, ranks: int) -> list[Plan]:
    """Return `plan_phases`. Raises UserError for the first problem in any phase, with what to do."""
    if not config.run.dir:
        raise UserError("run.dir is empty", where="settings", expected="a folder for the run")
    if config.monitor.tracker == "tensorboard" and find_spec("tensorboardX") is None:
        raise UserError(
            "not installed: tensorboardX",
            where="monitor.tracker=tensorboard",
            remedy='pip install "maskmill[tensorboard]"',
        )
    plans = [_plan(phase, _checked_index(phase, ranks)) for phase in phases_of(on_cpus(config, ranks))]
    verify_shards(plans)
    for plan in plans[1:]:
        if plan.index.vocabulary.sha256 != plans[0].index.vocabulary.sha256:
            raise UserError(
                f"the vocabulary is not that of phase {plans[0].phase.name}, {plans[0].index.folder}",
                where=plan.index.folder,
                remedy="prepare the shards of all phases with one vocabulary",
            )
        if _judged(plan.phase.config) != _judged(plans[0].phase.config):
            raise UserError(
                f"data.sequences={plan.phase.config.data.sequences} has pairs of another task than phase "
                f"{plans[0].phase.name}'s {plans[0].phase.config.data.sequences}",
                where=f"phase {plan.phase.name}",
                remedy="choose sequences of one task for all phases",
            )
    return plans


def _checked_index(phase: Phase, ranks: int) -> Index:
    """Return the index of the shards that the phase trains on. Raises UserError if they and its settings do not fit."""
    config = phase.config
    refuse_idle_ranks(config, ranks, "settings")
    shards = config.train.shards or config.data.out
    index = Index.load(shards)
    check_data(config, index, shards)
    if has_teacher(config):
        check_teacher(config, shards_vocabulary(index))
    return index


def check_data(config: RunConfig, index: Index, shards: str) -> None:
    """Raise UserError if the shards in the folder `shards` are not what this configuration trains on."""
    if index.train.examples == 0:
        raise UserError("holds no training examples", where=shards)
    longest = max(index.train.max_tokens, index.held_out.max_tokens)
    if longest > config.encoder.max_positions:
        raise UserError(
            f"the shards have examples of {longest} tokens, beyond the model's positions",
            where=shards,
            expected=f"at most encoder.max_positions={config.encoder.max_positions}",
        )
    sequences, fitting = index.settings.get("sequences"), registered(config.objective.name).sequences
    if sequences not in fitting:
        raise UserError(
            f"the shards hold {sequences}, objective.name={config.objective.name} needs {' or '.join(fitting)}",
            where=shards,
            remedy="prepare them with this recipe",
        )
    known = config.encoder.segments  # 0: one segment id for all
    if (segments := index.columns.get("segment_ids", 0)) > known > 0:
        raise UserError(
            f"the shards number {segments} segments, encoder.segments={known}",
            where=shards,
            remedy=f"encoder.segments={segments}, or prepare them with this recipe",
        )
    masking = registered(config.objective.name).masking
    if not (index.train.masked or config.data.dynamic_masking or UNMASKED in masking):
        raise UserError(
            f"no token of the shards is masked, and objective.name={config.objective.name} predicts masked ones",
            where=shards,
            remedy="data.dynamic_masking=true, or prepare them with this recipe",
        )
    if index.train.masked and set(masking) == {UNMASKED}:
        raise UserError(
            f"tokens of the shards are masked, and objective.name={config.objective.name} reads the text itself",
            where=shards,
            remedy=f"prepare them with data.masking={UNMASKED}",
        )
    if _judged(config) != _judged(config, sequences):
        raise UserError(
            f"the shards hold {sequences}, whose pairs are of another task than data.sequences={config.data.sequences}",
            where=shards,
            remedy=f"data.sequences={sequences}",
        )
    if not config.train.shards:
        wanted = settings_affecting_bytes(config.data)
        own = AFFECTING_MASKS if config.data.dynamic_masking else ()  # the shards' masks are replaced
        differing = [
            f"{setting_of(k)}={wanted[k]} (shards: {v})"
            for k, v in {**LATER, **index.settings}.items()
            if wanted.get(k) != v and k not in own
        ]
        if differing:
            raise UserError(
                f"the shards were prepared with other settings: {', '.join(differing)}",
                where=shards,
                remedy="prepare them in another data.out, or name them as train.shards to take them as they are",
            )
    if "vocabulary.kind" in registered(config.objective.name).needs:
        check_vocabulary(config, shards_vocabulary(index), shards)
    if config.data.vocab and Path(config.data.vocab).exists():
        vocabulary = load_vocabulary(config.data.vocab)
        if vocabulary.sha256 != index.vocabulary.sha256:
            raise UserError(
                f"the vocabulary {config.data.vocab} is not the one that made the shards",
                where=shards,
                expected=f"SHA-256 {index.vocabulary.sha256[:12]}..., found {vocabulary.sha256[:12]}...",
                remedy="point data.vocab at the right one, or prepare the shards again",
            )


def _judged(config: RunConfig, sequences: object = None) -> PairTask | None:
    """Return the pair task of these sequences, or of data.sequences; None if the objective has none."""
    judges = registered(config.objective.name).judges_pairs
    return pair_task(sequences or config.data.sequences) if judges else None


def check_sources(config: RunConfig) -> None:
    """Raise UserError if data.sources are others than the shards of data.out were made from, which training would read
    all the same. Shards that train.shards names are taken as they are."""
    for phase in phases_of(config):
        data = phase.config.data
        if not phase.config.train.shards and (there := other_sources(data, data.out)):
            raise UserError(
                f"its shards were made from {there}, not from data.sources={' '.join(as_stated(data))}",
                where=data.out,
                remedy="leave data.sources out, prepare these into another data.out, or name the folder as "
                "train.shards to take it as it is",
            )


def with_sources_of_shards(config: RunConfig) -> RunConfig:
    """Return the settings with the sources that the shards were made from as data.sources, so that config.yaml, the
    report and W&B name no others; unchanged where no log tells. Raises UserError for shards that cannot be read."""
    phases = phases_of(config)
    stated = [stated_sources(p.config.train.shards or p.config.data.out) for p in phases]
    if not config.phases:
        return replace(config, data=replace(config.data, sources=stated[0])) if stated[0] else config
    changed = [
        {**own, "data": {**own.get("data", {}), "sources": sources}} if sources else own
        for own, sources in zip(config.phases, stated, strict=True)
    ]
    return replace(config, phases=changed)


def check_vocabulary(config: RunConfig, vocabulary: Vocabulary, where: object) -> None:
    """Raise UserError if the vocabulary is of another kind, or has other special tokens, than the objective needs;
    `where`: its location."""
    name, needs = config.objective.name, registered(config.objective.name).needs
    specials = " ".join(vocabulary.specials)
    kinds = needs.get("vocabulary.kind", (vocabulary.kind,))
    layouts = [" ".join(LAYOUTS[key].specials) for key in needs.get("vocabulary.specials", ())] or [specials]
    for found, value, fitting in (
        (f"is {vocabulary.kind}", vocabulary.kind, kinds),
        (f"has the special tokens {specials}", specials, layouts),
    ):
        if value not in fitting:
            raise UserError(
                f"the vocabulary {found}",
                where=where,
                expected=f"{' or '.join(fitting)}, which objective.name={name} needs",
                remedy="name another data.vocab and data.out, and run maskmill vocab and maskmill prepare",
            )


def _masking(config: RunConfig, index: Index) -> DynamicMasking | None:
    """Return this run's own masking, however the shards were masked; the vocabulary is the shards'."""
    if not config.data.dynamic_masking:
        return None
    return DynamicMasking.from_settings(config.data, shards_vocabulary(index), config.run.seed)


def _separators(config: RunConfig, index: Index) -> Separators | None:
    if config.data.separators == SEPARATORS[0]:
        return None
    return separators_of(config.data, index, shards_vocabulary(index).tokens)


def _precision(config: RunConfig) -> str:
    cuda = sees_gpus()
    asked = config.train.precision
    if asked == "fp16" and not cuda:
        raise UserError(f"train.precision={asked} needs a GPU", where="settings", expected="fp32 on a CPU")
    return resolve_precision(config, "cuda" if cuda else "cpu")


ADAPTING = ("init_positions", "init_new_words")
"""Settings of how the weights of init_from are adapted: of no matter without it, but for the positions of phases."""


def identity_of(config: RunConfig, plan: Plan) -> dict[str, Any]:
    """Return the settings that determine the weights in one phase: a folder holds one run with one identity.

    Ranks, ZeRO stage, micro-batch and intervals are not in it: they may change at a resume."""
    groups = {name: asdict(config)[name] for name in ("optim", "schedule", "encoder")}
    groups[f"objective.{config.objective.name}"] = config.objective.of_member() | teacher_identity(config)
    return {
        "data": plan.index.identity,
        "vocabulary": plan.index.vocabulary.sha256,
        "objective.name": config.objective.name,
        "data.streams": plan.streams,
        "data.dynamic_masking": dict(plan.masking.identity) if plan.masking else None,
        "run.seed": config.run.seed,
        "train.steps": config.train.steps,
        "train.minutes": config.train.minutes,
        "train.replay": shares_digest(config.train.replay, plan.phase.name),
        "train.global_batch": config.train.global_batch,
        "train.batch_ramp": config.train.batch_ramp,
        "train.batch_ramp_from": config.train.batch_ramp_from,
        "train.precision": plan.precision,
        "train.clip": config.train.clip,
        "data.separators": config.data.separators,
        "data.separator_gap": config.data.separator_gap,
        **{f"{name}.{key}": value for name, group in groups.items() for key, value in group.items()},
        "init_from": config.init_from,
        "init_moments": config.init_moments,
        **{key: getattr(config, key) for key in _adapting(config, plan)},
    }


def _adapting(config: RunConfig, plan: Plan) -> tuple[str, ...]:
    if config.init_from:
        return ADAPTING
    return ("init_positions",) if plan.phase.name else ()


def run_identity(plans: list[Plan]) -> dict[str, Any]:
    """Return the run's identity; with phases, settings that differ are under each phase's name."""
    each = {plan.phase.name: identity_of(plan.phase.config, plan) for plan in plans}
    first = next(iter(each.values()))
    if len(each) == 1:
        return first | ({"phases": list(each)} if list(each) != [""] else {})
    shared = {key for key in first if all(other[key] == first[key] for other in each.values())}
    return {
        "phases": list(each),
        **{key: first[key] for key in first if key in shared},
        **{f"{name}.{key}": own[key] for name, own in each.items() for key in own if key not in shared},
    }


# Disk space for a run's checkpoints. Counting parameters takes torch: `surely_has_room` needs their upper bound alone.

DISK_MARGIN = 1.02
"""Bytes for the rest of a checkpoint, metrics and the report."""
MAX_PARAMETERS_PER_MATRIX_ELEMENT = 3
"""Upper bound of the ratio of all parameters to those of the encoder's matrices: biases, norms, heads, a second
model."""


def checkpoint_bytes(config: RunConfig, parameters: float) -> float:
    """Return the bytes of a checkpoint of a model with so many parameters, at most."""
    return parameters * optimizer_record(config.optim.name).checkpoint_bytes * DISK_MARGIN


def surely_has_room(config: RunConfig, vocabulary_size: int) -> bool:
    """Return whether the checkpoints fit even for the largest possible model: then no parameters need counting."""
    encoder, hidden = config.encoder, config.encoder.hidden
    products = 3 if encoder.gated else 2
    layer = 4 * hidden * hidden + products * hidden * encoder.intermediate
    width = max(hidden, encoder.embedding_width)
    matrices = encoder.layers * layer + (vocabulary_size + encoder.max_positions + 2 * hidden) * width
    size = checkpoint_bytes(config, matrices * MAX_PARAMETERS_PER_MATRIX_ELEMENT)
    return size * (most_kept(config) + 1) <= shutil.disk_usage(_existing(Path(config.run.dir))).free


def check_room(config: RunConfig, parameters: int) -> str:
    """Return the space needed and the space free, in words. Raises UserError if the checkpoints do not fit: as many as
    are kept, plus the next one, which is written before the oldest is deleted."""
    folder = Path(config.run.dir)
    there, made, kept = len(checkpoints(folder)), checkpoints_made(config), most_kept(config)
    size = checkpoint_bytes(config, parameters)
    wanted = size * max(1, min(made, kept + 1) - there)
    free = shutil.disk_usage(_existing(folder)).free
    if wanted > free:
        raise UserError(
            f"no room for checkpoints: {kept} of {in_bytes(size)}, and the next one before the "
            f"oldest goes: {in_bytes(wanted)} to come, {in_bytes(free)} free",
            where=folder,
            remedy="make room, choose another run.dir, or keep fewer: checkpoint.keep, checkpoint.keep_every",
        )
    most = "at most " if optimizer_record(config.optim.name).matrix_moments else ""
    return f"checkpoints of {most}{in_bytes(size)}, {kept} kept; {in_bytes(free)} free"


def checkpoints_made(config: RunConfig) -> int:
    """Return the number of checkpoints that the run makes, including the one at the end of each phase, and that of the
    starting weights if it has no steps. Where it is unknown (train.minutes), as many as checkpoint.keep and keep_best
    keep of it, and the next one."""
    made = 0
    for phase in phases_of(config):
        every = phase.config.train.checkpoint_every
        if phase.first is None or phase.last is None:
            made += config.checkpoint.keep + 2 if every else 1
            continue
        every = every or phase.last or 1
        made += phase.last // every - phase.first // every + int(phase.last % every > 0)
    return max(made, 1)


def most_kept(config: RunConfig) -> int:
    """Return the maximum number of checkpoints kept."""
    settings, made = config.checkpoint, checkpoints_made(config)
    others = made // settings.keep_every if settings.keep_every else 0
    best = settings.keep_best and any(phase.config.train.eval_every for phase in phases_of(config))
    return min(made, settings.keep + others + int(best))


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return folder if folder.exists() else _existing(folder.parent)

"""Find settings that contradict each other, with what to change."""

from collections.abc import Iterator
from typing import NamedTuple

from data_pipeline.io.object_store import STORES
from data_pipeline.io.redact import redact, redact_settings
from data_pipeline.settings import MASKINGS, UNMASKED, mask_stages
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.objectives.registry import ENCODER_VARIANTS, OBJECTIVES, registered
from pretrain.preflight.ranges import value_of

KEYS_IN_ENVIRONMENT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the store's own package reads"


class Rule(NamedTuple):
    """A combination of settings that is not allowed."""

    broken: bool
    what: str
    """The settings, with their values, and why they conflict."""
    remedy: str
    """What to set instead."""


def contradictions(config: RunConfig) -> Iterator[Rule]:
    """Return the broken rules. Each single value must already be in its range (preflight/ranges.py)."""
    for rules in (_places(config), _data(config), _exact_mode(config), _model(config), _training(config)):
        yield from (rule for rule in rules if rule.broken)


def _places(config: RunConfig) -> list[Rule]:
    mirror = config.checkpoint.mirror
    return [
        *(
            Rule(
                "://" in value_of(config, key),
                f"{key}={value_of(config, key)} is a URI",
                "name a local or shared folder",
            )
            for key in ("run.dir", "data.vocab", "data.work", "data.tokens", "init_from")
        ),
        Rule(
            bool(mirror) and mirror.partition("://")[0] not in STORES,
            f"checkpoint.mirror={mirror} is not in an object store",
            f"begin it with {' or '.join(f'{store}://' for store in STORES)}",
        ),
        *(
            Rule(
                redact_settings(value_of(config, key)) != value_of(config, key),
                f"{key} holds credentials, and would be written to the run folder",
                KEYS_IN_ENVIRONMENT,
            )
            for key in ("checkpoint.mirror", "data.out", "train.shards")
        ),
        Rule(
            any(redact(uri) != uri for uri in config.data.sources if uri.partition("://")[0] in STORES),
            "data.sources holds credentials, which no object store reads there",
            KEYS_IN_ENVIRONMENT,
        ),
        Rule(
            config.init_moments and not config.init_from,
            "init_moments=true without init_from",
            "set init_from to the run whose moments to keep",
        ),
    ]


def _data(config: RunConfig) -> list[Rule]:
    data, objective, known = config.data, config.objective.name, registered(config.objective.name)
    return [
        Rule(
            bool(config.vocabulary.specials) and config.vocabulary.kind != "unigram",
            f"vocabulary.specials={config.vocabulary.specials} with vocabulary.kind={config.vocabulary.kind}",
            "vocabulary.kind=unigram, or leave vocabulary.specials out",
        ),
        Rule(
            data.sequences not in known.sequences,
            f"objective.name={objective} cannot learn from data.sequences={data.sequences}",
            f"data.sequences={' or '.join(known.sequences)}",
        ),
        Rule(
            not {stage.kind for stage in mask_stages(data)} <= {*known.masking},
            f"objective.name={objective} cannot learn from data.masking={data.masking}",
            f"data.masking={' or '.join(known.masking)}",
        ),
        Rule(
            data.dynamic_masking and data.masking == UNMASKED and not data.mask_stages,
            f"data.dynamic_masking=true with data.masking={UNMASKED}, which masks nothing",
            f"data.dynamic_masking=false, or data.masking={' or '.join(MASKINGS)}",
        ),
        Rule(
            bool(data.mask_stages) and not data.dynamic_masking,
            "data.mask_stages without data.dynamic_masking",
            "data.dynamic_masking=true",
        ),
        Rule(
            data.order == "sequential" and data.bin_width > 0,
            f"data.bin_width={data.bin_width} sorts by length, data.order=sequential keeps the documents' order",
            "data.bin_width=0, or data.order=shuffled",
        ),
        Rule(
            data.mask_prob + data.random_prob > 1,
            f"data.mask_prob={data.mask_prob} and data.random_prob={data.random_prob} sum to more than 1",
            "lower one of them",
        ),
    ]


def _exact_mode(config: RunConfig) -> list[Rule]:
    """What google-research/bert's create_pretraining_data.py does not support."""
    data = config.data
    rules = [
        (
            data.held_out > 0,
            f"sets nothing aside, and data.held_out={data.held_out}",
            "data.held_out=0",
        ),
        (
            data.sentences != "lines",
            f"reads one sentence per line, and data.sentences={data.sentences}",
            "data.sentences=lines",
        ),
        (
            data.sequences != "segment_pair",
            f"makes segment pairs alone, and data.sequences={data.sequences}",
            "data.sequences=segment_pair",
        ),
        (
            not (data.separators and data.segment_ids),
            "makes [CLS] A [SEP] B [SEP] with segments 0 and 1 alone",
            "data.separators=true data.segment_ids=true",
        ),
        (
            data.smoothing != 1 or any(weight != 1 for weight in data.weights),
            "reads all text equally often, and data.smoothing or data.weights asks for something else",
            "data.smoothing=1 and no data.weights",
        ),
        (
            not data.across_languages and len(set(data.languages)) > 1,
            "draws random next segments from all documents, and data.across_languages=false",
            "data.across_languages=true",
        ),
        (
            data.masking != "token",
            f"masks single tokens alone, and data.masking={data.masking}",
            "data.masking=token",
        ),
        (
            data.order != "shuffled" or data.bin_width > 0,
            f"shuffles its examples, and data.order={data.order}, data.bin_width={data.bin_width}",
            "data.order=shuffled data.bin_width=0",
        ),
    ]
    return [
        Rule(data.mode == "exact" and broken, f"data.mode=exact {what}", f"{remedy}, or data.mode=fast")
        for broken, what, remedy in rules
    ]


def _model(config: RunConfig) -> list[Rule]:
    encoder, length, objective = config.encoder, config.data.sequence_length, config.objective.name
    return [
        Rule(
            encoder.segments == 1,
            "encoder.segments=1 tells nothing apart",
            "encoder.segments=2, or 0 for no segment table",
        ),
        Rule(
            encoder.groups > encoder.layers,
            f"encoder.groups={encoder.groups} is above encoder.layers={encoder.layers}",
            "fewer groups, or encoder.sharing=none",
        ),
        Rule(
            encoder.groups > 1 and encoder.sharing == "none",
            f"encoder.groups={encoder.groups} with encoder.sharing=none, which shares nothing",
            "encoder.sharing=all, or encoder.groups=1",
        ),
        Rule(
            length > encoder.max_positions,
            f"data.sequence_length={length} is above encoder.max_positions={encoder.max_positions}",
            f"encoder.max_positions={length}, or shorter sequences",
        ),
        Rule(
            encoder.hidden % encoder.heads != 0,
            f"encoder.hidden={encoder.hidden} is not a multiple of encoder.heads={encoder.heads}",
            "change one of them",
        ),
        *(
            Rule(
                value_of(config, key) not in values,
                f"{key}={value_of(config, key)} does not fit objective.name={objective}",
                f"choose {' or '.join(map(str, values))}",
            )
            for key, values in registered(objective).needs.items()
        ),
        *(
            Rule(
                value != getattr(EncoderSettings(), name) and name not in registered(objective).encoder,
                f"models of objective.name={objective} have no encoder.{name}, got {value}",
                "leave it out",
            )
            for name in ENCODER_VARIANTS
            for value in (getattr(encoder, name),)
        ),
        *(
            Rule(
                bool(changed := _changed_of(config, name)),
                f"objective.{name}.{changed} is set, and objective.name={objective} does not use it",
                f"objective.name={name}, or leave it out",
            )
            for name in OBJECTIVES
            if name != objective
        ),
    ]


def _training(config: RunConfig) -> list[Rule]:
    train, zero, betas, clamp = config.train, config.zero, config.optim.betas, config.optim.trust_clamp
    warmup, streams, ranks = config.schedule.warmup, config.data.streams, config.run.ranks
    return [
        Rule(
            ranks > train.global_batch,
            f"run.ranks={ranks} is above train.global_batch={train.global_batch}",
            "fewer ranks or a larger batch: every rank needs an example per step",
        ),
        Rule(
            streams > 0 and train.global_batch % streams != 0,
            f"train.global_batch={train.global_batch} is not a multiple of data.streams={streams}",
            "data.streams=0 chooses",
        ),
        Rule(
            len(betas) != 2 or not all(0 <= beta < 1 for beta in betas),
            f"optim.betas must be two numbers in [0, 1), got {betas}",
            "such as [0.9, 0.999]",
        ),
        Rule(
            bool(clamp) and not (len(clamp) == 2 and 0 <= clamp[0] <= clamp[1]),
            f"optim.trust_clamp must be the least and the largest trust ratio, got {clamp}",
            "such as [0, 10], or leave it out",
        ),
        Rule(
            warmup >= 1 and (warmup > train.steps or warmup % 1 != 0),
            f"schedule.warmup={warmup:g} is neither a share below 1 nor whole steps up to train.steps={train.steps}",
            "such as 0.1",
        ),
        Rule(
            zero.offload != "none" and zero.stage == 0,
            f"zero.offload={zero.offload} with zero.stage=0, which keeps everything on the device",
            "zero.stage=1, 2 or 3",
        ),
        Rule(
            train.precision == "fp16" and zero.stage == 0,
            "train.precision=fp16 with zero.stage=0, at which DeepSpeed does not scale the loss",
            "zero.stage=1, or train.precision=bf16",
        ),
        Rule(
            train.compile == "on" and zero.stage == 3,
            "train.compile=on with zero.stage=3, which fetches parameters inside the graph",
            "train.compile=off, or a lower stage",
        ),
    ]


def _changed_of(config: RunConfig, name: str) -> str:
    """Return the first setting in objective `name`'s own group that is not at its default; empty if there is none."""
    defaults = RunConfig().objective.of_member(name)
    found = config.objective.of_member(name).items()
    return next((key for key, value in found if value != defaults.get(key)), "")

"""Check a RunConfig for values out of range and contradictory settings, and report all of them in one UserError.

The values that a setting may have are declared at its field. A `Rule` states one combination of settings that is not
allowed, and what to set instead: the functions of GROUPS, and `schedule_rules`, list them by subject.
"""

import copy
from collections.abc import Collection, Iterator

from data_pipeline.errors import UserError, one_error, redact, redact_settings
from data_pipeline.fields import Rule, broken, set_value, value_of, wrong_values
from data_pipeline.io.object_store import STORES
from data_pipeline.sequences.registry import pair_task
from data_pipeline.settings import (
    MASKINGS,
    SEPARATORS,
    SEQUENTIAL,
    UNMASKED,
    WITHOUT_SEPARATORS,
    mask_stages,
    stated_languages,
    stated_weights,
)
from pretrain.config.encoder import VARIANTS, EncoderSettings
from pretrain.config.phases import batch_sizes
from pretrain.config.settings import RunConfig
from pretrain.objectives.registry import OBJECTIVES, keeps_memory, registered
from pretrain.optim.registry import optimizer_record
from pretrain.optim.schedule import updates

# Rules of the data: what fits the objective, and what exact mode supports.


def data_rules(config: RunConfig) -> list[Rule]:
    """List what data settings cannot be together, or with the objective."""
    data, objective, known = config.data, config.objective.name, registered(config.objective.name)
    sizes, batch = batch_sizes(config), config.train.global_batch
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
            data.separators in SEPARATORS[1:] and pair_task(data.sequences) is None,
            f"data.separators={data.separators} is of pairs, and data.sequences={data.sequences} has none",
            f"data.separators={SEPARATORS[0]} or {WITHOUT_SEPARATORS}, or data.sequences=segment_pair",
        ),
        Rule(
            data.separator_gap and data.separators not in ("none", "end"),
            f"data.separator_gap=true, and data.separators={data.separators} leaves no [SEP] between segments out",
            "data.separator_gap=false, or data.separators=none",
        ),
        Rule(
            keeps_memory(config)
            and not (data.order == SEQUENTIAL and sizes.streams == batch == sizes.smallest),
            f"objective.name={objective} remembers what came before an example in its document, and data.order="
            f"{data.order} has {sizes.streams} streams for train.global_batch={batch}: it needs one for each example",
            "data.order=sequential data.streams=0, and no train.batch_ramp",
        ),
        Rule(
            data.masked_lm_prob == 0 and data.masking != UNMASKED,
            f"data.masked_lm_prob must be in (0, 1] with data.masking={data.masking}, got 0",
            f"a share of the tokens, such as 0.15, or data.masking={UNMASKED}",
        ),
        Rule(
            data.mask_replace_prob + data.random_prob > 1,
            f"data.mask_replace_prob={data.mask_replace_prob} and data.random_prob={data.random_prob} sum to more "
            "than 1",
            "lower one of them",
        ),
    ]


def exact_mode_rules(config: RunConfig) -> list[Rule]:
    """List what google-research/bert's create_pretraining_data.py does not support."""
    data = config.data
    rules = [
        (
            data.held_out > 0,
            f"sets nothing aside, and data.held_out={data.held_out}",
            "data.held_out=0",
        ),
        (
            data.documents != "blank_line",
            f"parts documents at blank lines, and data.documents={data.documents}",
            "data.documents=blank_line",
        ),
        (
            data.duplicates != "keep",
            f"drops nothing, and data.duplicates={data.duplicates}",
            "data.duplicates=keep",
        ),
        (
            bool(data.tokens),
            f"keeps no tokenized text, and data.tokens={data.tokens}",
            "no data.tokens",
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
            not (data.separators in SEPARATORS and data.segment_ids),
            "makes [CLS] A [SEP] B [SEP] with segments 0 and 1 alone",
            "data.separators=both data.segment_ids=true",
        ),
        (
            data.random_next != 0.5,
            f"draws half of the second segments at random, and data.random_next={data.random_next}",
            "data.random_next=0.5",
        ),
        (
            not data.count_specials,
            "counts [CLS] and [SEP] among the tokens, and data.count_specials=false",
            "data.count_specials=true",
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


# Rules of the model: of the objective's encoder, and of any encoder.


def objective_rules(config: RunConfig) -> list[Rule]:
    """List what the objective's models cannot be."""
    encoder, length, objective = config.encoder, config.data.sequence_length, config.objective.name
    electra = config.objective.electra
    generator = electra.generator(encoder)
    return [
        Rule(
            length > encoder.max_positions,
            f"data.sequence_length={length} is above encoder.max_positions={encoder.max_positions}",
            f"encoder.max_positions={length}, or shorter sequences",
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
            for names in VARIANTS.values()
            for name in names
            for value in (getattr(encoder, name),)
        ),
        Rule(
            objective == "electra" and generator.positions == "rope" and generator.head_size % 2 != 0,
            f"objective.electra.generator_share={electra.generator_share:g} makes the generator {generator.hidden} wide"
            ": its heads have no two halves, which encoder.positions=rope rotates",
            "a share that makes the width even",
        ),
        Rule(
            objective == "electra"
            and not generator.head_transform
            and generator.embedding_width != generator.hidden,
            f"objective.electra.generator_share={electra.generator_share:g} with encoder.head_transform=false: the "
            f"generator's hidden states are {generator.hidden} wide, the words {generator.embedding_width}",
            "objective.electra.generator_share=1, or objective.electra.embeddings=separate",
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


def encoder_rules(config: RunConfig) -> list[Rule]:
    """List what the settings of one encoder cannot be together."""
    encoder, default = config.encoder, EncoderSettings()
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
            encoder.hidden % encoder.heads != 0,
            f"encoder.hidden={encoder.hidden} is not a multiple of encoder.heads={encoder.heads}",
            "change one of them",
        ),
        Rule(
            encoder.heads % encoder.key_heads != 0,
            f"encoder.kv_heads={encoder.kv_heads} does not divide encoder.heads={encoder.heads}",
            "change one of them, or encoder.kv_heads=0",
        ),
        Rule(
            encoder.positions == "rope" and encoder.head_size % 2 != 0,
            f"encoder.positions=rope with heads of {encoder.head_size}, which have no two halves",
            "another encoder.heads",
        ),
        *(
            Rule(
                encoder.positions == "learned" and getattr(encoder, name) != getattr(default, name),
                f"encoder.{name}={getattr(encoder, name)} with encoder.positions=learned, which rotates nothing",
                "encoder.positions=rope, or leave it out",
            )
            for name in ("rope_theta", "local_rope_theta")
        ),
        Rule(
            encoder.norm == "rms" and encoder.norm_biases,
            "encoder.norm=rms has no biases, and encoder.norm_biases=true",
            "encoder.norm_biases=false",
        ),
        Rule(
            encoder.embedding_width != encoder.hidden and not encoder.head_transform,
            f"encoder.head_transform=false with encoder.embedding_size={encoder.embedding_size}: hidden states are as "
            "wide as no word",
            "encoder.embedding_size=0",
        ),
    ]


def _changed_of(config: RunConfig, name: str) -> str:
    """Return the first setting in objective `name`'s own group that is not at its default; empty if there is none."""
    defaults = RunConfig().objective.of_member(name)
    found = config.objective.of_member(name).items()
    return next((key for key, value in found if value != defaults.get(key)), "")


# Rules of the places that a run reads and writes.

KEYS_IN_ENVIRONMENT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what the store's own package reads"


def place_rules(config: RunConfig) -> list[Rule]:
    """List what must be a local folder, an object store, or free of credentials."""
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


# Rules of the training: batch, optimizer, precision, ZeRO, length and schedule.


def training_rules(config: RunConfig) -> list[Rule]:
    """List what batch, optimizer, precision, ZeRO and probe cannot be together."""
    train, zero, betas, clamp = config.train, config.zero, config.optim.betas, config.optim.trust_clamp
    streams, ranks, optimizer = config.data.streams, config.run.ranks, optimizer_record(config.optim.name)
    sizes = {"global_batch": train.global_batch, "batch_ramp_from": train.batch_ramp_from}
    return [
        Rule(
            train.steps == 0 and not (config.init_from or train.minutes),
            "train.steps must be at least 1, got 0",
            "0 saves the weights of init_from as they are",
        ),
        *(
            Rule(
                0 < size < ranks,
                f"run.ranks={ranks} is above train.{name}={size}",
                "fewer ranks or a larger batch: every rank needs an example per step",
            )
            for name, size in sizes.items()
        ),
        *(
            Rule(
                streams > 0 and size % streams != 0,
                f"train.{name}={size} is not a multiple of data.streams={streams}",
                "data.streams=0 chooses",
            )
            for name, size in sizes.items()
        ),
        Rule(
            bool(train.batch_ramp) != bool(train.batch_ramp_from),
            f"train.batch_ramp={train.batch_ramp} with train.batch_ramp_from={train.batch_ramp_from}",
            "set both: over how many batches the batch grows, and from how many examples",
        ),
        Rule(
            train.batch_ramp > 0 and train.batch_ramp_from > train.global_batch,
            f"train.batch_ramp_from={train.batch_ramp_from} is above train.global_batch={train.global_batch}",
            "a ramp grows to train.global_batch",
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
            config.optim.decoupled_decay and "decoupled_decay" not in optimizer.settings,
            f"optim.decoupled_decay=true with optim.name={config.optim.name}, which does not read it",
            "another optim.name, or leave it out",
        ),
        Rule(
            zero.stage not in optimizer.zero_stages,
            f"optim.name={config.optim.name} with zero.stage={zero.stage}, at which it does not run",
            f"zero.stage={optimizer.zero_stages[-1]}, or another optim.name",
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
            bool(train.probe) and not train.probe_data,
            f"train.probe={train.probe} without train.probe_data",
            "name the folder with the task's files",
        ),
        Rule(
            not train.probe and bool(train.probe_data or train.probe_every),
            "train.probe_data or train.probe_every without train.probe",
            "train.probe=blimp, say, or leave them out",
        ),
        Rule(
            train.compile == "on" and zero.stage == 3,
            "train.compile=on with zero.stage=3, which fetches parameters inside the graph",
            "train.compile=off, or a lower stage",
        ),
    ]


def length_rules(config: RunConfig) -> list[Rule]:
    """List the ways to say twice, or in vain, how long to train."""
    train = config.train
    return [
        Rule(
            train.steps > 0 and train.minutes > 0,
            f"train.steps={train.steps} and train.minutes={train.minutes:g} both say how long to train",
            "leave one of them out",
        ),
        Rule(
            bool(train.replay) and not train.minutes,
            f"train.replay={train.replay} without train.minutes, whose shares it repeats",
            "set train.minutes to that run's, or leave it out",
        ),
    ]


def schedule_rules(config: RunConfig, steps: int) -> list[Rule]:
    """List what the schedule cannot be over `steps` updates, or over train.minutes."""
    schedule, minutes = config.schedule, config.train.minutes
    ends = {"warmup": schedule.warmup} | ({"decay": schedule.decay} if schedule.name == "wsd" else {})
    return [
        *(
            Rule(
                minutes > 0 and length >= 1,
                f"schedule.{name}={length:g} counts steps, whose number train.minutes={minutes:g} leaves open",
                "a share of the time, such as 0.1",
            )
            for name, length in ends.items()
        ),
        Rule(
            minutes > 0 and sum(ends.values()) > 1 > max(ends.values()),
            f"schedule.warmup={schedule.warmup:g} and schedule.decay={schedule.decay:g} together take more than all of "
            f"train.minutes={minutes:g}",
            "shorten one of them",
        ),
        *(
            Rule(
                steps > 0 and length >= 1 and (length > steps or length % 1 != 0),
                f"schedule.{name}={length:g} is neither a share below 1 nor whole steps up to train.steps={steps}",
                "such as 0.1",
            )
            for name, length in ends.items()
        ),
        Rule(
            steps > 0 and _together(ends.values(), steps) > steps,
            f"schedule.warmup={schedule.warmup:g} and schedule.decay={schedule.decay:g} together take more than "
            f"train.steps={steps}",
            "shorten one of them",
        ),
    ]


def _together(lengths: Collection[float], steps: int) -> float:
    """Return how many updates these lengths of a schedule take; shares of the steps without their rounding."""
    if max(lengths) < 1:
        return sum(lengths) * steps
    return sum(updates(length, steps) for length in lengths if length <= steps)


# Find the values out of range and the broken rules, each with what to change.

GROUPS = (
    place_rules,
    data_rules,
    exact_mode_rules,
    objective_rules,
    encoder_rules,
    training_rules,
    length_rules,
)


def contradictions(config: RunConfig, schedule_steps: int) -> list[UserError]:
    """Return an error for each broken rule; `schedule_steps`: the length of the schedule. Each single value must
    already be one that its setting may have."""
    return broken(_rules(config, schedule_steps))


def _rules(config: RunConfig, schedule_steps: int) -> Iterator[Rule]:
    for group in GROUPS:
        yield from group(config)
    yield from schedule_rules(config, schedule_steps)


def check(config: RunConfig) -> None:
    """Raise UserError that lists every value out of range and every contradiction, each with what to do."""
    if wrong := wrong_settings(config, config.train.steps):
        raise one_error(wrong, where="settings")


def wrong_settings(config: RunConfig, schedule_steps: int) -> list[UserError]:
    """List the wrong settings; follow-up errors of another mistake are left out. `schedule_steps`: the length of the
    schedule (config/phases.py)."""
    wrong = wrong_values(config)
    correct, defaults = copy.deepcopy(config), RunConfig()
    for error in wrong:
        set_value(correct, error.where, value_of(defaults, error.where))
    for read in (stated_languages, stated_weights, mask_stages) if config.data.sources else (mask_stages,):
        try:
            read(correct.data)
        except UserError as error:
            wrong.append(error)
            set_value(correct, error.where, [])
    keys = [error.where for error in wrong]
    if "objective.name" in keys:
        return wrong  # what fits it is unknown
    follow_ups = contradictions(correct, schedule_steps)
    return wrong + [error for error in follow_ups if not any(key in error.what for key in keys)]

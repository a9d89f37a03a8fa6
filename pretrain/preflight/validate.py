"""Check a RunConfig, and refuse it with one UserError that names the setting."""

import math
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.object_store import STORES
from data_pipeline.io.redact import redact, redact_settings
from data_pipeline.sequences.registry import SEQUENCES
from data_pipeline.settings import MASKINGS, UNMASKED, mask_stages
from pretrain.config.settings import EncoderSettings, RunConfig
from pretrain.objectives.registry import ENCODER_VARIANTS, OBJECTIVES, registered

CHOICES = {
    "data.documents": ("blank_line", "file"),
    "data.sentences": ("split", "lines"),
    "data.duplicates": ("keep", "documents", "paragraphs", "both"),
    "data.sequences": tuple(SEQUENCES),
    "data.masking": (*MASKINGS, UNMASKED),
    "data.order": ("shuffled", "sequential"),
    "data.mode": ("fast", "exact"),
    "data.executor": ("local", "dask"),
    "data.verify": ("blocks", "full"),
    "data.on_damage": ("stop", "skip"),
    "vocabulary.kind": ("wordpiece", "bpe", "unigram"),
    "vocabulary.specials": ("", "roberta"),
    "train.precision": ("auto", "fp32", "bf16", "fp16"),
    "train.kernels": ("auto", "triton", "torch"),
    "train.compile": ("auto", "off", "on"),
    "train.on_nan": ("skip", "rollback", "stop"),
    "train.on_spike": ("off", "skip", "rollback", "stop"),
    "zero.stage": (0, 1, 2, 3),
    "zero.offload": ("none", "cpu"),
    "optim.name": ("lamb", "adamw"),
    "optim.form": ("nvidia", "google", "paper"),
    "schedule.name": ("linear", "polynomial", "nvidia", "cosine", "constant"),
    "encoder.activation": ("gelu_tanh", "gelu", "relu"),
    "monitor.tracker": ("wandb", "jsonl", "none"),
    "monitor.artifacts": ("none", "index", "all"),
}

RANGES: dict[str, tuple[float, float]] = {
    "vocabulary.size": (16, 2**31),
    "vocabulary.min_frequency": (0, math.inf),
    "vocabulary.sample_mb": (1, math.inf),
    "data.seed": (0, 2**63),
    "data.sequence_length": (8, 65_535),  # positions are stored in 16 bits
    "data.dupe_factor": (1, 10_000),
    "data.short_seq_prob": (0, 1),
    "data.mask_prob": (0, 1),
    "data.random_prob": (0, 1),
    "data.span_p": (0.001, 1),
    "data.max_span": (1, 1000),
    "data.max_ngram": (1, 1000),
    "data.smoothing": (0, 10),
    "data.bin_width": (0, 65_535),
    "data.held_out": (0, 0.9),
    "data.min_donors": (2, math.inf),
    "data.shard_tokens": (1, math.inf),
    "data.block_examples": (1, 65_536),
    "data.streams": (0, 65_536),
    "data.workers": (0, 4096),
    "run.ranks": (1, 65_536),
    "run.threads": (0, 4096),
    "run.seed": (0, 2**63),
    "run.stop_after": (0, math.inf),
    "run.restarts": (0, 1_000_000),
    "run.restart_delay": (0, 86_400),
    "run.step_limit": (0, 1_000_000),
    "train.steps": (1, math.inf),
    "train.global_batch": (1, math.inf),
    "train.micro_batch": (1, math.inf),
    "train.clip": (0, math.inf),
    "train.eval_every": (0, math.inf),
    "train.eval_examples": (1, math.inf),
    "train.checkpoint_every": (0, math.inf),
    "checkpoint.keep": (1, math.inf),
    "checkpoint.keep_every": (0, math.inf),
    "train.log_every": (1, math.inf),
    "train.spike_sigma": (0.1, math.inf),
    "train.spike_window": (4, 1_000_000),
    "zero.sub_group_size": (1, math.inf),
    "optim.lr": (0, math.inf),
    "optim.eps": (0, 1),
    "optim.weight_decay": (0, math.inf),
    "schedule.warmup": (0, math.inf),
    "schedule.power": (0, math.inf),
    "encoder.layers": (1, 10_000),
    "encoder.hidden": (1, 1_000_000),
    "encoder.embedding_size": (0, 1_000_000),
    "encoder.heads": (1, 100_000),
    "encoder.intermediate": (1, 10_000_000),
    "encoder.dropout": (0, 0.99),
    "encoder.attention_dropout": (0, 0.99),
    "encoder.max_positions": (8, 65_535),
    "encoder.layer_norm_eps": (0, 1),
    "encoder.initializer_range": (0, 10),
    "monitor.trust_ratios_every": (0, math.inf),
    "monitor.alert_every": (0, math.inf),
    "monitor.peak_tflops": (0, math.inf),
}


def check(config: RunConfig) -> None:
    """Raises UserError, naming the key, for a value out of range or settings that contradict each other."""
    if config.zero.offload == "nvme":
        raise UserError(
            "zero.offload=nvme: the norms of LAMB and every checkpoint need all masters and moments in memory",
            where="settings",
            remedy="zero.offload=cpu, or more ranks at zero.stage=3",
        )
    for key, choices in CHOICES.items():
        if value_of(config, key) not in choices:
            raise UserError(
                f"{key}={value_of(config, key)}",
                where="settings",
                expected=f"one of {', '.join(map(str, choices))}",
            )
    for key, (low, high) in RANGES.items():
        value = value_of(config, key)
        if not low <= value <= high:
            raise UserError(f"{key}={value}", where="settings", expected=f"a value from {low} to {high}")
    if config.data.sources:
        from data_pipeline.sources.source_weights import language_numbers, source_weights

        language_numbers(config.data)
        source_weights(config.data)
    from data_pipeline.masking.mask_budget import MaskBudget  # numpy, which completion need not wait for

    mask_stages(config.data)
    MaskBudget.of(config.data)
    for holds, line in _contradictions(config):
        if holds:
            raise UserError(line, where="settings")


def _contradictions(config: RunConfig) -> list[tuple[bool, str]]:
    data, train, encoder, run = config.data, config.train, config.encoder, config.run
    betas, clamp = config.optim.betas, config.optim.trust_clamp
    steps_of_warmup = config.schedule.warmup
    return [
        (
            bool(config.vocabulary.specials) and config.vocabulary.kind != "unigram",
            f"vocabulary.specials={config.vocabulary.specials} is for vocabulary.kind=unigram: leave it out with "
            f"{config.vocabulary.kind}, or choose unigram",
        ),
        (
            data.sequence_length > encoder.max_positions,
            f"data.sequence_length={data.sequence_length} is beyond the model's positions: "
            f"encoder.max_positions={encoder.max_positions}; raise it or shorten the sequences",
        ),
        *(
            (
                "://" in value_of(config, key),
                f"{key}={value_of(config, key)} is a URI: it has to be a local or shared folder",
            )
            for key in ("run.dir", "data.vocab", "data.work", "data.tokens", "init_from")
        ),
        (
            bool(config.checkpoint.mirror) and config.checkpoint.mirror.partition("://")[0] not in STORES,
            f"checkpoint.mirror={config.checkpoint.mirror} is not in an object store: one of "
            f"{', '.join(f'{store}://' for store in STORES)}",
        ),
        *(
            (
                redact_settings(value_of(config, key)) != value_of(config, key),
                f"{key} holds credentials, and is written to the run's folder: put them where the store's own package "
                "looks for them, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
            for key in ("checkpoint.mirror", "data.out", "train.shards")
        ),
        (
            any(redact(uri) != uri for uri in data.sources if uri.partition("://")[0] in STORES),
            "data.sources holds credentials that no object store's package reads there: put them where it looks for "
            "them, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (
            encoder.hidden % encoder.heads != 0,
            f"encoder.hidden={encoder.hidden} does not divide into encoder.heads={encoder.heads}",
        ),
        *(
            (
                value != getattr(EncoderSettings(), name)
                and name not in registered(config.objective.name).encoder,
                f"encoder.{name}={value}: models of objective.name={config.objective.name} have no place for it",
            )
            for name in ENCODER_VARIANTS
            for value in (getattr(encoder, name),)
        ),
        (
            run.ranks > train.global_batch,
            f"run.ranks={run.ranks} is above train.global_batch={train.global_batch}: every rank needs an example",
        ),
        (
            data.streams > 0 and train.global_batch % data.streams != 0,
            f"data.streams={data.streams} does not divide train.global_batch={train.global_batch}",
        ),
        (
            data.mode == "exact" and data.held_out > 0,
            f"data.held_out={data.held_out} in exact mode, which sets nothing aside: "
            "data.held_out=0, or data.mode=fast",
        ),
        (
            data.mode == "exact" and data.sentences != "lines",
            "data.mode=exact reads one sentence a line: add data.sentences=lines, or data.mode=fast",
        ),
        (
            data.sequences not in registered(config.objective.name).sequences,
            f"data.sequences={data.sequences} is nothing that objective.name={config.objective.name} learns from: "
            f"choose {' or '.join(registered(config.objective.name).sequences)}",
        ),
        (
            data.mode == "exact" and data.sequences != "segment_pair",
            f"data.mode=exact makes data.sequences=segment_pair only, not {data.sequences}: data.mode=fast",
        ),
        (
            data.mode == "exact" and not (data.separators and data.segment_ids),
            "data.mode=exact makes [CLS] A [SEP] B [SEP] with segments 0 and 1: data.separators=true and "
            "data.segment_ids=true, or data.mode=fast",
        ),
        (
            data.mode == "exact" and (data.smoothing != 1 or any(weight != 1 for weight in data.weights)),
            "data.mode=exact passes over all text alike: data.smoothing=1 and no data.weights, or data.mode=fast",
        ),
        (
            data.mode == "exact" and not data.across_languages and len(set(data.languages)) > 1,
            "data.mode=exact draws random next segments from all documents: data.across_languages=true, or "
            "data.mode=fast",
        ),
        (
            data.mode == "exact" and data.masking != "token",
            f"data.mode=exact makes data.masking=token only, not {data.masking}: data.mode=fast",
        ),
        (
            not {stage.kind for stage in mask_stages(data)} <= {*registered(config.objective.name).masking},
            f"data.masking={data.masking} is nothing that objective.name={config.objective.name} learns from: "
            f"choose {' or '.join(registered(config.objective.name).masking)}",
        ),
        (
            data.dynamic_masking and data.masking == UNMASKED and not data.mask_stages,
            f"data.dynamic_masking=true with data.masking={UNMASKED}, which masks nothing: data.dynamic_masking=false, "
            f"or data.masking={' or '.join(MASKINGS)}",
        ),
        (
            bool(data.mask_stages) and not data.dynamic_masking,
            "data.mask_stages are stages of data.dynamic_masking=true",
        ),
        (
            data.mode == "exact" and (data.order != "shuffled" or data.bin_width > 0),
            "data.mode=exact shuffles its examples as the script does: data.order=shuffled and data.bin_width=0, "
            "or data.mode=fast",
        ),
        (
            data.order == "sequential" and data.bin_width > 0,
            f"data.bin_width={data.bin_width} sorts by length what data.order=sequential keeps in the documents' "
            "order: choose one",
        ),
        (
            data.mask_prob + data.random_prob > 1,
            f"data.mask_prob={data.mask_prob} and data.random_prob={data.random_prob} are more than 1 together",
        ),
        (
            len(betas) != 2 or not all(0 <= beta < 1 for beta in betas),
            f"optim.betas={betas}: expected two numbers from 0 up to, not including, 1",
        ),
        (
            bool(clamp) and not (len(clamp) == 2 and 0 <= clamp[0] <= clamp[1]),
            f"optim.trust_clamp={clamp}: expected the least and the largest trust ratio, or nothing",
        ),
        (
            steps_of_warmup >= 1 and (steps_of_warmup > train.steps or steps_of_warmup % 1 != 0),
            f"schedule.warmup={steps_of_warmup}: expected a share below 1, or whole steps up to "
            f"train.steps={train.steps}",
        ),
        (
            config.zero.offload != "none" and config.zero.stage == 0,
            f"zero.offload={config.zero.offload} at zero.stage=0, which keeps everything on the device: "
            "zero.stage=1, 2 or 3",
        ),
        (
            train.precision == "fp16" and config.zero.stage == 0,
            "train.precision=fp16 at zero.stage=0, where DeepSpeed does not scale the loss: zero.stage=1, or bf16",
        ),
        (
            train.compile == "on" and config.zero.stage == 3,
            "train.compile=on at zero.stage=3, which fetches parameters in the middle of the graph: train.compile=off, "
            "or a lower stage",
        ),
        *(
            (
                bool(changed := _changed_of(config, name)),
                f"objective.{name}.{changed} is set, and objective.name={config.objective.name} has no use for it: "
                f"objective.name={name}, or leave it out",
            )
            for name in OBJECTIVES
            if name != config.objective.name
        ),
        (
            config.init_moments and not config.init_from,
            "init_moments=true without init_from: name the run whose moments to keep",
        ),
    ]


def _changed_of(config: RunConfig, name: str) -> str:
    """The first setting of objective `name`'s own group that is not at its default; empty where there is none."""
    defaults = RunConfig().objective.of_member(name)
    found = config.objective.of_member(name).items()
    return next((key for key, value in found if value != defaults.get(key)), "")


def value_of(config: RunConfig, key: str) -> Any:
    """The setting with the dotted name `key`."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value

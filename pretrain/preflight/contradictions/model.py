"""List rules of the model: of the objective's encoder, and of any encoder."""

from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig
from pretrain.objectives.registry import ENCODER_VARIANTS, OBJECTIVES, registered
from pretrain.preflight.contradictions.rule import Rule
from pretrain.preflight.ranges import value_of


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
            for name in ENCODER_VARIANTS
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

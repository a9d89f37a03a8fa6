"""List rules of the training: batch, optimizer, ZeRO, length and schedule."""

from collections.abc import Collection

from pretrain.config.settings import RunConfig
from pretrain.optim.schedule import updates
from pretrain.preflight.contradictions.rule import Rule


def training_rules(config: RunConfig) -> list[Rule]:
    """List what batch, optimizer, precision, ZeRO and probe cannot be together."""
    train, zero, betas, clamp = config.train, config.zero, config.optim.betas, config.optim.trust_clamp
    streams, ranks = config.data.streams, config.run.ranks
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
            config.optim.decoupled_decay and config.optim.name == "lamb",
            "optim.decoupled_decay=true with optim.name=lamb, whose trust ratio scales the decay with the update",
            "another optim.name, or leave it out",
        ),
        Rule(
            config.optim.name == "muon" and zero.stage == 3,
            "optim.name=muon with zero.stage=3, which cuts every matrix over all ranks",
            "zero.stage=2, or another optim.name",
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
            train.precision == "fp8" and zero.stage == 3,
            "train.precision=fp8 with zero.stage=3, which gathers weights for products in bf16",
            "zero.stage=2, or train.precision=bf16",
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

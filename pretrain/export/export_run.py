"""Export a run or checkpoint folder to a Hugging Face folder, with its model card and parity proof."""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError, redact
from data_pipeline.records import Examples
from data_pipeline.shards.index import Index
from data_pipeline.shards.shard import BlockReader
from pretrain.checkpoint.store import Checkpoint, find_checkpoint
from pretrain.config.phases import phase_at, phases_of
from pretrain.config.settings import RunConfig
from pretrain.evaluate.samples import Sample, decoded, fill_samples
from pretrain.export.card_facts import card_of
from pretrain.export.sentences import language_of
from pretrain.export.writer import export
from pretrain.objectives.registry import registered
from pretrain.run.folder import CONFIG, EXPORT, read_config, read_run


class Exported(NamedTuple):
    """The result of an export and its source."""

    model: Path
    run: Path
    checkpoint: Checkpoint
    proof: str
    """A line with the result of the parity check."""
    samples: list[Sample]
    """Blanks that the model filled."""
    held_out: bool
    """Whether their text is held out."""
    left_out: str
    """A line about files of the model that training started from; empty without any."""


def export_run(source: Path, out: str, license: str = "") -> Exported:
    """Export the newest checkpoint of a run, or the checkpoint in `source`. `license`: for the model card, overrides
    export.license. Raises UserError, and leaves nothing, if the two models differ, or if config.yaml or tokenizer.json,
    from which both are built, are not what the checkpoint, run.json and index.json say that it was trained with."""
    checkpoint = find_checkpoint(source)
    run = source if (source / CONFIG).is_file() else checkpoint.folder.resolve().parent.parent
    whole = read_config(run)
    config = phase_at(whole, checkpoint.state).config
    known = read_run(run)
    _check_settings(run, whole, known["identity"] if known else {}, config, checkpoint)
    index = Index.load(config.train.shards or config.data.out)
    if known is None or known["identity"]["vocabulary"] != index.vocabulary.sha256:
        raise UserError("its vocabulary is not that of its shards", where=run, expected=index.folder)
    target = Path(out) if out else run / EXPORT
    card = card_of(run, checkpoint, index, whole, config)
    examples, tokenizer = proof_examples(index), index.tokenizer_json().decode("utf-8")
    if not card.languages:
        card = replace(card, spoken=language_of(decoded(examples, tokenizer)))
    samples: list[Sample] = []
    parity = export(
        {name: checkpoint.tensor(name) for name in checkpoint.shapes},
        config,
        tokenizer,
        target,
        examples,
        replace(card, license=license) if license else card,
        overwrite=not out,  # the run's own export may be replaced; a path that the user names must be new
        proven=lambda model: samples.extend(fill_samples(model, examples, tokenizer, index.vocabulary.mask)),
    )
    heads = ", ".join(
        f"{head} {p.difference:.1e} (allowed {p.allowed:.1e}; in float32 {p.difference_float32:.1e})"
        for head, p in parity.items()
    )
    proof = f"proof: largest difference to transformers' logits in float64: {heads}"
    left_out = card.parent.warning if card.parent else ""
    return Exported(target, run, checkpoint, proof, samples, bool(index.held_out.examples), left_out)


RESOLVED = ("phases", "train.precision", "train.replay", "data.dynamic_masking", "data.streams")
"""Settings that a run's identity has as what they came to."""


def _check_settings(
    run: Path, whole: RunConfig, about: Mapping[str, Any], config: RunConfig, checkpoint: Checkpoint
) -> None:
    """Raise UserError, with the settings that differ, if config.yaml, of which the model is built that is compared with
    transformers', says something else of what decides the weights than the checkpoint's marker and run.json, which are
    sealed. `config`: the settings of the checkpoint's phase."""
    differing = _differing(config, checkpoint.state.get("identity", {}))
    for phase in phases_of(whole):
        others = [f"{other.name}." for other in phases_of(whole) if other.name != phase.name]
        own = {
            key.removeprefix(f"{phase.name}."): value
            for key, value in about.items()
            if not any(key.startswith(other) for other in others)
        }
        differing |= _differing(phase.config, own)
    if differing:
        raise UserError(
            f"says {', '.join(differing.values())}",
            where=run / CONFIG,
            expected="the settings that the checkpoint was trained with",
            remedy="put them back; the same maskmill train writes the file again",
        )


def _differing(config: RunConfig, identity: Mapping[str, Any]) -> dict[str, str]:
    """Return for each setting of a run's identity that is another one in `config`, by its name, what both are."""
    name, found = config.objective.name, {}
    resolved = {
        *RESOLVED,
        f"objective.{name}.{registered(name).teacher}",
    }  # of a teacher it has the weights' hash
    for key, trained in identity.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part, _NONE)
        is_setting = key not in resolved and value is not _NONE and not is_dataclass(value)
        if is_setting and _plain(value) != _plain(trained):
            found[key] = f"{key}={_shown(value)}, trained with {_shown(trained)}"
    return found


_NONE = object()


def _plain(value: object) -> object:
    """Return a setting as JSON and as config.yaml have it, where nothing secret is left of URIs."""
    return redact(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return redact(str(value))[:80]


def proof_examples(index: Index) -> Examples:
    """Return real examples, short and long: the first held-out block, or a training block if nothing was held out."""
    split = index.held_out if index.held_out.examples else index.train
    return next(BlockReader(index, split).read([(0, 0)]))

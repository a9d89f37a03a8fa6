"""Export a run or checkpoint folder to a Hugging Face folder, with its model card and parity proof."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data_pipeline.errors import UserError
from data_pipeline.io.files import read_bytes
from data_pipeline.records import Examples
from data_pipeline.shards.index import TOKENIZER, Index
from data_pipeline.shards.writer import BlockReader
from pretrain.checkpoint.store import Checkpoint, find_checkpoint
from pretrain.config.phases import phase_at
from pretrain.evaluate.samples import Sample, fill_samples
from pretrain.export.card_facts import card_of
from pretrain.export.writer import export
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


def export_run(source: Path, out: str, license: str = "") -> Exported:
    """Export the newest checkpoint of a run, or the checkpoint in `source`. `license`: for the model card, overrides
    export.license. Raises UserError, and leaves nothing, if the two models differ."""
    checkpoint = find_checkpoint(source)
    run = source if (source / CONFIG).is_file() else checkpoint.folder.resolve().parent.parent
    whole = read_config(run)
    config = phase_at(whole, checkpoint.state).config
    index = Index.load(config.train.shards or config.data.out)
    known = read_run(run)
    if known is None or known["identity"]["vocabulary"] != index.vocabulary.sha256:
        raise UserError("its vocabulary is not that of its shards", where=run, expected=index.folder)
    target = Path(out) if out else run / EXPORT
    card = card_of(run, checkpoint, index, whole, config)
    examples, tokenizer = proof_examples(index), read_bytes(index.path(TOKENIZER)).decode("utf-8")
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
    return Exported(target, run, checkpoint, proof, samples, held_out=bool(index.held_out.examples))


def proof_examples(index: Index) -> Examples:
    """Return real examples, short and long: the first held-out block, or a training block if nothing was held out."""
    split = index.held_out if index.held_out.examples else index.train
    return next(BlockReader(index, split).read([(0, 0)]))

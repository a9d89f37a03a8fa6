"""Define the verbs that make data: vocab, prepare."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from data_pipeline.errors import UserError
from launch.app import Overrides, Recipe, app, check_address_space, console, say
from launch.progress import stages

if TYPE_CHECKING:
    from rich.console import Group

    from data_pipeline.records import ShowProgress
    from data_pipeline.settings import DataSettings, VocabularySettings
    from data_pipeline.shards.index import Index
    from pretrain.config.settings import RunConfig


# Show what the new words of an extended vocabulary save.


SHOWN = 15
"""Words in the table: those that save the most."""


def shown(facts: Mapping[str, Any]) -> "Group":
    """Return a table of the words that save the most, and figures of all, from the content of new_words.json."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    text, old = facts["text"], facts["extends"]
    words = [entry for entry in facts["entries"] if "word" in entry]
    before, after = (1000 * text[f"tokens_{when}"] / text["words"] for when in ("before", "after"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("new word")
    for name in ("occurrences", "old pieces", "tokens saved per 1,000 words"):
        table.add_column(name, justify="right")
    for entry in words[:SHOWN]:
        saved = f"{entry['saved_per_thousand_words']:.2f}"
        pieces = str(len(entry["old_ids"]) or "unknown")
        table.add_row(escape(entry["word"]), f"{entry['occurrences']:,}", pieces, saved)
    if len(words) > SHOWN:
        table.add_row(f"and {len(words) - SHOWN:,} more", "", "", "")
    table.add_section()
    table.add_row("all, measured", f"{text['words']:,} words", "", f"{before - after:.2f}")
    share = text["words_cut_otherwise"] / text["words"]
    parts = len(facts["entries"]) - len(words)
    between = f" and {parts:,} pieces that merges make on the way to them" if parts else ""
    unknown = sum(not entry["old_ids"] for entry in words)
    told = (
        f" {unknown:,} of the new words were unknown to the old vocabulary: chosen as if it cut them into their "
        "characters, and a model starts them with fresh vectors."
    )
    return Group(
        table,
        f"{len(words):,} new words{between} behind {old['size']:,} old entries. Tokens per 1,000 words: {before:,.1f} "
        f"before, {after:,.1f} after. {share:.2%} of the words hold no new word and are cut otherwise than before."
        + (told if unknown else ""),
    )


# Define the verbs.


@app.command()
def vocab(
    recipe: Recipe,
    overrides: Overrides = None,
    extend: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="A Hugging Face folder or vocabulary: keep all its ids, and append words of data.sources that it cuts "
            "into many pieces.",
        ),
    ] = "",
) -> None:
    """Train a vocabulary on data.sources and write it into the folder data.vocab: WordPiece, or what
    vocabulary.kind says. A folder that holds another vocabulary is left as it is.

    With --extend, a vocabulary that exists gets new words instead, at most vocabulary.new_words, and nothing else
    changes. What they save is shown, and written to new_words.json in data.vocab.

    \b
    Examples:
        maskmill vocab bert_base data.sources=corpus/ data.vocab=vocab/ vocabulary.size=30522
        maskmill vocab bert_base --extend models/bert data.sources=corpus/ data.vocab=vocab/"""
    from launch.recipe import load_config

    check_address_space()
    config = load_config(recipe, overrides or [])
    if extend:
        _extend(config.data, config.vocabulary, Path(extend))
        return
    from data_pipeline.sources.passed_over import PassedOver, lines
    from data_pipeline.sources.read import source_files
    from data_pipeline.vocabulary.train import learn_vocabulary

    passed_over = PassedOver()
    source_files(config.data, passed_over)
    for line in lines(passed_over.summary()):
        say(line)
    vocabulary, fresh = learn_vocabulary(config.data, config.vocabulary, stages(console), warn=say)
    there = "" if fresh else "already there: "
    say(f"{there}vocabulary of {vocabulary.size:,} entries in {config.data.vocab}")


def _extend(data: "DataSettings", settings: "VocabularySettings", old: Path) -> None:
    """Extend the vocabulary in `old` into data.vocab, with the files that transformers reads; show what it saves."""
    from data_pipeline.vocabulary.extend import extend_vocabulary
    from data_pipeline.vocabulary.files import load_vocabulary
    from pretrain.export.tokenizer import write_extended_tokenizer

    facts, fresh = extend_vocabulary(data, settings, load_vocabulary(old), stages(console), warn=say)
    write_extended_tokenizer(Path(data.vocab), old)
    console.print(shown(facts))
    there, size, kept = "" if fresh else "already there: ", facts["size"], facts["extends"]["size"]
    say(f"{there}vocabulary of {size:,} entries in {data.vocab}, the first {kept:,} as in {old}")


@app.command()
def prepare(
    recipe: Recipe,
    overrides: Overrides = None,
    stage: Annotated[
        str,
        typer.Option(
            help="Do this stage only: discover, fingerprint, repeats, read, plan, gather, write or finish."
        ),
    ] = "",
    share: Annotated[
        str, typer.Option(help="With --stage, of its tasks only these: 3/16 does tasks 3, 19, 35, ...")
    ] = "0/1",
) -> None:
    """Turn data.sources into pre-masked shards and index.json in the folder data.out; of a recipe with phases, those
    of each.

    The bytes depend on the text, the settings and the seed alone. A killed run resumes.
    Without --stage one process does it all; with it, many processes on many machines can, in a folder that all see:
    each stage in as many shares as you like, one stage after the other. slurm/prepare.sbatch does so.

    \b
    Example:
        maskmill prepare bert_base data.sources=corpus/*.jsonl.zst data.vocab=vocab/ data.out=shards/"""
    from launch.recipe import load_config

    check_address_space()
    config = load_config(recipe, overrides or [])
    if share != "0/1" and not stage:
        raise UserError("is a part of a stage", where="--share", remedy="say which: --stage read")
    if stage:
        prepare_stage(config, stage, share)
    else:
        prepare_shards(config, stages(console), say)


def prepare_stage(config: "RunConfig", stage: str, share: str) -> None:
    """Do this share, as 3/16, of the tasks of one stage of the preparation of each phase, and print what it did."""
    from data_pipeline.prepare import prepare_share
    from data_pipeline.shards.index import Index
    from data_pipeline.stages.executors import Share
    from pretrain.config.phases import data_of_phases
    from pretrain.monitoring.wandb_run import record_prepare

    check_before_reading(config)
    for data in data_of_phases(config):
        say(prepare_share(data, stages(console), stage, Share.parsed(share), warn=say))
        if stage == "discover":
            _say_masks(data, say)
        if stage == "finish":
            index = Index.load(data.out)
            _say_of(index, say)
            record_prepare(config, index)


def prepare_shards(
    config: "RunConfig", progress: "ShowProgress", say: Callable[[str], None]
) -> "list[Index]":
    """Prepare the shards of each phase, and return their indexes; those that were prepared so before are returned as
    they are. `say` gets the lines about each. Raises UserError for a mistake in settings, sources or vocabulary."""
    from data_pipeline.prepare import prepare as run
    from data_pipeline.shards.index import TRAIN
    from data_pipeline.sources.passed_over import lines
    from data_pipeline.sources.snapshot import noted
    from pretrain.config.phases import data_of_phases
    from pretrain.monitoring.wandb_run import record_prepare

    check_before_reading(config)
    indexes = []
    for data in data_of_phases(config):
        _say_masks(data, say)  # before hours of work
        index, fresh = run(data, progress, warn=say)
        indexes.append(index)
        train = index.splits[TRAIN]
        say(
            f"{'prepared' if fresh else 'already prepared:'} {train.examples:,} examples, {train.tokens:,} tokens, "
            f"{len(train.shards)} shard{'s' * (len(train.shards) != 1)} in {data.out}"
        )
        _say_of(index, say)
        for line in lines(noted(data.out).get("passed_over", {})):
            say(line)
        if fresh:
            record_prepare(config, index)
    return indexes


def check_before_reading(config: "RunConfig") -> None:
    """Raise UserError if the vocabulary, or the folder in init_from, does not fit the run: before hours of work."""
    from data_pipeline.vocabulary.files import load_vocabulary
    from pretrain.objectives.registry import registered
    from pretrain.preflight.check_run import check_vocabulary
    from pretrain.run.folder import model_folders
    from pretrain.training.initial_weights_check import check_hugging_face, check_vocabulary_there

    check_vocabulary_there(config)
    if registered(config.objective.name).needs:
        check_vocabulary(config, load_vocabulary(config.data.vocab), config.data.vocab)
    if config.init_from and model_folders(Path(config.init_from)):
        check_hugging_face(config, load_vocabulary(config.data.vocab))


def _say_masks(data: "DataSettings", say: Callable[[str], None]) -> None:
    """Say where a cap on the masks of an example binds."""
    from data_pipeline.masking.budget import MaskBudget

    if note := MaskBudget.of(data).note(data.sequence_length):
        say(note)


def _say_of(index: "Index", say: Callable[[str], None]) -> None:
    """Say how much of the text these shards use, and what they show against their settings, vocabulary or text."""
    from data_pipeline.shards.index import TRAIN, measured_note
    from data_pipeline.shards.lint import documents, one_document
    from data_pipeline.shards.statistics import held_out_note, text_note
    from data_pipeline.vocabulary.fit import unknown_note

    notes = [text_note(index.statistics.get(TRAIN)), measured_note(index)]
    if finding := one_document(documents(index), index.settings):
        notes.append(f"warning: {finding[0]}; {finding[1]}")
    reading = index.statistics.get("reading")
    notes.append(unknown_note(reading) if isinstance(reading, dict) else "")
    if few := held_out_note(index.statistics):
        notes.append(f"warning: {few}; raise data.held_out, or add text")
    for note in filter(None, notes):
        say(note)

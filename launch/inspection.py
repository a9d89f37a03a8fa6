"""Print what `maskmill inspect` shows: the linter's report or examples of shards, or the type of anything else."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from data_pipeline.errors import UserError
from data_pipeline.io.files import is_uri
from data_pipeline.shards.index import INDEX, Index
from data_pipeline.shards.lint import lint
from data_pipeline.shards.show import printed_examples, report
from launch.app import errors, no_such_folder, say_json, say_plainly
from launch.progress import late_stages, waiting
from pretrain.config.phases import batch_sizes, phase_of_shards
from pretrain.config.settings import RunConfig


def inspect_path(
    path: str,
    console: Console,
    *,
    as_json: bool,
    examples: str,
    split: str,
    batch: int,
    config: RunConfig | None,
) -> None:
    """Print what is in `path`, a folder or the URI of shards. Raises UserError for damaged files."""
    if is_uri(path) or (Path(path) / INDEX).is_file():
        index = Index.load(path)
        if examples:
            for example in printed_examples(index, split, examples, as_json):
                say_plainly(example)
        else:
            _inspect_shards(index, console, as_json, batch, config)
        return
    if not Path(path).exists():
        raise no_such_folder(Path(path))
    if examples or config:
        raise UserError("holds no shards", where=path, expected=f"a folder with {INDEX}")
    with waiting(errors, "checking hashes"):
        from pretrain.report.inspection import describe, show

        facts = describe(Path(path))
    show(facts, Path(path), console, as_json)


def _inspect_shards(
    index: Index, console: Console, as_json: bool, batch: int, config: RunConfig | None
) -> None:
    plan = None
    if config is not None:
        config = phase_of_shards(config, index.folder)
        train, dynamic = config.train, config.data.dynamic_masking
        if not train.minutes:  # else the number of steps is known at the end
            plan = {"steps": train.steps, "global_batch": train.global_batch, "dynamic_masking": dynamic}
            plan["examples"] = batch_sizes(config).before(train.steps)
    facts = lint(index, late_stages(errors), batch, plan)
    if as_json:
        say_json(facts, sort_keys=True)
        return
    lines = [f"shards {index.folder}", "", report(facts)]
    if index.train.examples:
        lines += ["", *printed_examples(index, index.train.name, "1", as_json=False)]
    console.print(escape("\n".join(lines)), soft_wrap=True)

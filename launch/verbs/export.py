"""Define the verbs of a trained model: export, fill, push."""

from pathlib import Path
from typing import Annotated

import typer

from data_pipeline.errors import UserError
from data_pipeline.io.files import check_is_new
from launch import completion
from launch.app import Folder, Overrides, app, errors, run_folder, say
from launch.progress import waiting


@app.command()
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A run or checkpoint folder, or a recipe.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the model; default: `export` in the run folder.")] = "",
    license: Annotated[
        str,
        typer.Option(help="What the model card states, as apache-2.0; default: export.license of the run."),
    ] = "",
) -> None:
    """Write a checkpoint as a Hugging Face folder, after a proof that both models give the same logits.

    \b
    Example:
        maskmill export runs/base --out models/base"""
    folder = run_folder(source, overrides)
    if out:
        check_is_new(Path(out))  # before transformers is imported, which takes seconds
    with waiting(errors, "exporting, and comparing both models' logits"):
        from pretrain.export.export import export_run
        from pretrain.monitoring.wandb_run import record_export
        from pretrain.report.page import show_samples

        exported = export_run(folder, out, license)
        show_samples(exported.run, exported.checkpoint.step, exported.samples, exported.held_out)
    if exported.left_out:
        say(exported.left_out)
    say(exported.proof)
    say(f"exported to {exported.model}")
    record_export(exported.run, exported.checkpoint, exported.model)


@app.command()
def fill(
    model: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences with a [MASK] in each.")
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Show a run's blanks in held-out text beside the true words as well."
        ),
    ] = False,
) -> None:
    """Fill the blanks of sentences with a Hugging Face model of masked words, or the one that a run folder holds.
    [MASK] stands for whatever the model's own mask token is; a sentence has one, and no more tokens than the model
    reads.

    \b
    Example:
        maskmill fill models/base "The capital of France is [MASK]."
        maskmill fill runs/demo --held-out"""
    if not texts and not held_out:
        raise UserError("nothing to fill", expected="sentences with a [MASK] in each, or --held-out")
    with waiting(errors, "filling blanks"):
        from pretrain.export.fill import fill_blanks, held_out_blanks, run_and_export

        run, exported = run_and_export(model)
        found = list(fill_blanks(exported, texts)) if texts else []
    for text, words in found:
        say(f"{text}\n    " + "   ".join(f"{word} {share:.1%}" for word, share in words))
    for line in held_out_blanks(run) if held_out else []:
        say(line)


@app.command()
def push(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="An exported folder, a run folder, or a recipe.")
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the Hugging Face hub.")],
    private: Annotated[
        bool, typer.Option("--private", help="Only you and your organization see it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")
    ] = False,
) -> None:
    """Send an exported model with its card to the Hugging Face hub, in one commit.

    The export's proof and hashes are checked first; only the files of the export are sent. The token is the one of
    `hf auth login`, or HF_TOKEN. The same model again changes nothing. Where an export holds several models, each goes
    to a repository of its own, REPO-NAME.

    \b
    Example:
        maskmill push runs/base yourname/base --private"""
    from pretrain.export.hub import check_name, exported_folders, gather, newest_step
    from pretrain.export.hub import push as send

    folder = run_folder(source, None)
    exported = exported_folders(folder)
    names = [f"{repo}-{model.name}" for model in exported] if len(exported) > 1 else [repo]
    for name in names:
        check_name(name)
    uploads = {name: gather(model, name) for name, model in zip(names, exported, strict=True)}
    for name, upload in uploads.items():
        if (newest := newest_step(folder)) > upload.step:
            say(
                f"the export is of step {upload.step:,}, the run is at {newest:,}: maskmill export {source} renews it"
            )
        for file, size in upload.sizes.items():
            say(f"    {size:>13,} bytes  {file}")
        if upload.left_out:
            say(f"left out, no part of an export: {', '.join(upload.left_out)}")
        if upload.edited:
            say("README.md was edited since the export and goes as it is")
        if dry_run:
            kept = " (private)" if private else ""
            say(f"would send {len(upload.files)} files to {name}{kept}; nothing was sent")
            continue
        pushed = send(upload, name, private)
        new = "pushed" if pushed.new else "already there, nothing new:"
        say(f"{new} {pushed.url} (commit {pushed.commit[:12]})")

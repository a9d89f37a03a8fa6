"""Define the verb that publishes a model: push."""

from typing import Annotated

import typer

from launch.app import app, run_folder, say


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

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
    `hf auth login`, or HF_TOKEN. The same model again changes nothing.

    \b
    Example:
        maskmill push runs/base yourname/base --private"""
    from pretrain.export.bundle import exported_folder, gather, newest_step
    from pretrain.export.hub import check_name
    from pretrain.export.hub import push as send

    check_name(repo)
    folder = run_folder(source, None)
    upload = gather(exported_folder(folder), repo)
    if (newest := newest_step(folder)) > upload.step:
        say(
            f"the export is of step {upload.step:,}, the run is at {newest:,}: maskmill export {source} renews it"
        )
    for name, size in upload.sizes.items():
        say(f"    {size:>13,} bytes  {name}")
    if upload.left_out:
        say(f"left out, no part of an export: {', '.join(upload.left_out)}")
    if upload.edited:
        say("README.md was edited since the export and goes as it is")
    if dry_run:
        say(
            f"would send {len(upload.files)} files to {repo}{' (private)' if private else ''}; nothing was sent"
        )
        return
    pushed = send(upload, repo, private)
    say(
        f"{'pushed' if pushed.new else 'already there, nothing new:'} {pushed.url} (commit {pushed.commit[:12]})"
    )

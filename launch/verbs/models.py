"""Define the verbs of a trained model: export, fill."""

from typing import Annotated

import typer

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
    licence: Annotated[
        str,
        typer.Option(help="What the model card states, as apache-2.0; default: export.licence of the run."),
    ] = "",
) -> None:
    """Write a checkpoint as a Hugging Face folder, after a proof that both models give the same logits.

    \b
    Example:
        maskmill export runs/base --out models/base"""
    folder = run_folder(source, overrides)
    with waiting(errors, "exporting, and comparing both models' logits"):
        from pretrain.exporting import export_run
        from pretrain.monitoring.lineage import record_export
        from pretrain.report.show_samples import show_samples

        exported = export_run(folder, out, licence)
        show_samples(exported.run, exported.checkpoint.step, exported.samples, exported.held_out)
    say(exported.proof)
    say(f"exported to {exported.model}")
    record_export(exported.run, exported.checkpoint, exported.model)


@app.command()
def fill(
    model: Folder,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Sentences with a [MASK] in each.")],
) -> None:
    """Fill the blanks of sentences with an exported model, through transformers.pipeline. [MASK] stands for whatever
    the model's own mask token is.

    \b
    Example:
        maskmill fill models/base "The capital of France is [MASK]." """
    with waiting(errors, "filling blanks"):
        from pretrain.evaluate.fill import fill_blanks

        found = list(fill_blanks(model, texts))
    for text, words in found:
        say(f"{text}\n    " + "   ".join(f"{word} {share:.1%}" for word, share in words))

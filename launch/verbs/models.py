"""Verbs of a trained model: export, fill."""

from typing import Annotated

import typer

from launch.app import Folder, Overrides, app, console, run_folder, say
from launch.progress import late


@app.command()
def export(
    source: Annotated[str, typer.Argument(metavar="PATH", help="A run or checkpoint folder, or a recipe.")],
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the model; default: `export` in the run folder.")] = "",
) -> None:
    """Write a checkpoint as a Hugging Face folder, after a proof that both models give the same logits.

    \b
    Example:
        maskmill export runs/base --out models/base"""
    with late(console, "exporting, and comparing both models' logits"):
        from pretrain.exporting import export_run

        path, proof = export_run(run_folder(source, overrides), out)
    say(proof)
    say(f"exported to {path}")


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
    with late(console, "loading the model"):
        from pretrain.evaluate.fill import fill_blanks

        filled = list(fill_blanks(model, texts))
    for text, words in filled:
        say(f"{text}\n    " + "   ".join(f"{word} {share:.1%}" for word, share in words))

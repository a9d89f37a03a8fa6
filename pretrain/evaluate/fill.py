"""Fill blanks in sentences with an exported model: its likeliest words."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.evaluate.blanks import Blank
from pretrain.export.upload import EXPORT
from pretrain.run_folder import CONFIG

Guesses = list[tuple[str, float]]
"""Words and their probabilities, the likeliest first."""

SHOWN = 3
"""Guesses shown beside the word that was hidden."""
BEFORE, AFTER = 60, 40
"""Characters around a blank that are shown of a long text."""


def run_and_export(folder: Path) -> tuple[Path, Path]:
    """The run's folder and the exported model's, of a folder that is either."""
    return (folder, folder / EXPORT) if (folder / CONFIG).is_file() else (folder.parent, folder)


def fill_blanks(model: Path, texts: list[str], top: int = 5) -> Iterator[tuple[str, Guesses]]:
    """(text, [(word, probability)]) for each text, through transformers.pipeline, as any user of the model would;
    [MASK] in a text stands for the model's own mask token.

    Raises UserError for a folder without a model or a text without exactly one blank."""
    if not (model / "config.json").is_file() or not list(model.glob("*.safetensors")):
        raise UserError("not an exported model", where=model, remedy="maskmill export RUN writes one")
    from transformers import AutoTokenizer, pipeline, utils

    utils.logging.set_verbosity_error()
    utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model)
    safe = {"use_safetensors": True}  # a pytorch_model.bin could run code
    fill = pipeline(
        "fill-mask", model=str(model), tokenizer=tokenizer, device="cpu", top_k=top, model_kwargs=safe
    )
    for text in texts:
        own = text.replace("[MASK]", tokenizer.mask_token)
        blanks = own.count(tokenizer.mask_token)
        if blanks != 1:
            raise UserError(
                f"{blanks} blanks in {text!r}", expected=f"one {tokenizer.mask_token} in each sentence"
            )
        yield text, [(str(guess["token_str"]).strip(), float(guess["score"])) for guess in fill(own)]


def beside_the_truth(found: list[tuple[str, Guesses]], blanks: list[Blank]) -> list[str]:
    """A line for each filled blank, with the word that stood there, and one that counts those guessed at once."""
    lines, right = [], 0
    for blank, (_, guesses) in zip(blanks, found, strict=True):
        hit = guesses[0][0].lower() == blank.word.lower()
        right += hit
        shares = "   ".join(f"{word} {share:.1%}" for word, share in guesses[:SHOWN])
        verdict = "right" if hit else f"it was {blank.word}"
        lines.append(f"{around_the_blank(blank.text)}\n    {shares}   ({verdict})")
    return [*lines, f"{right} of {len(blanks)} right, of words drawn at random from held-out text"]


def around_the_blank(text: str) -> str:
    """The blank with the words around it, on one line; dots where more stood there, which the model sees."""
    before, _, after = text.partition("[MASK]")
    if len(before) > BEFORE:
        before = "... " + before[-BEFORE:].partition(" ")[2]
    if len(after) > AFTER:
        after = after[:AFTER].rpartition(" ")[0] + " ..."
    return f"{before}[MASK]{after}"

"""Fill blanks in sentences with the likeliest words of an exported model."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import UserError
from pretrain.run.folder import CONFIG, EXPORT, SAMPLES, model_folders
from pretrain.run.tolerant_json import number, objects, table

Guesses = list[tuple[str, float]]
"""Words and their probabilities, likeliest first."""


def run_and_export(folder: Path) -> tuple[Path, Path]:
    """Return the run folder and the exported model's folder, given either; of several models, the one that predicts
    masked words."""
    is_run = (folder / CONFIG).is_file()
    exported = folder / EXPORT if is_run else folder
    models = model_folders(exported)
    words = [
        model for model in models if "ForMaskedLM" in str(table(model / "config.json").get("architectures"))
    ]
    return folder if is_run else folder.parent, (words or models or [exported])[0]


def fill_blanks(model: Path, texts: list[str], top: int = 5) -> Iterator[tuple[str, Guesses]]:
    """Yield (text, [(word, probability)]) per text, through transformers.pipeline, as any user of the model would;
    [MASK] in a text is replaced by the model's own mask token.

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


def held_out_blanks(run: Path) -> list[str]:
    """Describe the held-out blanks that the run's export filled: two lines per blank, with the true word, and one line
    with the number of correct first guesses. Raises UserError if there are none."""
    kept = table(run / SAMPLES)
    lines, right = [], 0
    samples = objects(kept.get("samples")) if kept.get("held_out") else []
    for sample in samples:
        word, guesses = str(sample.get("word") or ""), _guesses(sample.get("guesses"))
        hit = bool(guesses) and guesses[0][0] == word
        right += hit
        shares = "   ".join(f"{guess} {share:.1%}" for guess, share in guesses)
        blank = f"{sample.get('before') or ''} [MASK] {sample.get('after') or ''}".strip()
        lines.append(f"{blank}\n    {shares}   ({'right' if hit else f'it was {word}'})")
    if not lines:
        raise UserError(
            "no blanks of held-out text",
            where=run,
            remedy="maskmill export fills them, where data.held_out is not 0",
        )
    return [*lines, f"{right} of {len(lines)} right; blanks in held-out text that nobody chose"]


def _guesses(found: object) -> Guesses:
    """Return the (word, share) pairs in a list that was read from a file."""
    pairs = (
        [pair for pair in found if isinstance(pair, list) and len(pair) == 2]
        if isinstance(found, list)
        else []
    )
    return [(str(word), number(share) or 0.0) for word, share in pairs]

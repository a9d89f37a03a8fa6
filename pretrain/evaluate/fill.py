"""Fill blanks in sentences with an exported model: its likeliest words."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.errors import UserError


def fill_blanks(model: Path, texts: list[str], top: int = 5) -> Iterator[tuple[str, list[tuple[str, float]]]]:
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

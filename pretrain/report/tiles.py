"""Show a run's figures of learning as tiles, each beside its baseline."""

import math
from html import escape

from pretrain.evaluate.scores import perplexity
from pretrain.forgiving import number
from pretrain.report.record import RunRecord
from pretrain.report.scales import text


def learning_tiles(run: RunRecord) -> list[str]:
    """Loss, accuracy and perplexity at [MASK] of held-out text; in training where nothing was held out."""
    figures = run.figures
    if number(figures.get("held_out_mask_loss")) is not None:
        return [_loss_tile(run), _accuracy_tile(run), _perplexity_tile(run), _kinds_tile(run)]
    trained = number(figures.get("mask_loss"))
    if trained is not None:
        return [
            tile("Loss at [MASK]", text(trained), "nats", _in_training(run, "mask_loss")),
            _kinds_tile(run),
        ]
    return _other_tiles(run)


def tile(name: str, value: str, unit: str, about: str, picture: str = "", wide: bool = False) -> str:
    """One figure with its name above it, and what it means below it."""
    return (
        f'<div class="tile{" wide" if wide else ""}"><h2>{escape(name)}</h2>'
        f'<p class="value">{escape(value)}{f" <small>{escape(unit)}</small>" if unit else ""}</p>'
        f"{picture}{f'<p>{escape(about)}</p>' if about else ''}</div>"
    )


def _loss_tile(run: RunRecord) -> str:
    title = "Held-out loss at [MASK]"
    loss, unigram = (number(run.figures.get(f"held_out_mask_{name}loss")) for name in ("", "unigram_"))
    assert loss is not None
    if unigram is None:
        return tile(title, f"{loss:.3f}", "nats", "Lower is better.", wide=True)
    side = "below" if loss < unigram else "above"
    about = f"{abs(unigram - loss):.2f} nats {side} what word frequencies alone give ({text(unigram)})."
    scale = max(loss, unigram) or 1.0
    bars = "".join(
        f'<div class="bar"><span>{name}</span><i class="{kind}" style="width:{max(0.0, 60 * value / scale):.1f}%"></i>'
        f"<b>{value:.2f}</b></div>"
        for name, kind, value in (("this model", "b2", loss), ("frequencies", "b0", unigram))
    )
    return tile(title, f"{loss:.3f}", "nats", about, bars, wide=True)


def _accuracy_tile(run: RunRecord) -> str:
    accuracy, most = (number(run.figures.get(f"held_out_mask_{name}")) for name in ("accuracy", "majority"))
    if accuracy is None:
        return ""
    about = "First guess right."
    if most is not None:
        about += f" Always the most frequent token would get {text(most, share=True)}."
    return tile("Held-out accuracy at [MASK]", text(accuracy, share=True), "", about)


def _perplexity_tile(run: RunRecord) -> str:
    loss, unigram = (number(run.figures.get(f"held_out_mask_{name}loss")) for name in ("", "unigram_"))
    about = "Among so many equally likely words it chooses."
    if unigram is not None:
        about += f" By word frequencies alone: {perplexity(unigram)}."
    return tile("Held-out perplexity at [MASK]", perplexity(loss), "", about)


def _kinds_tile(run: RunRecord) -> str:
    """What is predicted where a word is visible: copying does well on kept ones."""
    prefix = "held_out_" if "held_out_mask_loss" in run.figures else ""
    kept, random = (number(run.figures.get(f"{prefix}{kind}_accuracy")) for kind in ("kept", "random"))
    if kept is None:
        return ""
    about = "Predicted words that stay visible: copying gets them right, without any context."
    if random is not None:
        about += f" Where a random word is shown: {text(random, share=True)}."
    return tile("Accuracy at kept words", text(kept, share=True), "", about)


def _other_tiles(run: RunRecord) -> list[str]:
    """Of an objective without [MASK], and of an older run: as they are, with nothing claimed."""
    name, title = run.headline, run.headline.replace("_", " ").capitalize()
    for key, where in ((f"held_out_{name}", "On held-out text."), (name, "In training.")):
        if (value := number(run.figures.get(key))) is not None:
            return [tile(title, text(value, share=name.endswith("accuracy")), "", where)]
    for key, where in (("held_out_mlm_loss", "On held-out text"), ("mlm_loss", "")):
        if (value := number(run.figures.get(key))) is not None:
            about = f"{where}; words that stay visible are among them."
            if key == "mlm_loss":
                about = _in_training(run, key)
            return [tile("Loss over all predicted tokens", text(value), "nats", about)]
    return []


def _in_training(run: RunRecord, name: str) -> str:
    """Why a figure is that of training."""
    held_out = run.held_out.get(f"held_out_{name}")
    if held_out is None:
        return "In training; this run was not evaluated on held-out text."
    if math.isfinite(held_out.values[-1]):
        return "In training; on held-out text only the untrained model was evaluated yet."
    return "In training; on held-out text the newest was no number."

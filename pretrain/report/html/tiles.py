"""Show a run's figures of learning as tiles, each beside its baseline."""

import math
from html import escape

from pretrain.evaluate.scores import perplexity
from pretrain.report.html.charts.scales import text
from pretrain.report.html.record import RunRecord
from pretrain.run.tolerant_json import number


def learning_tiles(run: RunRecord) -> list[str]:
    """Loss, accuracy and perplexity at [MASK] of held-out text; in training where nothing was held out."""
    figures = run.figures
    if number(figures.get("held_out_mask_loss")) is not None:
        return [_loss_tile(run), _accuracy_tile(run), _perplexity_tile(run)]
    trained = number(figures.get("mask_loss"))
    if trained is not None:
        about = _in_training(run, "mask_loss") + _kinds(run, "")
        return [tile("Loss at [MASK]", text(trained), "nats", about)]
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
        return tile(title, f"{loss:.3f}", "nats", "Lower is better." + _kinds(run, "held_out_"), wide=True)
    side = "below" if loss < unigram else "above"
    about = f"{abs(unigram - loss):.2f} nats {side} what word frequencies alone give ({text(unigram)})."
    about += _kinds(run, "held_out_")
    scale = max(loss, unigram) or 1.0
    bars = "".join(
        f'<div class="bar"><span>{name}</span><i class="{kind}" style="width:{max(0.0, 60 * value / scale):.1f}%"></i>'
        f"<b>{value:.2f}</b></div>"
        for name, kind, value in (("this model", "b2", loss), ("unigram", "b0", unigram))
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


def _kinds(run: RunRecord, prefix: str) -> str:
    """What is predicted where a word is visible, in a sentence; empty where that is not known."""
    kept, random = (number(run.figures.get(f"{prefix}{kind}_accuracy")) for kind in ("kept", "random"))
    if kept is None:
        return ""
    words = f" Apart from this: {text(kept, share=True)} right at words that are kept, which takes no more than copying"
    return f"{words}{'' if random is None else f', {text(random, share=True)} where a random word is shown'}."


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

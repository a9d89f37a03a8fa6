"""Show a run's learning figures as tiles, each beside its baseline."""

import math
from html import escape

from pretrain.report.html.charts.scales import text
from pretrain.report.html.record import RunRecord
from pretrain.run.files import number
from pretrain.run.metrics import HELD_OUT, guess, kinds_in, leads_alone, perplexity, said, title_of


def learning_tiles(run: RunRecord) -> list[str]:
    """Return tiles of the headline's held-out loss, accuracy and, for words, perplexity; training figures if nothing
    was held out."""
    kind, figures = run.kind, run.figures
    if number(figures.get(f"{HELD_OUT}{kind.name}_loss")) is not None:
        tiles = _other_tiles(run) if leads_alone(run.headline) else []
        tiles += [_loss_tile(run), _accuracy_tile(run)]
        return [*tiles, _perplexity_tile(run)] if kind.words else tiles
    trained = number(figures.get(f"{kind.name}_loss"))
    if trained is not None and number(figures.get(f"{HELD_OUT}{run.headline}")) is None:
        about = _in_training(run, f"{kind.name}_loss") + _kinds(run, "")
        return [tile(title_of(kind.said("loss")), text(trained), "nats", about)]
    return _other_tiles(run)


def tile(name: str, value: str, unit: str, about: str, picture: str = "", wide: bool = False) -> str:
    """Return one figure with its name above it and its meaning below it."""
    return (
        f'<div class="tile{" wide" if wide else ""}"><h2>{escape(name)}</h2>'
        f'<p class="value">{escape(value)}{f" <small>{escape(unit)}</small>" if unit else ""}</p>'
        f"{picture}{f'<p>{escape(about)}</p>' if about else ''}</div>"
    )


def _loss_tile(run: RunRecord) -> str:
    kind = run.kind
    title = f"Held-out {kind.said('loss')}"
    loss, unigram = (
        number(run.figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("loss", "unigram_loss")
    )
    assert loss is not None
    if unigram is None:
        return tile(title, f"{loss:.3f}", "nats", "Lower is better." + _kinds(run, HELD_OUT), wide=True)
    side = "below" if loss < unigram else "above"
    about = f"{abs(unigram - loss):.2f} nats {side} what word frequencies alone give ({text(unigram)})."
    about += _kinds(run, HELD_OUT)
    scale = max(loss, unigram) or 1.0
    bars = "".join(
        f'<div class="bar"><span>{name}</span><i class="{kind}" style="width:{max(0.0, 60 * value / scale):.1f}%"></i>'
        f"<b>{value:.2f}</b></div>"
        for name, kind, value in (("this model", "b2", loss), ("unigram", "b0", unigram))
    )
    return tile(title, f"{loss:.3f}", "nats", about, bars, wide=True)


def _accuracy_tile(run: RunRecord) -> str:
    kind = run.kind
    accuracy, most = (
        number(run.figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("accuracy", "majority")
    )
    if accuracy is None:
        return ""
    about = "First guess right." if kind.words else "Share judged right."
    if most is not None:
        answer = "the most frequent token" if kind.words else "the commonest answer"
        about += f" Always {answer} would get {text(most, share=True)}."
    return tile(f"Held-out {kind.said('accuracy')}", text(accuracy, share=True), "", about)


def _perplexity_tile(run: RunRecord) -> str:
    kind = run.kind
    loss, unigram = (
        number(run.figures.get(f"{HELD_OUT}{kind.name}_{what}")) for what in ("loss", "unigram_loss")
    )
    about = "Among so many equally likely words it chooses."
    if unigram is not None:
        about += f" By word frequencies alone: {perplexity(unigram)}."
    return tile(f"Held-out {kind.said('perplexity')}", perplexity(loss), "", about)


def _kinds(run: RunRecord, prefix: str) -> str:
    """Describe the accuracy at visible words in a sentence; empty if unknown."""
    kept, random = (number(run.figures.get(f"{prefix}{kind}_accuracy")) for kind in ("kept", "random"))
    if kept is None:
        return ""
    words = f" Apart from this: {text(kept, share=True)} right at words that are kept, which takes no more than copying"
    return f"{words}{'' if random is None else f', {text(random, share=True)} where a random word is shown'}."


def _other_tiles(run: RunRecord) -> list[str]:
    """Return tiles for an objective with another headline, or a run without headline figures, without a judgement."""
    terms = [kind for kind in kinds_in(run.figures) if not kind.part and not kind.labels]
    for name, caveat in [(run.headline, ""), *((f"{kind.name}_loss", kind.caveat) for kind in terms)]:
        for key, where in ((f"{HELD_OUT}{name}", "On held-out text."), (name, _in_training(run, name))):
            if (value := number(run.figures.get(key))) is not None:
                unit = "nats" if name.endswith("_loss") else ""
                chance = guess(name)
                shown = text(value, share=name.endswith("accuracy"))
                return [tile(title_of(said(name)), shown, unit, f"{where} {chance or caveat}".strip())]
    return []


def _in_training(run: RunRecord, name: str) -> str:
    """Return why a figure is from training."""
    held_out = run.held_out.get(f"{HELD_OUT}{name}")
    if held_out is None:
        return "In training; this run was not evaluated on held-out text."
    if math.isfinite(held_out.values[-1]):
        return "In training; on held-out text only the untrained model was evaluated yet."
    return "In training; on held-out text the newest was no number."

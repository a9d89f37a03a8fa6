"""Show the statistics of the data: counts, lengths, pair labels, masks, padding."""

from html import escape
from typing import Any

from pretrain.report.charts import drawing, labels, middle, numbers, table, text
from pretrain.report.record import RunRecord
from pretrain.run.files import number
from pretrain.run.metrics import percent

MASKS = {
    "masked_as_mask": "[MASK]",
    "masked_as_random": "a random word",
    "masked_as_itself": "left as it was",
}
HISTOGRAM = "length_histogram"
BUDGET = (
    '<p class="aside">A micro-batch may hold so many tokens (train.micro_batch); what a rank\'s share of the global '
    "batch does not use is no padding, and nothing is computed for it unless the model is compiled.</p>"
)


def data_section(run: RunRecord) -> str:
    """Return counts in a table, one column per split; shares and lengths as bars. Empty without statistics."""
    data = run.summary.get("data")
    if not isinstance(data, dict) or not data:
        return ""
    splits = splits_of(data)
    shown = next((part for part in splits.values() if HISTOGRAM in part), {})
    longest = number(run.setting("data.sequence_length"))
    pictures = [
        _lengths(shown, longest),
        _shares("Pair labels", *_labels(shown)),
        _shares("Masked positions became", shown, MASKS),
        _padding(run, shown, longest),
    ]
    beside, alone = _tables(splits)
    drawn = "".join(pictures) or "<p>No distribution was recorded.</p>"
    return (
        f'<section id="data"><h2>Data</h2><div class="pair"><div class="card">{beside}{alone}</div>'
        f'<div class="card">{drawn}</div></div></section>'
    )


def _padding(run: RunRecord, part: dict[str, Any], longest: float | None) -> str:
    """Show the padding, what it would be otherwise, and separately the used share of the token budget."""
    tokens, examples = number(part.get("tokens")), number(part.get("examples"))
    padded, own = number(part.get("padded_tokens")), middle(run.train.get("padding_share"))
    shares = {} if own is None else {"as trained": own}
    if tokens and examples and longest:
        if padded:
            shares["if padded to the longest of each block"] = 1 - tokens / padded
        shares["if padded to full length"] = 1 - tokens / (examples * longest)
    fill = middle(run.train.get("fill"))
    found = (
        _bars("Padding, as a share of all positions", shares, scale=max(*shares.values(), 0.1))
        if shares
        else ""
    )
    if fill is None:
        return found
    return found + _bars("Token budget of the micro-batches", {"used": fill, "not used": 1 - fill}) + BUDGET


def splits_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of the statistics, the training examples first; values outside all parts are `other`."""
    parts = {name: part for name, part in data.items() if isinstance(part, dict)}
    rest = {name: value for name, value in data.items() if name not in parts}
    order: list[str] = [name for name in ("train", "held_out") if name in parts]
    order += [name for name in parts if name not in order]
    return {name: parts[name] for name in order} | ({"other": rest} if rest else {})


def _labels(part: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the number of examples of each label and of those without one, and their names."""
    labels = part.get("pair_labels")
    counts = {
        **(labels if isinstance(labels, dict) else {}),
        "single_sequences": part.get("single_sequences"),
    }
    return counts, {name: _words(name) for name in counts}


def _tables(splits: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return parts that count examples side by side, and every other part in its own table."""
    beside = {name: part for name, part in splits.items() if "examples" in part}
    alone = {name: part for name, part in splits.items() if name not in beside}
    tables = [f"<h3>{escape(_words(name))}</h3>{_counts({name: part})}" for name, part in alone.items()]
    return _counts(beside) if beside else "", "".join(tables)


def _counts(splits: dict[str, dict[str, Any]]) -> str:
    """Return a row for each count; those that are 0 everywhere are only named."""
    names = list(dict.fromkeys(name for part in splits.values() for name in part))
    rows, none = [], []
    for name in names:
        values = [part.get(name) for part in splits.values()]
        if any(isinstance(value, list | dict) for value in values):
            continue
        if all(value == 0 and not isinstance(value, bool) for value in values):
            none.append(_words(name))
            continue
        rows.append([escape(_words(name)), *(escape(_value(value)) for value in values)])
    rows += _rates(splits)
    head = ["", *map(_words, splits)] if len(splits) > 1 else []
    absent = f'<p class="aside">None of: {escape(", ".join(none))}.</p>' if none else ""
    return (table(head, rows) if rows else "") + absent


def _words(name: str) -> str:
    return name.replace("_", " ")


def _rates(splits: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return the shares computed from the counts."""
    rows = []
    for label, part_of, whole in (
        ("tokens an example", "tokens", "examples"),
        ("share of tokens masked", "masked", "tokens"),
        ("share of full length", "full_length_examples", "examples"),
        ("share of the text used", "text_tokens_used", "text_tokens"),
    ):
        pairs = [(number(part.get(part_of)), number(part.get(whole))) for part in splits.values()]
        if any(above is not None and below for above, below in pairs):
            is_fraction = label.startswith("share")
            cells = (
                text(above / below, is_fraction) if above is not None and below else ""
                for above, below in pairs
            )
            rows.append([label, *cells])
    return rows


def _value(value: Any) -> str:
    figure = number(value)
    if value is None:
        return ""
    return str(value) if figure is None else text(figure)


def _shares(title: str, part: dict[str, Any], names: dict[str, str]) -> str:
    """Show the shares of a whole."""
    counts = {label: number(part.get(name)) or 0.0 for name, label in names.items() if name in part}
    total = sum(counts.values())
    if total <= 0:
        return ""
    return _bars(title, {label: count / total for label, count in counts.items() if count})


def _bars(title: str, shares: dict[str, float], scale: float = 1.0) -> str:
    """Return a bar for each share, relative to `scale`."""
    bars = "".join(
        f'<div class="bar"><span>{escape(label)}</span>'
        f'<i class="b1" style="width:{min(52.0, max(0.3, 52 * share / scale)):.1f}%"></i>'
        f"<b>{percent(share)}</b></div>"
        for label, share in shares.items()
    )
    return f"<h3>{escape(title)}</h3>{bars}"


def _lengths(part: dict[str, Any], longest: float | None) -> str:
    """Show examples by length, in equal bins up to the sequence length."""
    values = part.get(HISTOGRAM)
    counts = [number(value) or 0.0 for value in values] if isinstance(values, list) else []
    if not counts or len(counts) > 1024 or max(counts) <= 0:
        return ""
    width = (longest or len(counts)) / len(counts)
    step, highest = 1000 / len(counts), max(counts)
    bars = "".join(
        f'<rect x="{i * step + 0.08 * step:.1f}" width="{0.84 * step:.1f}" '
        f'y="{1000 - 1000 * count / highest:.1f}" height="{1000 * count / highest:.1f}"/>'
        for i, count in enumerate(counts)
    )
    ends = [(i / len(counts), text(i * width)) for i in (0, len(counts) // 2, len(counts))]
    top = max(range(len(counts)), key=counts.__getitem__)
    most = (
        f"{percent(counts[top] / sum(counts))} of the examples have {text(top * width)} to "
        f"{text((top + 1) * width)} tokens."
    )
    rows = [(f"up to {text((i + 1) * width)}", text(count)) for i, count in enumerate(counts)]
    picture = drawing("lengths", "Lengths of the examples", most, f'<g class="bars">{bars}</g>')
    return (
        f'<h3>Lengths of the examples, in tokens</h3><div class="plot low">{picture}{labels("left", ends, "columns")}'
        f"</div><p>{most}</p>{numbers(['tokens', 'examples'], rows)}"
    )

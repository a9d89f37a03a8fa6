"""The index's statistics in, a section about the data out: counts, lengths, pair labels, masks."""

from html import escape
from typing import Any

from pretrain.report.record import RunRecord, number
from pretrain.report.scales import text

PAIRS = {"pairs_is_next": "IsNext", "pairs_random": "NotNext", "single_streams": "single streams"}
MASKS = {
    "masked_as_mask": "[MASK]",
    "masked_as_random": "a random word",
    "masked_as_itself": "left as it was",
}
HISTOGRAM = "length_histogram"


def data_section(run: RunRecord) -> str:
    """Counts in a table, one column a split; shares and lengths as bars. Empty without statistics."""
    data = run.summary.get("data")
    if not isinstance(data, dict) or not data:
        return ""
    splits = splits_of(data)
    shown = next((part for part in splits.values() if HISTOGRAM in part), {})
    pictures = [
        _shares("Pair labels", shown, PAIRS),
        _shares("Masked positions became", shown, MASKS),
        _lengths(shown, number(run.setting("data.sequence_length"))),
    ]
    return (
        '<section id="data"><h2>Data</h2><div class="pair">'
        f'<div class="card">{_tables(splits)}</div>'
        f'<div class="card">{"".join(pictures) or "<p>No distribution was recorded.</p>"}</div></div></section>'
    )


def splits_of(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of the statistics, the training examples first; what stands outside all parts is `other`."""
    parts = {name: part for name, part in data.items() if isinstance(part, dict)}
    rest = {name: value for name, value in data.items() if name not in parts}
    order: list[str] = [name for name in ("train", "held_out") if name in parts]
    order += [name for name in parts if name not in order]
    return {name: parts[name] for name in order} | ({"other": rest} if rest else {})


def not_next_share(run: RunRecord, split: str) -> float | None:
    """Share of a split's pairs (else of the first part that counts them) whose label is NotNext: the labels are
    seldom in balance, and a score means little without it."""
    data = run.summary.get("data")
    parts = splits_of(data) if isinstance(data, dict) else {}
    for part in [parts.get(split, {}), *parts.values()]:
        follows, other = number(part.get("pairs_is_next")), number(part.get("pairs_random"))
        if follows is not None and other is not None and follows + other > 0:
            return other / (follows + other)
    return None


def _tables(splits: dict[str, dict[str, Any]]) -> str:
    """Parts that count examples side by side, every other part in a table of its own."""
    beside = {name: part for name, part in splits.items() if "examples" in part}
    alone = {name: part for name, part in splits.items() if name not in beside}
    tables = [_counts(beside)] if beside else []
    tables += [
        f"<h3>{escape(name.replace('_', ' '))}</h3>{_counts({name: part})}" for name, part in alone.items()
    ]
    return "".join(tables)


def _counts(splits: dict[str, dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for part in splits.values() for name in part))
    rows = []
    for name in names:
        values = [part.get(name) for part in splits.values()]
        if not any(isinstance(value, list | dict) for value in values):
            cells = "".join(f"<td>{escape(_value(value))}</td>" for value in values)
            rows.append(f'<tr><th scope="row">{escape(name.replace("_", " "))}</th>{cells}</tr>')
    rows += _rates(splits)
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in splits)
    head = f"<thead><tr><td></td>{head}</tr></thead>" if len(splits) > 1 else ""
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _rates(splits: dict[str, dict[str, Any]]) -> list[str]:
    """Shares that follow from the counts."""
    rows = []
    for label, part_of, whole in (
        ("tokens an example", "tokens", "examples"),
        ("share of tokens masked", "masked", "tokens"),
        ("share of full length", "full_length", "examples"),
    ):
        pairs = [(number(part.get(part_of)), number(part.get(whole))) for part in splits.values()]
        if any(above is not None and below for above, below in pairs):
            share = label.startswith("share")
            cells = "".join(
                f"<td>{text(above / below, share) if above is not None and below else ''}</td>"
                for above, below in pairs
            )
            rows.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return rows


def _value(value: Any) -> str:
    figure = number(value)
    if value is None:
        return ""
    return str(value) if figure is None else text(figure)


def _shares(title: str, part: dict[str, Any], names: dict[str, str]) -> str:
    counts = {label: number(part.get(name)) or 0.0 for name, label in names.items() if name in part}
    total = sum(counts.values())
    if total <= 0:
        return ""
    bars = "".join(
        f'<div class="bar"><span>{escape(label)}</span>'
        f'<i class="b1" style="width:{max(0.0, 55 * count / total):.1f}%"></i>'
        f"<b>{text(count / total, share=True)}</b></div>"
        for label, count in counts.items()
        if count
    )
    return f"<h3>{escape(title)}</h3>{bars}"


def _lengths(part: dict[str, Any], longest: float | None) -> str:
    """Examples by length, in equal bins up to the sequence length."""
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
    ends = [0, len(counts) // 2, len(counts)]
    labels = "".join(
        f'<span style="left:{100 * i / len(counts):.1f}%">{text(i * width)}</span>' for i in ends
    )
    top = max(range(len(counts)), key=counts.__getitem__)
    total = sum(counts)
    most = (
        f"{text(counts[top] / total, share=True)} of the examples have {text(top * width)} to "
        f"{text((top + 1) * width)} tokens."
    )
    rows = "".join(
        f'<tr><th scope="row">up to {text((i + 1) * width)}</th><td>{text(count)}</td></tr>'
        for i, count in enumerate(counts)
    )
    return (
        f"<h3>Lengths of the examples, in tokens</h3><div class='plot low'>"
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" aria-labelledby="lengths-t lengths-d">'
        f'<title id="lengths-t">Lengths of the examples</title><desc id="lengths-d">{most}</desc>'
        f'<g class="bars">{bars}</g></svg><div class="columns" aria-hidden="true">{labels}</div></div>'
        f"<p>{most}</p><details><summary>Numbers</summary><div class='scroll'><table><thead><tr>"
        f'<th scope="col">tokens</th><th scope="col">examples</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )

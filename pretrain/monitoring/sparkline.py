"""Draw a curve as a row of block characters."""

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*#%"
"""Eight levels, low to high; the second for terminals whose encoding lacks the first."""


def sparkline(values: list[float], width: int, levels: str = BLOCKS) -> str:
    """Return the values as a row of at most `width` blocks, each the mean of its share of them, low to high."""
    count = min(width, len(values))
    bins = [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]
    means = [sum(part) / len(part) for part in bins]
    low, high = min(means), max(means)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((mean - low) * scale)] for mean in means)

"""The model card: facts about data, recipe and scores in; README.md out."""

from collections.abc import Mapping
from pathlib import Path

from pretrain.export.parity import Parity
from pretrain.objectives.base import Objective

Facts = Mapping[str, "str | Mapping[str, object]"]
"""Section title -> a paragraph, or a table of names and values."""

_HEAD = """---
library_name: transformers
pipeline_tag: fill-mask
tags: [bert, masked-lm, maskmill]
---

# {title}

A BERT encoder pretrained from raw text with Maskmill. Load it with `transformers`:

```python
from transformers import AutoTokenizer, {export_class}

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = {export_class}.from_pretrained("PATH")
```
"""
_NO_POOLER = """
The model was trained without sentence pairs, so it has no pooler: `BertModel` starts one at random, which
fine-tuning has to train.
"""


def write_card(
    folder: Path, title: str, facts: Facts, objective: type[Objective], parity: Mapping[str, Parity]
) -> None:
    """Writes README.md with one section for each of `facts`, and what the parity check found."""
    parts = [_HEAD.format(title=title, export_class=objective.export_class)]
    if not objective.pairs:
        parts.append(_NO_POOLER)
    parts += [_section(name, value) for name, value in facts.items()]
    parts.append(_section("Parity", {f"{head} logits": _finding(found) for head, found in parity.items()}))
    (folder / "README.md").write_text("".join(parts), "utf-8")


def _finding(parity: Parity) -> str:
    return (
        f"largest difference from the trainer's own model {parity.difference:.1e} in float64 (at most"
        f" {parity.allowed:.1e} allowed), {parity.difference_float32:.1e} in float32"
    )


def _section(name: str, value: "str | Mapping[str, object]") -> str:
    if isinstance(value, str):
        return f"\n## {name}\n\n{value}\n"
    rows = "".join(f"| {_cell(key)} | {_cell(entry)} |\n" for key, entry in value.items())
    return f"\n## {name}\n\n| | |\n|---|---|\n{rows}"


def _cell(value: object) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return " ".join(shown.split()).replace("|", "\\|")

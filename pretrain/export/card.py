"""Write the model card, README.md of the exported folder, from the run's own records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pretrain.export.bundle import PLACEHOLDER
from pretrain.export.hub import front_matter
from pretrain.export.lineage import Parent
from pretrain.export.parity import Parity
from pretrain.export.sentences import BLANK, SENTENCES, sentence_for
from pretrain.huggingface.base import Family
from pretrain.huggingface.config_json import weights_hash
from pretrain.run.task_scores import HEADS, TaskScore

Facts = Mapping[str, "str | Mapping[str, object]"]
"""Section title -> a paragraph, or a table of names and values."""


@dataclass(frozen=True)
class Card:
    """The card's content beyond what the export itself knows."""

    facts: Facts
    title: str = ""
    """Empty: the name of the folder."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes, if stated."""
    spoken: str = ""
    """The language that its text shows where none is stated; empty: unknown."""
    parent: Parent | None = None
    """What its training started from; None: from raw text."""
    license: str = ""
    """Empty: not stated."""
    step: int = 0
    """Step of the run at which its checkpoint was saved."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Name of a figure -> its value on held-out text, for the card's metadata."""
    tasks: Sequence[TaskScore] = ()
    """What models of the run scored on tasks; the card has those of the very weights that it describes."""


_USE = """
# {title}

{what} {origin} with Maskmill, and is a plain `transformers` model; no code of its own is needed.

## How to use it

`{placeholder}` is this folder, or the model's name on the hub.{pipeline}

Vectors of a text's tokens, to fine-tune or to look at; and the model with all its heads:

```python
from transformers import AutoModel, AutoTokenizer, {export_class}

tokenizer = AutoTokenizer.from_pretrained("{placeholder}")
encoder = AutoModel.from_pretrained("{placeholder}")
vectors = encoder(**tokenizer("A sentence to encode.", return_tensors="pt")).last_hidden_state
model = {export_class}.from_pretrained("{placeholder}")
```
"""
_PIPELINES = {
    "fill-mask": """ Fill a blank:

```python
from transformers import pipeline

fill = pipeline("fill-mask", model="{placeholder}")
guesses = fill(f"{sentence}"){comment}
```""",
    "text-generation": """ Continue a text:

```python
from transformers import pipeline

write = pipeline("text-generation", model="{placeholder}")
texts = write(f"{{write.tokenizer.cls_token}} {opening}", add_special_tokens=False){comment}
```""",
    "": "",
}
"""The snippet that the card shows for each pipeline of transformers."""
LIMITS = """\
A pretrained encoder is a starting point: fine-tune it for a task and measure it there. Beyond the figures above
nothing was measured: {unmeasured}no robustness, no bias.

It has learnt which words are usual in its text, and with them the views, the stereotypes and the gaps of those who
wrote it: what it fills into a blank about people says something of the text, not of the world. It is no source of
facts and knows nothing that came after its text; where the text hardly has a language, a subject or a time, it is
poor. Passages of the text, personal data among them, may show through in what it fills in. Do not let it decide about
people without a measurement of your own of what that does to each group."""
CITATION = """```bibtex
@software{maskmill,
  title  = {Maskmill: pretraining BERT-family encoders from raw text, on a laptop or a cluster},
  author = {{The Maskmill authors}}
}
```"""


def write_card(folder: Path, card: Card, family: Family, parity: Mapping[str, Parity]) -> None:
    """Write README.md: metadata for the hub, usage, a section for each of the card's facts, the result of the parity
    check, limits, license, citation."""
    parent = card.parent
    sentence = sentence_for(card.languages or ((card.spoken,) if card.spoken else ()))
    blank = sentence or SENTENCES["en"]
    pipeline = _PIPELINES[family.pipeline].format(
        sentence=blank.replace(BLANK, "{fill.tokenizer.mask_token}"),
        opening=blank.partition(BLANK)[0].strip(),
        comment="" if sentence else "  # better: a sentence in a language of its text",
        placeholder=PLACEHOLDER,
    )
    use = _USE.format(
        title=card.title,
        what=family.what,
        origin=parent.sentence if parent else "It was pretrained from raw text",
        pipeline=pipeline,
        export_class=family.export_class,
        placeholder=PLACEHOLDER,
    )
    weights = weights_hash(folder)
    tasks = [score for score in card.tasks if weights and score.weights == weights]
    license = f"`{card.license}`, as whoever trained it states." if card.license else NOT_STATED
    if parent and parent.license:
        license += (
            f" The model that it comes from, `{parent.name}`, is under `{parent.license}`, as its card says."
        )
    base_model = parent.name if parent and parent.is_published else ""
    parts = [
        front_matter(card.title, card.languages, card.license, card.scores, family, base_model),
        use,
        *(_section(name, value) for name, value in card.facts.items()),
        _tasks(tasks),
        _section("Proof of the export", _proof(parity)),
        _section("Limits and bias", LIMITS.format(unmeasured="" if tasks else "no downstream task, ")),
        _section("License", license),
        _section("Citation", CITATION),
    ]
    (folder / "README.md").write_text("".join(parts), "utf-8")


def _tasks(scores: Sequence[TaskScore]) -> str:
    """Return the section of the scores on tasks; empty where there are none."""
    if not scores:
        return ""
    rows = [HEADS, ("---",) * len(HEADS), *([_cell(cell) for cell in score.cells] for score in scores)]
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"\n## Scores on tasks\n\n{TASKS}\n\n{lines}"


TASKS = """\
By `maskmill evaluate`, medians over the seeds. Not pretrained is the same encoder with weights drawn at random and
trained on the task in the same way; trivial is the best answer that needs no input."""
NOT_STATED = "Not stated. Without a license nobody else may use the model: ask whoever trained it."


def _proof(parity: Mapping[str, Parity]) -> dict[str, str]:
    return {
        f"{head} logits": f"largest difference between transformers' model and the trainer's own on real text"
        f" {found.difference:.1e} in float64 (at most {found.allowed:.1e} allowed), {found.difference_float32:.1e}"
        " in float32"
        for head, found in parity.items()
    }


def _section(name: str, value: "str | Mapping[str, object]") -> str:
    if isinstance(value, str):
        return f"\n## {name}\n\n{value}\n"
    rows = "".join(f"| {_cell(key)} | {_cell(entry)} |\n" for key, entry in value.items())
    return f"\n## {name}\n\n| | |\n|---|---|\n{rows}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        shown = f"{value:.6g}"
    else:
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(shown.split()).replace("|", "\\|")

"""Find what a model's training started from: its parent's name and license, and which of its files are left behind.

A card is published, so a folder is named by its last name alone, a model of the hub by the name that it has there. All
is read as text from the parent's folder, if it is still there; nothing in it is trusted to be well formed.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.errors import UserError
from data_pipeline.sources.snapshot import name_only
from pretrain.config.settings import RunConfig
from pretrain.config.yaml_files import check_shape
from pretrain.objectives.registry import registered
from pretrain.run.files import CONFIG, EXPORT, MARKER, table, text_of
from pretrain.run.folder import model_folders, read_config

CONTINUED, DISTILLED = "continued", "distilled"
"""What was done with a parent: its weights were trained on, or the model learnt from its answers."""
SENTENCE_TRANSFORMERS = re.compile(
    r"modules\.json|(config_)?sentence_(transformers|bert_config)\.json|\d+_[A-Z]\w*"
)
"""Files and folders that sentence-transformers keeps beside a model: its pooling and what follows it."""
OWN_TERMS = re.compile(r"(?i)(licen[cs]e|notice|use_policy)(\.\w+)?|.+\.py")
"""Terms, and code, that come with a model."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
_NAME = re.compile(r"[\w./ -]{1,100}")
_LICENSE = re.compile(r"[\w.+ -]{1,80}")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\s", re.DOTALL)
GENERATIONS = 10
"""Runs that started from runs, up to the model that was published."""


@dataclass(frozen=True)
class Parent:
    """The model that a training started from."""

    name: str
    relation: str = CONTINUED
    license: str = ""
    """As its card states it; empty: it states none, or is not here."""
    left_out: tuple[str, ...] = ()
    """Files and folders beside it that are no part of the export."""
    is_published: bool = True
    """Whether it is a Hugging Face folder; else a run, which started from raw text."""

    @property
    def sentence(self) -> str:
        """Say in the card what was done."""
        if self.relation == DISTILLED:
            return f"It was trained on raw text, with `{self.name}` as its teacher,"
        if self.is_published:
            return f"It was not pretrained from nothing: it continues the pretraining of `{self.name}` on more text,"
        return f"It continues the run `{self.name}`, which was pretrained from raw text,"

    @property
    def facts(self) -> dict[str, object]:
        """Return the rows of the card's section about it."""
        what = {CONTINUED: "training started from the weights of", DISTILLED: "it learnt from the answers of"}
        rows: dict[str, object] = {what[self.relation]: self.name}
        if self.is_published:
            rows["license of that model"] = (
                self.license or "its card states none, or was not there at the export"
            )
        if self.left_out:
            rows["files of that model that are no part of this one"] = ", ".join(self.left_out)
        return rows

    @property
    def warning(self) -> str:
        """Return a line about what was left out; empty if nothing was."""
        if not self.left_out:
            return ""
        pooling = any(map(SENTENCE_TRANSFORMERS.fullmatch, self.left_out))
        note = (
            "; how it pooled its vectors is among them: the export is an encoder without that"
            if pooling
            else ""
        )
        return (
            f"left out, files of {self.name} that are no part of the export: {', '.join(self.left_out)}{note}"
        )


def parent_of(config: RunConfig) -> Parent | None:
    """Return what the run started from, or its teacher; None for a run from raw text alone. Of a run that started from
    another run, what that one started from, up to a published model."""
    teacher = registered(config.objective.name).teacher
    if teacher and (named := str(config.objective.of_member().get(teacher) or "")):
        return _published(Path(named), DISTILLED)
    source, first = config.init_from, None
    for _ in range(GENERATIONS):
        if not source:
            break
        folder = Path(source)
        run = folder.resolve().parents[1] if (folder / MARKER).is_file() else folder
        if not (run / CONFIG).is_file():
            return _published(folder, CONTINUED)
        first = first or Parent(name_only(str(run)), is_published=False)
        try:
            source = read_config(run).init_from
        except (UserError, OSError):
            break
    return first


def _published(folder: Path, relation: str) -> Parent:
    """Describe a Hugging Face folder, or one of several models in it, as its own files state it."""
    models = model_folders(folder) if folder.is_dir() else []
    model = models[0] if models else folder
    card = _card(model)
    beside = sorted(path.name for path in model.iterdir()) if model.is_dir() else []
    left_out = [name for name in beside if SENTENCE_TRANSFORMERS.fullmatch(name) or OWN_TERMS.fullmatch(name)]
    license = card.get("license_name") if card.get("license") == "other" else card.get("license")
    return Parent(
        _name(folder, model, card), relation, _text(license, _LICENSE), tuple(left_out), is_published=True
    )


def _name(folder: Path, model: Path, card: dict[str, Any]) -> str:
    if cached := _HUB_CACHE.search(str(folder)):
        return f"{cached[1]}/{cached[2]}"
    known = table(model / "config.json").get("_name_or_path")
    if isinstance(known, str) and _HUB_NAME.fullmatch(known) and not Path(known).exists():
        return known
    index = card.get("model-index")
    listed = (
        index[0].get("name") if isinstance(index, list) and index and isinstance(index[0], dict) else None
    )
    if folder.name == EXPORT and (named := _text(listed, _NAME)):  # every run's own export has this name
        return named
    return name_only(str(folder))


def _card(model: Path) -> dict[str, Any]:
    """Return the metadata of a model's card; empty where there is none that can be read."""
    found = _FRONT_MATTER.match(text_of(model / "README.md")[:100_000])
    if not found:
        return {}
    try:
        check_shape(found[1])
        values = yaml.safe_load(found[1])  # no objects, and nothing is looked up in the environment
    except (yaml.YAMLError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _text(value: object, form: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and form.fullmatch(value) else ""

"""Protect a trained vocabulary from being overwritten.

VOCABULARY_LOG, next to the vocabulary, records the sources and settings it was trained from: rerunning the same command
finds it finished, and any other command is refused.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_pipeline.errors import UserError
from data_pipeline.io.files import canonical_json
from data_pipeline.settings import DataSettings, VocabularySettings
from data_pipeline.sources.snapshot import described_sources
from data_pipeline.vocabulary.base import Vocabulary
from data_pipeline.vocabulary.files import holds_vocabulary, load_vocabulary, save_vocabulary

VOCABULARY_LOG = "vocabulary.log.json"
ONLY_EXTENDING = ("new_words", "min_gain")
EXTENDING = (*ONLY_EXTENDING, "min_frequency", "sample_mb")
"""Vocabulary settings of an extension, and those of them that nothing else uses."""
_BEFORE = {"vocabulary.specials": "", "vocabulary.strip_accents": None}
"""Settings that older logs lack, with what they were then."""
_TEXT_SETTINGS = ("text_field", "id_field", "documents", "languages", "weights", "smoothing", "seed")


def trained_before(
    settings: DataSettings, vocabulary: VocabularySettings, extends: str = ""
) -> Vocabulary | None:
    """Return the vocabulary in data.vocab if it was trained from this text with these settings, as an extension of the
    vocabulary with the SHA-256 `extends` if that is given; None if there is none, or not all of its files.
    Raises UserError for any other vocabulary, and if data.vocab is a file."""
    folder = Path(settings.vocab)
    if folder.exists() and not folder.is_dir():
        raise UserError("is no folder", where=folder, expected="a folder", remedy="check data.vocab")
    if not folder.is_dir() or not holds_vocabulary(folder):
        return None
    log = _logged(folder)
    there = load_vocabulary(folder) if log else None
    if there is None or log.get("sha256") != there.sha256:
        raise _held(folder, "a vocabulary that was not trained into it by `maskmill vocab`")
    wanted, had = _made_from(settings, vocabulary, extends), log.get("made_from")
    had = had if isinstance(had, dict) else {}
    differing = [
        f"{key}={value} (there: {had.get(key)})"
        for key, value in wanted.items()
        if key != "sources" and had.get(key, _BEFORE.get(key)) != value
    ]
    if had.get("sources") != wanted["sources"]:
        differing.append("its sources had other names, sizes or times")
    if differing:
        raise _held(folder, f"another vocabulary: {', '.join(differing)}")
    return there if all((folder / name).is_file() for name in there.files()) else None


def save_trained(
    trained: Vocabulary, settings: DataSettings, vocabulary: VocabularySettings, extends: str = ""
) -> None:
    """Write the vocabulary into data.vocab, behind a record of what it was trained from."""
    facts = {"made_from": _made_from(settings, vocabulary, extends), "sha256": trained.sha256}
    save_vocabulary(trained, settings.vocab, {VOCABULARY_LOG: canonical_json(facts, indent=1)})


def _made_from(settings: DataSettings, vocabulary: VocabularySettings, extends: str) -> dict[str, Any]:
    given = asdict(vocabulary)
    used = {*EXTENDING} if extends else given.keys() - {*ONLY_EXTENDING}
    values = {f"vocabulary.{key}": given[key] for key in given if key in used}
    values |= {"extends": extends} if extends else {}
    values |= {f"data.{key}": getattr(settings, key) for key in _TEXT_SETTINGS}
    return json.loads(canonical_json(values | {"sources": described_sources(settings)}))


def _logged(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / VOCABULARY_LOG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _held(folder: Path, what: str) -> UserError:
    return UserError(f"holds {what}", where=folder, remedy="choose another data.vocab, or remove it")

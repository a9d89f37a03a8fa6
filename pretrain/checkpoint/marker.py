"""Write and read a checkpoint's marker, checkpoint.json, protected by a SHA-256."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from data_pipeline.errors import UserError
from pretrain.run.files import is_count
from pretrain.run.folder import OTHER_VERSION

FORMAT = 3
"""Version of the marker and its state: incremented when a key is renamed."""


class Damaged(UserError):
    """Raised for a checkpoint whose bytes differ from those written."""


class Marker(NamedTuple):
    """Contents of a marker."""

    step: int
    state: dict[str, Any]
    """JSON: counters, loader, scaler, identity, conditions, settings."""
    shapes: dict[str, list[int]]
    """Full shape of every named tensor."""
    files: list[dict[str, Any]]
    """`file`, `bytes` and `sha256` of every file beside the marker."""


def marked(said: Marker) -> bytes:
    """Return the text of a marker."""
    return sealed({"format": FORMAT, **said._asdict()})


def sealed(values: dict[str, Any]) -> bytes:
    """Serialise `values` as JSON, with a SHA-256 of their contents."""
    return json.dumps(values | {"sha256": _seal(values)}, indent=1, sort_keys=True).encode()


def parsed_marker(data: bytes, where: object) -> Marker:
    """Parse the bytes of a marker. Raises Damaged if they differ from what was written, UserError if another
    version of this program wrote them."""
    try:
        values = json.loads(data)
        # first: a flipped bit in the version is damage, and costs one checkpoint, not the run
        if values["sha256"] != _seal(values):
            raise ValueError("its SHA-256 does not hold")
        if values["format"] != FORMAT:
            found = str(values["format"])[:20]
            raise UserError(
                f"checkpoint of format {found}",
                where=where,
                expected=f"format {FORMAT}",
                remedy=OTHER_VERSION,
            )
        files = [
            {"file": _plain_name(f["file"]), "bytes": _count(f["bytes"]), "sha256": str(f["sha256"])}
            for f in values["files"]
        ]
        shapes = {str(name): [_count(n) for n in shape] for name, shape in values["shapes"].items()}
        return Marker(_count(values["step"]), dict(values["state"]), shapes, files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"malformed: {type(error).__name__}: {str(error)[:200]}", where=where) from None


def _seal(values: dict[str, Any]) -> str:
    said = {key: value for key, value in values.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _count(value: object) -> int:
    if not is_count(value):
        raise ValueError(f"{str(value)[:40]!r} is no count")
    assert isinstance(value, int)
    return value


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"file name {name!r}")
    if len(name.encode()) > 255:
        raise ValueError(f"file name {name!r}")
    return name

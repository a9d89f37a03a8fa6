"""Find a YAML file by the name of one that comes with Maskmill, or by its path."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from data_pipeline.errors import UserError


def find_named(name: str, shipped: Path, names: Sequence[str], what: str) -> Path:
    """Return `shipped` if it is a file, or else the YAML file of the path `name`. `names`: those of all that come with
    Maskmill; `what`: a recipe or a study. Raises UserError, with the nearest names, where there is none."""
    if "/" not in name and is_file(shipped):
        return shipped
    path = Path(os.path.expanduser(name))
    if is_file(path) and path.suffix in (".yaml", ".yml"):
        return path
    near = difflib.get_close_matches(name, names, n=3)
    raise UserError(
        f"no such {what}",
        where=name,
        expected=f"a YAML file or one of {', '.join(names)}",
        remedy=f"did you mean {' or '.join(near)}?" if near else "",
    )


def is_file(path: Path) -> bool:
    """Return whether there is such a file; a name too long for a path is none."""
    try:
        return path.is_file()
    except OSError:
        return False

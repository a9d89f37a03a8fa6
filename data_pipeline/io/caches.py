"""Say where caches of this user may lie, and name the source code that decides what is in them."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path


def user_caches(environment: Mapping[str, str]) -> list[Path]:
    """List the folders in which `environment` lets Maskmill keep caches for its user, the best first: below
    XDG_CACHE_HOME, below HOME. Empty where it names neither. Creates nothing."""
    cache, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    named = [Path(cache)] if cache else []
    return [folder / "maskmill" for folder in (*named, *([Path(home) / ".cache"] if home else []))]


def package_folder(module: str) -> Path:
    """Return the folder of the package that the imported module of this name belongs to, at any depth."""
    return Path(str(sys.modules[module.partition(".")[0]].__file__)).parent


def hash_sources(package: Path) -> str:
    """Hash every source file of the folder `package`, subfolders included, as 16 hexadecimal digits.

    All files, because any of them may matter: what was compiled or counted keeps constants of modules that it names
    nowhere. Reading some hundred files takes a few milliseconds."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(text)}\n".encode() + text)
    return digest.hexdigest()

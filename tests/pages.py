"""The commands of a page of docs/ that a test runs as they stand."""

import re
import shlex
from pathlib import Path


def commands_of(page: Path, test: str) -> list[list[str]]:
    """The words behind `maskmill` of each command in the blocks that `page` says are run by the file `test`, in their
    order; $S stands for what a line S="..." of the same block says."""
    text = page.read_text("utf-8")
    mark = re.escape(f"<!-- The commands of this block are run by {test}. -->\n```\n")
    blocks = re.findall(rf"^{mark}(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count(test) > 0, f"{page}: a comment that is not written so marks nothing"
    return [command for block in blocks for command in _commands(block)]


def _commands(block: str) -> list[list[str]]:
    stands_for, found = "", []
    for line in block.splitlines():
        if line.startswith("S="):
            [stands_for] = shlex.split(line.removeprefix("S="))
            continue
        name, *words = shlex.split(line.replace("$S", stands_for))
        assert name == "maskmill", line
        found.append(words)
    return found

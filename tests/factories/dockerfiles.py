"""A Dockerfile in; its stages, each a list of instructions, out."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.command_line import ROOT

DOCKER = ROOT / "docker"
IMAGES = ("Dockerfile", "Dockerfile.cpu")


@dataclass
class Stage:
    """What follows one FROM."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, keyword: str) -> list[str]:
        """What each instruction of this kind says."""
        return [text for word, text in self.instructions if word == keyword]


def stages(path: Path) -> tuple[list[tuple[str, str]], list[Stage]]:
    """The instructions before the first FROM, and the stages."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    before: list[tuple[str, str]] = []
    found: list[Stage] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        keyword, _, text = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = text.partition(" AS ")
            found.append(Stage(base, name))
        elif keyword:
            (found[-1].instructions if found else before).append((keyword, " ".join(text.split())))
    return before, found


def defaults(instructions: list[tuple[str, str]]) -> dict[str, str]:
    """The build arguments among these instructions, with their defaults."""
    pairs = (text.partition("=") for keyword, text in instructions if keyword == "ARG")
    return {name: value.strip('"') for name, _, value in pairs}


def environment_of(path: Path) -> dict[str, str]:
    """The variables of its containers."""
    words = " ".join(stages(path)[1][-1].all("ENV")).split()
    return dict(word.split("=", 1) for word in words)


def base_names(path: Path) -> set[str]:
    """The images that it starts from, build arguments filled in."""
    before, found = stages(path)
    values = defaults(before)
    own = {stage.name for stage in found}
    bases = {re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], stage.base) for stage in found}
    return bases - own

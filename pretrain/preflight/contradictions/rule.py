"""Define a rule: a combination of settings that is not allowed."""

from typing import NamedTuple


class Rule(NamedTuple):
    """A combination of settings that is not allowed."""

    broken: bool
    what: str
    """The settings, with their values, and why they conflict."""
    remedy: str
    """What to set instead."""

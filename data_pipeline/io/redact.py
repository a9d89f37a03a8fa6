"""Redact credentials in text and settings.

Everything that is written or shown is redacted here: run folders are copied, reports are shared.
"""

import re
from typing import Any

_USER = re.compile(r"([A-Za-z0-9+.-]*://)([^/@\s]*)@")
_CONTAINERS = ("abfs://", "abfss://", "wasb://", "wasbs://")  # Azure's CONTAINER@ACCOUNT is not a user
_SIGNED = re.compile(
    r"(?i)([?&;][\w.-]*(?:sig|signature|token|key|secret|password|credential)[\w.-]*=)[^&;\s\"']+"
)


def redact(text: str) -> str:
    """Return `text` without user names and passwords in URIs, or signatures and keys in their queries."""
    return _SIGNED.sub(r"\1***", _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    if found[1].lower().endswith(_CONTAINERS) and ":" not in found[2]:
        return found[0]
    return f"{found[1]}***@"


def redact_settings(settings: Any) -> Any:
    """Return a dict or list of settings, nested to any depth, with all text redacted."""
    if isinstance(settings, dict):
        return {key: redact_settings(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [redact_settings(value) for value in settings]
    return redact(settings) if isinstance(settings, str) else settings

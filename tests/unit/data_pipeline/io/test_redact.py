"""Credentials in text are redacted, and nothing else is."""

import pytest

from data_pipeline.errors import UserError
from data_pipeline.io.redact import redact, redact_settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:secret@bucket/text", "s3://***@bucket/text"),
        ("reads https://token@host/a and b", "reads https://***@host/a and b"),
        ("https://host/a?X-Amz-Signature=abc&part=3", "https://host/a?X-Amz-Signature=***&part=3"),
        (
            "abfs://container:secret@account.dfs.core.windows.net/a",
            "abfs://***@account.dfs.core.windows.net/a",
        ),
    ],
)
def test_credentials_are_redacted(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact_settings({"a": [text, 3], "b": {"c": text}}) == {"a": [shown, 3], "b": {"c": shown}}
    assert str(UserError("cannot be read", where=text)).startswith(shown)


@pytest.mark.parametrize(
    "text",
    ["s3://bucket/a", "abfs://container@account.dfs.core.windows.net/a", "write to a@b.c", "optim.lr=3"],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert redact(text) == text

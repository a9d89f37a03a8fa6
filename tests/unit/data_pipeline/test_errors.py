"""Credentials in text are redacted, and nothing else is."""

import pytest

from data_pipeline.errors import MAX_CHARACTERS, MAX_NAME, UserError, listed, redact, redact_settings
from tests.linear_time import is_linear


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:secret@bucket/text", "s3://***@bucket/text"),
        ("reads https://token@host/a and b", "reads https://***@host/a and b"),
        ("https://host/a?X-Amz-Signature=abc&part=3", "https://host/a?X-Amz-Signature=***&part=3"),
        (
            "https://host/a?page=1?access_token=abc;my.key=d",
            "https://host/a?page=1?access_token=***;my.key=***",
        ),
        ("x=s3://a:b@c, y=://d@e", "x=s3://***@c, y=://***@e"),
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


@pytest.mark.parametrize(
    "nasty", ["k", "a.", "://", "a://", "a://b", "a://b@", "?key", "?", "&token=", "?secret=x", "@", "sig"]
)
@pytest.mark.parametrize("before", ["", "?", "https://"])
def test_redacting_takes_linear_time(before: str, nasty: str) -> None:
    assert is_linear(lambda size: redact(before + nasty * (size // len(nasty))), 20_000)


def test_long_parts_of_a_message_are_shortened() -> None:
    line = str(UserError("w" * 10_000, where="a.jsonl:1", expected="e" * 10_000, remedy="r" * 10_000))
    assert len(line) < 3 * MAX_CHARACTERS + 100
    assert listed(["k" * 100, "b"]) == "k" * MAX_NAME + "..., b"
    assert listed(map(str, range(100))).endswith("18, 19, ...")
    assert listed([]) == "none"

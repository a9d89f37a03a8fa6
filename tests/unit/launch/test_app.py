"""What is printed of texts, tokenizers, keys and names never reaches the terminal as a control character."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from data_pipeline.errors import UserError, printable, shortened
from launch.app import SafeConsole, console, say
from tests.command_line import ROOT

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b1m\x7f\x00\x08\r\u202e\u2066\udc80end"
SHOWN = r"\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b1m\x7f\x00\x08\r\u202e\u2066\udc80end"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("a\tb\nc é 漢 \u200f") == "a\tb\nc é 漢 \u200f", (
        "tabs, lines and text of any language stay"
    )
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)):
        assert (printable(chr(code)) == chr(code)) == (chr(code) in "\t\n")


def table() -> Table:
    found = Table("name")
    found.add_row(HOSTILE)
    found.add_row(Text(HOSTILE))
    return found


def progress() -> Progress:
    found = Progress(TextColumn("{task.description}"), BarColumn())
    found.add_task(HOSTILE, total=3)
    return found


@pytest.mark.parametrize(
    "shown",
    [
        lambda: HOSTILE,
        lambda: Text(HOSTILE),
        lambda: Text.from_markup(f"[bold]{HOSTILE}"),
        table,
        lambda: Panel(HOSTILE, title=HOSTILE),
        progress,
    ],
    ids=["text", "styled", "markup", "table", "panel", "progress"],
)
def test_whatever_a_console_shows_is_escaped(shown: Callable[[], object]) -> None:
    file = StringIO()
    SafeConsole(file=file, width=400, force_terminal=False).print(shown(), soft_wrap=True)
    assert RAW.search(file.getvalue()) is None
    assert "\\x1b]0;title" in file.getvalue()


def test_a_live_panel_keeps_richs_own_sequences_alone() -> None:
    file = StringIO()
    shown = SafeConsole(file=file, width=200, force_terminal=True, color_system="standard")
    with Live(Panel(HOSTILE), console=shown, auto_refresh=False) as live:
        live.refresh()
    left = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())  # the cursor and colours, by rich
    assert RAW.search(left.replace("\r", "")) is None
    assert "title\x07" not in left


def test_a_line_and_an_error_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    assert RAW.search(capsys.readouterr().out) is None
    assert isinstance(console, SafeConsole)
    line = str(UserError(f"no such key {HOSTILE}", where=HOSTILE, expected=HOSTILE, remedy=HOSTILE))
    assert RAW.search(line) is None


def test_long_names_are_shortened_in_error_lines() -> None:
    for what, where in (("k" * 20_000, "file"), ("no", "k" * 100_000), ("a b " * 50_000, "c d " * 50_000)):
        assert len(str(UserError(what, where=where, expected=where))) < 4000
    assert shortened("/" + "p" * 398) == "/" + "p" * 398
    assert shortened("first " + "k" * 1000 + " last").startswith("first kkk")
    assert shortened("first " + "k" * 1000 + " last").endswith("kkk last")


def test_names_on_the_command_line_are_escaped() -> None:
    for arguments in (
        ["inspect", f"/no/{SHOWN[:5]}\x1b[31m"],
        ["\x1b[31mtrian"],
        ["plan", "demo", "\x9b31m=1"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "launch.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert done.returncode == 2
        assert RAW.search(done.stdout + done.stderr) is None
        assert len(done.stderr.splitlines()) == 1


def test_nothing_is_printed_but_through_the_functions_that_escape() -> None:
    """Every call of print shows what `printable` or `shown_json` returned, or a text of the source."""
    wrong = []
    for package in ("data_pipeline", "pretrain", "launch"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and _is_raw(node):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert wrong == []


def _is_raw(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name in ("sys.stdout.write", "sys.stderr.write", "typer.echo", "typer.secho", "click.echo"):
        return True
    if name in ("Console", "rich.console.Console"):
        return ast.unparse(call) != "Console(quiet=True)"
    if name not in ("print", "rich.print"):
        return False
    return not all(
        isinstance(argument, ast.Constant)
        or (isinstance(argument, ast.Call) and ast.unparse(argument.func) in ("printable", "shown_json"))
        or (isinstance(argument, ast.Name) and argument.id == "__doc__")
        for argument in call.args
    )


def test_json_names_every_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    from launch.app import say_json

    say_json({HOSTILE: HOSTILE})
    out = capsys.readouterr().out
    assert RAW.search(out) is None
    assert json.loads(out) == {HOSTILE: HOSTILE}


def test_a_traceback_is_escaped(tmp_path: Path) -> None:
    code = f"import launch.cli, sys; launch.cli.app = lambda **_: 1 / {{}}[{HOSTILE!r}]; launch.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert "KeyError" in done.stderr
    assert RAW.search(done.stderr) is None

"""Memory that ends is one line and exit code 2."""

import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest

from launch import app, cli
from tests.command_line import command, environ


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
@pytest.mark.parametrize("kilobytes", [500_000, 900_000])
def test_too_little_address_space_is_said_before_work(verb: str, kilobytes: int, tmp_path: Path) -> None:
    arguments = command(verb, "demo", f"data.vocab={tmp_path}/vocab", f"data.out={tmp_path}/out")
    limited = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "bash", *arguments]
    done = subprocess.run(limited, env=environ(OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(
        f"maskmill: ulimit -v: allows {kilobytes * 1024 / 1e6:,.0f} MB (expected at least 1,000 MB"
    )
    assert not list(tmp_path.iterdir())


def too_large() -> None:
    np.empty(1 << 60, np.uint8)


def in_a_library() -> None:
    raise SystemError("error return without exception set")


@pytest.mark.parametrize(
    ("limit", "allowed"), [(1 << 31, "of which `ulimit -v` allows 2,147 MB "), (resource.RLIM_INFINITY, "")]
)
@pytest.mark.parametrize("ends", [too_large, in_a_library])
def test_memory_that_ends_is_one_line(
    ends, limit: int, allowed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(cli, "app", lambda **_: ends())
    monkeypatch.setattr(app.resource, "getrlimit", lambda _: (limit, limit))
    if ends is in_a_library and not allowed:
        with pytest.raises(SystemError):
            cli.main()
        return
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("maskmill: there is not enough memory")
    assert allowed in line

"""What a measurement has found is kept where it is cut short."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.factories.gpu_days import Script
from tests.gpu_day.measurements import bench, peers
from tests.gpu_day.runs import Day, Failed, LeftOut


@dataclass
class Cut(Day):
    """A benchmark that writes one row, and is cut short at its second call."""

    calls: int = 0

    def python(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        self.calls += "--json" in arguments
        if self.calls == 2:
            raise subprocess.TimeoutExpired("bench_gpu.py", 1.0)
        if "--json" in arguments:
            Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps([{"row": "one"}]))
        return ""


@pytest.mark.parametrize("part", [bench, peers])
def test_rows_are_kept(part: Callable[[Day, dict[str, Any]], None], tmp_path: Path) -> None:
    figures: dict[str, Any] = {}
    with pytest.raises(subprocess.TimeoutExpired):
        part(Cut(tmp_path, tmp_path, {}, tiny=False, ends=time.monotonic()), figures)
    assert figures == {"rows": [{"row": "one"}]}
    assert not list(tmp_path.iterdir()), "a later call would add to them"


def test_peers_are_left_out_without_transformers(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def python(*arguments: str, **options: Any) -> str:
        raise Failed("exit code 1 of -c: No module named 'transformers'")

    monkeypatch.setattr(script.day, "python", python)
    with pytest.raises(LeftOut, match="needs transformers"):
        peers(script.day, {})

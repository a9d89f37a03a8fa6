"""What a measurement has found is kept where it is cut short."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_day.measurements import bench, fp8
from tests.gpu_day.runs import Day


@dataclass
class Cut(Day):
    """A benchmark that writes one row, and is cut short at its second call."""

    calls: int = 0

    def python(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        self.calls += 1
        if self.calls == 2:
            raise subprocess.TimeoutExpired("bench_gpu.py", 1.0)
        Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps([{"row": "one"}]))
        return ""


@pytest.mark.parametrize("part", [bench, fp8])
def test_rows_are_kept(part: Callable[[Day, dict[str, Any]], None], tmp_path: Path) -> None:
    figures: dict[str, Any] = {}
    with pytest.raises(subprocess.TimeoutExpired):
        part(Cut(tmp_path, tmp_path, {}, tiny=False, ends=time.monotonic()), figures)
    assert figures == {"rows": [{"row": "one"}]}
    assert not list(tmp_path.iterdir()), "a later call would add to them"

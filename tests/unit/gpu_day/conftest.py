"""What the tests of a day with a GPU share."""

from pathlib import Path

import pytest

from tests.factories.gpu_days import Script, scripted_day


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A day whose trainings are written down beforehand."""
    return scripted_day(tmp_path)

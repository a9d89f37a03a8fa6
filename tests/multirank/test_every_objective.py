"""Every objective at every ZeRO stage: stopped and resumed, a run ends bit-equal to one that was not stopped.

All runs of an objective are made by the same two processes, which import torch and DeepSpeed once.
"""

from pathlib import Path

import pytest
from attempts import Attempt, run_attempts

from pretrain.objectives.registry import OBJECTIVES
from tests.command_line import Maskmill
from tests.factories.members import DISENTANGLED, EUROBERT, MODERN, SEPARATE, SHARED, prepared_member
from tests.run_ends import assert_bit_equal, assert_learns

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

STAGES = [3, 0, 1, 2]
"""All of them, and first the one that partitions most. They take minutes: none is in `make test`."""
CASES = [(member, stage) for member in (*OBJECTIVES, MODERN, DISENTANGLED, EUROBERT) for stage in STAGES]
CASES += [(SHARED, 2), (SEPARATE, 3)]


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest,
    tiny: list[str],
    maskmill: Maskmill,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[int, str]]:
    """The folder of an objective's runs, and what each resumed one printed, by its stage: of the stages whose tests
    were selected."""
    folder = tmp_path_factory.mktemp("stages")
    settings = prepared_member(request.param, tiny, maskmill, folder)
    ours = [item for item in request.session.items if item.path == request.path]
    cases = [item.callspec.params for item in ours if isinstance(item, pytest.Function)]
    stages = sorted(case["stage"] for case in cases if case["ended"] == request.param)
    attempts = []
    for stage in stages:
        at = [*settings, f"zero.stage={stage}"]
        attempts.append(Attempt(2, [*at, f"run.dir={folder}/whole-{stage}"]))
        attempts.append(Attempt(2, [*at, f"run.dir={folder}/parts-{stage}", "run.stop_after=2"]))
        attempts.append(Attempt(2, [*at, f"run.dir={folder}/parts-{stage}"]))
    printed = [seen.output for seen in run_attempts(attempts)]
    return folder, dict(zip(stages, printed[2::3], strict=True))


@pytest.mark.parametrize(("ended", "stage"), CASES, indirect=["ended"], scope="module")
def test_it_resumes_bit_equal(ended: tuple[Path, dict[int, str]], stage: int) -> None:
    folder, printed = ended
    assert "resuming from step 2 (bit-exact)" in printed[stage]
    assert_bit_equal(folder / f"whole-{stage}", folder / f"parts-{stage}")
    assert_learns(folder / f"parts-{stage}", 1, 4)

"""ELECTRA at several numbers of ranks: free to draw its samples, it comes to the same weights.

In float64, where sums that are added in another order differ too little to move a draw: what is left is whether a
sample depends on its example and its place alone. In fp32 a word may flip (tests/unit/pretrain/objectives/
test_electra_cuts.py).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attempts import Attempt, run_attempts
from safetensors import safe_open

from tests.command_line import Maskmill
from tests.factories.members import member_settings
from tests.run_ends import final, metrics_at

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

STEPS = 8
CELLS = {"one": (1, 12), "two": (2, 4), "three": (3, 1)}
"""Ranks and examples of a micro-batch."""


def in_float64() -> None:
    """Give this rank a model in float64, whose gradients DeepSpeed sums as they are. On a CPU it would refuse them."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.engine import DeepSpeedEngine

    from pretrain.objectives.electra import Electra

    fresh = super(Electra, Electra).fresh_model
    Electra.fresh_model = lambda self, vocabulary: fresh(self, vocabulary).double()  # type: ignore[method-assign]
    get_accelerator().supported_dtypes = lambda: [torch.float64]
    DeepSpeedEngine.communication_data_type = property(lambda self: torch.float64, lambda self, kind: None)


@pytest.fixture(scope="module")
def runs(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("electra")
    settings = [*tiny, *member_settings("electra", maskmill, folder), "zero.stage=0", f"train.steps={STEPS}"]
    settings += ["encoder.dropout=0", "encoder.attention_dropout=0", "train.checkpoint_every=0"]
    settings.append("data.sequences=segment_pair")  # as the shards that are ready
    attempts = [
        Attempt(
            ranks, [*settings, f"run.dir={folder}/{name}", f"train.micro_batch={size}"], before=in_float64
        )
        for name, (ranks, size) in CELLS.items()
    ]
    run_attempts(attempts)
    return folder


def weights(run: Path) -> dict[str, "Tensor"]:
    """The weights of its last checkpoint by name, flat, as they were written: `Checkpoint.tensor` would round them."""
    import torch

    checkpoint, found = final(run, STEPS), {}
    for (kind, name), pieces in checkpoint._fragments().items():
        if kind == "master":
            opened = [safe_open(checkpoint.folder / file, "pt").get_tensor(key) for *_, file, key in pieces]
            found[name] = torch.cat(opened)
    assert found.keys() == checkpoint.shapes.keys()
    return found


@pytest.mark.parametrize("name", ["two", "three"])
def test_more_ranks_come_to_the_same_weights(runs: Path, name: str) -> None:
    one, more = weights(runs / "one"), weights(runs / name)
    assert {str(values.dtype) for values in (*one.values(), *more.values())} == {"torch.float64"}
    for parameter, values in one.items():
        assert float((values - more[parameter]).abs().max()) <= 1e-9, parameter


def test_most_samples_are_other_words(runs: Path) -> None:
    """Else equal weights would say nothing about what is drawn."""
    assert metrics_at(runs / "one", "train", STEPS)["sampled_accuracy"] < 0.5

"""ELECTRA at several numbers of ranks comes to the same weights.

Free to draw its samples in float64, where sums that are added in another order differ too little to move a draw: what
is left is whether a sample depends on its example and its place alone. In fp32 a word may flip, so there every world
gets the samples of the first (tests/unit/pretrain/objectives/test_electra_cuts.py shows what one other sample does).
"""

import json
from collections.abc import Callable
from functools import partial
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


def with_samples_of(file: Path) -> None:
    """Draw words as `file` says, and fail where it lacks one; without the file, write it."""
    from pretrain.model.vocabulary_losses import sample_words
    from pretrain.objectives import electra

    known = dict(map(json.loads, file.read_text().splitlines())) if file.exists() else None

    def draw(hidden: "Tensor", weight: "Tensor", bias: "Tensor", keys_R: "Tensor", size: int) -> "Tensor":
        if known is not None:
            return keys_R.new_tensor([known[key] for key in keys_R.tolist()])
        drawn_R = sample_words(hidden, weight, bias, keys_R, size)
        with file.open("a") as lines:
            lines.writelines(
                f"{json.dumps(pair)}\n" for pair in zip(keys_R.tolist(), drawn_R.tolist(), strict=True)
            )
        return drawn_R

    electra.sample_words = draw


def train(tiny: list[str], maskmill: Maskmill, folder: Path, before: Callable[[], None]) -> None:
    """Train once for each of CELLS, in `folder`."""
    settings = [*tiny, *member_settings("electra", maskmill, folder), "zero.stage=0", f"train.steps={STEPS}"]
    settings += ["encoder.dropout=0", "encoder.attention_dropout=0", "train.checkpoint_every=0"]
    settings.append("data.sequences=segment_pair")  # as the shards that are ready
    settings.append(
        "train.eval_examples=12"
    )  # which all ranks share: a padded batch would draw a word of its own
    attempts = [
        Attempt(ranks, [*settings, f"run.dir={folder}/{name}", f"train.micro_batch={size}"], before=before)
        for name, (ranks, size) in CELLS.items()
    ]
    run_attempts(attempts)


@pytest.fixture(scope="module")
def runs(tiny: list[str], maskmill: Maskmill, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("electra")
    train(tiny, maskmill, folder, in_float64)
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


def test_in_fp32_the_same_samples_lead_to_the_same_weights(
    tiny: list[str], maskmill: Maskmill, tmp_path: Path
) -> None:
    train(tiny, maskmill, tmp_path, partial(with_samples_of, tmp_path / "samples.jsonl"))
    one = weights(tmp_path / "one")
    for name in ("two", "three"):
        more = weights(tmp_path / name)
        for parameter, values in one.items():
            assert float((values - more[parameter]).abs().max()) <= 1e-6, parameter


def test_most_samples_are_other_words(runs: Path) -> None:
    """Else equal weights would say nothing about what is drawn."""
    assert metrics_at(runs / "one", "train", STEPS)["sampled_accuracy"] < 0.5

"""Memory of streams in real runs: saved, resumed, and shared out at another number of ranks."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from attempts import Attempt, run_attempts

from data_pipeline.loader.loader import Shares, order_of
from data_pipeline.loader.packing import caps_for
from data_pipeline.shards.index import Index
from pretrain.checkpoint.store import Checkpoint
from tests.command_line import Maskmill
from tests.factories.objectives import register_remembering
from tests.run_ends import assert_bit_equal, final

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

STEPS, STOPPED_AT, BATCH = 6, 3, 12
RUN = [
    "data.sequences=doc_sentences",
    "data.order=sequential",
    f"train.steps={STEPS}",
    "train.checkpoint_every=0",
    "train.eval_every=3",
    "train.eval_examples=20",
]


def expected(index: Index, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """What is remembered of each stream after so many steps: (tokens, sum of their ids), and steps."""
    order = order_of(index, seed=1, global_batch=BATCH, streams=BATCH, sequential=True)
    shares = Shares(index, order, caps_for(index.train, 4, 32))
    sums, count = np.zeros((BATCH, 2)), np.zeros(BATCH)
    for step in range(steps):
        for micro in shares.read(step).micro_batches:
            for stream, (low, high) in zip(micro.streams, pairwise(micro.cu_seqlens), strict=True):
                sums[stream] += (high - low, micro.input_ids[low:high].sum())
                count[stream] += 1
    return sums, count


def memory(checkpoint: Checkpoint) -> tuple[np.ndarray, np.ndarray]:
    """The memory of all streams in a checkpoint."""
    shapes = checkpoint.state["memory"]
    assert shapes == {"sums": [BATCH, 2], "steps": [BATCH]}
    return checkpoint.read("sums", "memory", 0, 2 * BATCH).view(BATCH, 2).numpy(), checkpoint.read(
        "steps", "memory", 0, BATCH
    ).numpy()


def test_two_ranks_go_on_as_one_and_as_three(tiny: list[str], maskmill: Maskmill, tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    here = [*tiny, *RUN, f"data.out={shards}"]
    maskmill("prepare", "demo", *here, "objective.name=mlm")

    def attempt(ranks: int, run: str, *more: str, copy_of: str = "") -> Attempt:
        settings = [*here, "objective.name=remembering", f"run.dir={tmp_path / run}", *more]
        source = str(tmp_path / copy_of) if copy_of else ""
        return Attempt(ranks, settings, copy_of=source, before=register_remembering)

    stop = f"run.stop_after={STOPPED_AT}"
    seen = run_attempts(
        [
            attempt(2, "whole"),
            attempt(2, "two", stop),
            attempt(1, "one", copy_of="two"),
            attempt(3, "three", "zero.stage=3", copy_of="two"),
            attempt(2, "two"),
        ]
    )
    assert "bit-" in seen[4].output
    assert_bit_equal(tmp_path / "whole", tmp_path / "two")  # the loss depends on the memory
    index = Index.load(shards)
    stopped = next((tmp_path / "one" / "checkpoints").glob(f"step-*{STOPPED_AT}"))
    assert stopped.is_dir()
    for run in ("whole", "two", "one", "three"):
        for found, right in zip(memory(final(tmp_path / run, STEPS)), expected(index, STEPS), strict=True):
            np.testing.assert_array_equal(found, right, err_msg=run)

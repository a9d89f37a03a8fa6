"""A plan counts what a model remembers of its streams, as large as the tensors that training keeps."""

from io import StringIO

import pytest
from rich.console import Console

from data_pipeline.errors import UserError
from launch.recipe import load_config
from pretrain.objectives.registry import load
from pretrain.preflight.forecast import forecast_phases
from pretrain.preflight.gpus import gpu_named
from pretrain.preflight.memory import check_stream_memory, meta_model, states
from pretrain.preflight.show import show_phases
from pretrain.preflight.step_time import Cluster
from pretrain.training.stream_memory import StreamMemory

MEMORY = ["objective.xlnet.memory_length=16", "train.global_batch=30", "run.dir=unused"]


def test_a_plan_counts_the_memory_of_a_ranks_streams() -> None:
    config = load_config("xlnet_tiny", MEMORY)
    found = states(meta_model(config, 100), config, "fp32", 4).streams
    kept = StreamMemory(load(config).memory, 30, 0, 8)  # of 30 streams a rank of four has at most 8
    assert found == sum(rows.numel() * rows.element_size() for rows in kept._rows.values()) > 0
    config.objective.xlnet.memory_length = 0
    without = states(meta_model(config, 100), config, "fp32", 4)
    assert without.streams == 0


def test_a_memory_that_cannot_fit_is_refused_before_ranks_start() -> None:
    config = load_config("xlnet_tiny", [*MEMORY, "objective.xlnet.memory_length=65000"])
    taken = states(meta_model(config, 100), config, "fp32", 4).streams
    check_stream_memory(config, 4, float(taken))
    message = r"remembers [\d.]+ GB of a rank's 8 streams, and a GPU has [\d.]+ GB .*memory_length"
    with pytest.raises(UserError, match=message):
        check_stream_memory(config, 4, taken - 1.0)
    config.train.global_batch = 10**9
    with pytest.raises(UserError, match="a rank's share of this machine has"):
        check_stream_memory(config, 4, None)
    config.objective.xlnet.memory_length = 0
    check_stream_memory(config, 4, 1.0)


def test_it_counts_against_what_fits_and_is_shown() -> None:
    cluster = Cluster(1, 1, gpu_named("h100"))
    small, large = (
        forecast_phases(
            load_config("xlnet_tiny", [*MEMORY, f"objective.xlnet.memory_length={length}"]), cluster
        )
        for length in (16, 16_000)
    )
    assert large[0][1].memory[0].total - small[0][1].memory[0].total > 1e9
    assert large[0][1].memory[0].largest_micro_batch < small[0][1].memory[0].largest_micro_batch
    for found, row in ((small, True), (forecast_phases(load_config("demo", []), cluster), False)):
        console = Console(width=200, file=StringIO())
        show_phases(found, 1, console, 0.0)
        assert ("memory of streams" in console.file.getvalue()) == row

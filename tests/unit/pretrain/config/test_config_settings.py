"""Offload of the optimizer: what the settings refuse, and what a plan counts."""

from dataclasses import replace

import pytest

from data_pipeline.errors import UserError
from pretrain.config.encoder import EncoderSettings
from pretrain.config.settings import RunConfig, ZeroSettings
from pretrain.preflight.memory import meta_model, states
from pretrain.preflight.validate import check


@pytest.mark.parametrize(
    ("stage", "offload", "line"),
    [
        (
            1,
            "nvme",
            "zero.offload: nvme is not supported: the norms of LAMB and every checkpoint need all masters",
        ),
        (0, "cpu", "zero.offload=cpu with zero.stage=0, which keeps everything on the device"),
        (2, "disk", "zero.offload: must be one of none, cpu, got disk"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(stage: int, offload: str, line: str) -> None:
    config = RunConfig(zero=ZeroSettings(stage=stage, offload=offload))
    config.data.sequences = "segment_pair"
    with pytest.raises(UserError) as caught:
        check(config)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_masters_and_moments_are_not_on_the_device(stage: int) -> None:
    config = RunConfig(encoder=EncoderSettings(layers=1, hidden=32, heads=2, intermediate=64))
    config.zero.stage, config.data.sequences = stage, "segment_pair"
    model = meta_model(config, 100)
    held = states(model, config, "bf16", 4)
    config.zero.offload = "cpu"
    check(config)
    assert held.masters > 0 < held.moments
    assert states(model, config, "bf16", 4) == replace(held, masters=0, moments=0)

"""Compute the sizes of the global batches that the settings of a phase ask for."""

from data_pipeline.loader.batch_sizes import BatchSizes
from data_pipeline.settings import SEQUENTIAL
from pretrain.config.settings import RunConfig


def batch_sizes(config: RunConfig) -> BatchSizes:
    """Return the sizes of the global batches, with the number of streams that divides them all."""
    train, sequential = config.train, config.data.order == SEQUENTIAL
    ramp = (train.batch_ramp_from, train.batch_ramp)
    return BatchSizes.of(train.global_batch, config.data.streams, *ramp, sequential=sequential)

"""Where the time of training steps on a CPU goes: torch's profiler, its operators added up by what they are for."""

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

KINDS = ("vocabulary", "products", "attention", "rest")
"""What has a tensor of the vocabulary's size, products and softmaxes; other matrix products; attention between tokens;
what remains: activations, norms, dropout, the optimizer, Python."""
PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "mkldnn::_linear_pointwise")
ATTENTION = ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_softmax_backward_data")
PADDING = 128
"""Our vocabulary is padded to a multiple of it."""


class StepProfile:
    """A recording, from its creation until it is asked."""

    def __init__(self, vocabulary: int) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._vocabulary = vocabulary
        self._recording = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._recording.start()
        self._started = time.perf_counter()

    def milliseconds(self) -> dict[str, float]:
        """Stop; the milliseconds of each of KINDS, together those that passed."""
        passed = (time.perf_counter() - self._started) * 1e3
        self._recording.stop()
        found: Counter[str] = Counter()
        for event in self._recording.key_averages(group_by_input_shape=True):
            found[kind_of(event.key, event.input_shapes, self._vocabulary)] += event.self_cpu_time_total / 1e3
        return {kind: found[kind] for kind in KINDS[:-1]} | {"rest": passed - found.total() + found["rest"]}


def kind_of(name: str, shapes: Iterable[Any], vocabulary: int) -> str:
    """Tell what an operator is for, from its name and its inputs' shapes."""
    if "scaled_dot_product" in name or name in ATTENTION:
        return "attention"
    sizes = {size for shape in shapes if len(shape) > 1 for size in shape if isinstance(size, int)}
    if any(vocabulary <= size < vocabulary + PADDING for size in sizes):
        return "vocabulary"
    return "products" if name in PRODUCTS else "rest"

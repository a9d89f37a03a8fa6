"""The deterministic backward pass of attention is divided among the whole GPU, however few examples a micro-batch has.

FlashAttention 2 then cuts the keys of each head of each example it is given into so many parts that every
multiprocessor has one, and adds their gradients up in order. Examples without a token have parts like all others, and
nothing to do in them.
"""

import re

import pytest
from pretended import on_gpu

pytestmark = pytest.mark.fake_gpu

MULTIPROCESSORS, HEADS = 132, 2
BACKWARD = re.compile(r"^\[fake gpu\] \w+ .*flash_bwd_dq_dk_dv_loop.* grid (\d+) (\d+) (\d+)$", re.MULTILINE)
COUNTS = (1, 2, 5)
"""Examples of micro-batches of one shape, which has room for 24."""
CODE = f"""
import sys
import numpy as np
import torch
from rich.console import Console
from pretrain.config.encoder import EncoderSettings
from pretrain.model.batch import MicroBatch, Shape
from pretrain.training.feed import compile_model
from tests.factories.models import fresh_model
from tests.factories.shards import filled

encoder = EncoderSettings(layers=1, hidden=128, heads={HEADS}, intermediate=256, max_positions=1024)
encoder.dropout = encoder.attention_dropout = float(sys.argv[1])
checkpointing = sys.argv[2] == "True"
model = fresh_model("mlm", encoder, 300, activation_checkpointing=checkpointing).cuda().bfloat16()
shape = Shape(tokens=1100, examples=24, masked=200, longest=1024)
torch.set_deterministic_debug_mode("error")
compile_model(model, MicroBatch.empty(2, 3).padded(shape).to("cuda"), Console(quiet=True))
for count in {COUNTS}:
    examples = filled(np.full(count, 1000 // count), np.random.default_rng(1), size=300)
    batch = MicroBatch.from_examples(examples).padded(shape).to("cuda")
    print("== micro-batch", file=sys.stderr, flush=True)
    terms, _ = model(batch, None)
    terms["mlm"].sum.backward()
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""


@pytest.mark.parametrize(("dropout", "recomputes"), [(0.0, False), (0.1, False), (0.1, True)])
def test_all_multiprocessors_have_a_part(dropout: float, recomputes: bool) -> None:
    given = ("-c", CODE, str(dropout), str(recomputes))
    _, *parts = on_gpu(*given, FAKE_GPU_TRACE="1").stderr.split("== micro-batch\n")
    assert len(parts) == len(COUNTS)
    for count, said in zip(COUNTS, parts, strict=True):
        [(keys, examples, heads)] = [tuple(map(int, found)) for found in BACKWARD.findall(said)]
        assert heads == HEADS
        assert count <= examples <= count + 1  # one for the spare tokens
        assert keys * examples * heads >= MULTIPROCESSORS

"""Products in FP8 beside the definition, what of a model they reach, and where they are refused."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.errors import UserError
from data_pipeline.shards.index import VocabularyStamp
from launch.recipe import load_config
from pretrain.config.encoder import EncoderSettings
from pretrain.distributed.deepspeed_patches import refuse_unsupported
from pretrain.model import encoder
from pretrain.model.batch import MicroBatch
from pretrain.model.encoder import GRADIENTS, VALUES, Fp8Linear, in_fp8, use_fp8
from pretrain.model.torch_internals import scaled_product
from pretrain.objectives.registry import load
from tests.factories.models import fresh_model

T, K, N = 48, 64, 96
SMALL = EncoderSettings(layers=2, hidden=32, heads=2, intermediate=64, max_positions=16)


def as_fp8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What is left of `x` after a tensor's rounding to FP8, in float64."""
    x8, scale = in_fp8(x, dtype)
    return x8.double() * scale.double()


@pytest.fixture
def layer() -> Fp8Linear:
    torch.manual_seed(0)
    return Fp8Linear(K, N).bfloat16()


def test_results_and_gradients_are_products_of_rounded_tensors(layer: Fp8Linear) -> None:
    x, grad = torch.randn(T, K).bfloat16().requires_grad_(), (1e-4 * torch.randn(T, N)).bfloat16()
    out = layer(x)
    out.backward(grad)
    x8, w8, g8 = as_fp8(x.detach(), VALUES), as_fp8(layer.weight.detach(), VALUES), as_fp8(grad, GRADIENTS)
    assert layer.bias is not None
    for found, expected in (
        (out, x8 @ w8.T + layer.bias.double()),
        (x.grad, g8 @ w8),
        (layer.weight.grad, g8.T @ x8),
        (layer.bias.grad, grad.double().sum(0)),
    ):
        assert found is not None
        assert found.dtype == torch.bfloat16
        distance = (found.double() - expected).norm() / expected.norm()
        assert distance < 4e-3, "further than the rounding of bf16"


def test_rounding_errs_by_no_more_than_the_format() -> None:
    """E4M3 has 3 bits of mantissa, E5M2 has 2: half a step is 1/16 and 1/8 of the smallest number of that exponent."""
    x = torch.randn(10_000) * 3e4
    for dtype, half_step in ((VALUES, 1 / 16), (GRADIENTS, 1 / 8)):
        rounded = as_fp8(x, dtype)
        largest = x.abs().max()
        normal = x.abs() > largest * torch.finfo(dtype).smallest_normal / torch.finfo(dtype).max
        assert ((rounded - x).abs() <= half_step * x.abs() + 1e-3)[normal].all()
        assert rounded.abs().max() == pytest.approx(float(largest))


def test_zeros_and_huge_values_stay_finite() -> None:
    assert as_fp8(torch.zeros(16, 16), GRADIENTS).eq(0).all()
    huge = torch.full((16, 16), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    assert as_fp8(huge, VALUES).isfinite().all()


@pytest.mark.parametrize("shape", [(47, K), (3, 5, K)])
def test_other_numbers_of_rows_are_multiplied_in_their_own_dtype(
    layer: Fp8Linear, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape).bfloat16()
    assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_layers_of_the_encoder_alone_multiply_in_fp8() -> None:
    model = fresh_model("bert", SMALL, 100)
    before = [name for name, _ in model.named_parameters()]
    assert use_fp8(model) == 2 * 6
    changed = {name for name, part in model.named_modules() if isinstance(part, Fp8Linear)}
    assert len(changed) == 2 * 6
    assert all(name.startswith("encoder.layers.") for name in changed)
    assert [name for name, _ in model.named_parameters()] == before


def test_a_run_in_fp8_trains_such_a_model_and_exports_a_plain_one() -> None:
    config = load_config("demo", ["train.precision=fp8"])
    vocabulary = VocabularyStamp.of_size(100)
    trained = load(config).fresh_model(vocabulary)
    assert any(isinstance(part, Fp8Linear) for part in trained.modules())
    exported = load(config).build_model(vocabulary)
    assert not any(isinstance(part, Fp8Linear) for part in exported.modules())


def test_layers_that_are_used_twice_count_once() -> None:
    shared = EncoderSettings(layers=3, hidden=32, heads=2, intermediate=64, max_positions=16, sharing="all")
    assert use_fp8(fresh_model("albert", shared, 100)) == 6


def test_two_layers_in_fp8_learn_as_plain_ones_in_fp32() -> None:
    """The same layers, from the same weights, on what noise leaves to be learnt."""
    torch.manual_seed(0)
    x, noise = torch.randn(1024, 32), 0.5 * torch.randn(1024, 16)
    target = (x @ torch.randn(32, 16)).tanh() + noise
    losses = []
    for kind in (nn.Linear, Fp8Linear):
        torch.manual_seed(1)
        net = nn.Sequential(kind(32, 64), nn.GELU(), kind(64, 16))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(80):
            loss = (net(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.4 * target.square().mean()
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


MASK, WORDS = 4, range(10, 50)


def topics(generator: torch.Generator) -> MicroBatch:
    """16 examples of 16 tokens, four of five of them its topic's word, the others any; three are masked, so that to
    predict them is to look at the others."""
    shape = (16, 16)
    topic, other = (
        torch.randint(WORDS.start, WORDS.stop, size, generator=generator) for size in ((16, 1), shape)
    )
    words = torch.where(torch.rand(shape, generator=generator) < 0.2, other, topic).tolist()
    places = torch.rand(shape, generator=generator).argsort()[:, :3].sort().values.tolist()
    masked = [{place: row[place] for place in here} for row, here in zip(words, places, strict=True)]
    seen = [
        [MASK if place in hidden else word for place, word in enumerate(row)]
        for row, hidden in zip(words, masked, strict=True)
    ]
    return MicroBatch.from_lists(seen, masked=masked)


def losses_in_bf16(steps: int, *, in_fp8_too: bool) -> list[float]:
    """Of each step of an encoder in bf16 with fp32 masters, as DeepSpeed keeps them, from the same weights and on the
    same batches."""
    settings = replace(SMALL, dropout=0.0, attention_dropout=0.0)
    model = fresh_model("mlm", settings, WORDS.stop, mask_id=MASK).bfloat16()
    assert not in_fp8_too or use_fp8(model) == 2 * 6
    masters = [parameter.detach().float() for parameter in model.parameters()]
    optimizer, generator, losses = torch.optim.Adam(masters, 4e-3), torch.Generator().manual_seed(0), []
    for _ in range(steps):
        term = model(topics(generator))[0]["mlm"]
        loss = term.sum / term.count
        loss.backward()
        losses.append(loss.item())
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return losses


@pytest.mark.slow
def test_an_encoder_in_fp8_learns_as_one_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of all layers, forward and backward; of three seeds on a CPU the losses of a step were at most 0.027
    apart, and the words' frequencies alone leave 3.7."""
    steps, products = 60, []

    def counted(a: Tensor, *arguments: Any, **options: Any) -> Tensor:
        products.append(a.shape)
        return scaled_product(a, *arguments, **options)

    plain = losses_in_bf16(steps, in_fp8_too=False)
    monkeypatch.setattr(encoder, "scaled_product", counted)
    found = losses_in_bf16(steps, in_fp8_too=True)
    assert len(products) == 3 * 2 * 6 * steps
    assert sum(plain[-10:]) / 10 < 3.3
    assert found == pytest.approx(plain, abs=0.05)


def test_it_is_refused_at_stage_3() -> None:
    with pytest.raises(UserError, match=r"zero\.stage=3, which gathers weights"):
        load_config("demo", ["train.precision=fp8", "zero.stage=3"])


@pytest.mark.parametrize(("device", "words"), [("cpu", "this is cpu"), ("cuda", r"this is capability 8\.0")])
def test_it_is_refused_where_a_device_has_no_fp8(
    device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    able = SimpleNamespace(is_bf16_supported=lambda: True, is_fp16_supported=lambda: True)
    deepspeed = SimpleNamespace(accelerator=SimpleNamespace(get_accelerator=lambda: able))
    world = SimpleNamespace(device=torch.device(device))
    with pytest.raises(UserError, match=words):
        refuse_unsupported(deepspeed, 1, "bf16", world, fp8=True)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    if device == "cuda":
        refuse_unsupported(deepspeed, 1, "bf16", world, fp8=True)  # type: ignore[arg-type]

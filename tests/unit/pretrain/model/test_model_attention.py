"""Attention over packed examples: equal to one example at a time, tight borders, honest dropout."""

import itertools
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data_pipeline.errors import UserError
from pretrain.model.attention import Packing, attend, choose_backend
from pretrain.model.attention_tiles import (
    CAUSAL,
    FULL,
    Visibility,
    _cut,
    keys_of_block,
    plan_tiles,
    scores_per_token,
    tile_attention,
)
from pretrain.model.ops import dropout, keep_mask

LENGTHS = {
    "one": [7],
    "equal": [5, 5, 5],
    "near": [30, 31, 32, 33],
    "far": [2, 128, 3, 64, 127],
    "ones": [1, 1, 9, 1],
    "many": [random.Random(0).randint(2, 40) for _ in range(50)],
}


def draw(
    lengths: list[int], heads: int = 2, size: int = 8, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (sum(lengths), heads, size)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def one_at_a_time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    pieces = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
    return torch.cat(
        [
            F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in piece))[0].transpose(0, 1)
            for piece in pieces
        ]
    )


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("heads", [1, 3])
def test_packed_equals_one_at_a_time(name: str, heads: int) -> None:
    lengths = LENGTHS[name]
    qkv, weights = draw(lengths, heads), torch.randn(sum(lengths), heads, 8, dtype=torch.float64)
    packed, apart = attend(*qkv, Packing.of(lengths)), one_at_a_time(*qkv, lengths)
    torch.testing.assert_close(packed, apart, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad((out * weights).sum(), qkv) for out in (packed, apart)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def ranks_of(lengths: list[int], lowest: int = 0) -> torch.Tensor:
    """An order of its own for each example; `lowest`: the first rank."""
    generator = torch.Generator().manual_seed(5)
    return torch.cat([torch.randperm(n, generator=generator) + lowest for n in lengths])


def limited(kind: str, lengths: list[int]) -> Visibility:
    places = ranks_of(lengths)
    return {
        "causal": CAUSAL,
        "window": Visibility(window=2),
        "causal window": Visibility(causal=True, window=3),
        "ranks": Visibility(query_ranks_T=places, key_ranks_T=places),
        "strict ranks": Visibility(query_ranks_T=places - 1, key_ranks_T=places),
    }[kind]


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], kind: str
) -> torch.Tensor:
    """Query by query, key by key."""
    places, out, start = ranks_of(lengths), [], 0
    for n in lengths:
        place = places[start : start + n].tolist()
        sees = {
            "causal": lambda i, j, place=place: j <= i,
            "window": lambda i, j, place=place: abs(i - j) <= 2,
            "causal window": lambda i, j, place=place: i - 3 <= j <= i,
            "ranks": lambda i, j, place=place: place[j] <= place[i],
            "strict ranks": lambda i, j, place=place: place[j] < place[i],
        }[kind]
        for i in range(n):
            keys = [start + j for j in range(n) if sees(i, j)]
            if not keys:
                out.append(torch.zeros_like(v[0]))
                continue
            scores = torch.einsum("nd,jnd->nj", q[start + i], k[keys]) / q.shape[-1] ** 0.5
            out.append(torch.einsum("nj,jnd->nd", scores.softmax(-1), v[keys]))
        start += n
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["causal", "window", "causal window", "ranks", "strict ranks"])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_a_query_sees_the_keys_that_it_may_and_no_others(kind: str, backend: str) -> None:
    lengths = [4, 1, 9, 3]
    qkv, weights = draw(lengths), torch.randn(sum(lengths), 2, 8, dtype=torch.float64)
    packing, visibility = Packing.of(lengths), limited(kind, lengths)
    if backend == "cpu":
        ours = attend(*qkv, packing, visibility=visibility)
    else:
        plan = plan_tiles(lengths, 2, torch.device("cpu"), max_scores=0)
        ours = tile_attention(*qkv, plan, 0.0, visibility)
    theirs = by_definition(*qkv, lengths, kind)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad((out * weights).sum(), qkv) for out in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
def test_a_window_over_long_examples_is_the_dense_mask(backend: str) -> None:
    lengths, window = [3, 200, 45, 1, 97, 44, 33], 4
    visibility, dense = Visibility(window=window), []
    qkv, weights = draw(lengths), torch.randn(sum(lengths), 2, 8, dtype=torch.float64)
    plan = plan_tiles(lengths, 2, torch.device("cpu"), window=window)
    assert max(tile.length * tile.keys for tile in plan.tiles) <= 40 * 40, "nothing as large as an example"
    if backend == "cpu":
        ours = attend(*qkv, Packing.of(lengths), visibility=visibility)
    else:
        ours = tile_attention(*qkv, plan, 0.0, visibility)
    for piece in zip(*(x.split(lengths) for x in qkv), strict=True):
        places = torch.arange(len(piece[0]))
        mask = (places[:, None] - places).abs() <= window
        heads = (x.transpose(0, 1) for x in piece)
        dense.append(F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(0, 1))
    theirs = torch.cat(dense)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad((out * weights).sum(), qkv) for out in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [1, 4, 64])
def test_scores_of_a_window_grow_with_the_length_alone(window: int) -> None:
    def scores(lengths: list[int]) -> int:
        plan = plan_tiles(lengths, 1, torch.device("cpu"), window=window)
        return sum(tile.examples * tile.length * tile.keys for tile in plan.tiles)

    assert scores([8192]) <= 8192 * 3 * max(window, 32)
    for lengths in ([8192], [100, 3, 700, 65], [keys_of_block(window)] * 3, [keys_of_block(window) + 1]):
        assert scores(lengths) <= sum(lengths) * scores_per_token(max(lengths), window)


def test_gradient_of_a_window_by_finite_differences_with_dropout() -> None:
    lengths = [38]  # two blocks

    def attention(*qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)  # the same mask at every evaluation
        return attend(*qkv, Packing.of(lengths), dropout=0.3, visibility=Visibility(window=2))

    assert torch.autograd.gradcheck(attention, draw(lengths, heads=1, size=1))


@pytest.mark.parametrize("lengths", [[4, 9], [38, 3, 200]])
@pytest.mark.parametrize("kind", ["", "causal", "window", "ranks", "strict ranks"])
@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_heads_of_keys_serve_several_queries(
    key_heads: int, backend: str, kind: str, lengths: list[int]
) -> None:
    """As if each key and value stood there once for each query that reads it: results, and gradients summed."""
    q, k, v = draw(lengths, heads=6)
    k, v = (x.detach()[:, :key_heads].clone().requires_grad_() for x in (k, v))
    visibility = limited(kind, lengths) if kind else FULL
    weights = torch.randn(q.shape, dtype=torch.float64)

    def attention(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if backend == "cpu":
            return attend(q, k, v, Packing.of(lengths), visibility=visibility)
        plan = plan_tiles(lengths, 6, q.device, window=visibility.window, key_heads=k.shape[1])
        return tile_attention(q, k, v, plan, 0.0, visibility)

    repeated = (torch.stack([x[:, i * key_heads // 6] for i in range(6)], 1) for x in (k, v))
    grouped, expanded = attention(k, v), attention(*repeated)
    torch.testing.assert_close(grouped, expanded, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (grouped, expanded)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_flash_kernel_gets_keys_that_are_not_repeated(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        torch.ops.aten, "_flash_attention_forward", lambda q, k, *_, **named: asked.append(k.shape[1]) or [q]
    )
    q, k = (torch.empty(8, heads, 64, device="meta", dtype=torch.bfloat16) for heads in (4, 2))
    attend(q, k, k, Packing.of([8], "meta"), dropout)
    assert asked == [2]
    with pytest.raises(UserError, match="takes no grouped heads"):
        attend(q, k, k, Packing.of([8], "meta"), backend="varlen")


def test_the_varlen_kernel_gets_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device, which computes nothing: what the kernel is asked for."""
    asked: list[tuple[int, dict]] = []
    monkeypatch.setattr(
        "torch.nn.attention.varlen.varlen_attn",
        lambda q, k, *_, **named: asked.append((k.shape[1], named)) or q,
    )
    q = torch.empty(8, 4, 64, device="meta", dtype=torch.bfloat16)
    packing = Packing.of([8], "meta")
    assert choose_backend(q.device, q.dtype, 64, 0.0, Visibility(window=3)) == "varlen"
    attend(q, q, q, packing, visibility=Visibility(window=3))
    attend(q, q, q, packing)
    assert asked == [(4, {"window_size": (3, 3)}), (4, {})]


@pytest.mark.parametrize(
    ("visibility", "limits"),
    [
        (Visibility(window=3), (False, 3, 3)),
        (Visibility(causal=True), (True, None, None)),
        (Visibility(causal=True, window=3), (True, 3, 0)),
    ],
)
def test_the_flash_kernel_gets_the_window(
    visibility: Visibility, limits: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: a query and what is left and right of it, which the kernel counts without the query itself."""
    asked: list[tuple] = []

    def kernel(q: torch.Tensor, *given: object, window_size_left: object, window_size_right: object) -> list:
        asked.append((given[7], window_size_left, window_size_right))
        return [q]

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)
    q = torch.empty(8, 4, 64, device="meta", dtype=torch.bfloat16)
    assert choose_backend(q.device, q.dtype, 64, 0.1, visibility) == "flash"
    attend(q, q, q, Packing.of([8], "meta"), dropout=0.1, visibility=visibility)
    assert asked == [limits]


def test_backends_that_cannot_limit_what_is_seen_are_not_chosen() -> None:
    meta, half = torch.device("meta"), torch.bfloat16
    ranked = limited("ranks", [3])
    assert choose_backend(meta, half, 64, 0.0) == "varlen"
    assert choose_backend(meta, half, 64, 0.0, CAUSAL) == "flash"
    assert choose_backend(meta, half, 64, 0.0, ranked) == "tiles"
    qkv = draw([3])
    for backend, visibility in (("varlen", CAUSAL), ("flash", ranked)):
        with pytest.raises(UserError, match="cannot limit what is seen"):
            attend(*qkv, Packing.of([3]), visibility=visibility, backend=backend)


def test_gradient_by_finite_differences_with_dropout() -> None:
    lengths = [3, 5, 4]

    def attention(*qkv: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)  # the same mask at every evaluation
        return attend(*qkv, Packing.of(lengths), dropout=0.3)

    assert torch.autograd.gradcheck(attention, draw(lengths, size=4))


@pytest.mark.parametrize("changed", range(5))
def test_other_examples_stay_bit_equal(changed: int) -> None:
    lengths = LENGTHS["far"]
    qkv, packing = draw(lengths, dtype=torch.float32), Packing.of(lengths)
    start = sum(lengths[:changed])
    before = attend(*qkv, packing)
    for x in qkv:
        x.data[start] += 100.0
    after = attend(*qkv, packing)
    same = torch.cat(
        [(a == b).all().reshape(1) for a, b in zip(before.split(lengths), after.split(lengths), strict=True)]
    )
    assert same.tolist() == [i != changed for i in range(len(lengths))]


def test_padding_brings_no_nan_into_gradients() -> None:
    qkv = draw(LENGTHS["far"], dtype=torch.float32)
    attend(*qkv, Packing.of(LENGTHS["far"]), dropout=0.5).sum().backward()
    assert all(x.grad is not None and torch.isfinite(x.grad).all() for x in qkv)


@pytest.mark.parametrize("kernel", ["ours", "torch"])  # on a CPU, and on GPUs without flash attention
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_realised_dropout_of_attention(rate: float, kernel: str) -> None:
    lengths, heads = [64] * 30 + [60] * 20, 2
    packing = Packing.of(lengths)
    q, k = (torch.zeros(sum(lengths), heads, 64, dtype=torch.float32) for _ in range(2))
    v = torch.cat([torch.eye(64)[:n] for n in lengths])[:, None].expand(-1, heads, -1)
    torch.manual_seed(0)
    if kernel == "torch":
        probabilities = tile_attention(q, k, v, packing.tiles(heads, q.device), rate)
    else:
        probabilities = attend(q, k, v, packing, dropout=rate)  # v is the identity: it shows them
    shown = torch.cat(
        [p[..., :n].flatten() * n for p, n in zip(probabilities.split(lengths), lengths, strict=True)]
    )
    spread = 4 * (rate * (1 - rate) / len(shown)) ** 0.5
    assert (shown == 0).double().mean().item() == pytest.approx(rate, abs=spread)
    assert shown.double().mean().item() == pytest.approx(1.0, abs=spread / (1 - rate))


def test_realised_dropout_of_hidden_states() -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1001, requires_grad=True)
    y = dropout(x, 0.1, training=True)
    kept = y != 0
    assert kept.double().mean().item() == pytest.approx(0.9, abs=1.5e-3)
    assert y.double().mean().item() == pytest.approx(1.0, abs=1.5e-3)
    y.sum().backward()
    assert torch.equal(x.grad, y)
    columns = kept.double().mean(0)
    assert (columns - 0.9).abs().max() < 6 * (
        0.09 / 1000
    ) ** 0.5  # no column, such as every fourth, is special
    assert dropout(x, 0.1, training=False) is x


def test_neighbouring_bits_of_dropout_are_independent() -> None:
    torch.manual_seed(2)
    keep, scale = keep_mask((400_000,), 0.5)
    assert scale == 2.0
    signs = keep.double() * 2 - 1
    for distance in (1, 2, 3, 4, 8):
        assert abs((signs[distance:] * signs[:-distance]).mean().item()) < 5 / len(signs) ** 0.5


def test_dropout_follows_the_global_generator() -> None:
    qkv, packing = draw([9, 12]), Packing.of([9, 12])
    results = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        results.append(attend(*qkv, packing, dropout=0.2))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_tile_plan_places_every_row_once_and_is_made_once() -> None:
    packing = Packing.of(LENGTHS["many"])
    plan = packing.tiles(3, torch.device("cpu"))
    assert packing.tiles(3, torch.device("cpu")) is plan
    rows = torch.arange(sum(LENGTHS["many"]) * 3)
    gather, scatter = plan.queries.gather, plan.queries.scatter
    assert scatter is not None
    assert torch.equal(gather[scatter], rows)
    assert len(scatter.unique()) == len(rows)
    assert len(plan.padding) == len(gather) - len(rows)


def test_only_tiles_with_padding_have_a_mask() -> None:
    equal, unequal = (plan_tiles(lengths, 2, torch.device("cpu")).tiles for lengths in ([6, 6, 6], [6, 5]))
    assert [tile.bias_E11S for tile in equal] == [None]
    (tile,) = unequal
    assert tile.bias_E11S is not None
    assert tile.bias_E11S.squeeze().tolist() == [[0.0] * 5 + [-float("inf")], [0.0] * 6]


def test_spare_examples_without_tokens_are_left_out() -> None:
    qkv = draw([4, 6])
    spare = attend(*qkv, Packing.of([4, 0, 6, 0]))
    assert torch.equal(spare, attend(*qkv, Packing.of([4, 6])))


@pytest.mark.parametrize("overhead", [0.0, 50.0, 1e9])
def test_cuts_are_the_cheapest(overhead: float) -> None:
    lengths = np.array(sorted(random.Random(4).choices(range(1, 20), k=9)))

    def cost(cuts: tuple[int, ...]) -> float:
        ends = [0, *cuts, len(lengths)]
        return sum((b - a) * float(lengths[b - 1]) ** 2 + overhead for a, b in itertools.pairwise(ends))

    inner = range(1, len(lengths))
    choices = [c for n in range(len(lengths)) for c in itertools.combinations(inner, n)]
    cuts = tuple(last for _, last in _cut(lengths, overhead)[:-1])
    assert cost(cuts) == min(map(cost, choices))


def test_backends_are_chosen_and_refused() -> None:
    cpu = torch.device("cpu")
    assert choose_backend(cpu, torch.float32, 64, 0.1) == "tiles"
    assert choose_backend(cpu, torch.bfloat16, 64, 0.0) == "tiles"
    qkv = draw([3])
    with pytest.raises(UserError, match=r"encoder\.attention_dropout: the varlen backend has no dropout"):
        attend(*qkv, Packing.of([3]), dropout=0.1, backend="varlen")
    with pytest.raises(UserError, match="float16 or bfloat16 on CUDA"):
        attend(*qkv, Packing.of([3]), backend="flash")
    with pytest.raises(UserError, match="no attention backend"):
        attend(*qkv, Packing.of([3]), backend="magic")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["varlen", "flash", "tiles"])
def test_cuda_backends_agree_with_one_at_a_time(backend: str) -> None:
    lengths = LENGTHS["far"]
    qkv = [x.detach().cuda().bfloat16().requires_grad_() for x in draw(lengths, heads=2, size=64)]
    exact = [x.detach().double().requires_grad_() for x in qkv]
    out = attend(*qkv, Packing.of(lengths, "cuda"), backend=backend)
    expected = one_at_a_time(*exact, lengths)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-2)
    for ours, theirs in zip(
        torch.autograd.grad(out.sum(), qkv), torch.autograd.grad(expected.sum(), exact), strict=True
    ):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("backend", "causal"),
    [("varlen", False), ("flash", False), ("tiles", False), ("flash", True), ("tiles", True)],
)
def test_cuda_windows_and_groups_agree_with_the_cpu(backend: str, causal: bool) -> None:
    lengths, window = [300, 7, 129], Visibility(causal, window=16)
    key_heads = 4 if backend == "varlen" else 2
    q, k, v = (x.detach().cuda().bfloat16() for x in draw(lengths, heads=4, size=64))
    qkv = [x.requires_grad_() for x in (q, k[:, :key_heads].contiguous(), v[:, :key_heads].contiguous())]
    exact = [x.detach().double().cpu().requires_grad_() for x in qkv]
    out = attend(*qkv, Packing.of(lengths, "cuda"), visibility=window, backend=backend)
    expected = attend(*exact, Packing.of(lengths), visibility=window)
    torch.testing.assert_close(out.double().cpu(), expected, rtol=0, atol=2e-2)
    for ours, theirs in zip(
        torch.autograd.grad(out.sum(), qkv), torch.autograd.grad(expected.sum(), exact), strict=True
    ):
        torch.testing.assert_close(ours.double().cpu(), theirs, rtol=0, atol=5e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["flash", "tiles"])
def test_cuda_backends_drop_at_the_rate(backend: str) -> None:
    lengths, heads, rate = [64] * 50, 2, 0.1
    q = torch.zeros(sum(lengths), heads, 64, dtype=torch.bfloat16, device="cuda")
    v = (
        torch.eye(64, dtype=torch.bfloat16, device="cuda")
        .repeat(50, 1)[:, None]
        .expand(-1, heads, -1)
        .contiguous()
    )
    shown = attend(q, q, v, Packing.of(lengths, "cuda"), dropout=rate, backend=backend)
    assert (shown == 0).double().mean().item() == pytest.approx(rate, abs=5e-3)
    assert shown.double().mean().item() * 64 == pytest.approx(1.0, abs=1e-2), "survivors are scaled up"

"""A small model with what makes sharding hard, its data, and LAMB written down plainly; for the multi-rank tests."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, INNER, CLASSES = 37, 13, 29, 5


class Toy(nn.Module):
    """Odd sizes, a tied embedding, a frozen layer, a buffer, a parameter of one element and a head used at times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, INNER)
        self.outer = nn.Linear(INNER, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.gain = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.at_times = nn.Linear(WIDTH, 3)
        self.decoder_bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.decoder = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor([1.5, 0.5]))
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor, use_extra: bool) -> Tensor:
        """Sum over examples (not mean) of the weighted losses; weight 0 makes an empty micro-batch."""
        x = self.frozen(self.embedding(tokens))
        x = self.norm(x + self.gain * self.outer(torch.tanh(self.inner(x))) * self.scale[0].to(x.dtype))
        logits = self.decoder(x) + self.decoder_bias
        losses = functional.cross_entropy(logits.float(), targets % VOCABULARY, reduction="none")
        losses = losses + functional.cross_entropy(self.head(x).float(), targets % CLASSES, reduction="none")
        if use_extra:
            losses = losses + functional.cross_entropy(
                self.at_times(x).float(), targets % 3, reduction="none"
            )
        return (losses * weights).sum()


def toy_model(seed: int = 3) -> Toy:
    """The same weights on every rank."""
    torch.manual_seed(seed)
    model = Toy()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.rand_like(parameter)).add_(0.01 * torch.randn_like(parameter))
    return model


Batch = tuple[Tensor, Tensor, Tensor]


def global_batch(step: int) -> Batch:
    """(tokens, targets, weights) of the examples of one step, uneven in number and weight."""
    generator = torch.Generator().manual_seed(1000 + step)
    count = 23 + step % 4
    tokens = torch.randint(0, VOCABULARY - 2, (count,), generator=generator)  # two rows stay without gradient
    targets = torch.randint(0, 1000, (count,), generator=generator)
    weights = torch.rand(count, generator=generator).add_(0.1)
    return tokens, targets, weights


def micro_batches(batch: Batch, rank: int, size: int, step: int) -> Iterator[tuple[Batch, bool, bool]]:
    """(micro-batch, uses the extra head, is the last) of one rank: one to three a step, some of them empty.

    A step is cut into its micro-batches first and each of these over the ranks, so that which examples see the extra
    head, unused in some steps and in the first micro-batch of others, does not depend on the number of ranks.
    """
    pieces = 1 + step % 3
    for piece in range(pieces):
        first, last = (len(batch[0]) * (piece + i) // pieces for i in (0, 1))
        low, high = (first + (last - first) * (rank + i) // size for i in (0, 1))
        if step % 5 == 4 and rank == size - 1 and size > 1:
            part = batch[0][:1], batch[1][:1], torch.zeros(1)
        elif step % 5 == 4 and rank == size - 2:
            part = (
                batch[0][low:last],
                batch[1][low:last],
                batch[2][low:last],
            )  # its own and the idle rank's share
        else:
            part = batch[0][low:high], batch[1][low:high], batch[2][low:high]
        yield part, step % 4 != 2 and (piece > 0 or step % 3 == 0), piece == pieces - 1


class PlainLamb:
    """LAMB in NVIDIA's form, one whole tensor at a time, as a textbook has it."""

    def __init__(self, decay: float, betas: tuple[float, float], eps: float, clip: float) -> None:
        self.decay, self.betas, self.eps, self.clip = decay, betas, eps, clip
        self.moments: dict[int, tuple[Tensor, ...]] = {}
        self.steps = 0

    def step(self, parameters: list[Tensor], gradients: list[Tensor], lr: float) -> float:
        """Updates in place; returns the norm of the gradient before clipping."""
        self.steps += 1
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        factor = 1 / max(1.0, (norm + 1e-6) / self.clip) if self.clip else 1.0
        for index, (w, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            update = self.update(index, w, gradient * factor)
            w -= lr * self.ratio(index, w, gradient * factor, update) * update
        return norm

    def ratio(self, index: int, w: Tensor, g: Tensor, update: Tensor) -> float:
        """What the update of a tensor is multiplied by."""
        norms = float(w.double().norm()), float(update.double().norm())
        return norms[0] / norms[1] if self.decays(w) and min(norms) > 0 else 1.0

    def decays(self, w: Tensor) -> bool:
        """Whether a tensor has weight decay and a trust ratio."""
        return w.ndim >= 2

    def update(self, index: int, w: Tensor, g: Tensor) -> Tensor:
        """Bias-corrected direction with decay, before the trust ratio."""
        m, v = self.moments.get(index, (torch.zeros_like(w), torch.zeros_like(w)))
        m = self.betas[0] * m + (1 - self.betas[0]) * g
        v = self.betas[1] * v + (1 - self.betas[1]) * g * g
        self.moments[index] = m, v
        m_hat, v_hat = m / (1 - self.betas[0] ** self.steps), v / (1 - self.betas[1] ** self.steps)
        return m_hat / (v_hat.sqrt() + self.eps) + (self.decay if self.decays(w) else 0.0) * w


class PaperLamb(PlainLamb):
    """Algorithm 2 of the paper: no tensor is left out."""

    def decays(self, w: Tensor) -> bool:
        return True


class PlainAdamW(PlainLamb):
    """The same without the trust ratio; decay of the textbook form equals the decoupled one."""

    def ratio(self, index: int, w: Tensor, g: Tensor, update: Tensor) -> float:
        return 1.0


class PlainStableAdamW(PlainLamb):
    """Algorithm 2 of arXiv 2304.13013: the rate over max(1, RMS), and `lagged`, how often that is above 1."""

    lagged = 0

    def ratio(self, index: int, w: Tensor, g: Tensor, update: Tensor) -> float:
        v_hat = self.moments[index][1] / (1 - self.betas[1] ** self.steps)
        rms = float((g.square() / v_hat.clamp(min=self.eps**2)).mean().sqrt())
        self.lagged += rms > 1.1
        return 1 / max(1.0, rms)


class PlainMuon(PlainLamb):
    """Muon for the inner matrices, with torch's defaults; AdamW for the rest."""

    momentum = 0.95

    def ratio(self, index: int, w: Tensor, g: Tensor, update: Tensor) -> float:
        return 1.0

    def update(self, index: int, w: Tensor, g: Tensor) -> Tensor:
        if w.shape not in ((INNER, WIDTH), (WIDTH, INNER)):
            return super().update(index, w, g)
        m = self.moments[index][0] if index in self.moments else torch.zeros_like(w)
        m = self.momentum * m + (1 - self.momentum) * g
        self.moments[index] = (m,)
        x = self.momentum * m + (1 - self.momentum) * g
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            y = x @ x.mT
            x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
        return 0.2 * max(w.shape) ** 0.5 * x + self.decay * w


def learning_rate(step: int) -> float:
    """Not constant, so that a learning rate that does not arrive shows."""
    return 0.01 * (1 + step % 3)


@dataclass
class Reference:
    """Training without DeepSpeed, ranks or shards: masters, moments and gradient norms after every step."""

    weights: list[dict[str, Tensor]]
    moments: list[dict[str, tuple[Tensor, ...]]]
    norms: list[float]


def reference(steps: int, optimizer: PlainLamb) -> Reference:
    """Trains the toy model in fp64 on one process; how the batch is cut makes no difference."""
    return _train(steps, optimizer, torch.float64, size=1)


def mixed_reference(
    steps: int,
    optimizer: PlainLamb,
    dtype: torch.dtype,
    size: int,
    loss_scale: float = 1.0,
    fp32_sums: bool = False,
) -> Reference:
    """Mixed precision as it should be: gradients of a rounded copy of fp32 masters, added up in fp32.

    Cut into the micro-batches of `size` ranks, as each rounds. `fp32_sums`: the two gradients of the tied embedding
    are also added in fp32, as `grad_dtype` has autograd do it. One thread, as each rank has: more would sum, and
    round, in another order.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(steps, optimizer, dtype, size, loss_scale, fp32_sums)
    finally:
        torch.set_num_threads(threads)


def _train(
    steps: int,
    optimizer: PlainLamb,
    dtype: torch.dtype,
    size: int,
    loss_scale: float = 1.0,
    fp32_sums: bool = False,
) -> Reference:
    master_type = torch.float64 if dtype == torch.float64 else torch.float32
    masters = {n: p.detach().to(master_type) for n, p in toy_model().named_parameters() if p.requires_grad}
    model = toy_model().to(dtype)
    model.scale = model.scale.float()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if fp32_sums:
        for parameter in parameters.values():
            parameter.grad_dtype = torch.float32
    result = Reference([], [], [])
    for step in range(steps):
        batch = global_batch(step)
        sums = {name: torch.zeros_like(master) for name, master in masters.items()}
        for rank in range(size):
            for part, extra, _ in micro_batches(batch, rank, size, step):
                (model(*part, extra) * (size / float(batch[2].sum())) * loss_scale).backward()
                for name, parameter in parameters.items():
                    if parameter.grad is not None:
                        sums[name] += parameter.grad.to(master_type) / loss_scale / size
                        parameter.grad = None
        result.norms.append(optimizer.step(list(masters.values()), list(sums.values()), learning_rate(step)))
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(masters[name])
        result.weights.append({name: master.clone() for name, master in masters.items()})
        result.moments.append({name: optimizer.moments[i] for i, name in enumerate(masters)})
    return result

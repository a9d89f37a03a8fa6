"""Step a model under DeepSpeed ZeRO: the Engine of the training loop, and what its optimizer needs of the ranks.

What DeepSpeed 0.19.8 puts around our optimizer, and how each cell is kept to fp32 masters, moments, accumulation and
reduction. All cells that are not refused are tested (tests/multirank; fp16 with DeepSpeed's CPU check patched).

| stage | fp32                          | bf16                          | fp16                          |
|-------|-------------------------------|-------------------------------|-------------------------------|
| 0     | none                          | FP16_UnfusedOptimizer         | refused: it never scales the  |
|       |                               | and `grad_dtype` fp32         | loss                          |
| 1     | DeepSpeedZeroOptimizer        | BF16_Optimizer                | DeepSpeedZeroOptimizer        |
| 2     | DeepSpeedZeroOptimizer        | DeepSpeedZeroOptimizer        | DeepSpeedZeroOptimizer        |
| 3     | DeepSpeedZeroOptimizer_Stage3 | DeepSpeedZeroOptimizer_Stage3 | DeepSpeedZeroOptimizer_Stage3 |

With `zero.offload=cpu` stage 1 is DeepSpeedZeroOptimizer in bf16 as well; the others do not change.

Every rank must run the same number of backward passes per step (pad with empty micro-batches of weight 0), and at
stages 2 and 3 through the same parameters as the other ranks, or the ranks deadlock. A missing gradient counts as
zero at every stage: moments decay and weight decay applies. Stage 3 partitions the model after construction, so it
must fit in one rank's memory once.
"""

import math
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed import deepspeed_patches
from pretrain.distributed.deepspeed_patches import deepspeed_settings, import_deepspeed, refuse_unsupported
from pretrain.distributed.launch_env import resolve_precision
from pretrain.distributed.partition_map import PartitionMap, build_partition_map, share_rank_0
from pretrain.distributed.world import World
from pretrain.model.torch_internals import scale_all
from pretrain.optim.base import BaseOptimizer, build_optimizer, set_rate, trainable_parameters
from pretrain.optim.flat_layout import Collectives, Layout, Segment, Sharding, squared_norm
from pretrain.optim.lamb import check_kernels

# What an optimizer needs of the ranks: the layouts of its flat tensors, and collectives.


def sharding_of(partition: PartitionMap, world: World) -> Sharding:
    """Return how the optimizer's tensors are cut over the ranks."""
    return Sharding(
        partition.layout_of,
        collectives_of(world),
        partition.shapes,
        lambda: layouts_of_ranks(partition, world),
    )


def collectives_of(world: World) -> Collectives:
    """Return the collectives of the ranks; they run over gloo if the optimizer is offloaded to the CPU."""

    def group(values: Tensor) -> object:
        return world.messages if values.device.type != world.device.type else None

    def add(values: Tensor) -> None:
        dist.all_reduce(values, group=group(values))

    def swap(values: Tensor, sent: list[int], due: list[int]) -> Tensor:
        received = values.new_empty(sum(due))
        dist.all_to_all_single(received, values, due, sent, group=group(values))
        return received

    return Collectives(world.rank, world.size, add, swap)


def layouts_of_ranks(partition: PartitionMap, world: World) -> dict[int, list[Layout]]:
    """Return the layouts on all ranks of each flat tensor, by the tensor's id here. Collective."""
    segments = world.gather([list(map(list, flat.layout.segments)) for flat in partition.flats])
    return {
        id(flat.tensor): [
            Layout(
                flat.layout.names,
                tuple(Segment(*one) for one in segments[rank][number]),
                flat.layout.numel,
                flat.layout.split,
            )
            for rank in range(world.size)
        ]
        for number, flat in enumerate(partition.flats)
    }


class Engine:
    """The one object the training loop steps. Micro-batches: `backward(engine(batch), last=...)`, then `step()`."""

    def __init__(
        self, deepspeed_engine: Any, optimizer: BaseOptimizer, precision: str, clip: float, world: World
    ) -> None:
        self._engine, self._optimizer, self._clip = deepspeed_engine, optimizer, clip
        self._wrapper: Any = deepspeed_engine.optimizer
        self._sharded = deepspeed_engine.zero_optimization_stage() > 0
        self._norm: float | Tensor = 0.0
        self._applied = False
        self.precision = precision
        """fp32, bf16 or fp16."""
        deepspeed_patches.check_wrapper(self._wrapper, optimizer)
        optimizer.state.clear()  # stage 0's wrapper has stepped on zero gradients
        self.partition: PartitionMap = build_partition_map(
            self._wrapper, optimizer, deepspeed_engine.module, world.rank, world.size
        )
        """Named fragments of weights and moments: for saving and loading."""
        optimizer.use_sharding(sharding_of(self.partition, world))
        deepspeed_patches.add_in_one_pass(self._wrapper)
        deepspeed_patches.keep_sums_of_one_rank(deepspeed_engine, world.size)
        deepspeed_patches.norm_on_flat_buffer(self._wrapper, world.device)
        deepspeed_patches.skip_overflow_scan(self._wrapper)
        self._fp32_gradients: list[nn.Parameter] = []
        if precision == "bf16" and not self._sharded:
            self._keep_gradients_in_fp32()
        self._scale_updates: list[bool] = []
        if precision == "fp16":
            self._defer_scale_updates()

    @property
    def module(self) -> nn.Module:
        """The model itself. Call the engine, not the module, for a forward pass: stage 3 relies on it."""
        return self._engine.module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass of the model."""
        return self._engine(*args, **kwargs)

    def train(self) -> None:
        """Switch dropout on."""
        self._engine.train()

    def eval(self) -> None:
        """Switch dropout off."""
        self._engine.eval()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of `loss`; `last` marks the step's last micro-batch, which reduces at stages 0 and 1.

        `loss` is this rank's W * sum / N over the whole global batch: DeepSpeed divides only by W, when it averages
        over ranks.
        """
        for parameter in self._fp32_gradients:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, dtype=torch.float32)
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, keep_scale: bool = False) -> bool:
        """Clip by the global norm and update; return True if applied, False if a gradient was not finite.

        Clears the gradients in either case. `keep_scale`: this step does not affect fp16's loss scale. Raises
        UserError if the loss scale cannot be lowered.
        """
        with torch.no_grad():
            if self._sharded:
                self._step_sharded()
                if keep_scale:
                    self._scale_updates.clear()
                self._update_scale()
            else:
                self._step_unsharded()
        return self._applied

    @property
    def grad_norm(self) -> float:
        """Global L2 norm of the last step's gradient, before clipping; inf if not finite. Syncs with the device, so
        read it at log steps only."""
        norm = float(self._norm)
        return norm if self._applied and math.isfinite(norm) else math.inf

    @property
    def loss_scale(self) -> float:
        """The factor that fp16 multiplies the loss by; 1 in other precisions."""
        return float(self._wrapper.loss_scale) if self.precision == "fp16" else 1.0

    lr = 0.0
    """The learning rate of the last step."""

    def set_lr(self, lr: float, peak: float | None = None) -> None:
        """Set the learning rate of the next step; `peak`: the phase's `optim.lr` (None: as before), which
        `optim.decoupled_decay` depends on."""
        self.lr = lr
        set_rate(self._optimizer, lr, peak)

    def trust_ratios(self) -> dict[str, Tensor]:
        """Return LAMB's trust ratios of the last update by parameter; {} for other optimizers."""
        return self._optimizer.trust_ratios()

    def mean_trust_ratio(self) -> float | None:
        """Return the mean trust ratio; None before the first update and for other optimizers."""
        mean = self._optimizer.mean_trust_ratio()
        return None if mean is None else float(mean)

    SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")

    def scaler_state(self) -> dict[str, float]:
        """Return fp16's loss scaler state for the checkpoint (JSON); {} in other precisions."""
        if self.precision != "fp16":
            return {}
        return {key: getattr(self._wrapper.loss_scaler, key) for key in self.SCALER_STATE}

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        """Restore the loss scaler from `scaler_state`; a no-op for the state of an fp32 or bf16 run."""
        if self.precision == "fp16":
            for key in state.keys() & set(self.SCALER_STATE):
                setattr(self._wrapper.loss_scaler, key, state[key])

    def close(self) -> None:
        """Remove DeepSpeed's hooks from the model."""
        self._engine.destroy()

    def _step_unsharded(self) -> None:
        """Clip and step at stage 0. DeepSpeed's own clipping sums squares in fp32, which on a CPU is off by 1e-3
        for large tensors, and under bf16 takes the norm of gradients rounded to bf16."""
        gradients = [p.grad for p in self.module.parameters() if p.requires_grad and p.grad is not None]
        norm = float(torch.stack([squared_norm(g.view(-1)) for g in gradients]).sum().sqrt())
        self._norm, self._applied = norm, math.isfinite(norm)
        if not self._applied:
            self._engine.zero_grad()
            return
        over = (norm + 1e-6) / self._clip if self._clip else 0.0
        if over > 1:
            scale_all(gradients, 1 / over)
        self._engine.step()

    def _step_sharded(self) -> None:
        deepspeed_patches.complete(self._wrapper)
        self._engine.step()
        deepspeed_patches.forget(self._wrapper)
        self._applied = bool(self._engine.was_step_applied())
        # read at log steps only: here it would wait for the whole update
        self._norm = self._engine.get_global_grad_norm()

    def _keep_gradients_in_fp32(self) -> None:
        """Keep gradients in fp32 at stage 0 in bf16: autograd and DeepSpeed sum in the gradient's precision."""
        self._fp32_gradients = [p for group in self._wrapper.fp16_groups for p in group]
        for parameter in self._fp32_gradients:
            parameter.grad_dtype = torch.float32

    def _defer_scale_updates(self) -> None:
        """Defer loss scale updates: DeepSpeed applies them before unscaling, so growth would halve that step's
        gradient."""
        self._change_scale = self._wrapper._update_scale
        self._wrapper._update_scale = self._scale_updates.append

    def _update_scale(self) -> None:
        while self._scale_updates:
            overflow = self._scale_updates.pop()
            scaler = self._wrapper.loss_scaler
            if overflow and scaler.cur_hysteresis == 1 and scaler.cur_scale <= scaler.min_scale:
                raise UserError(
                    f"gradients overflow in fp16 at the smallest loss scale, {scaler.cur_scale:g}",
                    where="train.precision",
                    remedy="lower optim.lr, or use bf16 or fp32",
                )
            self._change_scale(overflow)


def build_engine(
    model: nn.Module, config: RunConfig, world: World, *, zero: Mapping[str, Any] | None = None
) -> Engine:
    """Wrap `model` in DeepSpeed according to `config`. Collective; `world` must have been started.

    All ranks get rank 0's weights; in low precision the masters start from them in fp32, unrounded. `zero` adds to
    DeepSpeed's `zero_optimization` section. Raises UserError for an unsupported combination of stage and precision.
    """
    precision = resolve_precision(config, world.device.type)
    deepspeed = import_deepspeed(world)
    refuse_unsupported(deepspeed, config.zero.stage, precision, world)
    check_kernels(config.train.kernels, world.device)
    model.to(world.device)
    share_rank_0(model, world)
    masters = {}
    if precision != "fp32":
        masters = {name: p.detach().cpu().clone() for name, p in trainable_parameters(model).items()}
    optimizer = build_optimizer(model, config.optim, config.train.kernels)
    settings = deepspeed_settings(config, precision, dict(zero or {}))
    with redirect_stdout(StringIO()):  # it prints its memory use
        wrapped, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    # they are no submodules, and DeepSpeed casts the model's parameters alone
    for frozen in vars(model).get("frozen", ()):
        frozen.to(next(model.parameters()).dtype)
    engine = Engine(wrapped, optimizer, precision, config.train.clip, world)
    if masters:
        engine.partition.load(_reader(masters), updates=0, kinds=("master",))
    return engine


def _reader(tensors: Mapping[str, Tensor]) -> Any:
    def read(name: str, kind: str, start: int, length: int) -> Tensor | None:
        tensor = tensors.get(name)
        return None if tensor is None else tensor.view(-1)[start : start + length]

    return read

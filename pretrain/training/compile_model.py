"""Decide whether a run compiles its model, and compile it for one shape."""

import logging
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from rich.console import Console
from torch import nn

from data_pipeline.errors import UserError
from pretrain.config.settings import RunConfig
from pretrain.distributed.launch_env import dtype_of
from pretrain.model.attention import choose_backend
from pretrain.model.batch import MicroBatch
from pretrain.objectives.registry import load
from pretrain.preflight.check_run import Plan

CPU_FLOPS = 1e11
"""Operations per second assumed for a CPU when estimating the length of a run."""
LONG = 1800.0
"""Seconds of training above which compiling pays off on a CPU: it takes one to two minutes and saves 10% or more."""


def wanted(config: RunConfig, device: torch.device, precision: str, run_flops: float) -> bool:
    """Return whether this run compiles its model, for all phases alike, since a compiled model stays compiled.
    `run_flops`: operations of all steps over all ranks. Raises UserError if train.compile=on is impossible."""
    setting = config.train.compile
    obstacle = _obstacle(config, device, precision)
    if setting == "on" and obstacle:
        raise UserError(f"train.compile=on: {obstacle}", where="settings", remedy="train.compile=off")
    if setting != "auto":
        return setting == "on"
    if device.type == "cuda":
        return not obstacle
    return not obstacle and run_flops / CPU_FLOPS >= LONG


def run_flops(plans: list[Plan]) -> float:
    """Count the operations of all steps over all ranks; minutes of training count as those of a CPU."""
    trains = [(plan, plan.phase.config.train) for plan in plans]
    return sum(
        60 * train.minutes * CPU_FLOPS or train.steps * plan.step_flops(plan.phase.config)
        for plan, train in trains
    )


def allowed(config: RunConfig, device: torch.device, precision: str) -> str:
    """Return train.compile, or `off` if this machine cannot compile."""
    return "off" if _obstacle(config, device, precision) else config.train.compile


def _obstacle(config: RunConfig, device: torch.device, precision: str) -> str:
    """Return why this run's model cannot be compiled into one graph; empty if it can."""
    if not load(config).one_shape:
        return (
            f"the attention of objective.name={config.objective.name} follows the lengths of each micro-batch"
        )
    if config.zero.stage == 3:
        return "ZeRO stage 3 fetches parameters in the middle of the graph"
    if device.type == "cuda":
        head = config.encoder.hidden // config.encoder.heads
        if choose_backend(device, dtype_of(precision), head, config.encoder.attention_dropout) != "tiles":
            return ""
        return "attention needs bf16 or fp16, heads of a multiple of 8 up to 256, and an Ampere GPU or newer"
    if config.train.activation_checkpointing:
        return "a CPU would draw other dropout when it recomputes (train.activation_checkpointing)"
    return (
        ""
        if shutil.which("g++") or shutil.which("clang++")
        else "a C++ compiler is needed, and none is found"
    )


def compile_model(model: nn.Module, example: MicroBatch, console: Console, memory: Any = None) -> float:
    """Compile `model` in place, forward and backward, for micro-batches and memory of the shape of `example` only;
    the number of examples with tokens may differ (`MicroBatch.borders`).

    Computes gradients once and discards them. Prints progress on the console; returns the seconds taken."""
    # as determinism.py has set it already, but this tells the compiler, too
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    # not model.compile, which would trace the hooks of DeepSpeed too; from the class, since a phase may compile anew
    forward = MethodType(type(model).forward, model)
    model.forward = torch.compile(forward, dynamic=False, fullgraph=True)
    torch._dynamo.mark_dynamic(example.borders, 0)
    console.print(
        "compiling the model: once, for a minute or two (train.compile=off does without)", soft_wrap=True
    )
    started = time.perf_counter()
    with warnings.catch_warnings(), console.status("compiling"):
        warnings.simplefilter("ignore")  # of the compiler, about its own parts
        terms, _ = model(example, memory)
        loss = torch.stack([term.sum for term in terms.values()]).sum()
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    _stop_workers()
    seconds = time.perf_counter() - started
    console.print(f"compiled in {seconds:.0f} s", soft_wrap=True)
    return seconds


def _stop_workers() -> None:
    """End the processes that have compiled kernels: until torch 2.13 some do not end by themselves, and the run's last
    act would be to wait five minutes for them (pytorch#162199). Later compilation starts new ones."""
    from torch._inductor import async_compile

    # it would warn that it cannot tell them to end
    logging.getLogger("torch._inductor.compile_worker.subproc_pool").setLevel(logging.ERROR)
    for pool in async_compile._pool_set:
        if process := getattr(pool, "process", None):
            process.kill()  # its own workers see that, and end
    async_compile.shutdown_compile_workers()


@contextmanager
def eager(model: nn.Module) -> Iterator[None]:
    """Return a context in which a compiled `model` runs uncompiled, for micro-batches of other shapes that are too few
    to be worth a graph. For a model that is not compiled it does nothing, and imports no compiler.

    Not the stance `force_eager`, at which torch 2.12 warns that a whole graph was asked for."""
    compiled = vars(model).pop("forward", None)  # the class's own is behind it
    try:
        yield
    finally:
        if compiled is not None:
            model.forward = compiled

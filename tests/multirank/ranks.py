"""A function and a world size in; what each rank returned out: real processes, connected by gloo.

    from ranks import run

    def scaled(factor: float) -> float:             # importable: at the top level of a module
        world = World.from_environment().start()
        ...

    results = run(scaled, 3, 0.5)                   # [rank 0's, rank 1's, rank 2's]

A failure on any rank kills the others and is raised here with that rank's traceback; so is a rank that dies, and
a run past its time limit. Ranks are forked from a process that has imported what they need and nothing of the tests, so
that nothing of the test process leaks into them but its environment.
"""

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PRELOADED = ["pretrain.train", "torch._dynamo"]
"""What the process that ranks are forked from has imported: seconds for each of them. DeepSpeed's stage 3 needs
torch._dynamo."""


class RankFailed(AssertionError):
    """A rank raised, died or did not finish in time."""


def run(
    function: Callable[..., Any], world_size: int, *args: Any, timeout: float = 300, spawn: bool = False
) -> list[Any]:
    """Calls `function(*args)` in `world_size` processes with torchrun's variables set; their results by rank. With
    `spawn` each imports all for itself, for variables that are read as a module is imported.

    Results are pickled: keep them small. Raises RankFailed; no process is left behind in any case.
    """
    from torch.distributed import TCPStore  # here, so that a test file without ranks does not wait for torch

    store = TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )  # the ranks meet at a port we hold
    context: Any = multiprocessing.get_context("spawn" if spawn else "forkserver")
    if not spawn:
        context.set_forkserver_preload(PRELOADED)
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank,
                args=(sender, dict(os.environ), rank, world_size, store.port, function, args),
                daemon=True,
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        return _collect(pipes, processes, time.monotonic() + timeout)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for pipe in pipes:
            pipe.close()
        del store


def _collect(pipes: list[Connection], processes: list[BaseProcess], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            missing = [rank for rank in range(len(pipes)) if rank not in results]
            raise RankFailed(f"no result from ranks {missing} in time")
        for pipe in ready:
            rank = next(i for i, other in enumerate(pipes) if other is pipe)
            try:
                succeeded, value = pickle.loads(pipes[rank].recv_bytes())
            except EOFError:
                processes[rank].join(10)
                raise RankFailed(f"rank {rank} died with exit code {processes[rank].exitcode}") from None
            if not succeeded:
                raise RankFailed(f"rank {rank} of {len(pipes)} failed:\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(pipes))]


def _rank(
    sender: Connection,
    environment: dict[str, str],
    rank: int,
    world_size: int,
    port: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(
        environment,
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the store is the parent's, as under torchrun
        OMP_NUM_THREADS="1",
    )
    try:
        import torch

        torch.set_num_threads(1)
        message = (True, function(*args))
        payload = pickle.dumps(message)
    except BaseException:
        payload = pickle.dumps((False, traceback.format_exc()))
    sender.send_bytes(payload)
    sender.close()
    os._exit(0)  # a rank whose peers are gone could wait for them on its way out

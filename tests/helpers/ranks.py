"""Runs a function in one process for each rank."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed


def in_ranks(
    world: int,
    function: Callable[..., Any],
    *arguments: Any,
    group: Path | None = None,
    method: str = "fork",
    timeout: float = 60,
) -> list[Any]:
    """Calls ``function(rank, world, *arguments)`` in each of `world` processes and returns the results by rank.

    Args:
        world: Number of processes.
        function: What each process calls.
        arguments: Further arguments, the same for all.
        group: A new file through which the processes form a gloo process group; None: no process group.
        method: Start method of the processes.
        timeout: Seconds after which they are killed and the test fails.
    """
    context = multiprocessing.get_context(method)
    deadline = time.monotonic() + timeout
    ends, processes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=_one, args=(theirs, rank, world, function, arguments, group)
        )
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    try:
        results = []
        for rank, end in enumerate(ends):
            assert end.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} hangs"
            try:
                error, result = end.recv()
            except EOFError:
                processes[rank].join(5)
                raise AssertionError(f"rank {rank} ended with {processes[rank].exitcode}") from None
            assert error is None, f"rank {rank}: {error}"
            results.append(result)
        for rank, process in enumerate(processes):
            process.join(max(0.1, deadline - time.monotonic()))
            assert process.exitcode == 0, f"rank {rank} ended with {process.exitcode}"
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _one(
    end: Connection, rank: int, world: int, function: Callable[..., Any], arguments: tuple[Any, ...], group: Path | None
) -> None:
    torch.set_num_threads(1)
    try:
        if group is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            torch.distributed.init_process_group("gloo", f"file://{group}", world_size=world, rank=rank)
        end.send((None, function(rank, world, *arguments)))
        if group is not None:
            torch.distributed.destroy_process_group()
    except BaseException:
        end.send((traceback.format_exc(), None))

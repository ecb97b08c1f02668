"""The arguments of `Loader`: checks, and values for those that were left out."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch

from packtrain._core.arguments import require as require
from packtrain._core.arguments import require_functions as require_functions
from packtrain._core.cores import cores_per_rank
from packtrain._core.errors import UsageError

from .order import Order, Sequential, Shuffled
from .sampler import SamplerOrder


def order_of(dataset: Any, sampler: Any, shuffle: bool) -> Order:
    """The order that `sampler` and `shuffle` stand for."""
    rows = len(dataset)
    if sampler is None:
        return Shuffled(rows) if shuffle else Sequential(rows)
    return sampler if isinstance(sampler, Order) else SamplerOrder(sampler, rows)


def workers_of(num_workers: int | Literal["auto"]) -> int:
    """The number of worker processes; ``"auto"`` is this rank's share of the cores.

    Raises:
        UsageError: It is neither a whole number nor ``"auto"``, or it is negative.
    """
    return cores_per_rank() if num_workers == "auto" else require("num_workers", num_workers, 0)


def context_of(start_method: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context that starts the workers.

    Raises:
        UsageError: The start method is unknown.
    """
    if isinstance(start_method, BaseContext):
        return start_method
    try:
        return multiprocessing.get_context(start_method)
    except ValueError:
        methods = ", ".join(multiprocessing.get_all_start_methods())
        raise UsageError(f"multiprocessing_context={start_method!r}: expected one of {methods}") from None


def place_in_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks; if they are not given, those of torch.distributed, or else 0 and 1.

    Raises:
        UsageError: Only one of them is given, or the rank is not less than the number of ranks.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    if require("rank", rank, 0) >= require("world_size", world_size, 1):
        raise UsageError(f"rank={rank!r}: expected 0 to {world_size - 1}")
    return rank, world_size

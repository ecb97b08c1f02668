"""The processes of a training: those that torchrun starts, or a single one."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from packtrain.errors import UsageError


@dataclass(frozen=True)
class Processes:
    """This process among those that train.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
        local_rank: Number of this process on its machine.
        device: Device of its tensors.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True in the process that prints and writes."""
        return self.rank == 0

    def print(self, text: str) -> None:
        """Prints in the first process."""
        if self.first:
            print(text, flush=True)

    def replica(self, model: nn.Module) -> nn.Module:
        """The model, with the mean of all processes' gradients if there are several."""
        return DistributedDataParallel(model) if dist.is_initialized() else model

    def add_up(self, sums: Tensor) -> Tensor:
        """Adds up a tensor over all processes, in place."""
        if dist.is_initialized():
            dist.all_reduce(sums)
        return sums

    def share_statistics(self, model: nn.Module) -> None:
        """Gives all processes the first one's statistics of batch normalisation, which differ a little."""
        if dist.is_initialized():
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def peak_memory(self) -> int:
        """The most memory that was in use, in bytes: the GPU's by tensors, without a GPU that of this process."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def begin() -> Processes:
    """Joins the processes that torchrun started, on the GPU of this process if there are GPUs.

    Raises:
        UsageError: There are fewer GPUs than processes.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"process {local_rank} of this machine has no GPU of its own: give torchrun "
                f"--nproc-per-node {torch.cuda.device_count()}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    if "LOCAL_RANK" not in os.environ:
        return Processes(0, 1, 0, device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), dist.get_world_size(), local_rank, device)


def end() -> None:
    """Leaves the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()

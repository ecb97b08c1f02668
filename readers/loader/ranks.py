"""Rank of this process, number of ranks, and the seed that all ranks agree on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

import torch
from crc32c import crc32c

from packtrain._core.arguments import unexpected, whole
from packtrain._core.errors import UsageError
from packtrain._core.processes import boot_id

_MASK64: Final = (1 << 64) - 1


class World(NamedTuple):
    """Rank of this process, and number of ranks."""

    rank: int
    world_size: int


class Ranks:
    """Rank and number of ranks: those that were given, or else those of torch.distributed at the moment.

    Args:
        rank: Rank of this process.
        world_size: Number of ranks. Give both, or neither.

    Attributes:
        given: True if they were given, and so stay as they are.

    Raises:
        UsageError: Only one of them is given, or the rank is not less than the number of ranks.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        self._world: World | None = None
        if rank is not None and world_size is not None:
            self._world = World(whole("rank", rank, 0), whole("world_size", world_size, 1))
            if self._world.rank >= self._world.world_size:
                raise unexpected("rank", rank, f"0 to {world_size - 1}")
        elif not (rank is None and world_size is None):
            raise UsageError("give both rank and world_size, or neither")
        self.given: Final = self._world is not None

    def now(self) -> World:
        """Rank and number of ranks. Rank 0 of 1 if none were given and torch.distributed is not initialised."""
        if self._world is not None:
            return self._world
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return World(0, 1)
        return World(distributed.get_rank(), distributed.get_world_size())

    def require(self, world: World) -> None:
        """Requires that rank and number of ranks are still those with which a pass began.

        Raises:
            UsageError: They are not.
        """
        now = self.now()
        if now != world:
            raise UsageError(
                f"this was rank {world.rank} of {world.world_size} when the pass began, now it is rank {now.rank} of "
                f"{now.world_size}: call init_process_group before a pass begins, and destroy_process_group after it"
            )

    def nodes(self) -> int:
        """Number of nodes with equally many ranks that follow each other. All ranks must call this together.

        It is the number of machines. Where these have different numbers of ranks, and where nobody knows which ranks
        run on the same machine because they were given by hand, each rank is a node of its own.
        """
        world_size = self.now().world_size
        if self.given or world_size == 1:
            return world_size
        machines = [machine for (machine,) in self.gather([_machine()])]
        sizes = [len(list(ranks)) for _, ranks in groupby(machines)]
        return len(sizes) if len(sizes) == len(set(machines)) and len(set(sizes)) == 1 else world_size

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """These numbers of every rank, by rank. All ranks must call this together, each with equally many.

        Args:
            numbers: Numbers that fit 64 bits.
        """
        world_size = self.now().world_size
        if world_size == 1:
            return [list(map(int, numbers))]
        assert not self.given, "ranks given by hand do not know each other"
        own = torch.tensor(numbers, dtype=torch.int64, device=_device())
        found = [torch.empty_like(own) for _ in range(world_size)]
        torch.distributed.all_gather(found, own)
        return [each.tolist() for each in found]


class Seed:
    """The seed of a loader: the one that was given or that a state holds, or else torch's when the first pass begins.

    Torch's seed may differ between ranks. Then that of rank 0 is the seed.

    Args:
        seed: The seed; None: torch's.
        ranks: The ranks that must have the same seed.

    Attributes:
        value: The seed; None before the first pass if it was not given.

    Raises:
        UsageError: The seed is not a number; or there is none, and the ranks cannot agree on one because they do not
            know each other.
    """

    def __init__(self, seed: int | None, ranks: Ranks) -> None:
        self.value = None if seed is None else whole("seed", seed)
        self._ranks = ranks
        self._agreed: int | None = None
        """Number of ranks that agreed on the seed; None if it was given, and so needs no agreement."""
        if seed is None and ranks.given and ranks.now().world_size > 1:
            raise UsageError(
                f"rank={ranks.now().rank}, world_size={ranks.now().world_size}: ranks given by hand cannot agree on a "
                "seed, so give seed=, the same on all of them"
            )

    def load(self, value: int) -> None:
        """Takes the seed of a state, which all ranks have loaded."""
        self.value, self._agreed = value, None

    def agree(self) -> int:
        """The seed, which stays the same from now on. Several ranks must call this together, as they begin a pass."""
        world_size = self._ranks.now().world_size
        agreed = world_size if self._agreed is None else self._agreed
        if self.value is None or agreed != world_size:
            self.value = torch.initial_seed() & _MASK64 if self.value is None else self.value
            if world_size > 1 and not self._ranks.given:
                # The integers of a tensor are signed.
                signed = self.value - (1 << 64) if self.value >> 63 else self.value
                ((self.value,), *_) = self._ranks.gather([signed])
                self.value &= _MASK64
            self._agreed = world_size
        return self.value

    def agree_alone(self) -> int:
        """The same where other ranks may not take part.

        Raises:
            UsageError: They would have to.
        """
        if self.value is None and not self._ranks.given and self._ranks.now().world_size > 1:
            raise UsageError("the ranks agree on a seed when the first pass begins: give seed= to have one before")
        return self.agree() if self.value is None else self.value


def _machine() -> int:
    """A number that stands for this machine. Some machines have the same name, others the same image."""
    return crc32c(boot_id().encode(), crc32c(socket.gethostname().encode()))


def _device() -> torch.device:
    """The device of tensors that torch.distributed can send."""
    # For example "cpu:gloo,cuda:nccl", or only "cuda:nccl".
    kinds = [entry.split(":")[0] for entry in torch.distributed.get_backend_config().split(",")]
    return torch.device("cpu") if "cpu" in kinds else torch.device(kinds[0], getattr(torch, kinds[0]).current_device())

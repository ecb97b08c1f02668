"""What training frameworks look for on a loader because torch's DataLoader has it: a sampler that is told the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from torch.utils.data import Sampler, SequentialSampler
from typing_extensions import override

from packtrain._core.errors import UsageError

from .order import Order, Sequential

_EMPTY: Final = (
    "nothing can be drawn from the sampler of a packtrain Loader, so no torch DataLoader can be made of it. Use the "
    "loader itself; docs/frameworks.md says how, also with Accelerate"
)


class EpochSampler(Sampler[int]):
    """Stands where torch's DataLoader has its samplers, and passes the number of the epoch on to the loader.

    Nothing can be drawn from it. A framework that takes a DataLoader apart, to put it together again around the
    sampler, would lose the loader's workers and its order without a word; this way it gets an error.

    Args:
        follow: Called with the number of an epoch that a framework begins.
    """

    def __init__(self, follow: Callable[[int], None]) -> None:
        self._follow: Final = follow

    def set_epoch(self, epoch: int) -> None:
        """Tells a loader that has not begun where to begin, and any other one to go on to its next epoch.

        It never goes back and leaves no epoch out. Frameworks count epochs in their own way: within one of theirs, a
        short loader beside a long one goes through several of its own, and after a resume some count one too many.
        """
        self._follow(epoch)

    @override
    def __iter__(self) -> Iterator[int]:
        raise UsageError(_EMPTY)

    def __len__(self) -> int:
        raise UsageError(_EMPTY)


class InOrder(EpochSampler, SequentialSampler):
    """The same for rows in their order. Frameworks recognise that by the class."""


def sampler_of(order: Order, follow: Callable[[int], None]) -> EpochSampler:
    """What stands for the sampler of a loader with this order."""
    return (InOrder if isinstance(order, Sequential) else EpochSampler)(follow)

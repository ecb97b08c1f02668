"""For training frameworks: a sampler that is told the epoch, and a warning about gradients in Accelerate.

``accelerator.prepare`` reads nothing of an object whose class is not torch's. So the loader looks at Accelerate's state
where gradients are accumulated, without importing Accelerate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch.utils.data import Sampler, SequentialSampler

from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

_EMPTY: Final = (
    "nothing can be drawn from the sampler of a packtrain Loader, so no torch DataLoader can be made of it. Use the "
    "loader itself; docs/frameworks.md says how, also with Accelerate"
)
UNPREPARED: Final = (
    "the epoch has ended, and Accelerate holds accumulated gradients that it has not applied, because it does not know "
    "where an epoch of this loader ends. Write `loader = packtrain.accelerate.prepare(loader, accelerator)` before the "
    "first epoch: accelerator.prepare leaves a packtrain Loader as it is"
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
        """Tell a loader that has not begun where to begin, and any other one to go on to its next epoch.

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


def holds_gradients() -> bool:
    """Return True if ``accelerator.accumulate`` holds gradients that its last step has not applied, and should have."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    # An object that is made before the Accelerator would begin the state that all share.
    if not getattr(kind, "_shared_state", None):
        return False
    state = kind()
    return bool(state.num_steps > 1 and state.sync_with_dataloader and not state.sync_gradients)

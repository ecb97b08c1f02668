"""A loader in Hugging Face Accelerate, which must be told where in an epoch it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from packtrain._core.arguments import checks_names
from packtrain._core.errors import UsageError

from .loader import Loader

if TYPE_CHECKING:
    from accelerate import Accelerator


class PreparedLoader:
    """A loader that tells Accelerate when an epoch ends; `prepare` makes one.

    Args:
        loader: Makes the batches.
        accelerator: The Accelerator that is told.

    Attributes:
        loader: The loader itself.
        end_of_dataloader: True while the consumer works on the last batch of an epoch. Accumulated gradients are
            applied then.
        remainder: Number of samples in the incomplete step at the end of the epoch, over all ranks; 0 if there is none,
            -1 if it is unknown. `gather_for_metrics` cuts off what is more.
    """

    def __init__(self, loader: Loader, accelerator: Accelerator) -> None:
        self.loader: Final = loader
        self.end_of_dataloader = False
        self.remainder = -1
        self._accelerator = accelerator

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass of the loader. Batches are moved to the accelerator's device."""
        from accelerate.utils import send_to_device

        device, state = self._accelerator.device, self._accelerator.gradient_state
        # First of all, because the length of the epoch may be known only then.
        batches = iter(self.loader)
        self.end_of_dataloader, self.remainder = False, self.loader.remainder
        state._add_dataloader(self)
        try:
            # In a list, because a variable would keep the batch's memory after the consumer has dropped it.
            for placed in map(lambda batch: [send_to_device(batch, device)], batches):  # noqa: C417
                self.end_of_dataloader = not self.loader.remaining
                yield placed.pop()
        finally:
            state._remove_dataloader(self)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


@checks_names()
def prepare(loader: Loader, accelerator: Accelerator) -> PreparedLoader:
    """Does for a packtrain loader what ``accelerator.prepare`` does for torch's DataLoader alone.

    Batches are moved to the accelerator's device. Accumulated gradients are applied at the end of an epoch.
    ``gather_for_metrics`` cuts off the samples that fill up the last step. ``save_state`` saves the loader's place, and
    after ``load_state`` it continues there, so no batches need to be skipped.

    Args:
        loader: Makes the batches of this process. Its batch size is that of one process.
        accelerator: Trains with them.

    Raises:
        UsageError: `loader` is not a packtrain loader.
    """
    if not isinstance(loader, Loader):
        raise UsageError(
            f"an object of type {type(loader).__name__} is not a packtrain Loader; accelerator.prepare is for torch's "
            "DataLoader"
        )
    prepared = PreparedLoader(loader, accelerator)
    accelerator.register_for_checkpointing(prepared)
    return prepared

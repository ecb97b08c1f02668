"""Arrays of different lengths in a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, overload

import torch


@dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """A batch of arrays that differ in their first size: all their entries in one tensor, one array after the other.

    ``ragged[3]`` is the array of sample 3, ``ragged[2:5]`` those of three samples, and ``len(ragged)`` the number of
    samples. A sample without a value has no entries.

    torch, Lightning and Accelerate pin it and move it to a device like a tensor.

    Attributes:
        values: The entries of all arrays, [total, ...].
        offsets: Where each array begins in `values`, then where the last one ends, int64 [samples + 1].
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def to_nested(self) -> torch.Tensor:
        """A nested tensor in torch's jagged layout, over the same memory."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def to(self, device: str | int | torch.device, non_blocking: bool = False) -> Self:
        """The same on a device.

        Args:
            device: The device.
            non_blocking: True not to wait for a copy from pinned memory, as with a tensor.
        """
        return self.mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> Self:
        """A copy in pinned memory, from which a GPU can copy directly.

        Args:
            device: For torch's DataLoader, which passes the kind of the device on.
        """
        return self.mapped(torch.Tensor.pin_memory if device is None else lambda tensor: tensor.pin_memory(device))

    def mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The same with `function` applied to both tensors."""
        return type(self)(function(self.values), function(self.offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, sample: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, sample: slice) -> Self: ...
    def __getitem__(self, sample: int | slice) -> torch.Tensor | Self:
        """The array of a sample, [length, ...]; or those of consecutive samples. Both are views.

        Raises:
            IndexError: There is no such sample.
            ValueError: A slice has a step other than 1.
        """
        if isinstance(sample, slice):
            first, last, step = sample.indices(len(self))
            if step != 1:
                raise ValueError(f"samples can be taken in steps of 1 only, not of {step}")
            offsets = self.offsets[first : max(first, last) + 1]
            return type(self)(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        place = sample + len(self) if sample < 0 else sample
        if not 0 <= place < len(self):
            raise IndexError(f"sample {sample} of a batch of {len(self)}")
        return self.values[self.offsets[place] : self.offsets[place + 1]]

    def __iter__(self) -> Iterator[torch.Tensor]:
        """The arrays, one by one."""
        places = self.offsets.tolist()
        return (self.values[first:last] for first, last in pairwise(places))

    def __repr__(self) -> str:
        values = self.values
        return f"Ragged({len(self)} arrays in {values.dtype} {list(values.shape)} on {values.device})"

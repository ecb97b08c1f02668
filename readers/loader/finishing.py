"""Runs the steps on tensors that transforms end with on whole batches, so that samples are made as bytes.

Workers run them, and write the results to shared memory: the process that trains need not find memory for four times
the bytes, which would take longer than the steps themselves. What goes to a device goes there as bytes, and is finished
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from packtrain._core.schema import IMAGE, PRESENT

from ..dataset.rows import is_sample
from ..transforms.finisher import Finisher
from .arena import Arrays, Layout, SlotArray
from .columns import present

if TYPE_CHECKING:
    from .samples import SampleMaker

_BYTES: Final = "|u1"


class Finishing:
    """Finishes the images of batches that were made without the steps on tensors.

    Args:
        samples: Makes the samples; its `finishers` run the steps.
        leave: True to leave all of them to the process that gets the batches.
    """

    def __init__(self, samples: SampleMaker, *, leave: bool = False) -> None:
        self._samples = samples
        self._leave = leave
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}
        """For the bytes of images until they are finished."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_memory": {}}

    def planned(self, layout: Layout) -> Layout:
        """The layout of finished batches, for that of batches of bytes; says which images are left unfinished.

        Raises:
            UsageError: A step cannot be applied to the images.
        """
        fields = {name: self._field(layout.fields[name], each) for name, each in self._images(layout).items()}
        return replace(layout, fields={**layout.fields, **fields}) if fields else layout

    def begun(self, layout: Layout, arrays: Arrays) -> tuple[Layout, Arrays]:
        """Layout and memory for the bytes of a batch, which `finish` takes from there."""
        names = self._here(layout)
        if not names:
            return layout, arrays
        fields = {name: layout.fields[name]._replace(dtype=_BYTES) for name in names}
        for name, field in fields.items():
            shape = (layout.batch_size, *field.shape)
            if name not in self._memory or self._memory[name].shape != shape:
                self._memory[name] = np.empty(shape, np.uint8)
        return replace(layout, fields={**layout.fields, **fields}), {**arrays, **{n: self._memory[n] for n in names}}

    def finish(self, key: int, count: int, layout: Layout, arrays: Arrays) -> bool:
        """Finishes what `begun` gave memory for, as far as it is not left.

        Args:
            key: Key of the epoch's random numbers.
            count: Number of samples.
            layout: What `planned` returned.
            arrays: Arrays of this layout. They hold the positions, and get the images.

        Returns:
            True if there was anything to do.

        Raises:
            UsageError: A step cannot be applied to the images.
        """
        names = self._here(layout)
        numbers = self._numbers(names.values(), key, arrays["position"][:count].tolist())
        for name, finisher in names.items():
            out = arrays[name][:count]
            finisher.array(self._memory[name][:count], numbers, out)
            if (found := arrays.get(present(name.partition(".")[0]))) is not None:
                out[~found[:count]] = 0
        return bool(names)

    def left(self, value: Any, key: int, positions: Sequence[int], layout: Layout) -> Any:
        """A batch as its consumer knows it, with what was left unfinished.

        Args:
            value: The batch, wherever it is.
            key: Key of the epoch's random numbers.
            positions: Positions of its samples.
            layout: What `planned` returned.

        Raises:
            UsageError: A step cannot be applied to the images.
        """
        names = {name: each for name, each in self._images(layout).items() if layout.fields[name].unfinished}
        if not names:
            return value
        numbers = self._numbers(names.values(), key, positions)
        values = list(value)
        known = getattr(value, PRESENT, None) if is_sample(value) else None
        for number, column in enumerate(layout.columns):
            there = getattr(known, column, None)
            if column in names:
                values[number] = _finished(names[column], values[number], numbers, there)
            elif any(name.startswith(f"{column}.") for name in names):
                # Views, of which some may have nothing to finish.
                each = (names.get(f"{column}.{n}") for n in range(len(values[number])))
                views = zip(each, values[number], strict=True)
                values[number] = tuple(
                    view if finisher is None else _finished(finisher, view, numbers, there) for finisher, view in views
                )
        return type(value)(*values) if is_sample(value) else type(value)(values)

    def _images(self, layout: Layout) -> dict[str, Finisher]:
        """Return the finisher of the array of each image or view, if there is anything to do."""
        finishers, schema = self._samples.finishers, self._samples.schema
        found = {}
        for name in layout.fields if finishers else ():
            whole, _, view = name.rpartition(".")
            field = whole or name
            if field == IMAGE or (field in schema and schema[field].kind == "image"):
                found[name] = finishers[int(view) if whole else 0]
        return {name: finisher for name, finisher in found.items() if finisher}

    def _here(self, layout: Layout) -> dict[str, Finisher]:
        return {name: each for name, each in self._images(layout).items() if not layout.fields[name].unfinished}

    def _field(self, field: SlotArray, finisher: Finisher) -> SlotArray:
        dtype = finisher.dtype(field.shape[-1])
        # numpy does not know all of torch's dtypes: bfloat16, for example.
        known = str(dtype).removeprefix("torch.")
        if self._leave or not hasattr(np, known):
            return field._replace(unfinished=True)
        return field._replace(dtype=np.dtype(known).str)

    def _numbers(self, finishers: Any, key: int, positions: Sequence[int]) -> list[list[float]]:
        """All random numbers of the samples, if any are needed."""
        if not any(finisher.draws for finisher in finishers):
            return []
        numbers: list[list[float]] = self._samples.random(key, positions).tolist()
        return numbers


def _finished(finisher: Finisher, images: torch.Tensor, numbers: Any, there: torch.Tensor | None) -> torch.Tensor:
    finished = finisher.batch(images, numbers)
    if there is not None:
        # In place, which also keeps the order of the memory.
        finished.masked_fill_(~there[:, None, None, None], 0)
    return finished

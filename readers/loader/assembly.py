"""From the arrays of a batch to what the consumer gets: tensors in a tuple, or in a named tuple of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
import torch

from packtrain._core.schema import PRESENT

from ..dataset.rows import sample_type
from .arena import Layout, SlotArray
from .batches import BatchMaker
from .blob import unpacked
from .decoding import BatchDecoder, UndecodedImages
from .encoded import PLANS, SPILT, read
from .engine import Batch
from .postprocess import Postprocess

_PRESENT: Final = f"{PRESENT}."


@dataclass(frozen=True)
class BatchSteps:
    """The steps from the arrays of a batch to what the consumer gets, on whatever device.

    Attributes:
        layout: What a batch consists of.
        maker: Made the batch; it may have left images undecoded, or steps on tensors to be done.
        decoder: Decodes the images; None if they are decoded.
        postprocess: Casts, normalises and transforms the batch.
    """

    layout: Layout
    maker: BatchMaker
    decoder: BatchDecoder | None
    postprocess: Postprocess

    def tensors(self, batch: Batch, *, apart: bool) -> Any:
        """Return the batch as its consumer knows it: a tuple, a named tuple of fields, or what `collate_fn` returned.

        Args:
            batch: A batch from an engine.
            apart: True to copy small fields. Otherwise, whoever keeps only them would keep the memory of the whole
                batch.
        """
        layout, made, arrays = self.layout, batch.made, batch.value
        if not layout.columns:
            return made.collated
        found: dict[str, Any] = {}
        if layout.varying:
            found |= unpacked(layout.varying, b"".join(made.blob), made.size)
        for name, field in layout.fields.items():
            if field.undecoded and name not in arrays:
                images = read(arrays, made.size, found[SPILT]) if PLANS in arrays else made.undecoded
                found[name] = UndecodedImages(images, field.shape)
                continue
            whole = name.rpartition(".")[0]
            if name in layout.columns or whole:
                found[name] = _tensor(arrays[name][: made.size], field, apart=apart)
            if whole in layout.columns:
                # One of several views.
                found[whole] = (*found.get(whole, ()), found[name])
        values = [found[name] for name in layout.columns]
        if not layout.named:
            return tuple(values)
        optional = [name for name in found if name.startswith(_PRESENT)]
        if not optional:
            return sample_type(layout.columns)(*values)
        present = sample_type(tuple(name.removeprefix(_PRESENT) for name in optional))(*map(found.get, optional))
        return sample_type((*layout.columns, PRESENT))(*values, present)

    def decoded(self, value: Any, batch: Batch) -> tuple[Any, Batch]:
        """The batch of these tensors with decoded images, and where it comes from; see `BatchDecoder`."""
        return (value, batch) if self.decoder is None else self.decoder(self.maker, value, batch)

    def last(self, value: Any, batch: Batch) -> Any:
        """Return what the consumer gets, for a batch whose images are decoded; None if no samples are left."""
        if not batch.made.size:
            return None
        if any(field.unfinished for field in self.layout.fields.values()):
            positions = batch.value["position"][: batch.made.size].tolist()
            value = self.maker.finishing.left(value, batch.job.key, positions, self.layout)
        return self.postprocess(value, batch.job)


def _tensor(array: npt.NDArray[Any] | torch.Tensor, field: SlotArray, *, apart: bool) -> torch.Tensor:
    # What was decoded on a device is a tensor already.
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if apart and field.small:
        tensor = tensor.clone()
    return tensor.permute(0, 3, 1, 2) if field.channels_last else tensor

"""Makes of the arrays and bytes of a batch what the consumer gets."""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt
import torch

from packtrain._core.schema import PRESENT

from ..dataset.rows import sample_type
from .arena import Field, Layout
from .blob import unpacked
from .decoding import UndecodedImages
from .encoded import PLANS, SPILT, read
from .engine import Batch

_PREFIX: Final = f"{PRESENT}."


def assembled(batch: Batch, layout: Layout, *, apart: bool) -> Any:
    """The batch as its consumer knows it: a tuple, a named tuple of fields, or what `collate_fn` returned.

    Args:
        batch: A batch from an engine.
        layout: What it consists of.
        apart: True to copy small fields. Otherwise, whoever keeps only them would keep the memory of the whole batch.
    """
    made, arrays = batch.made, batch.value
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
    optional = [name for name in found if name.startswith(_PREFIX)]
    if not optional:
        return sample_type(layout.columns)(*values)
    present = sample_type(tuple(name.removeprefix(_PREFIX) for name in optional))(*map(found.get, optional))
    return sample_type((*layout.columns, PRESENT))(*values, present)


def _tensor(array: npt.NDArray[Any] | torch.Tensor, field: Field, *, apart: bool) -> torch.Tensor:
    # What was decoded on a device is a tensor already.
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if apart and field.small:
        tensor = tensor.clone()
    return tensor.permute(0, 3, 1, 2) if field.channels_last else tensor

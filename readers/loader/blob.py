"""Bytes of the fields that lie in no slot, for a worker's pipe. They are never pickled.

For each field: the number of bytes that follow its sizes, int64; the size of each sample's value, int64 [samples]; the
values, one behind the other. Sizes count characters of texts, bytes of bytes, and first-dimension entries of arrays.
The JSON values of a batch are one JSON list, which needs no sizes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from .arena import Varying
from .ragged import Ragged

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LENGTH: Final = struct.Struct("<q")
# A path that is not UTF-8 has lone surrogates.
_LONE: Final = "surrogatepass"

Blob = Sequence["Buffer"]
"""Buffers that follow each other."""


def packed(varying: Mapping[str, Varying], values: Mapping[str, Sequence[Any]]) -> Blob:
    """The values of a batch as bytes.

    Args:
        varying: What the fields are.
        values: For each of them, the values of all samples; of JSON, the texts.
    """
    return list(chain.from_iterable(_packed(field.kind, values[name]) for name, field in varying.items()))


def _packed(kind: str, values: Sequence[Any]) -> Blob:
    if kind == "json":
        text = f"[{','.join(values)}]".encode("ascii")
        return _LENGTH.pack(len(text)), text
    sizes = struct.pack(f"<{len(values)}q", *map(len, values))
    if kind == "text":
        text = "".join(values).encode("utf-8", _LONE)
        return _LENGTH.pack(len(text)), sizes, text
    length = sum(value.nbytes if kind == "ragged" else len(value) for value in values)
    return _LENGTH.pack(length), sizes, *values


def unpacked(varying: Mapping[str, Varying], blob: Buffer, samples: int) -> dict[str, list[Any] | Ragged]:
    """Return the fields as the consumer gets them.

    Args:
        varying: What the fields are.
        blob: What `packed` returned, in one piece.
        samples: Number of samples.
    """
    memory, found, at = memoryview(blob), {}, 0
    for name, field in varying.items():
        (length,) = _LENGTH.unpack_from(memory, at)
        at += _LENGTH.size
        sizes: tuple[int, ...] = ()
        if field.kind != "json":
            sizes = struct.unpack_from(f"<{samples}q", memory, at)
            at += _LENGTH.size * samples
        found[name] = _unpacked(field, memory[at : at + length], sizes)
        at += length
    return found


def _unpacked(field: Varying, memory: memoryview, sizes: Sequence[int]) -> list[Any] | Ragged:
    if field.kind == "json":
        values: list[Any] = json.loads(str(memory, "ascii"))
        return values
    places = list(accumulate(sizes, initial=0))
    if field.kind == "ragged":
        entries = np.ndarray((places[-1], *field.shape), field.dtype, memory).copy()
        return Ragged(torch.from_numpy(entries), torch.tensor(places, device="cpu"))
    whole = str(memory, "utf-8", _LONE) if field.kind == "text" else bytes(memory)
    return [whole[first:last] for first, last in pairwise(places)]

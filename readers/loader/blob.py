"""How the fields that lie in no slot travel through a worker's pipe: as bytes of their own form, never pickled.

For each field: the number of bytes that follow its sizes, int64; the size of each sample's value, int64 [samples]; the
values, one behind the other. Sizes count characters of texts, bytes of bytes, and first-dimension entries of arrays.
The JSON values of a batch are one JSON list, which needs no sizes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from packtrain._codec.geometry import Box, Scale
from packtrain._codec.image_plan import ImagePlan

from ..transforms.undecoded import UPSIDE_DOWN, Undecoded
from .arena import Varying
from .ragged import Ragged

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LENGTH: Final = struct.Struct("<q")
# Of an undecoded image: its bytes, and what its plan consists of.
_NUMBERS: Final = 14
# A path that is not UTF-8 has lone surrogates.
_LONE: Final = "surrogatepass"

Blob = Sequence["Buffer"]
"""Pieces of memory that are to follow each other."""


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
    if kind == "undecoded":
        return _packed_images(values)
    sizes = struct.pack(f"<{len(values)}q", *map(len, values))
    if kind == "text":
        text = "".join(values).encode("utf-8", _LONE)
        return _LENGTH.pack(len(text)), sizes, text
    length = sum(value.nbytes if kind == "ragged" else len(value) for value in values)
    return _LENGTH.pack(length), sizes, *values


def _packed_images(images: Sequence[Undecoded]) -> Blob:
    numbers = np.array([(len(memoryview(image.data)), *_numbers(image.plan)) for image in images], "<i8")
    return _LENGTH.pack(int(numbers[:, 0].sum())), numbers.data.cast("B"), *(image.data for image in images)


def _numbers(plan: ImagePlan) -> Iterator[int]:
    yield from plan.box
    yield from plan.resize or (-1, -1, -1)
    yield from plan.window or (-1, -1, -1, -1)
    yield from (plan.mirrored, bool(plan.rest))


def unpacked(varying: Mapping[str, Varying], blob: Buffer, samples: int) -> dict[str, Any]:
    """What the consumer gets.

    Args:
        varying: What the fields are.
        blob: What `packed` returned, in one piece.
        samples: Number of samples.
    """
    memory, at = memoryview(blob), 0
    found: dict[str, Any] = {}
    for name, field in varying.items():
        (length,) = _LENGTH.unpack_from(memory, at)
        at += _LENGTH.size
        sizes: tuple[int, ...] = ()
        if field.kind == "undecoded":
            numbers = np.frombuffer(memory, "<i8", samples * _NUMBERS, at).reshape(samples, _NUMBERS)
            at += numbers.nbytes
            found[name] = list(_unpacked_images(memory[at : at + length], numbers.tolist()))
            at += length
            continue
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


def _unpacked_images(memory: memoryview, numbers: Sequence[Sequence[int]]) -> Iterator[Undecoded]:
    at = 0
    for length, *plan in numbers:
        resize = Scale(*plan[4:7]) if plan[4] >= 0 else None
        window = Box(*plan[7:11]) if plan[7] >= 0 else None
        rest = (UPSIDE_DOWN,) if plan[12] else ()
        yield Undecoded(memory[at : at + length], ImagePlan(Box(*plan[:4]), resize, window, bool(plan[11]), rest))
        at += length

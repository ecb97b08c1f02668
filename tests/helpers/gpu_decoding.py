"""Decoders that stand for a GPU's, and a loader that decodes with them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from helpers.streams import Device, Operation
from PIL import Image
from torch.utils._python_dispatch import _disable_current_modes

from packtrain._readers.loader import loader as loader_module
from packtrain._readers.loader.decoding import BatchDecoder, ImageDecoder

CPU = torch.device("cpu")


def pillow_pixels(data: Any) -> torch.Tensor:
    """An image as Pillow decodes it, uint8 [height, width, 3]."""
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))


class Fake:
    """Decodes with Pillow, and refuses what it is told to: it counts the images."""

    def __init__(self, refuses: Callable[[int], bool] = lambda number: False) -> None:
        self._refuses = refuses
        self.seen = 0

    def decode(self, data: Sequence[Any]) -> list[torch.Tensor | None]:
        numbers = range(self.seen, self.seen + len(data))
        self.seen += len(data)
        return [None if self._refuses(n) else pillow_pixels(each) for n, each in zip(numbers, data, strict=True)]


class Engine:
    """Decodes into a fake device's memory: at once, whatever is queued there, or later as part of the side stream."""

    def __init__(self, device: Device, *, at_once: bool) -> None:
        self._device = device
        self._at_once = at_once

    def decode(self, data: Sequence[Any]) -> list[torch.Tensor | None]:
        with _disable_current_modes():
            return [self._written(pillow_pixels(each)) for each in data]

    def _written(self, pixels: torch.Tensor) -> torch.Tensor:
        target = self._device._like(pixels)
        address, shape = target.data_ptr(), pixels.shape

        def write() -> None:
            np.ctypeslib.as_array(_bytes_at(address, pixels.numel()))[:] = pixels.numpy().reshape(-1)

        assert shape == target.shape
        if self._at_once:
            write()
        else:
            self._device.side.append(Operation(write))
        return target


def _bytes_at(address: int, size: int) -> Any:
    import ctypes

    return (ctypes.c_uint8 * size).from_address(address)


@contextmanager
def decoding(decoder: ImageDecoder, wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Loaders with decode="cuda" use `decoder`; without a device they need no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        batches = BatchDecoder(lambda _: decoder, wait, CPU)
        patch.setattr(loader_module, "decode_of", lambda how, _: batches if how == "cuda" else None)
        yield

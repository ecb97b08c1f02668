"""A loader over a fake device, and what the consumer's stream reads of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers.streams import Choice, Device, Inline

from packtrain import Loader
from packtrain._readers.loader import device as device_module
from packtrain._readers.loader import engine as engine_module
from packtrain._readers.loader.arena import Board
from packtrain._readers.loader.batches import BatchMaker, Probe


@contextmanager
def lazy(choose: Choice, *, inline: Choice | None = None, processes: bool = False) -> Iterator[Device]:
    """A fake device in place of CUDA, and workers in this process unless `processes` is true."""
    device = Device(choose)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(device_module, "Cuda", lambda _: device)
        if not processes:

            def workers(maker: BatchMaker, board: Board, probe: Probe, *_: Any, **__: Any) -> Inline:
                return Inline(maker, board, probe, inline or choose)

            patch.setattr(engine_module, "Workers", workers)
        yield device
        device.finish()


def consumed(device: Device, loader: Loader, epochs: int, choose: Choice) -> list[Any]:
    """Reads each batch on the consumer's stream. Some batches are kept and read a second time."""
    found, held = [], []
    for _ in range(epochs):
        for batch in loader:
            found.append([device.read(tensor) for tensor in batch])
            if choose(3) == 0:
                held.append((len(found) - 1, batch))
            del batch
            device.work(choose(8))
    again = [(number, [device.read(tensor) for tensor in batch]) for number, batch in held]
    device.finish()
    results = [[one.pop() for one in batch] for batch in found]
    for number, batch in again:
        assert all(map(torch.equal, results[number], [one.pop() for one in batch]))
    return results

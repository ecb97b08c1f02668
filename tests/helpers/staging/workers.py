"""Functions and transforms for worker processes, which import them by this name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from packtrain.staging import entries, evict


def leased(place: Path) -> bool:
    """True if somebody reads the only entry."""
    (entry,) = entries(place)
    return entry.leased


class InWorkers:
    """A transform that checks, in a worker, whether the staged copy is leased, and tries to evict it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.tensor([os.getpid(), leased(self.place), len(evict(self.place))])


def to_bytes(image: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(image.tobytes()[:16]), dtype=torch.uint8)


def to_tensor(image: Any) -> torch.Tensor:
    return torch.zeros(1)

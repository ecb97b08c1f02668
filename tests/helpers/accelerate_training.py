"""Training with Accelerate, in this process or as one of several, that notes what it was given.

In a module of its own, because Accelerate is imported only if a test needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from helpers.batching import Numbers
from torch import nn

from packtrain import Loader
from packtrain.accelerate import prepare

ROWS, BATCH = 22, 4


def loader_of(rows: int = ROWS, **options: Any) -> Loader:
    settings: dict[str, Any] = {"shuffle": True, "seed": 7, "num_workers": 0, "fields": ("row",)}
    return Loader(Numbers(rows), BATCH, **settings | options)


@contextmanager
def accelerator_of(rank: int = 0, world: int = 1, **options: Any) -> Iterator[Any]:
    """An accelerator on the CPU. Accelerate keeps its state in global variables, which are cleared afterwards."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    with pytest.MonkeyPatch.context() as patch:
        # With these, Accelerate takes the process group that exists, or makes one.
        for name, value in place.items() if world > 1 else ():
            patch.setenv(name, str(value))
        try:
            accelerator = accelerate.Accelerator(cpu=True, **options)
            assert (accelerator.process_index, accelerator.num_processes) == (rank, world)
            yield accelerator
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()


def steps(accelerator: Any, loader: Any, epochs: int) -> list[list[tuple[list[int], bool, bool]]]:
    """Rows of each batch of each epoch, whether it was the last one, and whether gradients were applied."""
    model = nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.001))
    found = []
    for _ in range(epochs):
        epoch = []
        for images, _, rows in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(images.float()).mean())
                optimizer.step()
                optimizer.zero_grad()
                end = accelerator.gradient_state.end_of_dataloader
                epoch.append((rows.tolist(), end, accelerator.sync_gradients))
        found.append(epoch)
    return found


def gathered(rank: int, world: int, rows: int) -> list[int]:
    """The rows that `gather_for_metrics` gives a rank in one epoch."""
    with accelerator_of(rank, world) as accelerator:
        loader = prepare(loader_of(rows, shuffle=False), accelerator)
        return [row for batch in loader for row in accelerator.gather_for_metrics(batch[2]).tolist()]


def resumed(rank: int, world: int, folder: Path, save_at: int | None) -> list[list[int]]:
    """The rows of each batch of two epochs, which are saved after one of them; None: of what is left after that."""
    found: list[list[int]] = []
    with accelerator_of(rank, world) as accelerator:
        loader = prepare(loader_of(), accelerator)
        if save_at is None:
            accelerator.load_state(folder)
        for _ in range(loader.loader.epoch, 2):
            for batch in loader:
                found.append(batch[2].tolist())
                if len(found) == save_at:
                    accelerator.save_state(folder)
    return found

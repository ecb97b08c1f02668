"""The ResNet example, with notes about what it trains on.

Also a program for torchrun: ``-m helpers.training ARGUMENTS``.

For each of its batches, each rank appends a line to a file of its own in the folder NOTES: epoch and consumed positions
of the loader, and the positions in the batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from resnet_ddp import train as example

from packtrain import Loader


class Noted(Loader):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, fields=("position",))

    def __iter__(self) -> Iterator[Any]:
        with (Path(os.environ["NOTES"]) / f"rank {self.rank}").open("a", buffering=1) as notes:
            for images, labels, positions in super().__iter__():
                state = self.state_dict()
                notes.write(json.dumps([state["epoch"], state["consumed"], positions.tolist()]) + "\n")
                yield images, labels


def train(rank: int, world: int, options: example.TrainOptions, notes: Path) -> None:
    """Trains in a process that `ranks.in_ranks` started."""
    os.environ |= {"NOTES": str(notes), "LOCAL_WORLD_SIZE": str(world)}
    vars(example)["Loader"] = Noted
    example.train(options, torch.device("cpu"))


def positions(notes: Path, epoch: int, most: int | None = None) -> list[int]:
    """The positions that all ranks trained on in an epoch, sorted, up to the step with `most` consumed positions."""
    found = []
    for line in "".join(path.read_text() for path in notes.iterdir()).splitlines():
        at, consumed, batch = json.loads(line)
        if at == epoch and (most is None or consumed <= most):
            found += batch
    return sorted(found)


if __name__ == "__main__":
    vars(example)["Loader"] = Noted
    example.main()

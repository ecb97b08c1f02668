"""The ImageNet example, with notes about what it trains on. A program: ``-m helpers.imagenet_notes ARGUMENTS``.

Before each step, each rank appends a line to a file of its own in the folder NOTES: epoch and consumed positions of the
loader, and the labels in the batch. Before step KILL_AT, counted from 1, the first rank kills itself.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from imagenet import engine, train
from torch import Tensor

learn = engine.learn


def noted(training: engine.Training, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    rank = training.processes.rank
    if rank == 0 and training.step + 1 == int(os.environ.get("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    state = training.data.state_dict()
    labels = target.argmax(1) if target.is_floating_point() else target
    with (Path(os.environ["NOTES"]) / f"rank {rank}").open("a") as notes:
        notes.write(json.dumps([state["epoch"], state["consumed"], labels.tolist()]) + "\n")
    return learn(training, images, target)


def labels(notes: Path, epoch: int, most: int | None = None) -> list[int]:
    """The labels that all ranks trained on in an epoch, sorted, up to the step with `most` consumed positions."""
    found: list[int] = []
    for line in "".join(path.read_text() for path in notes.iterdir()).splitlines():
        at, consumed, batch = json.loads(line)
        if at == epoch and (most is None or consumed <= most):
            found += batch
    return sorted(found)


def main() -> None:
    vars(engine)["learn"] = noted
    train.main()


if __name__ == "__main__":
    main()

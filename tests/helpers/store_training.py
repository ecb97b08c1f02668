"""A program for torchrun: several ranks go through a dataset in an object store, and write down what they got.

``-m helpers.store_training URL PLACE BUDGET NOTES EPOCHS RUN``: after each step, each rank appends a line to a file of
its own in the folder NOTES: epoch, consumed positions, rows, and a checksum of each sample. Then rank 0 writes the
state, and the next RUN goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import torch.distributed
from crc32c import crc32c

from packtrain import Loader, open_dataset
from packtrain.transforms import CenterCrop, Resize

TRANSFORM = [Resize(24), CenterCrop(16)]
BATCH = 8
WORKERS = 2


def main() -> None:
    url, place, budget, notes, epochs, run = sys.argv[1:]
    torch.distributed.init_process_group("gloo")
    rank, state = torch.distributed.get_rank(), Path(notes, "state.json")
    dataset = open_dataset(url, TRANSFORM, stage=place, budget=budget)
    loader = Loader(dataset, BATCH, shuffle=True, seed=3, num_workers=WORKERS, fields=("row",))
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
        if rank == 0:
            shutil.copyfile(state, _begun(Path(notes), int(run)))
    # Nobody writes another state before all have read this one.
    torch.distributed.barrier()
    with loader, Path(notes, f"rank-{rank}-{run}").open("a", buffering=1) as file:
        while loader.epoch < int(epochs):
            for images, labels, rows in loader:
                checksums = [crc32c(image.contiguous().numpy().tobytes()) for image in images]
                now = loader.state_dict()
                line = now["epoch"], now["consumed"], rows.tolist(), checksums, labels.tolist()
                file.write(json.dumps(line) + "\n")
                torch.distributed.barrier()
                if rank == 0:
                    temporary = state.with_suffix(".new")
                    temporary.write_text(json.dumps(now))
                    os.replace(temporary, state)
    torch.distributed.destroy_process_group()


def samples(notes: Path, epoch: int) -> Counter[tuple[int, int, int]]:
    """Row, checksum and label of all samples of an epoch, without those of steps that the next run took again."""
    found: Counter[tuple[int, int, int]] = Counter()
    for path in notes.glob("rank-*"):
        following = _begun(notes, int(path.name.rpartition("-")[2]) + 1)
        state = json.loads(following.read_text()) if following.exists() else {"epoch": epoch + 1, "consumed": 0}
        for text in path.read_text().splitlines():
            at, consumed, *values = json.loads(text)
            if at == epoch and (at, consumed) <= (state["epoch"], state["consumed"]):
                found.update(zip(*values, strict=True))
    return found


def _begun(notes: Path, run: int) -> Path:
    """The file with the state that a run began with."""
    return notes / f"begun-{run}.json"


if __name__ == "__main__":
    main()

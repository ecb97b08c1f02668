"""Training with Lightning, in this process or in several, that notes which rows each step was given.

Run as a program, it is a script that Lightning starts once more for each further device.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from helpers.batching import Numbers
from helpers.support import import_torchvision
from torch import nn

from packtrain import Loader

# Lightning imports torchmetrics, and that imports torchvision if it is there.
import_torchvision()

import lightning  # noqa: E402

ROWS, BATCH = 22, 4
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Note(NamedTuple):
    """A batch that a step was given."""

    stage: str
    epoch: int
    rows: list[int]


class Noting(lightning.LightningModule):  # type: ignore[misc]
    """A linear model on `Numbers` that notes the rows of each step in a file of its rank."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes
        self.layer = nn.Linear(4, 1)

    def note(self, stage: str, rows: Any) -> None:
        with (self.notes / f"rank {self.global_rank}").open("a") as file:
            file.write(json.dumps([stage, self.current_epoch, rows]) + "\n")

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        parts = batch if isinstance(batch, dict) else {"train": batch}
        for stage, part in parts.items():
            self.note(stage, part[2].tolist())
        images = next(iter(parts.values()))[0]
        return self.layer(images.float()).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.note("validate", batch[2].tolist())

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.note("test", batch[2].tolist())

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[2]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.001)


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    """The loaders as a module, which each process asks for them."""

    def train_dataloader(self) -> Loader:
        return loader_of()

    def val_dataloader(self) -> Loader:
        return loader_of(shuffle=False)


def loader_of(rows: int = ROWS, **options: Any) -> Loader:
    settings: dict[str, Any] = {"shuffle": True, "seed": 7, "num_workers": 0, "fields": ("row",)}
    return Loader(Numbers(rows), BATCH, **settings | options)


def trainer_of(folder: Path, **options: Any) -> Any:
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    return lightning.Trainer(accelerator="cpu", default_root_dir=folder, **quiet | options)


def notes_in(folder: Path, rank: int = 0) -> list[Note]:
    """The batches that the steps of a rank were given, in the order of time."""
    return [Note(*json.loads(line)) for line in (folder / f"rank {rank}").read_text().splitlines()]


if __name__ == "__main__":
    folder, strategy, given = Path(sys.argv[1]), *sys.argv[2:]
    trainer = trainer_of(folder, devices=2, strategy=strategy, max_epochs=2, enable_checkpointing=False)
    if given == "loaders":
        trainer.fit(Noting(folder), loader_of(), loader_of(shuffle=False))
    else:
        trainer.fit(Noting(folder), datamodule=Data())

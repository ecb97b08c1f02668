"""A loader over a growing cache in Lightning and Accelerate: each of their epochs is one generation, to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.generations import grow, last, loader_of, of, opened
from helpers.support import import_torchvision, require_module

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache of a few samples."""
    grow(tmp_path / "cache", 45)
    return tmp_path / "cache"


@pytest.mark.complete
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_trains_each_generation_to_its_end(root: Path, workers: int, tmp_path: Path) -> None:
    require_module("lightning")
    # Lightning imports torchmetrics, and that imports torchvision if it is there.
    import_torchvision()
    import lightning

    class Noting(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.found: list[list[int]] = [[]]
            self.expected: list[list[int]] = []
            self.validated: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.found[-1] += batch.n.tolist()
            return self.layer(batch.n[:, None].float()).mean()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0 and not self.trainer.sanity_checking:
                self.validated.append(len(self.found[-1]))

        def on_train_epoch_end(self) -> None:
            self.expected.append(of(last(root)))
            # More samples, then fewer: what a generation leaves out may be more than what is new.
            grow(root, (60, 300, 49)[self.current_epoch])
            self.found.append([])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.001)

    module, fixed = Noting(), opened(root).subset(range(10))
    with loader_of(opened(root), num_workers=workers, multiprocessing_context="fork") as loader:
        quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        trainer = lightning.Trainer(
            accelerator="cpu",
            default_root_dir=tmp_path,
            max_epochs=3,
            # Otherwise Lightning takes the length of the first epoch for that of all others.
            reload_dataloaders_every_n_epochs=1,
            enable_checkpointing=False,
            **quiet,
        )
        trainer.fit(module, loader, loader_of(fixed))
    assert [sorted(epoch) for epoch in module.found[:-1]] == module.expected
    assert len({len(epoch) for epoch in module.expected}) == 3
    assert module.validated == [len(epoch) for epoch in module.expected]


def test_accelerate_knows_the_end_of_each_generation(root: Path) -> None:
    require_module("accelerate")
    from helpers.accelerate_training import accelerator_of

    from packtrain.accelerate import prepare

    with accelerator_of() as accelerator:
        prepared = prepare(loader_of(opened(root), drop_last=False), accelerator)
        for samples in (0, 60, 300):
            newest = grow(root, samples) if samples else last(root)
            found, ends = [], []
            for batch in prepared:
                found += batch.n.tolist()
                ends.append(prepared.end_of_dataloader)
                assert prepared.remainder == len(of(newest)) % 8
            assert sorted(found) == of(newest) and ends == [False] * (len(ends) - 1) + [True]

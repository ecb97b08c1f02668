"""The Loader in Lightning's Trainer: what a step is given, in every mode of the Trainer, and after every checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.support import param_id, require_module

from packtrain import Loader

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.complete]


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    require_module("lightning")
    # Only now, because the import takes seconds and needs Lightning.
    from helpers import lightning_training

    return lightning_training


@pytest.fixture(autouse=True)
def _seeds() -> Iterator[None]:
    yield
    for name in ("PL_SEED_WORKERS", "PL_GLOBAL_SEED"):
        os.environ.pop(name, None)


def epochs_of(loader: Loader, epochs: int) -> list[list[list[int]]]:
    """The rows of each batch of each epoch, without Lightning."""
    return [[batch[2].tolist() for batch in loader] for _ in range(epochs)]


def trained(notes: list[Any], stage: str = "train") -> list[list[list[int]]]:
    """The rows that were noted, for each epoch of Lightning."""
    groups = groupby((note for note in notes if note.stage == stage), key=lambda note: note.epoch)
    return [[note.rows for note in group] for _, group in groups]


class TestFit:
    @pytest.mark.parametrize("workers", [2, 0])
    @pytest.mark.parametrize("stop", [{"max_epochs": 3}, {"max_steps": 18}], ids=["epochs", "steps"])
    def test_each_epoch_is_the_next_one(self, runs: Any, stop: dict[str, int], workers: int, tmp_path: Path) -> None:
        train = runs.loader_of(num_workers=workers, multiprocessing_context="fork")
        with train:
            runs.trainer_of(tmp_path, **stop).fit(runs.Noting(tmp_path), train, runs.loader_of(shuffle=False))
        notes = runs.notes_in(tmp_path)
        assert trained(notes) == epochs_of(runs.loader_of(), 3)
        assert trained(notes, "validate") == epochs_of(runs.loader_of(shuffle=False), 3)

    @pytest.mark.parametrize(
        ("options", "epochs", "taken"),
        [
            ({"max_epochs": 2}, 2, 6),
            # A loader made for epoch 2 begins with epoch 2.
            ({"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}, 3, 6),
            ({"fast_dev_run": True}, 1, 1),
        ],
        ids=str,
    )
    def test_a_data_module(self, runs: Any, options: dict[str, Any], epochs: int, taken: int, tmp_path: Path) -> None:
        runs.trainer_of(tmp_path, **options).fit(runs.Noting(tmp_path), datamodule=runs.Data())
        assert trained(runs.notes_in(tmp_path)) == [epoch[:taken] for epoch in epochs_of(runs.loader_of(), epochs)]

    @pytest.mark.parametrize(("limit", "taken"), [(1, 1), (2, 2), (0.5, 3)])
    def test_limits(self, runs: Any, limit: float, taken: int, tmp_path: Path) -> None:
        trainer = runs.trainer_of(tmp_path, max_epochs=3, limit_train_batches=limit, limit_val_batches=limit)
        trainer.fit(runs.Noting(tmp_path), runs.loader_of(), runs.loader_of(shuffle=False))
        notes = runs.notes_in(tmp_path)
        assert trained(notes) == [epoch[:taken] for epoch in epochs_of(runs.loader_of(), 3)]
        assert trained(notes, "validate") == [epoch[:taken] for epoch in epochs_of(runs.loader_of(shuffle=False), 3)]

    def test_overfitting_takes_the_same_batches_in_their_order(self, runs: Any, tmp_path: Path) -> None:
        trainer = runs.trainer_of(tmp_path, max_epochs=3, overfit_batches=2)
        trainer.fit(runs.Noting(tmp_path), runs.loader_of(shuffle=False))
        assert trained(runs.notes_in(tmp_path)) == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 3

    def test_overfitting_to_other_batches_in_each_epoch_is_refused(self, runs: Any, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="DataLoader"):
            runs.trainer_of(tmp_path, overfit_batches=2, max_epochs=2).fit(runs.Noting(tmp_path), runs.loader_of())

    @pytest.mark.parametrize("workers", [0, 2])
    def test_seeding_everything(self, runs: Any, workers: int, tmp_path: Path) -> None:
        runs.lightning.seed_everything(3, workers=True)
        with runs.loader_of(num_workers=workers) as train:
            runs.trainer_of(tmp_path, max_epochs=2).fit(runs.Noting(tmp_path), train)
        assert trained(runs.notes_in(tmp_path)) == epochs_of(runs.loader_of(), 2)

    def test_accumulated_gradients_are_applied_at_the_end_of_an_epoch(self, runs: Any, tmp_path: Path) -> None:
        trainer = runs.trainer_of(tmp_path, max_epochs=2, accumulate_grad_batches=4)
        trainer.fit(runs.Noting(tmp_path), runs.loader_of())
        assert trainer.global_step == 4

    @pytest.mark.parametrize("interval", [0.5, 2])
    def test_validation_within_an_epoch(self, runs: Any, interval: float, tmp_path: Path) -> None:
        trainer = runs.trainer_of(tmp_path, max_epochs=2, val_check_interval=interval)
        trainer.fit(runs.Noting(tmp_path), runs.loader_of(), runs.loader_of(shuffle=False))
        notes = runs.notes_in(tmp_path)
        assert trained(notes) == epochs_of(runs.loader_of(), 2)
        whole = epochs_of(runs.loader_of(shuffle=False), 1)[0]
        assert trained(notes, "validate") == [whole * (2 if interval == 0.5 else 3)] * 2


def test_validate_test_and_predict(runs: Any, tmp_path: Path) -> None:
    trainer, model, loader = runs.trainer_of(tmp_path), runs.Noting(tmp_path), runs.loader_of(shuffle=False)
    whole = epochs_of(runs.loader_of(shuffle=False), 1)
    trainer.validate(model, loader)
    trainer.test(model, loader)
    found = trainer.predict(model, loader)
    notes = runs.notes_in(tmp_path)
    assert trained(notes, "validate") == trained(notes, "test") == whole
    assert [batch.tolist() for batch in found] == whole[0]


class TestResume:
    """Checkpoints of a run are resumed with a new loader, and must give what came after them in that run."""

    @pytest.mark.parametrize("stop", [{"max_epochs": 3}, {"max_steps": 18}], ids=["epochs", "steps"])
    @pytest.mark.parametrize("validation", [False, True])
    @pytest.mark.parametrize(
        "when", [{"every_n_train_steps": 1}, {"every_n_epochs": 1}, {"save_on_train_epoch_end": True}], ids=param_id
    )
    @pytest.mark.parametrize("limit", [None, 4])
    def test_nothing_is_repeated_or_left_out(
        self, runs: Any, stop: dict[str, int], validation: bool, when: dict[str, Any], limit: int | None, tmp_path: Path
    ) -> None:
        if "max_steps" in stop and not validation and "every_n_train_steps" not in when:
            pytest.skip("Lightning itself takes a batch too many here, also from a torch DataLoader")

        def fit(folder: Path, checkpoint: Path | None = None) -> list[Any]:
            folder.mkdir()
            saving = runs.lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
            trainer = runs.trainer_of(folder, callbacks=[saving], limit_train_batches=limit, **stop)
            loaders = [runs.loader_of(), *([runs.loader_of(shuffle=False)] if validation else [])]
            trainer.fit(runs.Noting(folder), *loaders, ckpt_path=checkpoint, weights_only=True)
            return [(note.epoch, note.rows) for note in runs.notes_in(folder) if note.stage == "train"]

        whole = fit(tmp_path / "whole")
        checkpoints = sorted((tmp_path / "whole").glob("*.ckpt"), key=step_of)
        assert len(checkpoints) >= (len(whole) if "every_n_train_steps" in when else 3)
        # Of one for each step: behind the first batch of an epoch, its last one, and some between.
        for checkpoint in checkpoints[::5] if "every_n_train_steps" in when else checkpoints:
            step = step_of(checkpoint)
            if step < len(whole):
                assert fit(tmp_path / f"from {step}", checkpoint) == whole[step:], step

    def test_loaders_of_several_lengths(self, runs: Any, tmp_path: Path) -> None:
        def fit(folder: Path, checkpoint: Path | None = None) -> dict[str, list[list[int]]]:
            folder.mkdir()
            saving = runs.lightning.pytorch.callbacks.ModelCheckpoint(
                folder, "{step}", save_top_k=-1, every_n_train_steps=1
            )
            loaders = {"long": runs.loader_of(), "short": runs.loader_of(8)}
            trainer = runs.trainer_of(folder, callbacks=[saving], max_epochs=2)
            trainer.fit(runs.Noting(folder), loaders, ckpt_path=checkpoint, weights_only=True)
            notes = runs.notes_in(folder)
            return {name: list(chain(*trained(notes, name))) for name in loaders}

        whole = fit(tmp_path / "whole")
        assert whole["long"] == list(chain(*epochs_of(runs.loader_of(), 2)))
        assert whole["short"] == list(chain(*epochs_of(runs.loader_of(8), 6)))
        for step in range(1, 12):
            found = fit(tmp_path / f"from {step}", tmp_path / "whole" / f"step={step}.ckpt")
            assert found == {name: rows[step:] for name, rows in whole.items()}, step


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step=").split("-")[0])


class TestProcesses:
    # A loader that exists before Lightning starts the other processes is theirs, too: started again, or pickled.
    @pytest.mark.parametrize(
        ("strategy", "given"),
        [
            ("ddp", "loaders"),
            pytest.param("ddp_spawn", "loaders", marks=pytest.mark.stress),
            pytest.param("ddp", "module", marks=pytest.mark.stress),
        ],
    )
    def test_two_devices_share_each_epoch(self, runs: Any, strategy: str, given: str, tmp_path: Path) -> None:
        script = [sys.executable, "-W", "ignore", runs.__file__, str(tmp_path), strategy, given]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        for stage, shuffle in (("train", True), ("validate", False)):
            ranks = [runs.loader_of(shuffle=shuffle, rank=rank, world_size=2, num_workers=0) for rank in range(2)]
            for rank, loader in enumerate(ranks):
                assert trained(runs.notes_in(tmp_path, rank), stage) == epochs_of(loader, 2)


class TestFabric:
    def test_set_up_takes_torchs_loader_only(self, runs: Any) -> None:
        fabric = runs.lightning.Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
            fabric.setup_dataloaders(runs.loader_of())

    def test_the_loader_itself_is_saved_and_resumed(self, runs: Any, tmp_path: Path) -> None:
        fabric = runs.lightning.Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        whole = epochs_of(runs.loader_of(), 2)
        loader, model = runs.loader_of(device=fabric.device), torch.nn.Linear(4, 1)
        batches = iter(loader)
        found = [next(batches)[2].tolist() for _ in range(2)]
        fabric.save(tmp_path / "state", {"model": model, "loader": loader})
        resumed = runs.loader_of()
        fabric.load(tmp_path / "state", {"model": model, "loader": resumed})
        assert [found + epochs_of(resumed, 1)[0], *epochs_of(resumed, 1)] == whole

"""The Loader in Hugging Face Accelerate: the end of epochs, several processes, checkpoints, and what is refused."""

from __future__ import annotations

import warnings
import weakref
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.batching import Numbers
from helpers.ranks import in_ranks
from helpers.support import require_module
from torch.utils.data import DataLoader

from packtrain.accelerate import prepare
from packtrain.errors import UsageError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.complete]


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    require_module("accelerate")
    # Only now, because it needs Accelerate.
    from helpers import accelerate_training

    return accelerate_training


def epochs_of(runs: Any, epochs: int, **options: Any) -> list[list[list[int]]]:
    """The rows of each batch of each epoch, without Accelerate."""
    loader = runs.loader_of(**options)
    return [[batch[2].tolist() for batch in loader] for _ in range(epochs)]


class TestPrepared:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_accumulated_gradients_are_applied_at_the_end_of_an_epoch(self, runs: Any, workers: int) -> None:
        with (
            runs.accelerator_of(gradient_accumulation_steps=4) as accelerator,
            runs.loader_of(num_workers=workers, multiprocessing_context="fork") as loader,
        ):
            found = runs.steps(accelerator, prepare(loader, accelerator), 2)
        assert [[rows for rows, *_ in epoch] for epoch in found] == epochs_of(runs, 2)
        for epoch in found:
            assert [end for _, end, _ in epoch] == [False] * 5 + [True]
            assert [applied for *_, applied in epoch] == [False, False, False, True, False, True]

    def test_as_with_torchs_loader(self, runs: Any) -> None:
        class Rows(Numbers):
            def __getitem__(self, row: int) -> Any:
                return *super().__getitem__(row), row

        with runs.accelerator_of(gradient_accumulation_steps=4) as accelerator:
            theirs = runs.steps(accelerator, accelerator.prepare(DataLoader(Rows(runs.ROWS), runs.BATCH)), 2)
            ours = runs.steps(accelerator, prepare(runs.loader_of(shuffle=False), accelerator), 2)
        assert ours == theirs

    def test_a_pass_that_is_left_early_is_forgotten(self, runs: Any) -> None:
        with runs.accelerator_of() as accelerator:
            outer, inner = (prepare(runs.loader_of(), accelerator) for _ in range(2))
            state = accelerator.gradient_state
            for _ in outer:
                for _ in inner:
                    assert state.active_dataloader is inner
                    break
                assert state.active_dataloader is outer
            assert not state.in_dataloader

    def test_no_batch_is_kept(self, runs: Any) -> None:
        """Its slot is used again as soon as the consumer drops it."""
        with runs.accelerator_of() as accelerator:
            batches = iter(prepare(runs.loader_of(), accelerator))
            batch = next(batches)
            dropped = weakref.ref(batch[0])
            del batch
            assert dropped() is None
            assert next(batches)[2].tolist() == epochs_of(runs, 1)[0][1]

    def test_another_loader_is_refused(self, runs: Any) -> None:
        with (
            runs.accelerator_of() as accelerator,
            pytest.raises(UsageError, match=r"DataLoader is not a packtrain Loader; accelerator\.prepare"),
        ):
            prepare(DataLoader(Numbers(4)), accelerator)  # type: ignore[arg-type]


class TestUnprepared:
    """Accelerate does not know where its epochs end."""

    @pytest.mark.parametrize("workers", [0, 1])
    def test_gradients_that_are_not_applied_are_warned_of_once(self, runs: Any, workers: int) -> None:
        with (
            runs.accelerator_of(gradient_accumulation_steps=4) as accelerator,
            runs.loader_of(num_workers=workers, multiprocessing_context="fork") as loader,
            pytest.warns() as found,
        ):
            epochs = runs.steps(accelerator, accelerator.prepare(loader), 4)
        # In the second epoch, two more are added to them.
        assert [epoch[-1][2] for epoch in epochs] == [False, True, False, True]
        assert [str(each.message) for each in found] == [
            "the epoch has ended, and Accelerate holds accumulated gradients that it has not applied, because it does "
            "not know where an epoch of this loader ends. Write `loader = packtrain.accelerate.prepare(loader, "
            "accelerator)` before the first epoch: accelerator.prepare leaves a packtrain Loader as it is"
        ]
        assert found[0].category is RuntimeWarning and found[0].filename == runs.__file__

    @pytest.mark.parametrize("case", ["prepared", "applied", "not accumulated", "kept on purpose", "no accelerator"])
    def test_nothing_is_said_where_none_are_left(self, runs: Any, case: str) -> None:
        from accelerate.utils import GradientAccumulationPlugin

        options: dict[str, Any] = {"gradient_accumulation_steps": 4}
        if case == "not accumulated":
            options = {}
        elif case == "kept on purpose":
            plugin = GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False)
            options = {"gradient_accumulation_plugin": plugin}
        loader = runs.loader_of(24 * runs.BATCH if case == "applied" else runs.ROWS)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if case == "no accelerator":
                assert sum(1 for _ in loader) == 6
                return
            with runs.accelerator_of(**options) as accelerator:
                runs.steps(accelerator, prepare(loader, accelerator) if case == "prepared" else loader, 2)

    def test_nothing_is_said_of_a_validation(self, runs: Any) -> None:
        with runs.accelerator_of(gradient_accumulation_steps=4) as accelerator:
            with pytest.warns(RuntimeWarning, match="has not applied"):
                runs.steps(accelerator, runs.loader_of(), 1)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert sum(1 for _ in runs.loader_of(shuffle=False)) == 6


class TestProcesses:
    @pytest.mark.parametrize("rows", [16, 21, 22, 23, 3])
    def test_metrics_count_every_sample_once(self, runs: Any, rows: int, tmp_path: Path) -> None:
        assert in_ranks(2, runs.gathered, rows, group=tmp_path / "group") == [list(range(rows))] * 2

    @pytest.mark.parametrize("step", [1, 3, 4])
    def test_a_checkpoint_goes_on_after_its_step(self, runs: Any, step: int, tmp_path: Path) -> None:
        folder = tmp_path / "checkpoint"
        whole = in_ranks(2, runs.resumed, folder, step, group=tmp_path / "first")
        assert whole == [list(chain(*epochs_of(runs, 2, rank=rank, world_size=2))) for rank in range(2)]
        rest = in_ranks(2, runs.resumed, folder, None, group=tmp_path / "second")
        assert rest == [rows[step:] for rows in whole]


class TestResume:
    def test_every_step_of_an_epoch(self, runs: Any, tmp_path: Path) -> None:
        whole = list(chain(*epochs_of(runs, 2)))
        for step in range(1, len(whole) + 1):
            folder = tmp_path / f"step {step}"
            assert runs.resumed(0, 1, folder, step) == whole
            assert runs.resumed(0, 1, folder, None) == whole[step:], step

    def test_the_end_of_an_epoch(self, runs: Any, tmp_path: Path) -> None:
        """As in Accelerate's examples: the folder says which epoch is next, and the loop says so to the loader."""
        whole = epochs_of(runs, 3)
        with runs.accelerator_of() as accelerator:
            loader = prepare(runs.loader_of(), accelerator)
            for epoch in range(3):
                loader.set_epoch(epoch)
                assert [batch[2].tolist() for batch in loader] == whole[epoch]
                accelerator.save_state(tmp_path / f"epoch_{epoch}")
        for saved in range(2):
            with runs.accelerator_of() as accelerator:
                loader = prepare(runs.loader_of(), accelerator)
                accelerator.load_state(tmp_path / f"epoch_{saved}")
                for epoch in range(saved + 1, 3):
                    loader.set_epoch(epoch)
                    assert [batch[2].tolist() for batch in loader] == whole[epoch]


class TestRefusals:
    def test_prepare_leaves_a_loader_as_it_is(self, runs: Any) -> None:
        with runs.accelerator_of() as accelerator:
            loader = runs.loader_of()
            assert accelerator.prepare(loader) is loader

    @pytest.mark.parametrize("shuffle", [True, False])
    def test_no_torch_loader_takes_its_place(self, runs: Any, shuffle: bool) -> None:
        """`prepare_data_loader` would make one of the dataset, with another order and without our workers."""
        from accelerate.data_loader import prepare_data_loader, skip_first_batches

        loader = runs.loader_of(shuffle=shuffle, num_workers=1)
        with runs.accelerator_of():
            for rebuilt in (
                prepare_data_loader(loader),
                prepare_data_loader(loader, num_processes=2, process_index=1),
                skip_first_batches(loader, 2),
            ):
                with pytest.raises(UsageError, match=r"Use the loader itself.*Accelerate"):
                    next(iter(rebuilt))

    def test_batches_are_skipped_in_the_state(self, runs: Any) -> None:
        """The lines that the documentation has in place of `skip_first_batches`."""
        loader = runs.loader_of()
        loader.load_state_dict({**loader.state_dict(), "consumed": 2 * loader.batch_size * loader.world_size})
        assert torch.cat([batch[2] for batch in loader]).tolist() == list(chain(*epochs_of(runs, 1)[0][2:]))

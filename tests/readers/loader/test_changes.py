"""Laws of a transform that changes between epochs: the workers live on, and each pass is made with its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.batching import assert_same, jitter
from helpers.changes import Halting, Refusing, Unreadable
from helpers.support import START_METHODS, packed, soon

from packtrain import Loader, concat, open_dataset
from packtrain.errors import LoaderError, UsageError
from packtrain.transforms import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize, Views

pytestmark = pytest.mark.usefixtures("no_process_left")

BATCH = 5
SCHEDULE = [[RandomResizedCrop(size), RandomHorizontalFlip()] for size in (8, 16, 12, 12, 40)]


@pytest.fixture(scope="module")
def folder(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(images, tmp_path_factory.mktemp("changes") / "out", "tar")


def loader_of(dataset: Any, **options: Any) -> Loader:
    fixed = {"shuffle": True, "seed": 3, "num_workers": 2, "multiprocessing_context": "fork"}
    return Loader(dataset, BATCH, **{**fixed, **options})


def pids() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


def epoch(dataset: Any, number: int, **options: Any) -> list[Any]:
    """The batches of a loader that has always had this dataset."""
    with loader_of(dataset, num_workers=0, **options) as loader:
        loader.set_epoch(number)
        return list(loader)


def allocated(loader: Loader) -> int:
    """Bytes of shared memory that a loader's file really takes."""
    pipeline: Any = loader._pipeline
    return os.stat(pipeline._engine._board.descriptor).st_blocks * 512


@START_METHODS
def test_sizes_change_and_no_process_is_started(folder: Path, method: str) -> None:
    dataset = open_dataset(folder)
    with loader_of(dataset.with_transform(SCHEDULE[0]), multiprocessing_context=method) as loader:
        started: set[int | None] = set()
        for number, transform in enumerate(SCHEDULE):
            loader.transform = transform
            assert_same(list(loader), epoch(dataset.with_transform(transform), number))
            started |= pids()
        assert len(started) == 2


@START_METHODS
def test_other_callables_are_sent_too(folder: Path, method: str) -> None:
    dataset = open_dataset(folder, CenterCrop(8))
    with loader_of(dataset, multiprocessing_context=method) as loader:
        list(loader)
        before = pids()
        for number, transform in enumerate(([RandomCrop(20), jitter], CenterCrop(3), [RandomCrop(22), jitter]), 1):
            loader.transform = transform
            assert_same(list(loader), epoch(loader.dataset, number))
            assert pids() == before
        loader.transform = Views([CenterCrop(4), RandomCrop(6)])
        assert {tuple(view.shape[2] for view in views) for views, _ in loader} == {(4, 6)}
        assert pids() == before


@pytest.mark.parametrize("kind", ["subset", "concat", "fields", "targets"])
def test_so_are_those_of_other_datasets(folder: Path, kind: str) -> None:
    opened = open_dataset(folder, CenterCrop(8))
    if kind == "subset":
        dataset: Any = opened.subset([7, 3, 5, 1, 0, 2, 6])
    elif kind == "concat":
        dataset = concat([opened, open_dataset(folder, CenterCrop(8))])
    else:
        fields = ("label", "image") if kind == "fields" else None
        dataset = open_dataset(folder, CenterCrop(8), float if kind == "targets" else None, fields=fields)
    with loader_of(dataset) as loader:
        list(loader)
        before = pids()
        loader.transform = RandomCrop(6)
        assert_same(list(loader), epoch(dataset.with_transform(RandomCrop(6)), 1))
        assert pids() == before


def test_a_pass_that_was_left_early_leaves_nothing_behind(folder: Path) -> None:
    """Tickets that were out and batches that were ready when a pass ends never reach the next one."""
    dataset, chance = open_dataset(folder), random.Random(0)
    with loader_of(dataset.with_transform(SCHEDULE[0]), prefetch_factor=3) as loader:
        started: set[int | None] = set()
        number = 0
        for _ in range(15):
            transform = chance.choice(SCHEDULE)
            loader.transform = transform
            wanted, taken = epoch(dataset.with_transform(transform), number), []
            for batch in loader:
                taken.append(batch)
                if chance.random() < 0.4:
                    break
            assert_same(taken, wanted[: len(taken)])
            # A single batch was a look.
            number += len(taken) > 1
            started |= pids()
        assert len(started) == 2


def test_held_batches_stay_and_the_memory_of_others_is_given_back(folder: Path) -> None:
    dataset, chance = open_dataset(folder), random.Random(1)
    with loader_of(dataset.with_transform(SCHEDULE[0])) as loader:
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        images = torch.empty(0)
        sizes: dict[int, set[int]] = {}
        for number in range(20):
            transform = SCHEDULE[number % len(SCHEDULE)]
            loader.transform = transform
            for images, _ in loader:
                if chance.random() < 0.2:
                    held.append((images[1:], images[1:].clone()))
            assert all(torch.equal(one, content) for one, content in held)
            chance.shuffle(held)
            del held[chance.randrange(4) :]
        held.clear()
        del images
        for number in range(3 * len(SCHEDULE)):
            loader.transform = SCHEDULE[number % len(SCHEDULE)]
            list(loader)
            # All workers have the same one memory, so what is a hole here is one everywhere.
            sizes.setdefault(number % len(SCHEDULE), set()).add(allocated(loader))
        assert all(len(found) == 1 for found in sizes.values()), sizes


def test_a_batch_that_is_held_costs_no_more_than_itself(folder: Path) -> None:
    with loader_of(open_dataset(folder, Resize((200, 200)))) as loader:
        images, _ = next(iter(loader))
        content = images.clone()
        before = allocated(loader)
        loader.transform = Resize((20, 20))
        list(loader)
        small = allocated(loader)
        assert small < before / 2 and torch.equal(images, content)
        slot = -(-images.numel() // 4096) * 4096
        del images
        gc.collect()
        list(loader)
        assert small - allocated(loader) >= slot, "without waiting for another change"


@pytest.mark.complete
def test_a_lambda_is_for_new_workers(folder: Path) -> None:
    dataset = open_dataset(folder, CenterCrop(8))
    with loader_of(dataset) as loader:
        list(loader)
        before = pids()
        loader.transform = [CenterCrop(8), lambda image: image.transpose(0)]
        second = list(loader)
        assert not pids() & before
        assert_same(second, epoch(loader.dataset, 1))
    with loader_of(dataset, multiprocessing_context="spawn") as loader:
        list(loader)
        loader.transform = [CenterCrop(8), lambda image: image]
        with pytest.raises(UsageError, match="cannot be sent to a worker"):
            list(loader)


def test_so_is_what_running_workers_cannot_read(folder: Path) -> None:
    with loader_of(open_dataset(folder, CenterCrop(8))) as loader:
        list(loader)
        before = pids()
        loader.transform = [CenterCrop(7), Unreadable()]
        assert {images.shape[2:] for images, _ in loader} == {(7, 7)}
        assert not pids() & before


def test_so_is_what_the_main_module_has_defined_since(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickle names functions, and running workers may know another one by that name."""
    import __main__

    def define(value: int) -> Any:
        def brightness(image: Any) -> Any:
            return image.point(lambda _: value)

        brightness.__module__, brightness.__qualname__ = "__main__", "brightness"
        monkeypatch.setattr(__main__, "brightness", brightness, raising=False)
        return brightness

    with loader_of(open_dataset(folder, [CenterCrop(8), define(1)])) as loader:
        assert all((images == 1).all() for images, _ in loader)
        before = pids()
        loader.transform = [CenterCrop(6), define(2)]
        assert pickle.dumps(loader.transform), "pickle itself does not notice"
        assert all((images == 2).all() for images, _ in loader)
        after = pids()
        assert not before & after
        loader.transform = [CenterCrop(5), __main__.brightness]
        assert all((images == 2).all() for images, _ in loader)
        assert pids() == after


@pytest.mark.parametrize(("bad", "said"), [(Refusing(), "ValueError: no, thank you"), (Halting(), "exit code 3")])
def test_what_goes_wrong_in_the_new_transform_is_told(folder: Path, bad: Any, said: str) -> None:
    with loader_of(open_dataset(folder, CenterCrop(8))) as loader:
        list(loader)
        loader.transform = [CenterCrop(7), bad]
        with soon(), pytest.raises(LoaderError, match=said):
            list(loader)
        loader.transform = CenterCrop(6)
        assert {images.shape[2:] for images, _ in loader} == {(6, 6)}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_of_an_epoch_is_made_with_the_transform_there_is(folder: Path, workers: int) -> None:
    """A state holds no transform: the same rows follow, with the random numbers of their positions."""
    dataset = open_dataset(folder, SCHEDULE[0])
    with loader_of(dataset, num_workers=workers, fields=("row",)) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.transform = SCHEDULE[1]
        loader.load_state_dict(state)
        rest = list(loader)
    assert_same(rest, epoch(dataset.with_transform(SCHEDULE[1]), 0, fields=("row",))[1:])


@pytest.mark.parametrize("options", [{}, {"mean": 0.5, "std": 0.25}], ids=["headspace", "normalised"])
def test_whatever_follows_the_workers_takes_the_new_size(folder: Path, options: dict[str, Any]) -> None:
    loader = loader_of(open_dataset(folder, SCHEDULE[0]), **options)
    with loader, nullcontext() if options else loader.headspace():
        for transform, size in ((SCHEDULE[0], 8), (SCHEDULE[1], 16), (SCHEDULE[4], 40)):
            loader.transform = transform
            assert {images.shape[2:] for images, _ in loader} == {(size, size)}

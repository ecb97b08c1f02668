"""Laws of a loader in whose workers something goes wrong."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import re
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hazards import (
    Numbered,
    Trap,
    deadly,
    init,
    never,
    nothing,
    quiet,
    together,
    unreadable,
    unreceivable,
    unsendable,
)
from helpers.support import flip, packed, shard_bytes, soon
from helpers.transforms import to_tensor
from torch.utils.data import Sampler

from packtrain import Loader, PackedDataset, open_dataset
from packtrain.errors import CorruptFile, CorruptRecord, DatasetError, LoaderError, UsageError
from packtrain.orders import Order

pytestmark = pytest.mark.usefixtures("no_process_left")

ROW = 9
"""The row where something goes wrong, late enough that the workers have begun."""
DEATHS = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "SIGBUS": "was killed by SIGBUS",
    "SIGRTMIN+5": f"was killed by signal {signal.SIGRTMIN + 5}",
    "sys.exit": "ended with exit code 3",
    "os._exit": "ended with exit code 0",
}


@pytest.fixture(scope="module")
def dataset(images: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    return open_dataset(packed(images, tmp_path_factory.mktemp("workers") / "out", "tar"), to_tensor)


@pytest.fixture
def damaged(images: Path, tmp_path: Path) -> Callable[..., PackedDataset]:
    """A function that makes a dataset with some damaged rows."""

    def make(*rows: int, **options: Any) -> PackedDataset:
        out = packed(images, tmp_path / "out", "tar")
        dataset = open_dataset(out, to_tensor, **options)
        for row in rows:
            flip(out / "train-000000.tar", int(dataset.store.index["offset"][row]) + 50)
        return dataset

    return make


def record(dataset: PackedDataset, row: int) -> str:
    """The name of a record in an error."""
    return re.escape(f"row {row} (line {dataset.line(row)}, {dataset.filename(row)!r}, in train-000000.tar)")


def trapped(dataset: PackedDataset, deed: str, **options: Any) -> Loader:
    options = {"num_workers": 2, "worker_init_fn": quiet, "multiprocessing_context": "fork", **options}
    options.setdefault("shuffle", False)
    return Loader(dataset.with_transform(Trap(dataset.line(ROW), deed)), 2, **options)


def epoch_after_epoch(loader: Loader) -> None:
    while True:
        list(loader)


def labels_of(loader: Loader) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


@pytest.mark.parametrize("deed", DEATHS)
def test_a_death_is_told_with_its_cause_and_record(dataset: PackedDataset, deed: str) -> None:
    batches = iter(trapped(dataset, deed))
    next(batches)
    where = rf"^loader worker [01] \(process \d+\) {re.escape(DEATHS[deed])} at .*{record(dataset, ROW)}: "
    with soon(), pytest.raises(LoaderError, match=where):
        list(batches)


@pytest.mark.complete
def test_so_is_one_of_a_worker_that_was_not_forked(dataset: PackedDataset) -> None:
    batches = iter(trapped(dataset, "SIGKILL", num_workers=1, multiprocessing_context="spawn"))
    next(batches)
    with soon(), pytest.raises(LoaderError, match=rf"was killed by SIGKILL at .*{record(dataset, ROW)}: "):
        list(batches)


def test_a_worker_that_dies_between_two_batches_is_missed() -> None:
    loader = Loader(Numbered(10_000), 8, num_workers=3, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    # Meanwhile the workers do all they can before the consumer asks for more.
    time.sleep(0.2)
    victim = multiprocessing.active_children()[1]
    assert victim.pid
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with soon(), pytest.raises(LoaderError, match=rf"\(process {victim.pid}\) was killed by SIGKILL between two batch"):
        list(batches)


def test_a_death_with_batches_ready_and_tickets_unread_is_told() -> None:
    """With tickets that nobody has read, the socket reports another error than a closed socket does."""
    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 3, "multiprocessing_context": "fork"}
    loader = Loader(Numbered(64, {16: "sleep"}), 8, shuffle=False, **options)
    batches = iter(loader)
    next(batches)
    # The worker has sent the second batch and is making the third; the fourth ticket waits in the socket.
    engine: Any = loader._pipeline._engine
    (worker,) = multiprocessing.active_children()
    with soon():
        while engine._board.rows[0] != 16:
            time.sleep(0.01)
        os.kill(int(worker.pid or 0), signal.SIGKILL)
        worker.join()
        with pytest.raises(LoaderError, match="was killed by SIGKILL at row 16"):
            list(batches)


@pytest.mark.complete
def test_whichever_worker_is_killed_whenever_no_lock_is_left() -> None:
    chance = random.Random(0)
    for _ in range(10):
        loader = Loader(Numbered(512), 4, num_workers=3, multiprocessing_context="fork")
        batches = iter(loader)
        next(batches)
        victim = chance.choice(multiprocessing.active_children())
        killer = threading.Timer(chance.uniform(0, 0.02), os.kill, (victim.pid, signal.SIGKILL))
        killer.start()
        with soon(), pytest.raises(LoaderError, match=rf"\(process {victim.pid}\) was killed by SIGKILL"):
            epoch_after_epoch(loader)
        killer.join()
        assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("deed", ["fail", "fail oddly", "fail to read"])
def test_an_exception_in_a_transform_comes_with_traceback_and_record(
    dataset: PackedDataset, deed: str, workers: int
) -> None:
    said = {"fail": "ValueError: no such luck", "fail oddly": "OddError: something odd (7)"}
    said["fail to read"] = "OSError: not readable today"
    loader = trapped(dataset, deed, num_workers=workers, shuffle=True, seed=3)
    with soon(), pytest.raises(LoaderError, match=record(dataset, ROW)) as caught:
        list(loader)
    message, shown = str(caught.value), "".join(traceback.format_exception(caught.value))
    assert said[deed] in message and "\n" not in message
    assert len(re.findall(r'File ".*hazards\.py", line \d+, in fail', shown)) == 1, "the traceback, once"
    assert len(re.findall("^Traceback", shown, re.MULTILINE)) == 2, "that of the user's code, and that of the loop"
    assert len(shown.splitlines()) < 50
    position = re.search(r"`loader\.sample\((\d+)\)`", message)
    assert position, message
    if loader.state_dict()["epoch"] == 0:
        with pytest.raises(LoaderError, match=re.escape(said[deed])) as again:
            loader.sample(int(position[1]))
        assert type(again.value.__cause__).__name__ == said[deed].partition(":")[0]


def test_after_an_error_the_loader_can_be_used_again(dataset: PackedDataset) -> None:
    loader = trapped(dataset, "SIGKILL")
    with soon(), pytest.raises(LoaderError):
        list(loader)
    assert multiprocessing.active_children() == []
    loader.dataset.transform = to_tensor
    with soon():
        assert labels_of(loader) == labels_of(Loader(dataset, 2, shuffle=False, num_workers=0))
    loader.close()


def test_a_worker_init_fn_that_fails_is_named() -> None:
    loader = Loader(Numbered(64), 8, num_workers=2, worker_init_fn=init, multiprocessing_context="fork")
    with soon(), pytest.raises(LoaderError, match=r"worker_init_fn\(1\) failed: RuntimeError: not today") as caught:
        epoch_after_epoch(loader)
    assert "in init" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, together])
def test_a_damaged_record_is_raised(damaged: Callable[..., PackedDataset], workers: int, collate: Any) -> None:
    dataset = damaged(ROW)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "collate_fn": collate}
    with Loader(dataset, 2, shuffle=False, **options) as loader, soon():
        with pytest.raises(CorruptRecord, match=record(dataset, ROW)) as caught:
            list(loader)
        assert (caught.value.row, caught.value.line) == (ROW, dataset.line(ROW))
        # Everything before it is still handed out, by the same workers.
        for _ in range(5):
            batches = iter(loader)
            for _ in range(ROW // 2):
                next(batches)
            with pytest.raises(CorruptRecord):
                next(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, together])
def test_damaged_records_are_left_out_on_request(
    damaged: Callable[..., PackedDataset], workers: int, collate: Any
) -> None:
    dataset = damaged(3, 4, 5, 7)
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "collate_fn": collate}
    wanted = {3: [0, 1, 2], 9: [6, 8], 12: [9, 10, 11]}
    with Loader(dataset, 3, shuffle=False, on_error="skip", fields=["row"], **options) as loader, soon():
        found: dict[int, int] = {}

        def look(batch: Any) -> None:
            labels, rows = (batch["labels"], None) if collate else batch[1:]
            consumed = loader.state_dict()["consumed"]
            assert labels.tolist() == [dataset.label(row) for row in wanted[consumed]]
            assert rows is None or rows.tolist() == wanted[consumed]
            assert collate or len(batch[0]) == len(labels)
            found[consumed] = len(labels)

        with pytest.warns(RuntimeWarning, match="left out") as warned:
            list(map(look, loader))
        assert found == {consumed: len(rows) for consumed, rows in wanted.items()}
        # Python 3.12 and later say of a fork that there are threads.
        left_out = [warning for warning in warned if warning.category is RuntimeWarning]
        assert loader.skipped == len(left_out) == 4
        for row, warning in zip((3, 4, 5, 7), left_out, strict=True):
            assert re.search(record(dataset, row), str(warning.message))
            assert warning.filename == __file__


def test_a_rank_without_any_sample_in_a_step_is_an_error(damaged: Callable[..., PackedDataset]) -> None:
    """The other ranks have a batch, and would wait for this one."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "on_error": "skip"}
    loader = Loader(damaged(6, 7), 2, seed=0, rank=1, world_size=2, **options)
    with soon(), pytest.warns(RuntimeWarning), pytest.raises(LoaderError, match=r"the other ranks.*row 6"):
        list(loader)


def test_a_dataset_without_a_sound_record_is_an_error(damaged: Callable[..., PackedDataset]) -> None:
    with pytest.raises(LoaderError, match="all of the first 12 records are damaged"):
        list(Loader(damaged(*range(12)), 2, num_workers=2, on_error="skip", multiprocessing_context="fork"))


@pytest.mark.parametrize(
    ("io", "error", "words"),
    [
        ("mmap", LoaderError, r"was killed by SIGBUS at .*row \d+ \(line .*`packtrain verify`"),
        ("pread", DatasetError, r"row \d+ \(line \d+, .*train-000000\.tar"),
    ],
)
def test_a_shard_that_is_cut_is_told(
    damaged: Callable[..., PackedDataset], io: str, error: type[Exception], words: str
) -> None:
    dataset = damaged(io=io)
    options: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 1, "multiprocessing_context": "fork"}
    with Loader(dataset, 1, shuffle=False, worker_init_fn=quiet, **options) as loader:
        batches = iter(loader)
        next(batches)
        os.truncate(dataset.store.path / "train-000000.tar", 0)
        with soon(), pytest.raises(error, match=words):
            list(batches)


def test_a_shard_that_is_missing_is_named(images: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed(images, tmp_path / "out", "tar", shard_size=shard_bytes(images, 4)), to_tensor)
    (tmp_path / "out" / "train-000001.tar").unlink()
    with Loader(dataset, 2, shuffle=False, num_workers=2, multiprocessing_context="fork") as loader, soon():
        for _ in range(3):
            with pytest.raises(CorruptFile, match=r"train-000001\.tar"):
                list(loader)


def forked(rows: int = 64, batch_size: int = 8, workers: int = 2, **options: Any) -> Loader:
    options = {
        "shuffle": "sampler" not in options,
        "seed": 0,
        "num_workers": workers,
        "multiprocessing_context": "fork",
        **options,
    }
    return Loader(Numbered(rows), batch_size, **options)


def test_a_collate_fn_may_return_anything(images: Path, tmp_path: Path) -> None:
    """Tensors of different shapes, in a dict, which outlive the loader."""
    dataset = open_dataset(packed(images, tmp_path / "out", "tar"), whole)
    expected = [dataset[row] for row in range(12)]
    loader = Loader(dataset, 5, shuffle=False, num_workers=2, collate_fn=together, multiprocessing_context="fork")
    with loader, soon():
        for _ in range(2):
            batches = list(loader)
            assert [len(batch["images"]) for batch in batches] == [5, 5, 2]
    found = [image for batch in batches for image in batch["images"]]
    assert len({image.shape for image in found}) > 5
    assert all(torch.equal(image, wanted) for image, (wanted, _) in zip(found, expected, strict=True))
    assert torch.cat([batch["labels"] for batch in batches]).tolist() == [label for _, label in expected]


def whole(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


@pytest.mark.parametrize(
    ("collate", "words"),
    [
        (never, r"collate_fn failed: ValueError: no such luck"),
        (unsendable, r"what collate_fn returned cannot be sent: .*unsendable"),
        (unreceivable, r"what collate_fn returned cannot be received: ValueError: no such luck"),
        (unreadable, r"what collate_fn returned cannot be received: OSError: not readable today"),
        (deadly, r"was killed by SIGKILL"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_a_collate_fn_can_do_wrong_is_named(collate: Callable[[list[Any]], Any], words: str) -> None:
    loader = forked(workers=1, collate_fn=collate)
    for _ in range(2):
        with soon(), pytest.raises(LoaderError, match=words):
            list(loader)


class Elsewhere(Numbered):
    """A dataset for workers alone, once they have been prepared."""

    parent = os.getpid()
    prepared = False

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        assert os.getpid() != self.parent and Elsewhere.prepared
        return super().__getitem__(row)


def prepare(worker: int) -> None:
    Elsewhere.prepared = True


def test_no_sample_is_made_in_this_process() -> None:
    """Not even the first: the threads that a transform starts would be missing in workers that are forked then."""
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "worker_init_fn": prepare}
    with Loader(Elsewhere(64), 8, **options) as loader, soon():
        assert len(list(loader)) == 8


def test_a_first_sample_that_kills_is_named(dataset: PackedDataset) -> None:
    loader = trapped(dataset, "SIGKILL", sampler=[ROW])
    for _ in range(2):
        with soon(), pytest.raises(LoaderError, match=rf"was killed by SIGKILL at .*{record(dataset, ROW)}: "):
            list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_may_return_nothing(workers: int) -> None:
    with forked(workers=workers, collate_fn=nothing) as loader, soon():
        assert list(loader) == [None] * 8


class Wrong(Sampler[int]):
    """A sampler with a row that does not exist."""

    def __iter__(self) -> Iterator[int]:
        yield from range(16)
        yield 64

    def __len__(self) -> int:
        return 17


class Failing(Order):
    """An order that fails in the middle of an epoch."""

    def __len__(self) -> int:
        return 64

    def rows(self, key: int, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        if start > 0:
            raise UsageError("no such luck")
        return np.arange(start, stop)


@pytest.mark.parametrize("sampler", [Wrong(), Failing()], ids=["sampler", "order"])
def test_an_order_that_fails_fails_again_and_again(sampler: Any) -> None:
    """It must not cost a slot each time."""
    with forked(workers=1, prefetch_factor=1, sampler=sampler, rank=0, world_size=1) as loader, soon(20):
        for _ in range(10):
            with pytest.raises(UsageError):
                list(loader)


def test_what_cannot_be_sent_to_a_worker_is_a_usage_error(dataset: PackedDataset) -> None:
    loader = Loader(dataset.with_transform([lambda image: image]), 4, num_workers=1, multiprocessing_context="spawn")
    # Once more: nothing of the first attempt may be in the way.
    for _ in range(2):
        with pytest.raises(UsageError, match=r"cannot be sent to a worker .*top level of a module"):
            next(iter(loader))


def test_a_worker_that_cannot_be_started_is_named(dataset: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with Loader(dataset, 4, num_workers=1, multiprocessing_context="fork") as loader:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", refuse)
            with pytest.raises(LoaderError, match=r"workers cannot be started \(Resource"):
                next(iter(loader))
        assert next(iter(loader))


def test_too_few_descriptors_are_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with forked(workers=8) as loader, soon(10):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, before[1]))
        try:
            with pytest.raises(LoaderError, match=r"cannot be started \(Too many open files\): .*`ulimit -n`"):
                next(iter(loader))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert len(list(loader)) == 8

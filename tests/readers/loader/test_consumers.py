"""Laws of workers and batches whose consumer stops early, starts again, closes or deletes a loader."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from helpers.hazards import Numbered, assert_right, together
from helpers.support import soon

from packtrain import Loader
from packtrain.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_process_left")

ROWS = 64
CELL = """
import torch
from packtrain import Loader
class Cell(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, row): return torch.zeros(3, 2, 2, dtype=torch.uint8), row
"""


def forked(**options: Any) -> Loader:
    options = {"shuffle": True, "seed": 0, "num_workers": 2, "multiprocessing_context": "fork", **options}
    return Loader(Numbered(ROWS), 8, **options)


def labels_of(batches: Any) -> list[int]:
    return list(chain(*(labels.tolist() for _, labels in batches)))


@pytest.mark.complete
def test_what_nobody_wants_any_more_is_not_made() -> None:
    """Making all batches ahead would take half a minute. At most one sample is still finished."""
    slow = Numbered(ROWS, dict.fromkeys(range(8, ROWS), "nap"))
    loader = Loader(slow, 8, shuffle=False, num_workers=1, prefetch_factor=4, multiprocessing_context="fork")
    with soon():
        for _ in range(2):
            assert labels_of([next(iter(loader))]) == list(range(8))
        (worker,) = multiprocessing.active_children()
        loader.close()
        assert worker.exitcode == 0


def test_closing_ends_the_pass_and_the_workers() -> None:
    loader = forked()
    with soon():
        for _ in range(3):
            batches = iter(loader)
            images, labels = next(batches)
            loader.close()
            loader.close()
            assert multiprocessing.active_children() == []
            with pytest.raises(UsageError, match="closed"):
                next(batches)
            assert_right(images, labels)


@pytest.mark.complete
@pytest.mark.parametrize("deed", ["", "sleep"])
def test_a_forgotten_loader_ends_its_workers(deed: str) -> None:
    dataset = Numbered(64, {16: deed} if deed else {})
    loader = Loader(dataset, 8, shuffle=False, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    del loader, batches
    with soon():
        gc.collect()
    assert multiprocessing.active_children() == []


def test_workers_end_by_themselves_though_others_were_forked_later() -> None:
    """Workers forked later also hold the pipes and sockets of the earlier ones."""
    first, second = forked(), forked()
    with soon(20):
        next(iter(first))
        workers = multiprocessing.active_children()
        batches = iter(second)
        next(batches)
        first.close()
        assert [worker.exitcode for worker in workers] == [0, 0]
        assert len(list(batches)) == ROWS // 8 - 1
        others = multiprocessing.active_children()
        second.close()
        assert [worker.exitcode for worker in others] == [0, 0]


@pytest.mark.complete
def test_a_stopped_worker_does_not_keep_close_waiting() -> None:
    loader = forked()
    next(iter(loader))
    stopped = multiprocessing.active_children()[0]
    os.kill(int(stopped.pid or 0), signal.SIGSTOP)
    with soon():
        loader.close()
    assert multiprocessing.active_children() == []


@pytest.mark.complete
def test_twenty_loaders_leave_no_descriptor_open() -> None:
    def use(number: int) -> None:
        loader = forked(collate_fn=together if number % 2 else None)
        batches = iter(loader)
        next(batches)
        if number % 3:
            list(batches)
        if number % 5:
            loader.close()

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    use(0)
    use(1)
    before = descriptors()
    for number in range(20):
        use(number)
    assert descriptors() == before


class Waiting(Numbered):
    """Waits at its third row until it is told to go on."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __getitem__(self, row: int) -> Any:
        if row == 2:
            self.reached.set()
            assert self.go_on.wait(20)
        return super().__getitem__(row)


def test_a_second_thread_cannot_take_from_a_pass_and_does_not_end_it() -> None:
    dataset = Waiting(8)
    batches = iter(Loader(dataset, 2, seed=0, num_workers=0))
    found = labels_of([next(batches)])
    thread = threading.Thread(target=lambda: found.extend(labels_of([next(batches)])))
    thread.start()
    assert dataset.reached.wait(20)
    with pytest.raises(UsageError, match=r"another thread is taking .* one thread"):
        next(batches)
    dataset.go_on.set()
    thread.join(20)
    assert found + labels_of(batches) == list(range(8))


@pytest.mark.complete
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_guard_is_told_of_it(tmp_path: Path, method: str) -> None:
    script = f"{CELL}list(Loader(Cell(), 2, num_workers=1, multiprocessing_context={method!r}))\n"
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    (message,) = (line for line in done.stderr.splitlines() if "LoaderError: loader worker" in line)
    assert 'Put what the script does under `if __name__ == "__main__":`' in message and "notebook" not in message


@pytest.mark.complete
def test_what_a_spawned_worker_cannot_find_is_told_with_what_to_do() -> None:
    """A notebook's cells are not a module that a spawned process could import."""
    cell = f"{CELL}list(Loader(Cell(), 2, num_workers=1, multiprocessing_context='spawn'))\n"
    done = subprocess.run([sys.executable, "-c", cell], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "defined in a notebook cannot be found there: put it into a module" in done.stderr

"""A program may fork while a loader is at work: neither process changes what the other one has."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.hazards import Numbered, assert_right
from helpers.support import output_of, soon

from packtrain import Loader
from packtrain.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_process_left")

ROWS, BATCH = 96, 4


def forked(workers: int = 1, **options: Any) -> Loader:
    """A loader with as few slots as possible: three for one worker."""
    options = {"prefetch_factor": 1, "multiprocessing_context": "fork", **options}
    return Loader(Numbered(ROWS), BATCH, num_workers=workers, **options)


def free(loader: Loader) -> int:
    """Number of slots that neither anybody has nor a worker fills."""
    engine: Any = loader._pipeline._engine
    return len(engine._slots) + len(engine._out) + len(engine._results)


class Child:
    """A forked process that does something when it is told to.

    Args:
        deed: What it does. Its exit status is 0 if that raises nothing.
    """

    def __init__(self, deed: Callable[[], object]) -> None:
        ours, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(ours)
            return
        status = 1
        try:
            os.close(self._go)
            os.read(ours, 1)
            deed()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def finish(self) -> None:
        """Lets it do its deed, and waits for its end."""
        # Not by closing the pipe: children that were forked later have it, too.
        os.write(self._go, b"x")
        os.close(self._go)
        with soon(20):
            assert os.waitpid(self.pid, 0)[1] == 0


def test_a_batch_stays_as_it_is_in_a_forked_process() -> None:
    with forked() as loader, soon(20):
        batches = iter(loader)
        held = [next(batches)]
        child = Child(lambda: assert_right(*held[0]))
        held.clear()
        for _ in range(2):
            for images, labels in loader:
                assert_right(images, labels)
                del images
        assert free(loader) == 2
        child.finish()
        assert free(loader) == 3, "it is gone, and its slot can be used again"


@pytest.mark.complete
def test_also_if_another_thread_forks() -> None:
    """At any moment, over and over again, while batches come and go."""
    with forked(2) as loader, soon(60):
        held: list[tuple[torch.Tensor, torch.Tensor]] = []

        def look() -> None:
            for images, labels in held:
                assert_right(images, labels)

        children: list[Child] = []

        def fork() -> None:
            children.extend(Child(look) for _ in range(15))

        thread = threading.Thread(target=fork)
        thread.start()
        while thread.is_alive():
            for batch in loader:
                held.append(batch)
                del batch
                # The list always holds one at least, so that each child has something to look at.
                del held[:-1]
        thread.join()
        held.clear()
        list(loader)
        for child in children:
            child.finish()
        assert free(loader) == 4


def test_workers_and_programs_keep_no_batch() -> None:
    with forked() as loader, soon(20):
        images, _ = next(iter(loader))
        other = forked(2)
        next(iter(other))
        output_of("true")
        del images
        assert free(loader) == 3
        other.close()


def test_without_descriptors_a_slot_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    with forked() as loader, soon(20):
        images, labels = next(iter(loader))
        with monkeypatch.context() as patch:
            patch.setattr("packtrain._readers.loader.slots.os.pipe", refuse)
            pid = os.fork()
            if not pid:
                os._exit(0)
        os.waitpid(pid, 0)
        del images
        assert free(loader) == 2
        for images, labels in loader:
            assert_right(images, labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_works_in_a_forked_process_and_in_its_parent(workers: int) -> None:
    """Each has a pass and workers of its own."""
    with forked(workers, shuffle=False) as loader, soon(30):
        expected = [labels.tolist() for _, labels in forked(0, shuffle=False)]
        batches = iter(loader)
        found = [next(batches)[1].tolist()]

        def deed() -> None:
            assert loader.state_dict()["consumed"] == BATCH
            loader.set_epoch(0)
            for _ in range(2):
                assert [labels.tolist() for _, labels in loader] == expected
            loader.close()

        child = Child(deed)
        child.finish()
        found += [labels.tolist() for _, labels in batches]
        assert found == expected


def test_but_a_pass_goes_on_only_where_it_was_begun() -> None:
    with forked() as loader, soon(20):
        batches = iter(loader)
        next(batches)

        def deed() -> None:
            with pytest.raises(UsageError, match="begun by the parent of this process: begin another one here"):
                next(batches)
            assert len(list(loader)) == ROWS // BATCH
            loader.close()

        Child(deed).finish()
        assert len(list(batches)) == ROWS // BATCH - 1


@pytest.mark.parametrize("end", ["close", "drop", "exit"])
def test_workers_live_on_when_a_forked_process_is_done_with_the_loader(end: str) -> None:
    loader = forked(2)
    with soon(20):
        batches = iter(loader)
        next(batches)

        pid = os.fork()
        if not pid:
            try:
                if end == "close":
                    loader.close()
                elif end == "drop":
                    del loader, batches
                    gc.collect()
                else:
                    # What Python does at its end, see `multiprocessing.util`.
                    multiprocessing.util._exit_function()  # type: ignore[attr-defined]
            finally:
                sys.stdout.flush()
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(batches)) == ROWS // BATCH - 1
        assert len(list(loader)) == ROWS // BATCH
    loader.close()


def test_a_daemonic_process_is_told_that_it_can_have_no_workers() -> None:
    def use(loader: Loader, results: Any) -> None:
        try:
            list(loader)
        except UsageError as error:
            results.send(str(error))

    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=use, args=(forked(), theirs), daemon=True)
    process.start()
    with soon(20):
        assert "give num_workers=0" in ours.recv()
        process.join()

"""Laws of the arena: what the consumer holds never changes, and what it has dropped is used again."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.hazards import Numbered, assert_right
from helpers.support import soon
from torch.utils.dlpack import from_dlpack

from packtrain import Loader
from packtrain._readers.loader.arena import Arena, Board, Layout, SlotArray
from packtrain._readers.loader.slots import Slots
from packtrain.errors import LoaderError

pytestmark = pytest.mark.usefixtures("no_process_left")

BATCH, ROWS = 4, 96
LAYOUT = Layout(BATCH, {"row": SlotArray("<i8"), "image": SlotArray("|u1", (6, 8, 3), channels_last=True)})

HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda images: images,
    "slice": lambda images: images[1:, :, ::2],
    "one image": lambda images: images[-1],
    "view of a view": lambda images: images[1:].permute(0, 2, 3, 1)[:, 2:].permute(0, 3, 1, 2)[0],
    "flat view": lambda images: images.view(-1)[5:],
    "other type": lambda images: images.view(torch.int8),
    "detached": lambda images: images.detach().unbind(0)[2],
    "iterator": lambda images: iter(images),
    "storage": lambda images: images.untyped_storage(),
    "numpy": lambda images: images.numpy(),
    "asarray": lambda images: np.asarray(images)[..., 0],
    "array view": lambda images: np.lib.stride_tricks.as_strided(images.numpy()[1])[::-1],
    "memoryview": lambda images: images.numpy().data[1:],
    "buffer": lambda images: np.frombuffer(images.numpy(), np.uint8),
    "DLPack": lambda images: np.from_dlpack(images),
    "DLPack twice": lambda images: from_dlpack(from_dlpack(images)[2:]),
}
"""Ways to keep a batch or a part of it."""


def content(held: Any) -> Any:
    """A copy of what is in it now."""
    if isinstance(held, torch.UntypedStorage):
        return held.tolist()  # type: ignore[no-untyped-call]
    if isinstance(held, Iterator):
        return [image.tolist() for image in held]
    return np.asarray(held).tolist()


def forked(workers: int = 1, **options: Any) -> Loader:
    """A loader with as few slots as possible for its workers: three for one worker."""
    options = {"prefetch_factor": 1, "multiprocessing_context": "fork", "fields": ("row", "position"), **options}
    return Loader(Numbered(ROWS), BATCH, shuffle=True, seed=0, num_workers=workers, **options)


def slots_of(loader: Loader) -> Slots:
    engine: Any = loader._pipeline._engine
    slots: Slots = engine._slots
    return slots


def in_hand(loader: Loader) -> int:
    """Number of slots that cannot be used again because the consumer holds them."""
    engine: Any = loader._pipeline._engine
    return int(engine._arena.slots - len(engine._slots) - len(engine._out) - len(engine._results))


def in_arena(images: torch.Tensor) -> bool:
    """True if a tensor lies in the shared memory, according to the kernel."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= images.data_ptr() < int(last, 16):
                return "memfd:packtrain-arena" in line
    return False


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.complete), 2])
@pytest.mark.parametrize("how", HOLDS)
def test_what_is_held_never_changes(how: str, workers: int) -> None:
    """Every batch of two epochs is held past the end of the loader, which waits for none of them."""
    loader = forked(workers)
    held, before = [], []
    with soon():
        for _ in range(2):
            for images, labels, *_ in loader:
                assert_right(images, labels)
                held.append(HOLDS[how](images))
                before.append(content(HOLDS[how](images)))
                del images
    slots = slots_of(loader)
    assert len(held) == 2 * ROWS // BATCH
    loader.close()
    del loader
    gc.collect()
    assert len(slots) < workers + 2
    for one, wanted in zip(held, before, strict=True):
        assert content(one) == wanted
    del one
    held.clear()
    assert len(slots) == workers + 2


def test_later_batches_are_copies_while_earlier_ones_are_held() -> None:
    with forked() as loader, soon():
        batches = iter(loader)
        held = [next(batches) for _ in range(10)]
        assert [in_arena(images) for images, *_ in held] == [True, True] + [False] * 8
        del held[0]
        held += [next(batches) for _ in range(2)]
        assert [in_arena(images) for images, *_ in held[-2:]] == [True, False]
        for images, labels, *_ in held:
            assert_right(images, labels)


def test_labels_and_fields_keep_no_slot() -> None:
    kept = []
    with forked() as loader, soon():
        for _ in range(3):
            for images, *rest in loader:
                kept.append(rest)
                assert in_arena(images)
                del images
                assert in_hand(loader) == 0
    for labels, rows, positions in kept:
        assert torch.equal(labels, rows)
        assert len(positions) == BATCH


@pytest.mark.parametrize("seed", range(3))
def test_slots_come_back_in_whatever_order_batches_are_dropped(seed: int) -> None:
    chance = random.Random(seed)
    held: list[Any] = []
    with forked(2, prefetch_factor=2) as loader, soon():
        for _ in range(4):
            for images, labels, *_ in loader:
                held.append((HOLDS["view of a view"](images), HOLDS["numpy"](images), images, labels))
                del images
                for _ in range(chance.randrange(3)):
                    if held:
                        held.pop(chance.randrange(len(held)))
                for batch in held:
                    assert_right(*batch[2:])
            del batch
        held.clear()
        assert in_hand(loader) == 0
        assert len(slots_of(loader)) == 6


def test_another_thread_may_drop_them() -> None:
    bin: deque[Any] = deque()
    ended = threading.Event()

    def drop() -> None:
        while not ended.is_set() or bin:
            if not bin:
                time.sleep(0.0005)
                continue
            images, labels = bin.popleft()
            assert_right(images, labels)
            del images

    thread = threading.Thread(target=drop)
    thread.start()
    with forked(2) as loader, soon(20):
        try:
            for _ in range(5):
                for images, labels, *_ in loader:
                    bin.append((images, labels))
                    del images
        finally:
            ended.set()
            thread.join()
        assert in_hand(loader) == 0


def test_the_garbage_collector_may_drop_them() -> None:
    with forked() as loader, soon():
        batches = iter(loader)
        images, *_ = next(batches)
        cycle: list[Any] = [images]
        cycle.append(cycle)
        gc.disable()
        try:
            del images, cycle
            assert in_hand(loader) == 1
        finally:
            gc.enable()
        gc.collect()
        assert in_hand(loader) == 0


def test_a_pass_that_was_broken_off_keeps_no_slot() -> None:
    with forked(2, prefetch_factor=2) as loader, soon(20):
        for steps in [*range(8), *range(8)]:
            batches = iter(loader)
            for _ in range(steps):
                next(batches)
        assert len(list(loader)) == ROWS // BATCH
        gc.collect()
        assert len(slots_of(loader)) == 6


class Event:
    """An event of a `Stream`."""

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream, self._number = stream, number

    def query(self) -> bool:
        return self._stream.done >= self._number

    def synchronize(self) -> None:
        self._stream.work(self._number)


class Stream:
    """Copies from memory by address, as a device does: later than asked to, and without keeping the memory."""

    def __init__(self) -> None:
        self._asked: list[tuple[int, int]] = []
        self.copies: list[bytes] = []

    @property
    def done(self) -> int:
        return len(self.copies)

    def copy(self, images: torch.Tensor) -> Event:
        self._asked.append((images.data_ptr(), images.numel()))
        return Event(self, len(self._asked))

    def work(self, number: int) -> None:
        for address, size in self._asked[self.done : number]:
            self.copies.append(ctypes.string_at(address, size))


@pytest.fixture
def loans(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[Any], None]]:
    """The functions that take an event for each slot, by the address of its images."""
    found: dict[int, Callable[[Any], None]] = {}
    lend = Slots.lend

    def noted(self: Slots, number: int) -> Any:
        arrays, after = lend(self, number)
        found[arrays["image"].ctypes.data] = after
        return arrays, after

    monkeypatch.setattr(Slots, "lend", noted)
    return found


@pytest.mark.parametrize("pace", [0, 1, 3], ids=["only when waited for", "one behind", "three behind"])
def test_a_slot_is_not_written_before_the_device_has_read_it(
    loans: dict[int, Callable[[Any], None]], pace: int
) -> None:
    stream = Stream()
    wanted = []
    with forked(2) as loader, soon():
        for _ in range(3):
            for images, labels, *_ in loader:
                if in_arena(images):
                    loans[images.data_ptr()](stream.copy(images))
                    wanted.append(labels.tolist())
                del images
                if pace:
                    stream.work(len(wanted) - pace)
        assert len(wanted) == 3 * ROWS // BATCH, "no batch was a copy, since the consumer holds none"
        stream.work(len(wanted))
    for copy, labels in zip(stream.copies, wanted, strict=True):
        assert copy == bytes(np.repeat(np.array(labels, np.uint8), 6 * 8 * 3))


def test_free_slots_are_taken_but_not_those_a_device_reads() -> None:
    slots, stream = Slots(Arena(Board(1), LAYOUT, 3)), Stream()
    assert sorted(slots.take() or 0 for _ in range(3)) == [0, 1, 2]
    assert (slots.take(), len(slots)) == (None, 0)
    slots.give_back(1)
    assert slots.take() == 1
    arrays, after = slots.lend(1)
    after(first := stream.copy(torch.zeros(1)))
    after(second := stream.copy(torch.zeros(1)))
    assert len(slots) == 0
    del arrays
    assert (len(slots), slots.take()) == (1, None)
    slots.give_back(2)
    assert slots.take() == 2
    stream.work(1)
    assert (first.query(), second.query()) == (True, False)
    assert slots.take() is None
    slots.wait()
    assert stream.done == 2
    assert slots.take() == 1
    slots.give_back(1)
    assert slots.take() == 1, "an event counts once"


def test_an_arena_is_one_memory_in_every_process() -> None:
    board = Board(1)
    arena = Arena(board, LAYOUT, 2)
    other = Arena(Board(1, os.dup(board.descriptor)), LAYOUT, 2, arena.start)
    other.arrays(1)["image"][:] = 7
    arena.arrays(0)["image"][:] = 5
    assert [int(arena.arrays(slot)["image"].min()) for slot in (0, 1)] == [5, 7]
    assert (other.arrays(0)["image"] == 5).all()
    assert arena.arrays(1)["row"].tolist() == [0] * BATCH


def descriptors() -> set[str]:
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


def test_an_arena_that_is_too_large_for_this_machine_is_refused() -> None:
    before = descriptors()
    enormous = Loader(Numbered(1 << 50), 1 << 40, shuffle=False, num_workers=1, multiprocessing_context="fork")
    words = r"the loader's batches need [\d,]+ MiB .*: use a smaller batch_size, prefetch_factor or num_workers"
    with pytest.raises(LoaderError, match=words):
        next(iter(enormous))
    assert descriptors() == before


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_memory_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, before = forked(), descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(LoaderError, match=r"MiB of shared memory.*annot allocate memory.*smaller batch_size"):
            next(iter(loader))
    assert descriptors() == before
    with soon():
        assert len(list(loader)) == ROWS // BATCH
    loader.close()


def test_an_address_space_that_is_too_small_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(1)
    monkeypatch.setattr("mmap.mmap", refuse)
    with pytest.raises(LoaderError, match="need 0 MiB of shared memory"):
        Arena(board, LAYOUT, 2)

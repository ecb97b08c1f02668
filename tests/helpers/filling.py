"""For tests of the filler: what a cache holds, and what its folder takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from helpers.fillers import SIZES, numbered_sample

from packtrain._core.errors import GenerationGone
from packtrain._core.generations import generation_numbers
from packtrain._growing.cache_folder import lock_cache, make_own_folder
from packtrain._growing.filler import fill as fill_locked
from packtrain._growing.options import FillOptions
from packtrain._growing.source_reader import Source
from packtrain._growing.status import FillFigures
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore

FIELDS = ("who", "data", "text")


def fill(
    root: Path, source: Source, options: FillOptions, on_progress: Callable[[FillFigures], None] = lambda _: None
) -> FillFigures:
    """Fills a cache as a filler does, without a status."""
    make_own_folder(root)
    with lock_cache(root):
        return fill_locked(root, source, options, on_progress)


def stored_sample(store: GenerationStore, row: int) -> dict[str, Any]:
    """The sample in a row of a generation; each byte is compared with its checksum."""
    values = {name: store.field(name).value(row) for name in FIELDS}
    return {**values, "label": store.label(row)}


def assert_same_sample(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """All fields agree."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), (name, wanted["who"])


def assert_sound(
    store: GenerationStore, published: dict[int, int] | None = None, sizes: tuple[int, ...] = SIZES
) -> None:
    """Each sample of a generation is what was yielded, under the number that it was published with.

    Args:
        store: The generation.
        published: Which sample each number was published with; numbers that are missing are added.
        sizes: Sizes of the samples, see `numbered_sample`.
    """
    for row in range(len(store)):
        found = stored_sample(store, row)
        assert_same_sample(found, numbered_sample(int(found["who"]), sizes))
        if published is not None:
            assert published.setdefault(store.line(row), int(found["who"])) == found["who"]


def newest_store(root: Path) -> GenerationStore:
    """The newest generation, with a lease on it."""
    while True:
        with suppress(GenerationGone):
            return GenerationStore.open(CacheFiles(root), generation_numbers(root)[-1])


def drop(store: GenerationStore) -> None:
    """Gives back what the end of its process would."""
    store.release()
    store.opened.forget(1 << 60)


def blocks(root: Path) -> int:
    """Bytes that a cache takes at this moment, in allocated blocks.

    Files that are renamed during the walk count once. What this process has open there without a name counts, too.
    """
    found: dict[int, int] = {}
    for folder, _, names in os.walk(root):
        for name in (".", *names):
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, name))
                found[status.st_ino] = status.st_blocks * 512
    return sum((found | dict(_nameless(root))).values())


def _nameless(root: Path) -> Iterator[tuple[int, int]]:
    folder = os.path.realpath(root)
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(folder) and target.endswith(" (deleted)"):
                status = os.fstat(int(number))
                yield status.st_ino, status.st_blocks * 512


class Scales:
    """Weighs a cache again and again while a block of code runs. A context manager."""

    def __init__(self, root: Path) -> None:
        self._seen = [0]
        self._root = root
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.001):
            self.weigh()

    def weigh(self) -> None:
        """Looks once; also for a test that must not depend on how often this is done beside it."""
        self._seen.append(blocks(self._root))

    @property
    def most(self) -> int:
        """The most bytes that were seen."""
        return max(self._seen)

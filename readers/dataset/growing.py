"""The samples of a growing cache: one generation at a time, over files that stay open from one to the next."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from packtrain._codec.decode import EncodedImage
from packtrain._codec.stages import OnStage, untimed
from packtrain._core.arguments import number, whole
from packtrain._core.errors import CorruptRecord, DatasetError, GenerationGone, UsageError
from packtrain._core.generations import Generation, GenerationLease, generation_numbers
from packtrain._core.overriding import override
from packtrain._core.schema import Field

from .cache_files import CacheFiles, CacheShard
from .image_dataset import ImageDataset
from .records import FieldRecords, counted
from .samples import PackedSamples
from .store import NO_LABEL, Label, Store

_MOST_SECONDS: Final = 1e9


class GenerationStore(Store):
    """The records of one generation of a cache, by row and field.

    From the first use on, none of its shards is deleted while this object lives. A process that was forked, or that was
    sent this object, takes a lease of its own when it first uses it.

    Args:
        files: The open files of the cache.
        generation: The generation.
        lease: A lease on the generation, if there is one.
    """

    has_paths = False

    def __init__(self, files: CacheFiles, generation: Generation, lease: GenerationLease | None = None) -> None:
        self.generation: Final = generation
        self.path, self.name = files.root, os.fspath(files.root)
        self.identity = f"{files.info.id}:{generation.number}"
        self.schema = files.schema
        self.io = files.io
        self.check = files.check
        self._files = files
        self._lease = lease
        # The rows that begin the shards, and one past the last row.
        self._starts = [0, *accumulate(generation.records)]
        self._length = self._starts[-1]

    @classmethod
    def open(cls, files: CacheFiles, number: int) -> Self:
        """Open a generation, with a lease on it.

        Raises:
            GenerationGone: The generation is no longer there, or is one of another cache, which has taken the place of
                this one.
            NotADataset: The cache has been removed.
            CorruptFile: The generation is damaged.
            UnreadableFile: The generation cannot be read.
        """
        lease = GenerationLease(files.root, number)
        generation = Generation.load(files.root, number)
        files.require_same()
        return cls(files, generation, lease)

    def __reduce__(self) -> tuple[type[GenerationStore], tuple[CacheFiles, Generation]]:
        return GenerationStore, (self._files, self.generation)

    def unleased(self) -> GenerationStore:
        """Return the same store without a lease, until it is used."""
        return GenerationStore(self._files, self.generation)

    def at(self, row: int) -> tuple[CacheShard, int]:
        """Return the shard that holds a row, and the row there; a negative row is counted from the end.

        Raises:
            IndexError: There is no such row.
            GenerationGone: There was no lease on the generation, and it has gone.
            CorruptFile: The index of the shard is damaged.
        """
        if not 0 <= row < self._length:
            row = counted(row, self._length)
        self._take_lease()
        place = bisect_right(self._starts, row) - 1
        return self._files.shard(self.generation.first_shard + place, self.generation), row - self._starts[place]

    def _take_lease(self) -> None:
        """Take a lease, unless this process has one."""
        if self._lease is None or not self._lease.held:
            self._lease = GenerationLease(self._files.root, self.generation.number)

    @override
    def __len__(self) -> int:
        return self._length

    @property
    @override
    def opened(self) -> CacheFiles:
        return self._files

    @override
    def field(self, name: str) -> GenerationRecords:
        # Not kept: a store and its records that know each other would keep the lease until they are collected.
        return GenerationRecords(self.schema[name], self)

    @override
    def release(self) -> None:
        if self._lease is not None:
            self._lease.close()

    @override
    def close_unused(self) -> None:
        self._files.forget(self.generation.first_shard)

    @property
    @override
    def read_bytes(self) -> int:
        return self._files.read_bytes

    @override
    def checked_row(self, row: int) -> int:
        return counted(row, len(self))

    @override
    def label(self, row: int) -> Label:
        shard, row = self.at(row)
        if self.schema.labels.kind == "none":
            return NO_LABEL
        value = shard.index["label"][row]
        label: Label = value.copy() if value.ndim else value.item()
        return label

    @override
    def all_labels(self) -> npt.NDArray[Any]:
        return self._column("label", None, 0, len(self.generation.records))

    @override
    def column(self, name: str, rows: npt.NDArray[np.int64], field: str | None = None) -> npt.NDArray[Any]:
        if name == "line":
            return self.generation.first_sample + rows
        low, high = (rows.min(), rows.max()) if len(rows) else (0, 0)
        first, last = bisect_right(self._starts, low) - 1, bisect_right(self._starts, high) - 1
        return self._column(name, field, first, last + 1)[rows - self._starts[first]]

    def _column(self, name: str, field: str | None, first: int, end: int) -> npt.NDArray[Any]:
        """A column of the rows of some successive shards, copied from their indexes.

        Args:
            name: Name of the column.
            field: Name of the field that has it; None: it is the samples'.
            first: The first of the shards, counted from that of the generation.
            end: One past the last.

        Raises:
            GenerationGone: There was no lease on the generation, and it has gone.
            CorruptFile: An index is missing or damaged.
        """
        self._take_lease()
        shards = range(self.generation.first_shard + first, self.generation.first_shard + end)
        indexes = [self._files.shard(number, self.generation).index for number in shards]
        return np.concatenate([(index if field is None else index.field(field))[name] for index in indexes])

    @override
    def line(self, row: int) -> int:
        return self.generation.first_sample + self.checked_row(row)

    @override
    def filename(self, row: int) -> str:
        raise UsageError(
            f"{self.path}: samples of a growing cache have no path. Let the source yield it as a text, in a field of "
            "another name"
        )

    @override
    def describe(self, row: int) -> str:
        try:
            shard, inner = self.at(row)
        except DatasetError:
            return f"sample {self.line(row)}"
        return shard.faults.describe(inner)

    @override
    def chunk_bounds(self) -> npt.NDArray[np.int64]:
        raise UsageError(f"{self.path}: a growing cache has no chunks: use shuffle=True, or BlockShuffled")


class GenerationRecords:
    """The records of one field of a generation, by row: those of its shards. See `FieldRecords` for what is raised."""

    def __init__(self, field: Field, store: GenerationStore) -> None:
        self.field: Final = field
        self._store = store
        self._files = store.opened
        self._name = field.name

    def _at(self, row: int) -> tuple[FieldRecords, int]:
        shard, inner = self._store.at(row)
        return shard.records[self._name], inner

    def read(self, row: int, on_stage: OnStage = untimed) -> memoryview | None:
        """The stored bytes of `row`; None if it is missing."""
        records, inner = self._at(row)
        data = records.read(inner, on_stage)
        if data is not None:
            self._files.read_bytes += len(data)
        return data

    def image(self, row: int, on_stage: OnStage = untimed) -> EncodedImage | None:
        """The image of `row` as it is stored; None if it is missing."""
        records, inner = self._at(row)
        image = records.image(inner, on_stage)
        if image is not None:
            self._files.read_bytes += len(image.data)
        return image

    def value(self, row: int, on_stage: OnStage = untimed) -> Any:
        """The value of `row`; None if it is missing."""
        records, inner = self._at(row)
        value = records.value(inner, on_stage)
        if value is not None:
            self._files.read_bytes += records.length(inner)
        return value

    def size(self, row: int) -> tuple[int, int]:
        """Width and height of the image or mask of `row`; (0, 0) if it is missing."""
        records, inner = self._at(row)
        return records.size(inner)

    def length(self, row: int) -> int:
        """Size of the record of `row` in bytes; -1 if it is missing."""
        records, inner = self._at(row)
        return records.length(inner)

    def will_need(self, row: int) -> int:
        """Asks the system to read the record of `row` into memory; returns its size."""
        try:
            records, inner = self._at(row)
        except (IndexError, DatasetError):
            return 0
        return records.will_need(inner)

    def damaged(self, row: int, how: str) -> CorruptRecord:
        """The error that says how the record of `row` is damaged."""
        records, inner = self._at(row)
        return records.damaged(inner, how)

    def undecodable(self, row: int, error: Exception) -> CorruptRecord:
        """The error for a record that holds something else."""
        records, inner = self._at(row)
        return records.undecodable(inner, error)


class GrowingDataset(ImageDataset):
    """The samples of a growing cache; `packtrain.GrowingCache` opens one.

    It has the rows of one generation, and moves to another one only by `advance`, which a `Loader` calls as an epoch
    begins. Until then no shard of its generation is deleted, whatever the filler does. What `subset`, `concat` and
    `with_transform` make of it stays with the generation that it has at that time, and keeps that generation's shards
    for as long as it lives.
    """

    def __init__(self, samples: PackedSamples) -> None:
        super().__init__(samples)
        self._keep_generation = 3600.0

    @property
    def store(self) -> GenerationStore:
        """The records of the generation."""
        found = self._samples.packed[0].store
        assert isinstance(found, GenerationStore)
        return found

    @property
    def generation(self) -> int:
        """Number of the generation."""
        return self.store.generation.number

    def advance(self, generation: int | None = None) -> int:
        """Moves to another generation, and lets go of the present one.

        Args:
            generation: Number of the generation; None: the newest one.

        Returns:
            Number of new samples: those that were written after the present generation.

        Raises:
            UsageError: `generation` is not a whole number, at least 0.
            GenerationGone: It is no longer there; the dataset then stays with the present one.
            CorruptFile: It is damaged; likewise.
        """
        before = self.store.generation
        store = self._store(generation)
        if store is not self.store:
            self._samples = self._samples.packed[0].changed(store=store)
            store.opened.forget(store.generation.first_shard)
        after = store.generation
        return max(0, after.end_sample - max(before.end_sample, after.first_sample))

    @property
    def keep_generation(self) -> float:
        """Seconds for which the filler keeps the generation that a loader's `state_dict` names.

        Then the epoch can be continued. 0 keeps a generation only as long as somebody reads it.
        """
        return self._keep_generation

    @keep_generation.setter
    def keep_generation(self, seconds: float) -> None:
        expected = f"a number of seconds from 0 to {_MOST_SECONDS:.0e}"
        self._keep_generation = number("keep_generation", seconds, 0, _MOST_SECONDS, expected)

    def _store(self, generation: int | None) -> GenerationStore:
        """The store of a generation; the present one if it is that."""
        if generation is None:
            return newest(self.store.opened, self.store)
        generation = whole("generation", generation, 0)
        return self.store if generation == self.generation else GenerationStore.open(self.store.opened, generation)

    @override
    def _size(self) -> str:
        return f"generation {self.generation}, {super()._size()}"


def newest(files: CacheFiles, present: GenerationStore | None = None) -> GenerationStore:
    """The store of the newest generation; `present` if it is that.

    Raises:
        GenerationGone: There is none yet; or another cache has taken the place of this one.
        NotADataset: The cache has been removed.
        CorruptFile: It is damaged.
        UnreadableFile: It cannot be read.
    """
    while True:
        numbers = generation_numbers(files.root)
        if not numbers:
            files.require_same()
            raise GenerationGone(
                f"{files.root} has no generation yet: nothing has been written. Start a filler (`packtrain fill`), or "
                "wait for it"
            )
        if present is not None and present.generation.number == numbers[-1]:
            files.require_same()
            return present
        try:
            return GenerationStore.open(files, numbers[-1])
        except DatasetError:
            # It may have been replaced between the look into the folder and the lease. Then there is a later one.
            if generation_numbers(files.root)[-1:] == numbers[-1:]:
                raise

"""Checks one shard: its records by the index, and its container by the library of its format.

Everything that parses the shard runs in a process of its own (`confined`). If that dies, the findings so far are kept,
and the check goes on behind the record that it died of.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from crc32c import crc32c

from packtrain._codec.cut import has_table, has_true_table
from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import misfit, open_image, pixel_limit, set_pixel_limit, whole_images_only
from packtrain._core.errors import DatasetError, MissingDependency, UnreadableFile
from packtrain._core.files import MiB, checksum_file
from packtrain._core.index import Index
from packtrain._core.manifest import Count, FileInfo, Manifest
from packtrain._core.opening import open_regular
from packtrain._core.problems import error_kind, reading, reason
from packtrain._core.schema import IMAGE
from packtrain._readers.formats import StoredSample, container

from .confined import Died, Limits, Send, run_confined

_REPORT_RECORDS: Final = 256
_MOST_DEATHS: Final = 5
_MEMORY: Final = 1024 * MiB
_MEMORY_TO_DECODE: Final = 3 * 1024 * MiB
"""Pillow refuses images of more than 179 million pixels; twice the four bytes per pixel, and libjpeg's coefficients."""
_SECONDS: Final = 60
_RECORDS: Final = "records"
_CONTAINER: Final = "container"


@dataclass(frozen=True)
class Problem:
    """Something that differs from what was written.

    Attributes:
        file: Name of the file, relative to the dataset.
        message: What is wrong.
        row: Row of the damaged record; None if it is not about one record.
        line: 0-based line of that record in the list; None if it is not about one record.
        unreadable: True if the file could not be read for a reason that is not its content, such as a missing right; it
            may be sound.
    """

    file: str
    message: str
    row: int | None = None
    line: int | None = None
    unreadable: bool = False


@dataclass(frozen=True)
class VerifyProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        records: Number of its records checked so far.
    """

    number: int
    records: int


@dataclass(frozen=True)
class ShardCheck:
    """A task: check one shard.

    Attributes:
        folder: Folder of the dataset.
        number: Number of the shard.
        decode: Whether its images are decoded.
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the process that asks for the check.
    """

    folder: Path
    number: int
    decode: bool
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return f"verifying shard {self.number}"


@dataclass(frozen=True)
class ShardFindings:
    """What checking one shard has found.

    Attributes:
        number: Number of the shard.
        records: Number of its records.
        problems: What is wrong.
    """

    number: Count
    records: Count
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Message:
    """What the process says that checks a shard.

    Attributes:
        step: What it is doing now: ``"records"`` or ``"container"``.
        done: Number of records it is done with.
        problem: What it has found, or None.
    """

    step: str
    done: Count
    problem: Problem | None


def check_file(folder: Path, info: FileInfo, name: str | None = None) -> Iterator[Problem]:
    """Compares size and checksum of a file with what the manifest says."""
    name = name or info.name
    try:
        size = os.stat(folder / name).st_size
        if size != info.bytes:
            yield Problem(name, f"has {size} bytes, {info.bytes} were written")
        elif (checksum := checksum_file(folder / name)) != info.crc32c:
            yield Problem(name, _other_bytes(checksum, info.crc32c))
    except OSError as error:
        yield Problem(name, f"cannot be read: {reason(error)}", unreadable=error_kind(error) is UnreadableFile)


def check_shard(check: ShardCheck, report: Callable[[VerifyProgress], None]) -> ShardFindings:
    """Checks one shard."""
    set_pixel_limit(check.pixel_limit)
    manifest = Manifest.load(check.folder)
    info = manifest.shards[check.number]
    problems = [problem for sidecar in info.sidecars for problem in check_file(check.folder, sidecar)]
    whole = list(check_file(check.folder, info))
    if os.path.isfile(check.folder / info.name):
        problems += whole
        # Its structure is read only if the file is sound: there is no point in parsing damage.
        problems += _ShardRows(check, manifest).check(report, whole=not whole)
    else:
        problems += [
            replace(problem, message=f"{problem.message}; its {info.records} records are lost") for problem in whole
        ]
    return ShardFindings(check.number, info.records, tuple(problems))


class _ShardRows:
    """The rows of one shard, according to the index."""

    def __init__(self, check: ShardCheck, manifest: Manifest) -> None:
        self._number, self._decode = check.number, check.decode
        self._info = manifest.shards[check.number]
        self._path = check.folder / self._info.name
        self._manifest = manifest
        self._decoder = RecordDecoder(manifest.store, decoder("pillow"))
        # Imported here, once: every process that is forked has it.
        self._container = container(manifest.format)
        self._index = Index.of(check.folder, manifest)
        first = sum(shard.records for shard in manifest.shards[: check.number])
        self._rows = self._index.rows_at(np.arange(first, first + self._info.records))

    def check(self, report: Callable[[VerifyProgress], None], *, whole: bool) -> Iterator[Problem]:
        """Compares every record with its checksum, and the container with the index if the file is `whole`."""
        decode, start, deaths = self._decode, 0, 0
        while True:
            last = _Message(_RECORDS, start, None)
            work = partial(self._work, start, decode, whole)
            try:
                for last in run_confined(work, _Message, self._limits(decode)):
                    if last.problem is not None:
                        yield last.problem
                    elif last.step == _RECORDS and last.done % _REPORT_RECORDS == 0:
                        report(VerifyProgress(self._number, last.done))
                return
            except Died as death:
                if last.step == _CONTAINER:
                    how = f"the process that read it as {self._manifest.format} {death}"
                    yield Problem(self._path.name, how)
                    return
                if not decode or last.done >= len(self._rows):
                    yield Problem(self._path.name, f"the process that read its records {death}; the rest is unchecked")
                    return
                yield self._problem(int(self._rows[last.done]), f"the process that decoded it {death}")
                start, deaths = last.done + 1, deaths + 1
            if deaths == _MOST_DEATHS:
                decode = False
                yield Problem(self._path.name, f"after {deaths} such records, the rest was not decoded")

    def _limits(self, decode: bool) -> Limits:
        records = self._info.records
        return Limits(
            memory=_MEMORY + (768 + 256 * len(self._manifest.fields)) * records + (_MEMORY_TO_DECODE if decode else 0),
            seconds=_SECONDS + self._info.bytes // MiB + (records if decode else records // 1000),
        )

    def _work(self, start: int, decode: bool, whole: bool, send: Send) -> None:
        """Runs in a process of its own: sends a `_Message` for each step and each problem."""

        def say(step: str, done: int, problem: Problem | None = None) -> None:
            send({"step": step, "done": done, "problem": problem and asdict(problem)})

        done = start
        try:
            for done, problem in self._check_records(start, decode, say):
                say(_RECORDS, done, problem)
            if whole:
                say(_CONTAINER, done)
                for problem in self._check_container():
                    say(_CONTAINER, done, problem)
        except DatasetError as error:
            unreadable = isinstance(error, UnreadableFile)
            say(_RECORDS, done, Problem(self._path.name, str(error), unreadable=unreadable))

    def _check_records(
        self, start: int, decode: bool, say: Callable[[str, int], None]
    ) -> Iterator[tuple[int, Problem]]:
        """Yields what is wrong with records, and how many are done; says how many are done from time to time."""
        rows = self._rows[start:]
        names = ("shard", "offset", "length", "crc32c", "width", "height")
        columns = [self._index[name][rows].tolist() for name in names]
        with reading(self._path), os.fdopen(open_regular(self._path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        for done, (row, *entry) in enumerate(zip(rows.tolist(), *columns, strict=True), start):
            if decode or done % _REPORT_RECORDS == 0:
                say(_RECORDS, done)
            if (wrong := self._check_record(data, *entry, decode=decode)) is not None:
                yield done + 1, self._problem(row, wrong)

    def _check_record(
        self,
        data: memoryview,
        shard: int,
        offset: int,
        length: int,
        checksum: int,
        width: int,
        height: int,
        *,
        decode: bool,
    ) -> str | None:
        """Says what is wrong with a record."""
        if shard != self._number:
            return f"the index has it in shard {shard}, and its place in shard {self._number}"
        if offset < 0 or length < 0:
            return f"its index entry points outside the shard ({offset} + {length})"
        if width < 1 or height < 1:
            return f"its index entry says {width} x {height} pixels"
        record = data[offset : offset + length]
        if len(record) < length:
            return f"{length - len(record)} of its {length} bytes are cut off"
        if (found := crc32c(record)) != checksum:
            return _other_bytes(found, checksum)
        return self._undecodable(record, width, height) if decode else None

    def _check_container(self) -> Iterator[Problem]:
        """Compares what the container's own library finds with the index."""
        manifest, name = self._manifest, self._path.name
        schema = manifest.schema
        found: dict[int, StoredSample] = {}
        try:
            for item in self._container.walk(self._path, schema):
                found[item.line] = item
                if len(found) > len(self._rows):
                    yield Problem(name, f"the container holds more than its {len(self._rows)} records")
                    break
        except MemoryError:
            raise
        except Exception as error:
            # What parses a container may raise anything about one that was made to do harm.
            known = isinstance(error, DatasetError)
            yield Problem(name, str(error) if known else f"{type(error).__name__} while it was read: {error}")
            return
        labels: list[Any] = [None] * len(self._rows)
        if manifest.labels.kind != "none":
            labels = self._index["label"][self._rows].tolist()
        for row, line, label, *places in zip(
            self._rows.tolist(), self._index["line"][self._rows].tolist(), labels, *self._places(), strict=True
        ):
            indexed = {part: place for part, place in zip(schema.names, places, strict=True) if place[1] >= 0}
            stored = found.pop(line, StoredSample(line, {}, None))
            if (indexed or label is not None) and not stored.places and stored.label is None:
                yield self._problem(row, f"the {manifest.format} container has no such key")
                continue
            for part in schema.names:
                there, here = stored.places.get(part), indexed.get(part)
                if there != here:
                    wrong = f"the container has it {_where(there)}, the index {_where(here)}"
                    yield self._problem(row, wrong if part == IMAGE else f"{part}: {wrong}")
            if label is not None and not _same_label(stored.label, label, manifest.labels.dtype):
                yield self._problem(row, f"its label is {stored.label} in the container, {label} in the index")
        for unknown in found:
            yield Problem(name, f"the container holds line {unknown}, which the index does not know", line=unknown)

    def _places(self) -> Iterator[Iterator[tuple[int, int]]]:
        """Yields, for each field, offset and length of its records by the index."""
        for name in self._manifest.schema.names:
            columns = self._index.field(name)
            offsets, lengths = (columns[column][self._rows].tolist() for column in ("offset", "length"))
            yield zip(offsets, lengths, strict=True)

    def _undecodable(self, record: memoryview, width: int, height: int) -> str | None:
        try:
            with whole_images_only():
                self._decoder.image(EncodedImage(record, width, height))
            if self._manifest.store.store != "raw" and (problem := misfit(open_image(record))):
                return problem
            # Nobody cuts verbatim records, whatever table a file brought along.
            if self._manifest.store.store != "verbatim" and has_table(record) and not has_true_table(record):
                return "its table of restart intervals does not fit it"
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            # As in packing: Pillow's plugins raise any kind of error.
            return f"it cannot be decoded ({type(error).__name__}: {error})"
        return None

    def _problem(self, row: int, message: str) -> Problem:
        line = int(self._index["line"][row])
        return Problem(
            self._path.name, f"row {row} (line {line}, {self._index.text('path', row)!r}): {message}", row, line
        )


def _other_bytes(found: int, written: int) -> str:
    return f"its bytes are not those that were written (crc32c {found:08x} instead of {written:08x})"


def _where(place: tuple[int, int] | None) -> str:
    """Names a place, which is offset and length."""
    return "nowhere" if place is None else f"at {place[0]} + {place[1]}"


def _same_label(found: Any, label: Any, dtype: str) -> bool:
    try:
        return np.array_equal(np.array(found, dtype), np.array(label, dtype))
    except (TypeError, ValueError, OverflowError):
        return False

"""The content of one shard, compared with the index: each record of each field, and the container as libraries see it.

It parses bytes that somebody else may have made, so it runs in a process of its own (`sandbox`).
"""

from __future__ import annotations

import mmap
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from packtrain._codec.cut import has_table, has_true_table
from packtrain._codec.decode import EncodedImage, RecordDecoder
from packtrain._codec.decoders import decoder
from packtrain._codec.pillow import has_pillow, misfit, open_image, whole_images_only
from packtrain._codec.values import decode_value
from packtrain._core.document import MOST_BYTES
from packtrain._core.errors import CorruptFile, DatasetError, MissingDependency
from packtrain._core.index import Columns, Index
from packtrain._core.manifest import Manifest
from packtrain._core.opening import open_regular, read_regular
from packtrain._core.problems import reading, reason
from packtrain._core.schema import IMAGE, LABEL, Field
from packtrain._formats import MOST_LABEL_BYTES, StoredLabel, StoredSample, container
from packtrain._formats.tar.reader import (
    KEY_DIGITS,
    check_dali_index,
    dali_index,
    field_of,
    webdataset_reader,
    webdataset_samples,
)

from .foreign import records
from .foreign.plan import IndexPlan, Rules
from .foreign.scan import Name, split_name
from .problem import Problem, check_file, other_bytes
from .sources import Refused

REPORT_RECORDS: Final = 256
"""Records between reports of progress."""
Rows = npt.NDArray[np.int64]


class ShardContents:
    """The rows of one shard, according to the index.

    Args:
        folder: Folder of the dataset.
        manifest: Its manifest.
        number: Number of the shard.
        decode: True if its records will be decoded.

    Raises:
        DatasetError: The index is damaged.
    """

    def __init__(self, folder: Path, manifest: Manifest, number: int, *, decode: bool) -> None:
        self._folder = folder
        self._number = number
        self._info = manifest.shards[number]
        self._path = manifest.shard_path(folder, number)
        self._manifest, self._schema = manifest, manifest.schema.in_shards
        # Imported here, once: every process that is forked has it.
        self._container = container(manifest.format)
        if decode and manifest.format == "tar":
            webdataset_reader()
        self._index = Index.of(folder, manifest)
        first = sum(shard.records for shard in manifest.shards[:number])
        self._rows = self._index.rows_at(np.arange(first, first + self._info.records))
        self._fields = [_FieldRecords(field, self._index.field(field.name), manifest) for field in self._schema.fields]
        for field in self._schema.others:
            self._index.field(field.name).check_rows(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def check_records(self, start: int, decode: bool, say: Callable[[int], None]) -> Iterator[tuple[int, Problem]]:
        """Yields what is wrong with samples, and how many are done.

        Args:
            start: How many need not be checked.
            decode: Whether records are decoded.
            say: Told from time to time how many are done; before each, if they are decoded.
        """
        rows = self._rows[start:]
        with reading(self._path), os.fdopen(open_regular(self._path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        entries = zip(*(field.entries(rows) for field in self._fields), strict=True)
        shards = self._index["shard"][rows].tolist()
        for done, (row, shard, places) in enumerate(zip(rows.tolist(), shards, entries, strict=True), start):
            if decode or done % REPORT_RECORDS == 0:
                say(done)
            if shard != self._number:
                how = f"the index has it in shard {shard}, and its place in shard {self._number}"
                yield done + 1, self.problem(row, how)
                continue
            for field, entry in zip(self._fields, places, strict=True):
                if (wrong := field.wrong(data, *entry, decode=decode)) is not None:
                    yield done + 1, self.problem(row, wrong, field.name)

    def check_container(self) -> Iterator[Problem]:
        """Compares what the container's own library finds with the index."""
        manifest, name = self._manifest, self._info.name
        schema = self._schema
        found: dict[int, StoredSample] = {}
        try:
            for item in self._walk():
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
            self._rows.tolist(),
            self._index["line"][self._rows].tolist(),
            labels,
            *self._columns("offset", "length"),
            strict=True,
        ):
            indexed = {part: place for part, place in zip(schema.names, places, strict=True) if place[1] >= 0}
            stored = found.pop(line, StoredSample(line, {}, None))
            if (indexed or label is not None) and not stored.places and stored.label is None:
                yield self.problem(row, f"the {manifest.format} container has no such key")
                continue
            for part in schema.names:
                there, here = stored.places.get(part), indexed.get(part)
                if there != here:
                    how = f"the container has it {_where(there)}, the index {_where(here)}"
                    yield self.problem(row, how, part)
            if label is not None and not _same_label(stored.label, label, manifest.labels.dtype):
                yield self.problem(row, f"its label is {stored.label} in the container, {label} in the index")
        for unknown in found:
            yield Problem(name, f"the container holds line {unknown}, which the index does not know", line=unknown)

    def check_dali_indexes(self) -> Iterator[Problem]:
        """Checks the indexes for DALI beside a sound tar shard, which DALI believes: packtrain's, or a stranger's."""
        if self._manifest.format != "tar":
            return
        if self._info.link is None:
            # Those with other bytes than were written are named elsewhere.
            own = [info.name for info in self._info.sidecars if not any(check_file(self._folder, info))]
            expected = dali_index(self._path).split(b"\n") if own else []
            for name in own:
                yield from _other_lines(name, (self._folder / name).read_bytes().split(b"\n"), expected)
        elif (index := self._path.with_suffix(".idx")).is_file():
            try:
                check_dali_index(read_regular(index, MOST_BYTES), os.path.getsize(self._path))
            except ValueError as error:
                yield Problem(self._info.name, f"{index}, which DALI would read, is damaged: {error}")
            except OSError as error:
                why = f"{index}, which DALI would read, cannot be read: {reason(error)}"
                yield Problem(self._info.name, why, unreadable=True)

    def check_webdataset(self) -> Iterator[Problem]:
        """Compare the samples that webdataset reads from a sound tar shard, key by key and byte by byte."""
        if self._manifest.format != "tar":
            return
        schema = self._schema
        field: Callable[[str], str | None] = partial(field_of, schema)
        keys = [f"{line:0{KEY_DIGITS}d}".encode() for line in self._index["line"][self._rows].tolist()]
        if self._info.link is not None:
            keys = self._keys()
            field = {rule.extension: rule.name for rule in IndexPlan.load(self._folder).rules.fields}.get
        numbers = {key: number for number, key in enumerate(keys)}
        records = zip(*self._columns("length", "crc32c"), strict=True)
        # Length and checksum of each record that is still to be found, by field, for each sample.
        lacking = [
            {name: record for name, record in zip(schema.names, sample, strict=True) if record[0] >= 0}
            for sample in records
        ]
        try:
            for key, members in webdataset_samples(self._path):
                if (number := numbers.get(os.fsencode(key))) is None:
                    # The index has refused the sample.
                    continue
                for extension, data in members:
                    if lacking[number].get(name := field(extension) or "") == (len(data), crc32c(data)):
                        del lacking[number][name]
        except MemoryError:
            raise
        except Exception as error:
            yield Problem(self._info.name, f"webdataset cannot read it: {type(error).__name__}: {error}")
            return
        for number, names in enumerate(lacking):
            for name in names:
                yield self.problem(int(self._rows[number]), "webdataset does not read this record from the shard", name)

    def _walk(self) -> Iterator[StoredSample]:
        """Yield the samples that the container's own library finds."""
        if self._info.link is None:
            return self._container.walk(self._path, self._schema)
        lines = dict(zip(self._keys(), self._index["line"][self._rows].tolist(), strict=True))
        return walk_foreign(self._path, IndexPlan.load(self._folder).rules, lines, self._manifest.classes)

    def _keys(self) -> list[bytes]:
        """Keys of the samples of a shard that was indexed."""
        return [os.fsencode(self._index.text("path", row)).partition(b"/")[2] for row in self._rows.tolist()]

    def _columns(self, *names: str) -> Iterator[Iterator[tuple[int, ...]]]:
        """Yields, for each field, the values of these of its columns for each sample."""
        for field in self._schema.names:
            columns = self._index.field(field)
            yield zip(*(columns[name][self._rows].tolist() for name in names), strict=True)

    def problem(self, row: int, message: str, field: str = IMAGE) -> Problem:
        """A problem with the sample of a row."""
        line = int(self._index["line"][row])
        of = "" if field == IMAGE else f"field {field}: "
        where = f"row {row} (line {line}, {self._index.text('path', row)!r})"
        return Problem(self._info.name, f"{where}: {of}{message}", row, line)

    def problem_at(self, done: int, message: str) -> Problem:
        """A problem with the sample after so many."""
        return self.problem(int(self._rows[done]), message)


def _other_lines(name: str, found: list[bytes], expected: list[bytes]) -> Iterator[Problem]:
    """The first line of an index for DALI that is not that of the shard."""
    for number, lines in enumerate(zip_longest(found, expected, fillvalue=b""), 1):
        if lines[0] != lines[1]:
            there, here = (repr(line[:80].decode("utf-8", "backslashreplace")) for line in lines)
            yield Problem(name, f"its line {number} is {there}, and that of the shard's members {here}")
            return


class _FieldRecords:
    """The records of one field."""

    def __init__(self, field: Field, columns: Columns, manifest: Manifest) -> None:
        self.name: Final = field.name
        self._field = field
        self._columns = columns
        self._bare = manifest.bare
        self._sized = field.has_pixels
        self._decoder = (
            None if field.store is None else RecordDecoder(field.store, decoder("pillow" if has_pillow() else "auto"))
        )

    def entries(self, rows: Rows) -> Iterator[tuple[int, ...]]:
        """Offset, length, checksum, width and height of the records of some rows."""
        names = ("offset", "length", "crc32c", *(("width", "height") if self._sized else ()))
        columns = [self._columns[name][rows].tolist() for name in names]
        return zip(*columns, *(() if self._sized else ([0] * len(rows),) * 2), strict=True)

    def wrong(
        self, data: memoryview, offset: int, length: int, checksum: int, width: int, height: int, *, decode: bool
    ) -> str | None:
        """Says what is wrong with a record."""
        if length == -1 and self._field.optional:
            return None if (offset, checksum, width, height) == (0, 0, 0, 0) else "it is missing, but has a place"
        if offset < 0 or length < 0:
            return f"its index entry points outside the shard ({offset} + {length})"
        if self._sized and (width < 1 or height < 1):
            return f"its index entry says {width} x {height} pixels"
        record = data[offset : offset + length]
        if len(record) < length:
            return f"{length - len(record)} of its {length} bytes are cut off"
        if (found := crc32c(record)) != checksum:
            return other_bytes(found, checksum)
        return self._undecodable(record, width, height) if decode else None

    def _undecodable(self, record: memoryview, width: int, height: int) -> str | None:
        try:
            if self._decoder is None:
                decode_value(self._field, record, bare=self._bare, size=(width, height) if self._sized else None)
                return None
            return self._not_an_image(self._decoder, EncodedImage(record, width, height))
        except (MissingDependency, MemoryError):
            raise
        except Exception as error:
            # As in packing: Pillow's plugins raise any kind of error.
            return f"it cannot be decoded ({type(error).__name__}: {error})"

    def _not_an_image(self, images: RecordDecoder, image: EncodedImage) -> str | None:
        if images.store.store_mode.is_raw:
            images.raw_pixels(image, image.box)
            return None
        if has_pillow():
            with whole_images_only():
                images.image(image)
            if problem := misfit(open_image(image.data)):
                return problem
        elif images.rgb(image, image.box) is None:
            # Only Pillow can say what it is.
            open_image(image.data)
        # Nobody cuts verbatim records, whatever table a file brought along.
        if images.store.store_mode.transcodes and has_table(image.data) and not has_true_table(image.data):
            return "its table of restart intervals does not fit it"
        return None


def _where(place: tuple[int, ...] | None) -> str:
    """Names a place, which is offset and length."""
    return "nowhere" if place is None else f"at {place[0]} + {place[1]}"


def _same_label(found: Any, label: Any, dtype: str) -> bool:
    try:
        return np.array_equal(np.array(found, dtype), np.array(label, dtype))
    except (TypeError, ValueError, OverflowError):
        return False


def walk_foreign(
    path: Path, rules: Rules, lines: Mapping[bytes, int], classes: Sequence[str] | None
) -> Iterator[StoredSample]:
    """Yields the samples that Python's tarfile finds in a shard that was indexed, as far as they are in the index.

    Args:
        path: The shard.
        rules: How it was indexed.
        lines: Line of each sample by its key; all others were refused.
        classes: Names of the classes, if labels are such names.

    Raises:
        CorruptFile: tarfile cannot read the shard, or a label has changed.
    """
    fields = {rule.extension: rule.name for rule in rules.fields}
    try:
        with tarfile.open(path, "r:") as archive:
            for key, members in groupby(_members(archive), lambda item: item[0].key):
                if (line := lines.get(key)) is None:
                    continue
                places: dict[str, tuple[int, int]] = {}
                label: StoredLabel = None
                for name, member in members:
                    kind = rules.kind(name.extension)
                    if rules.labels and (kind == LABEL or rules.label_key(name.extension) is not None):
                        label = _label(rules, _content(archive, member), classes)
                    if kind != LABEL:
                        places[fields[name.extension]] = member.offset_data, member.size
                yield StoredSample(line, places, label)
    except (tarfile.TarError, Refused, KeyError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is not the shard that was indexed: {error}", file=path.name) from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[Name, tarfile.TarInfo]]:
    for member in archive:
        if member.isreg() and (name := split_name(os.fsencode(member.name))) is not None:
            yield name, member
        archive.members.clear()  # type: ignore[attr-defined]  # otherwise tarfile would keep them all


def _label(rules: Rules, content: bytes, classes: Sequence[str] | None) -> StoredLabel:
    if rules.label is None or rules.label.key is None:
        return records.plain_label(memoryview(content))
    label = records.json_label(records.parse_json(memoryview(content)), rules.label.key)
    if not isinstance(label, str):
        return label
    return (classes or ()).index(label)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    return content.read(MOST_LABEL_BYTES + 1) if content else b""

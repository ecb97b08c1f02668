"""A shard that is being written: its records under a temporary name, and what became of each line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._core.files import checksum_file, fsync_file, publish, temporary_path, write_file
from packtrain._core.manifest import FileInfo, ShardInfo
from packtrain._core.processes import ProcessName
from packtrain._core.schema import Schema
from packtrain._formats.writing import NewRecord, NewSample, ShardWriter, shard_writer

from .columns import RowWriter, ShardColumns
from .listing import EncodedSample, Reject


class ShardFile:
    """A shard that is being written.

    Args:
        final: The path that it will have.
        temporary: The path that it has.
        writer: The writer of the file.
        schema: What samples consist of.

    Attributes:
        bytes: Size of the records so far.
        rejects: The lines that were refused.
        remarks: What the user should know about the records, with the number of records it is about.
        columns: The columns of its samples, once it is complete.
    """

    columns: ShardColumns

    def __init__(self, final: Path, temporary: Path, writer: ShardWriter, schema: Schema) -> None:
        self._final: Final = final
        self._temporary: Final = temporary
        self._bare: Final = writer.bare
        self._rows: Final = RowWriter(writer, schema)
        self._indexed: Final = tuple(field.indexed for field in schema.fields)
        self._sidecars: dict[Path, bytes] = {}
        self.bytes = 0
        self.rejects: list[Reject] = []
        self.remarks: Counter[str] = Counter()

    def add(self, line: int, path: str, sample: EncodedSample) -> None:
        """Appends a sample."""
        records, values = list[NewRecord | None](), list[bytes | None]()
        for each, indexed in zip(sample.records, self._indexed, strict=True):
            if indexed:
                values.append(None if each is None else bytes(each.payload))
            else:
                records.append(None if each is None else each.record(bare=self._bare))
        new = NewSample(line, sample.label, tuple(records))
        self._rows.add(new, os.fsencode(path), values)
        self.bytes += new.size
        for each in sample.records:
            if each is not None and each.remarks:
                self.remarks.update(each.remarks)

    def finish(self) -> ShardInfo:
        """Completes the file, and brings it to the medium. Returns what the manifest will say of it."""
        written, self.columns = self._rows.finish()
        self._rows.close()
        fsync_file(self._temporary)
        checksum = checksum_file(self._temporary) if written.crc32c is None else written.crc32c
        self._sidecars = {self._final.with_suffix(suffix): data for suffix, data in sorted(written.sidecars.items())}
        infos = tuple(FileInfo(path.name, len(data), crc32c(data)) for path, data in self._sidecars.items())
        return ShardInfo(self._final.name, self._temporary.stat().st_size, checksum, len(self.columns), infos)

    def publish(self) -> None:
        """Gives the file and its sidecars their names, durably, in the place of earlier ones."""
        for path, data in self._sidecars.items():
            write_file(path, [data])
        publish(self._temporary, self._final)

    def close(self) -> None:
        """Closes the file, whether it is complete or not."""
        self._rows.close()


@contextmanager
def new_shard(final: Path, format: str, schema: Schema) -> Iterator[ShardFile]:
    """Gives a shard to be written. What has no final name in the end is removed."""
    temporary = temporary_path(final, ProcessName.mine())
    try:
        shard = ShardFile(final, temporary, shard_writer(format)(temporary, schema.in_shards), schema)
        try:
            yield shard
        finally:
            shard.close()
    finally:
        temporary.unlink(missing_ok=True)

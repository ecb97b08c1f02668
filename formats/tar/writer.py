"""Writes tar shards, as `packtrain._formats.tar` specifies them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._core.files import write_all
from packtrain._core.schema import IMAGE, Schema

from ..writing import LABEL_DIGITS, NewSample, ShardSpace, WrittenShard
from .reader import BLOCK, KEY_DIGITS, label_extension

# POSIX.1-1988 ustar: name 100, mode 8, uid 8, gid 8, size 12, mtime 12, checksum 8, type 1, link name 100, magic 8, ...
_SIZE: Final = slice(124, 135)
_CHECKSUM: Final = slice(148, 156)
_TEMPLATE: Final = (
    bytes(100)
    + b"0000644\0"
    + b"0000000\0" * 2
    + bytes(12)
    + b"00000000000\0"
    + b" " * 8
    + b"0"
    + bytes(100)
    + b"ustar\x0000"
).ljust(BLOCK, b"\0")
_TEMPLATE_SUM: Final = sum(_TEMPLATE)
Buffer = bytes | memoryview
_MOST_BUFFERS: Final = 1024
"""The most buffers that one system call writes (IOV_MAX of Linux)."""
_AT_ONCE: Final = 128 << 10
"""Small samples are written together: a system call for each would take longer than copying them."""


def space(schema: Schema) -> ShardSpace:
    """Returns the bytes that shards take."""
    names = sum(BLOCK + 2 * (len(field.prefix) + 8) + KEY_DIGITS + 3 * LABEL_DIGITS for field in schema.fields)
    label = schema.labels.fields * LABEL_DIGITS
    labels = BLOCK + label + -label % BLOCK + KEY_DIGITS + 4 * LABEL_DIGITS if label else 0
    return ShardSpace(3 * BLOCK, names + labels, lambda length: length + -length % BLOCK)


class Writer:
    """Streams members into a tar archive."""

    def __init__(self, path: Path, schema: Schema, *, checksum: bool = True) -> None:
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._label_suffix = label_extension(schema.labels)
        self._prefixes = tuple("" if field.name == IMAGE else f"{field.name}." for field in schema.fields)
        labelled = schema.labels.kind != "none"
        self._label_place = (0 if schema.image is None else 1) if labelled else -1
        self._position = 0
        self._waiting = bytearray()
        self._crc32c = 0 if checksum else None
        self._offsets: list[tuple[int, ...]] = []
        self._lines: list[str] = []

    def add(self, sample: NewSample) -> None:
        """Appends the members of the sample."""
        key = f"{sample.line:0{KEY_DIGITS}d}."
        buffers: list[Buffer] = []
        entries: list[str] = []
        offsets: list[int] = []
        for place, record in enumerate(sample.records):
            if place == self._label_place:
                self._append_label(sample, key, buffers, entries)
            if record is None:
                offsets.append(0)
            else:
                suffix = self._prefixes[place] + record.extension
                offsets.append(self._append(key, suffix, record.header, record.payload, buffers, entries))
        if self._label_place == len(sample.records):
            self._append_label(sample, key, buffers, entries)
        self._offsets.append(tuple(offsets))
        if entries:
            self._lines.append(" ".join(entries))
            self._write(buffers)

    def _append_label(self, sample: NewSample, key: str, buffers: list[Buffer], entries: list[str]) -> None:
        self._append(key, self._label_suffix, b"", json.dumps(sample.label).encode(), buffers, entries)

    def _append(
        self, key: str, suffix: str, header: bytes, payload: Buffer, buffers: list[Buffer], entries: list[str]
    ) -> int:
        """Appends a member to `buffers`, and what the index says about it to `entries`. Returns its offset."""
        name, size, offset = key + suffix, len(header) + len(payload), self._position + BLOCK
        padding = -size % BLOCK
        buffers += (ustar_header(name, size) + header, payload, bytes(padding))
        entries.append(f"{suffix} {offset} {size} {name}")
        self._position = offset + size + padding
        return offset

    def finish(self) -> WrittenShard:
        """Ends the archive."""
        self._write([bytes(2 * BLOCK)])
        self._write_waiting()
        self.close()
        index = "\n".join([f"v1.2 {len(self._lines)}", *self._lines, ""])
        return WrittenShard(self._offsets, {".idx": index.encode("ascii")}, self._crc32c)

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, buffers: list[Buffer]) -> None:
        if sum(map(len, buffers)) < _AT_ONCE:
            for buffer in buffers:
                self._waiting += buffer
            if len(self._waiting) >= _AT_ONCE:
                self._write_waiting()
        else:
            self._write_waiting()
            for first in range(0, len(buffers), _MOST_BUFFERS):
                self._write_now(buffers[first : first + _MOST_BUFFERS])

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, bytearray()
        self._write_now([memoryview(waiting)])

    def _write_now(self, buffers: list[Buffer]) -> None:
        assert self._descriptor is not None, "the writer is closed"
        write_all(self._descriptor, buffers)
        if self._crc32c is not None:
            for buffer in buffers:
                self._crc32c = crc32c(buffer, self._crc32c)


def ustar_header(name: str, size: int) -> bytes:
    """Returns the 512-byte ustar header of a regular file with mode 0644 and owner, group and time 0.

    Args:
        name: Name of the member: ASCII, at most 100 bytes.
        size: Size of the content in bytes, below 8 GiB.
    """
    encoded, digits = name.encode("ascii"), b"%011o" % size
    if len(encoded) > 100 or len(digits) > 11:
        raise ValueError(f"{name} of {size} bytes does not fit a ustar header")
    header = bytearray(_TEMPLATE)
    header[: len(encoded)] = encoded
    header[_SIZE] = digits
    header[_CHECKSUM] = b"%06o\0 " % (_TEMPLATE_SUM + sum(encoded) + sum(digits))
    return bytes(header)

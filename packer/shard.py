"""Packs one shard: reads, checks and stores its images, gives the file its final name, and leaves a note."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from packtrain._core.errors import ShardFailed
from packtrain._core.files import (
    checksum_file,
    file_errors,
    fsync_file,
    publish,
    remove_temporaries,
    temporary_path,
    write_file,
)
from packtrain._core.manifest import FileInfo, ShardInfo
from packtrain._core.problems import reason

from .formats import NewRecord, RecordSpec, ShardWriter, shard_writer
from .images import Refused, StoredImage, as_npy, encoder, read_source, store_image
from .listing import ListedImage, Reject
from .notes import ShardNote, note_columns
from .plan import Plan

_REPORT_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ShardTask:
    """Everything a worker needs to pack one shard.

    Attributes:
        folder: Folder of the dataset.
        plan: Plan of the dataset.
        number: Number of the shard.
        entries: Lines of the shard, in place order.
        paths: Path of the file of each entry.
    """

    folder: Path
    plan: Plan
    number: int
    entries: tuple[ListedImage, ...]
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return self.plan.shards[self.number].name


@dataclass(frozen=True)
class ShardProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        lines: Number of lines that are done.
        rejects: Lines refused so far.
    """

    number: int
    lines: int
    rejects: tuple[Reject, ...]


def pack_shard(task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    """Packs one shard and leaves its note. Packing it again gives the same bytes.

    Raises:
        ShardFailed: A source file cannot be read, for a reason other than its content; or the shard cannot be written;
            or the libraries that decide the stored bytes are not those of the plan.
        NoSpace: The file system of the dataset is full.
    """
    plan, final = task.plan, task.folder / task.plan.shards[task.number].name
    _require_encoder(plan)
    remove_temporaries(task.folder, final.name)
    temporary = temporary_path(final)
    spec = RecordSpec(plan.labels, plan.store.store == "raw", plan.store.fixed_shape)
    with file_errors(task.folder, ShardFailed):
        try:
            writer = shard_writer(plan.format)(temporary, spec)
            try:
                rows, labels, rejects = _add_all(task, writer, report)
                finished = writer.finish()
            finally:
                writer.close()
            fsync_file(temporary)
            checksum = checksum_file(temporary) if finished.crc32c is None else finished.crc32c
            info = FileInfo(final.name, temporary.stat().st_size, checksum)
            sidecars = tuple(
                _write_sidecar(final.with_suffix(suffix), data) for suffix, data in sorted(finished.sidecars.items())
            )
            publish(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        placed = [(line, offset, *rest) for (line, *rest), offset in zip(rows, finished.offsets, strict=True)]
        shard = ShardInfo(info.name, info.bytes, info.crc32c, len(rows), sidecars)
        ShardNote(plan.sha256, shard, tuple(rejects), note_columns(plan, placed, labels)).save(task.folder)
    return ShardProgress(task.number, len(task.entries), tuple(rejects))


def _add_all(
    task: ShardTask, writer: ShardWriter, report: Callable[[ShardProgress], None]
) -> tuple[list[tuple[Any, ...]], list[Any], list[Reject]]:
    """Adds every entry to the writer. Returns the rows of the note (without offsets), the labels, and the rejects."""
    store, channels = task.plan.store, task.plan.store.channels
    rows: list[tuple[Any, ...]] = []
    labels: list[Any] = []
    rejects: list[Reject] = []
    reported = time.monotonic()
    for done, (entry, path) in enumerate(zip(task.entries, task.paths, strict=True), 1):
        try:
            image = store_image(_read(path, entry), store)
        except Refused as refusal:
            rejects.append(Reject(entry.line, entry.path, str(refusal)))
        else:
            header, payload = image.header, _payload(image, writer, store.store == "raw", channels)
            checksum = crc32c(payload)
            shape = (header.height, header.width, channels)
            writer.add(NewRecord(entry.line, entry.label, payload, header.extension, checksum, shape))
            rows.append((entry.line, len(payload), checksum, header.width, header.height, header.orientation))
            labels.append(entry.label)
        if time.monotonic() - reported > _REPORT_SECONDS:
            report(ShardProgress(task.number, done, tuple(rejects)))
            reported = time.monotonic()
    return rows, labels, rejects


def _read(path: str, entry: ListedImage) -> bytes:
    try:
        return read_source(path)
    except OSError as error:
        raise ShardFailed(
            f"cannot read {path} (line {entry.line}): {reason(error)}. The image is not at fault: fix this and run "
            "the same command again"
        ) from error


def _payload(image: StoredImage, writer: ShardWriter, raw: bool, channels: int) -> bytes:
    return as_npy(image, channels) if raw and writer.raw_as_npy else image.payload


def _write_sidecar(path: Path, data: bytes) -> FileInfo:
    write_file(path, [data])
    return FileInfo(path.name, len(data), crc32c(data))


def _require_encoder(plan: Plan) -> None:
    here = encoder(plan.store)
    if here != plan.encoder:
        raise ShardFailed(
            f"the plan was made with {plan.encoder}, but this environment has {here}: the same images would give "
            "other bytes. Pack in the same environment, or start again in another folder"
        )

"""Packs one shard: reads, checks and stores its images, gives the file its final name, and leaves a note."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from packtrain._codec.pillow import pixel_limit, set_pixel_limit
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
from packtrain._core.options import StoreOptions
from packtrain._core.problems import way_out
from packtrain._core.schema import Schema

from .formats import NewRecord, NewSample, RecordSpec, ShardWriter, WrittenShard, shard_writer
from .images import Refused, StoredImage, as_npy, encoder, read_source, store_image
from .listing import ListedSample, Reject
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
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the calling process, which holds in all workers.
    """

    folder: Path
    plan: Plan
    number: int
    entries: tuple[ListedSample, ...]
    paths: tuple[str, ...]
    pixel_limit: int | None = field(default_factory=pixel_limit)

    def __str__(self) -> str:
        return self.plan.shards[self.number].name


@dataclass(frozen=True)
class ShardProgress:
    """Progress of one shard.

    Attributes:
        number: Number of the shard.
        lines: Number of lines that are done.
        rejects: Lines refused so far.
        remarks: What the user should know about the records, each with the number of records it is about; empty until
            the shard is complete.
    """

    number: int
    lines: int
    rejects: tuple[Reject, ...]
    remarks: Mapping[str, int] = field(default_factory=dict)


def pack_shard(task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    """Packs one shard and leaves its note. Packing it again gives the same bytes.

    Raises:
        ShardFailed: A source file cannot be read, for a reason other than its content; or the shard cannot be written;
            or the libraries that decide the stored bytes are not those of the plan.
        NoSpace: The file system of the dataset is full.
    """
    plan, final = task.plan, task.folder / task.plan.shards[task.number].name
    set_pixel_limit(task.pixel_limit)
    _require_encoder(plan, task.folder)
    remove_temporaries(task.folder, final.name)
    temporary = temporary_path(final)
    spec = RecordSpec(Schema.of_images(plan.store, plan.labels, plan.classes))
    with file_errors(task.folder, ShardFailed):
        try:
            # The free space that a message gives is measured before the file is removed.
            with file_errors(task.folder, ShardFailed):
                written, finished = _write(task, shard_writer(plan.format)(temporary, spec), report)
                fsync_file(temporary)
                checksum = checksum_file(temporary) if finished.crc32c is None else finished.crc32c
                info = FileInfo(final.name, temporary.stat().st_size, checksum)
                sidecars = tuple(
                    _write_sidecar(final.with_suffix(suffix), data)
                    for suffix, data in sorted(finished.sidecars.items())
                )
                publish(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)
        placed = [
            (line, offset, *rest) for (line, *rest), (offset,) in zip(written.rows, finished.offsets, strict=True)
        ]
        shard = ShardInfo(info.name, info.bytes, info.crc32c, len(placed), sidecars)
        columns = note_columns(plan, placed, written.labels)
        ShardNote(plan.sha256, shard, tuple(written.rejects), columns).save(task.folder)
    return ShardProgress(task.number, len(task.entries), tuple(written.rejects), dict(written.remarks))


class _Written(NamedTuple):
    """What has become of the entries: rows of the note (without offsets), labels, rejects and remarks."""

    rows: list[tuple[Any, ...]]
    labels: list[Any]
    rejects: list[Reject]
    remarks: Counter[str]


def _write(
    task: ShardTask, writer: ShardWriter, report: Callable[[ShardProgress], None]
) -> tuple[_Written, WrittenShard]:
    """Adds every entry to the writer and closes it."""
    store, channels = task.plan.store, task.plan.store.channels
    written = _Written([], [], [], Counter())
    reported = time.monotonic()
    try:
        for done, (entry, path) in enumerate(zip(task.entries, task.paths, strict=True), 1):
            try:
                image = _image(path, entry, store)
            except Refused as refusal:
                written.rejects.append(Reject(entry.line, entry.path, str(refusal)))
            else:
                header, payload = image.header, _payload(image, writer, store.store == "raw", channels)
                checksum = crc32c(payload)
                shape = (header.height, header.width, channels)
                record = NewRecord(payload, header.extension, checksum, shape)
                writer.add(NewSample(entry.line, entry.label, (record,)))
                row = (entry.line, len(payload), checksum, header.width, header.height, header.orientation)
                written.rows.append(row)
                written.labels.append(entry.label)
                written.remarks.update(image.remarks)
            if time.monotonic() - reported > _REPORT_SECONDS:
                report(ShardProgress(task.number, done, tuple(written.rejects)))
                reported = time.monotonic()
        return written, writer.finish()
    finally:
        writer.close()


def _image(path: str, entry: ListedSample, store: StoreOptions) -> StoredImage:
    where = f"{path} (line {entry.line})"
    try:
        return store_image(read_source(path), store)
    except OSError as error:
        raise ShardFailed(
            f"cannot read {where}: {error.strerror}. The image is not at fault, so it is not refused. {way_out(error)}"
        ) from error
    except MemoryError as error:
        raise ShardFailed(
            f"not enough memory for {where}: use fewer workers (--workers), or remove the line if the image is too "
            "large, then run the same command again"
        ) from error


def _payload(image: StoredImage, writer: ShardWriter, raw: bool, channels: int) -> bytes:
    return as_npy(image, channels) if raw and not writer.bare else image.payload


def _write_sidecar(path: Path, data: bytes) -> FileInfo:
    write_file(path, [data])
    return FileInfo(path.name, len(data), crc32c(data))


def _require_encoder(plan: Plan, folder: Path) -> None:
    here = encoder(plan.store)
    if here != plan.encoder:
        raise ShardFailed(
            f"the plan in {folder} was made with {plan.encoder}, but this environment has {here}: the same images "
            "would give other bytes. Pack in the same environment, or start again in another folder"
        )

"""Packs one shard: reads, checks and stores its samples, gives the file its final name, and leaves a note."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from packtrain._codec.pillow import pixel_limit, set_pixel_limit
from packtrain._core.errors import MissingDependency, RemoteError, ShardFailed, UnreadableFile
from packtrain._core.files import (
    checksum_file,
    file_errors,
    fsync_file,
    fsync_folder,
    publish,
    remove_temporaries,
    temporary_path,
    write_file,
)
from packtrain._core.manifest import MANIFEST, FileInfo, ShardInfo, holds
from packtrain._core.options import FORMATS
from packtrain._core.problems import way_out
from packtrain._core.processes import ProcessName
from packtrain._core.schema import Schema
from packtrain._formats.writing import NewRecord, NewSample, shard_writer

from .columns import RowWriter, ShardColumns
from .finished import require_as_merged
from .listing import EncodedSample, ListedSample, Reject, Source
from .markers import marked
from .notes import ListFacts, NoteFacts, ShardNote, note_path, read_note
from .output import Output
from .plan import Plan
from .sources import Refused

_REPORT_SECONDS: Final = 0.2


@dataclass(frozen=True)
class ShardTask:
    """Everything a worker needs to pack one shard.

    Attributes:
        output: Where the dataset is written to.
        plan: Plan of the dataset.
        number: Number of the shard.
        entries: Lines of the shard, in place order.
        listed: What there is to know of the list, for shard 0; None for the others.
        role: What the run calls itself among others that may work in the same folder at the same time, such as ``part
            3/16``; empty if there are none.
        retry_rejects: True if a note with refused lines does not mean that the shard is done.
        pixel_limit: Pillow's ``Image.MAX_IMAGE_PIXELS`` in the calling process, which holds in all workers.
    """

    output: Output
    plan: Plan
    number: int
    entries: tuple[ListedSample, ...]
    listed: ListFacts | None = None
    role: str = ""
    retry_rejects: bool = False
    pixel_limit: int | None = field(default_factory=pixel_limit)

    @property
    def folder(self) -> Path:
        """Folder in which the shard is packed."""
        return self.output.folder

    @property
    def name(self) -> str:
        """File name of the shard."""
        return self.plan.shards[self.number].name

    def __str__(self) -> str:
        return self.name


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


class ShardFile:
    """A shard that is being written.

    Args:
        final: The path that it will have.
        temporary: The path that it has.
        format: Its container format.
        schema: What samples consist of.

    Attributes:
        bytes: Size of the records so far.
        rejects: The lines that were refused.
        remarks: What the user should know about the records, with the number of records it is about.
        columns: The columns of its samples, once it is complete.
    """

    columns: ShardColumns

    def __init__(self, final: Path, temporary: Path, format: str, schema: Schema) -> None:
        self._final: Final = final
        self._temporary: Final = temporary
        self._bare: Final = FORMATS[format].bare
        self._rows: Final = RowWriter(shard_writer(format)(temporary, schema.in_shards), schema)
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
        shard = ShardFile(final, temporary, format, schema)
        try:
            yield shard
        finally:
            shard.close()
    finally:
        temporary.unlink(missing_ok=True)


def pack_shard(source: Source, task: ShardTask, report: Callable[[ShardProgress], None]) -> ShardProgress:
    """Packs one shard and leaves its note. Packing it again gives the same bytes.

    Args:
        source: Where the content of the samples comes from.
        task: The shard.
        report: Called with the progress.

    Raises:
        ShardFailed: A source file cannot be read, for a reason other than its content; or the shard cannot be written;
            or the libraries that decide the stored bytes are not those of the plan.
        NoSpace: The file system of the dataset is full.
        OutputConflict: Another process has packed the shard with other bytes, and it was merged like that.
    """
    set_pixel_limit(task.pixel_limit)
    _require_encoder(task, source)
    if not task.role:
        remove_temporaries(task.folder, task.name)
    if (done := _done_by_another(task)) is not None:
        return done
    with marked(task.output, task.name, task.role):
        try:
            return _pack(task, source, report)
        except ShardFailed:
            # A merge that was complete without this shard's second copy has removed it.
            if (done := _done_by_another(task)) is not None:
                return done
            raise


def _done_by_another(task: ShardTask) -> ShardProgress | None:
    """Return the result of another process that has packed the same shard meanwhile; None if none has.

    Raises:
        ShardFailed: The dataset was finished although its refused lines were to be packed again; or nobody can tell.
    """
    if not task.role:
        return None
    try:
        with file_errors(task.folder, ShardFailed, verb="read"):
            note = read_note(task.folder, task.plan, task.number, task.output.holds)
    except UnreadableFile as error:
        raise ShardFailed(str(error)) from error
    if not isinstance(note, str) and not (task.retry_rejects and note.rejects):
        return ShardProgress(task.number, len(task.entries), note.rejects)
    if holds(task.folder, MANIFEST):
        if task.retry_rejects:
            raise ShardFailed(
                f"{task.output.address} was merged while refused lines were packed again. Run the same command again"
            )
        return ShardProgress(task.number, len(task.entries), ())
    return None


def _pack(task: ShardTask, source: Source, report: Callable[[ShardProgress], None]) -> ShardProgress:
    plan = task.plan
    with (
        file_errors(task.folder, ShardFailed),
        new_shard(task.folder / task.name, plan.format, plan.schema) as shard,
        # The free space that a message gives is measured before the file is removed.
        file_errors(task.folder, ShardFailed),
    ):
        _write(task, source, shard, report)
        info = shard.finish()
        if (done := _done_by_another(task)) is not None:
            return done
        _replace(task, shard, info)
    return ShardProgress(task.number, len(task.entries), tuple(shard.rejects), dict(shard.remarks))


def _replace(task: ShardTask, shard: ShardFile, info: ShardInfo) -> None:
    """Gives a shard and its sidecars their names, in the place of earlier ones, and leaves the note."""
    note = ShardNote(NoteFacts(task.plan.sha256, info, tuple(shard.rejects), task.listed), shard.columns)
    try:
        _remove_note(task)
        shard.publish()
        task.output.shard_done(note)
    except RemoteError as error:
        raise ShardFailed(str(error)) from error
    finally:
        # Also where this has failed, because a merge has removed the temporary, or the folder of notes.
        require_as_merged(task.output, info)


def _remove_note(task: ShardTask) -> None:
    """Removes a note of what is about to be replaced, before anything of it is."""
    path = note_path(task.folder, task.name)
    with suppress(FileNotFoundError):
        path.unlink()
        fsync_folder(path.parent)


def _write(task: ShardTask, source: Source, shard: ShardFile, report: Callable[[ShardProgress], None]) -> None:
    """Adds every entry to the shard, or to its refused lines."""
    # A rate is measured from here on.
    report(ShardProgress(task.number, 0, ()))
    reported = time.monotonic()
    with source.reading(task.entries) as reading:
        for done, entry in enumerate(task.entries, 1):
            try:
                encoded = reading.encode(task.plan.schema, entry)
            except Refused as refusal:
                shard.rejects.append(Reject(entry.line, entry.path, str(refusal)))
            except MissingDependency as error:
                raise MissingDependency(f"{reading.where(entry)}: {error}") from error
            except (OSError, UnreadableFile, RemoteError, MemoryError) as error:
                raise not_the_files_fault(error, reading.where(entry)) from error
            else:
                shard.add(entry.line, entry.path, encoded)
            if time.monotonic() - reported > _REPORT_SECONDS:
                report(ShardProgress(task.number, done, tuple(shard.rejects)))
                reported = time.monotonic()


def not_the_files_fault(error: OSError | UnreadableFile | RemoteError | MemoryError, where: str) -> ShardFailed:
    """The error for a sample, at `where`, that is not to be refused: the next run may pack it."""
    if isinstance(error, UnreadableFile | RemoteError):
        return ShardFailed(str(error))
    if isinstance(error, MemoryError):
        return ShardFailed(
            f"not enough memory for {where}: leave it out if it is too large, or use fewer workers (--workers)"
        )
    file = where if str(error.filename) in where else f"{error.filename} of {where}"
    return ShardFailed(
        f"cannot read {file}: {error.strerror}. The file is not at fault, so it is not refused. {way_out(error)}"
    )


def _require_encoder(task: ShardTask, source: Source) -> None:
    plan, here = task.plan, source.encoder(task.plan.schema)
    if here != plan.encoder:
        raise ShardFailed(
            f"the plan in {task.output.address} was made with {plan.encoder}, but this environment has {here}: the "
            "same files would give other bytes. Pack in the same environment, or start again in another folder"
        )

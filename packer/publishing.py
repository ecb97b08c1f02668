"""Makes a dataset of columns: index, rejects.jsonl and, last, the manifest; and puts it as a whole in its place."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import numpy as np

from packtrain._core.errors import OutputConflict
from packtrain._core.files import (
    fsync_folder,
    is_temporary,
    locked,
    make_folder,
    temporaries_of,
    temporary_path,
    write_all,
    write_file,
)
from packtrain._core.index import ROW_COLUMNS, IndexWriter
from packtrain._core.locks import Lock
from packtrain._core.manifest import INDEX, MANIFEST, PLAN, REJECTS, ColumnInfo, FieldInfo, Manifest
from packtrain._core.schema import Field, Schema
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

from .columns import MISSING, PATH, Ints, column_forms, text_columns
from .listing import Reject
from .notes import PARTS
from .rejects import write_rejects
from .reordering import ColumnType, Reordering

LOCK: Final = "lock"
"""File in ``parts`` that whoever indexes a new dataset locks."""
NO_GAPS: Final = np.empty(0, np.int64)
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def collecting(folder: Path, schema: Schema, entries: int, at_once: int | None = None) -> Iterator[Reordering]:
    """Gives what collects the columns of all shards, and which shard each row is in, in a file in `folder`."""
    # The file has no name, or only for a moment where a file system cannot do without, and goes with the process.
    with TemporaryFile(buffering=0, dir=folder, prefix=temporary_path(folder / INDEX).name) as file:
        forms = {**column_forms(schema), "shard": ColumnType(ROW_COLUMNS["shard"])}
        yield Reordering(file.fileno(), entries, forms, text_columns(schema), at_once)


def write_dataset(
    folder: Path,
    schema: Schema,
    rows: Reordering,
    gaps: Ints,
    rejects: Sequence[Reject],
    manifest: Callable[..., Manifest],
    base: str | None = None,
) -> Manifest:
    """Writes all of a dataset but its plan and its shards.

    Args:
        folder: Where to.
        schema: What samples consist of.
        rows: The columns of all rows.
        gaps: Ordinals of the entries without a row, ascending, int64 [any].
        rejects: The refused lines.
        manifest: Makes the manifest of what is found out here.
        base: Folder that the links to the shards start from; None if none is linked.
    """
    linked = base is not None

    def figures(field: Field) -> FieldInfo:
        if schema.plain and not linked:
            return FieldInfo.of(field)
        if field.indexed:
            valid = rows.column(f"{field.prefix}valid", gaps)
            return FieldInfo.of(field, missing=sum(int(np.count_nonzero(each == 0)) for each in valid))
        return _with_figures(field, rows.column(f"{field.prefix}length", gaps), as_found=linked)

    done = manifest(
        fields=tuple(map(figures, schema.fields)),
        labels=schema.labels,
        classes=schema.classes,
        records=rows.records,
        rejects=len(rejects),
        rejects_file=write_rejects(folder, rejects),
        columns=_write_index(folder / INDEX, schema, rows, gaps, linked),
        base=base,
    )
    write_file(folder / MANIFEST, [done.dump()])
    return done


def upload_index(objects: Objects, folder: Path, url: Url) -> None:
    """Puts the index and rejects.jsonl of a dataset to an address; the manifest is to come last."""
    for path in (folder / REJECTS, *sorted((folder / INDEX).iterdir())):
        objects.upload(url / path.relative_to(folder).as_posix(), path)


def _write_index(folder: Path, schema: Schema, rows: Reordering, gaps: Ints, linked: bool) -> tuple[ColumnInfo, ...]:
    """Writes the index, whose rows are in list order."""
    make_folder(folder)
    if folder.is_symlink():
        raise OutputConflict(f"{folder} is a link, which leads out of the dataset: remove it and run the command again")
    writer, forms = IndexWriter(folder, rows.records), rows.forms

    def add(*names: str) -> None:
        for name in names:
            writer.add_pieces(name, forms[name].dtype, forms[name].shape, rows.column(name, gaps))

    def add_texts(name: str) -> None:
        writer.add_text_pieces(name, rows.text_offsets(name, gaps), rows.texts(name, gaps), rows.text_bytes[name])

    others = () if linked else schema.others
    of_others = {name for field in others for name in field.columns()}
    add("line", "shard", *(name for name in schema.columns() if name not in of_others))
    if schema.labels.kind != "none":
        add("label")
    # The row of an entry: as many rows less than entries are before it as are refused.
    by_place = (ordinals - np.searchsorted(gaps, ordinals) for ordinals in rows.ordinals())
    writer.add_pieces("by_place", ROW_COLUMNS["by_place"], (), by_place)
    add_texts(PATH)
    for field in others:
        add(*field.columns())
        if field.text_column is not None:
            add_texts(field.text_column)
    columns = writer.finish()
    _remove_others(folder, {f"{column.name}.npy" for column in columns})
    return columns


def _remove_others(folder: Path, names: set[str]) -> None:
    """Removes what an earlier merge left. What is not finished belongs to a merge at the same time."""
    for path in folder.iterdir():
        if path.name in names or is_temporary(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    fsync_folder(folder)


def _with_figures(field: Field, lengths: Iterable[Ints], *, as_found: bool) -> FieldInfo:
    """A field, and what its records amount to, whose `lengths` are int64 [any] each.

    With `as_found`, it is optional if a row is without it.
    """
    total, most, missing = 0, 0, 0
    for found in lengths:
        without = int((found == MISSING).sum())
        total += int(found.sum()) - without * MISSING
        most = max(most, int(found.max(initial=0)))
        missing += without
    field = replace(field, optional=missing > 0) if as_found else field
    return FieldInfo.of(field, total, most, missing)


@contextmanager
def building(folder: Path | Url, plan: bytes) -> Iterator[Path]:
    """Gives a new folder that holds `plan`, beside `folder` if that is on this machine. It is removed in the end.

    Raises:
        OSError: The folder that `folder` is in cannot be written to.
    """
    if isinstance(folder, Url):
        with TemporaryDirectory(prefix="packtrain-index-") as name:
            write_file(Path(name, PLAN), [plan])
            yield Path(name)
        return
    make_folder(folder.parent)
    remove_abandoned(folder)
    temporary = temporary_path(folder)
    temporary.mkdir()
    try:
        # As long as the plan is locked, nobody takes the folder for abandoned: so it is there before its content.
        with open(temporary / PLAN, "xb", buffering=0) as file, locked(temporary / PLAN):
            write_all(file.fileno(), [plan])
            os.fsync(file.fileno())
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, location: Path | Url, objects: Objects) -> None:
    """Puts the dataset `temporary` in its place, which at an address is free.

    Raises:
        OutputConflict: Somebody else has put one to the address meanwhile.
        RemoteError: The object store does not answer as it should.
    """
    if not isinstance(location, Url):
        exchange(temporary, location)
        return
    # The plan first: it says what the rest is if this is stopped.
    objects.upload(location / PLAN, temporary / PLAN)
    upload_index(objects, temporary, location)
    if not objects.write(location / MANIFEST, (temporary / MANIFEST).read_bytes(), new=True):
        raise OutputConflict(
            f"somebody else indexed to {location} at the same time: run `packtrain verify {location}`, and if it finds "
            "anything, index to another address"
        )


def exchange(temporary: Path, folder: Path) -> None:
    """Puts the dataset `temporary` in the place of `folder`, and what is there in the place of `temporary`."""
    result = _libc.renameat2(
        _AT_FDCWD, os.fsencode(temporary), _AT_FDCWD, os.fsencode(folder), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if result:
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), os.fspath(folder))
        # A file system without this call, such as NFS: for an instant there is no dataset.
        old = temporary_path(folder)
        os.rename(folder, old)
        os.rename(temporary, folder)
        os.rename(old, temporary)
    fsync_folder(folder.parent)


@contextmanager
def only_writer(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Locks a file of a dataset that is indexed, so that only one process indexes there, or only those that share.

    Raises:
        OutputConflict: Another process indexes there, or has just put another dataset in the place of this one.
    """
    before = os.stat(path).st_ino
    with locked(path, shared=shared):
        if not path.exists() or os.stat(path).st_ino != before:
            raise OutputConflict(f"{path.parent} has just been changed by somebody else. Run the command again")
        yield


def remove_abandoned(folder: Path) -> None:
    """Removes what indexers left beside `folder` that were killed."""
    for path in temporaries_of(folder):
        # Without either it was being removed.
        lock = next(filter(Path.exists, (path / PLAN, path / PARTS / LOCK)), None)
        # Where there are no locks, nobody can tell.
        with suppress(OSError), nullcontext() if lock is None else Lock(lock, wait=False, flags=os.O_RDWR):
            shutil.rmtree(path)

"""Reads a list or an image folder, whatever its form, and files of class names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError, UsageError
from packtrain._core.files import file_errors
from packtrain._core.opening import is_stream, open_regular, read_named
from packtrain._core.options import LabelSpec
from packtrain._core.paths import local_path
from packtrain._core.suggestions import did_you_mean
from packtrain._storage.remote.urls import Url

from ..listing import Listing
from ..options import Columns
from .blocks import LARGE, LargeText
from .delimited import DelimitedRows
from .folder import list_classes, list_images
from .image_list import ImageList
from .json_lines import JsonLines, no_objects, require_lines, starts_with_object
from .other_files import HEAD_BYTES, refuse_other_file, refuse_other_folder
from .parquet import ParquetRows, heads_of
from .rows import Rows
from .suggestions import command_line, require_utf8
from .tables import Table

_PROGRAMS: Final = (".py", ".pyc", ".ipynb", ".sh")
_LARGEST: Final = 1 << 28


def read_class_names(classes: Path) -> tuple[str, ...]:
    """Reads a file with one class name per line, in label order. It may be a pipe.

    Raises:
        ListError: It cannot be read, or holds no names.
    """
    try:
        listed = read_named(classes, _LARGEST).decode("utf-8-sig").strip()
    except FileNotFoundError as error:
        raise ListError(f"there is no file of class names {classes}{similar_file(classes)}") from error
    except OSError as error:
        folder = error.errno == errno.EISDIR
        reason = "it is a folder. Give a file with one class name per line" if folder else error.strerror
        raise ListError(f"cannot read the class names {classes}: {reason}") from error
    except UnicodeDecodeError as error:
        raise ListError(f"cannot read the class names {classes}: they are not encoded in UTF-8 ({error})") from error
    if not listed:
        raise ListError(f"{classes} holds no class names. Write one per line, in label order")
    return tuple(line.strip() for line in listed.split("\n"))


def similar_file(path: Path) -> str:
    """The "did you mean" of a file that is not there. A program is never meant."""
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return ""
    return did_you_mean(path.name, [name for name in names if not name.lower().endswith(_PROGRAMS)])


_JSON_LINES: Final = (".jsonl", ".ndjson")
_PARQUET: Final = (".parquet", ".pq")
_HEAD: Final = 1 << 20
_PARQUET_MAGIC: Final = b"PAR1"


def read_list(
    source: Path,
    labels: LabelSpec,
    *,
    columns: Columns | None = None,
    root: Path | Url | None = None,
    classes: Path | None = None,
    by_name: bool = False,
    leave_out: Path | None = None,
    allow_empty: bool = False,
) -> Listing:
    """Reads a list, or lists an image folder (``class/name.jpg``) as torchvision's ImageFolder does.

    Args:
        source: The list, which may be a pipe or /dev/stdin unless it is a Parquet file, or the image folder.
        labels: Type of the labels on each line; int or none for a folder.
        columns: Which columns of the list hold what; None for a list of paths and labels.
        root: Folder that relative paths start from, here or in an object store; None for the folder of the list, or
            the working folder if the list comes through a pipe.
        classes: File with one class name per line, in label order; None if there are no names, or if an image folder,
            `by_name` or a column of names gives them.
        by_name: True if the label on each line is the name of a class.
        leave_out: A folder inside the image folder in which nothing is listed.
        allow_empty: True if class folders may be without images.

    Raises:
        ListError: `source` or `classes` cannot be read, or there is nothing to pack.
        UsageError: `source` is a folder, and `labels`, `columns` or `root` does not fit; or the list has no such
            column, or needs `columns`.
        MissingDependency: `source` is a Parquet file, and pyarrow is not installed.
    """
    with file_errors(source, ListError, verb="read the list"):
        names = None if classes is None else read_class_names(local_path(classes))
        if source.is_dir():
            refuse_other_folder(source)
            if root is not None:
                raise UsageError(f"{source} is a folder, and its images are found there: leave --root out")
            if columns is not None:
                raise UsageError(f"{source} is a folder, but columns are those of a list. Give a list, or no columns")
            return _read_folder(source, labels, names, leave_out, allow_empty)
        _require_list(source)
        through = is_stream(source)
        name = "data" if through else source.stem
        start = root if root is not None else Path.cwd() if through else source.parent
        form = "text" if through else _form(source)
        # A pipe that has no writer yet is waited for, as by any program that reads one.
        if not through and form == "text" and columns is None and source.stat().st_size > LARGE:
            large = LargeText(source)
            require_utf8(large[:_HEAD], source)
            if not starts_with_object(large[:_HEAD]):
                return ImageList(large, labels, name=name, root=start, classes=names, by_name=by_name, source=source)
        text = b"" if form == "parquet" else source.read_bytes()
        if through:
            _refuse_other_stream(source, text)
        if form != "parquet":
            require_utf8(text, source)
        if form == "json" or (form == "text" and text[:_HEAD].lstrip().startswith(b"[{")):
            require_lines(source, text)
            form = "json lines"
        if form == "text" and starts_with_object(text):
            form = "json lines"
        if columns is None:
            _require_no_columns(source, text, form)
            return ImageList(text, labels, name=name, root=start, classes=names, by_name=by_name, source=source)
        rows = _rows(source, text, form, columns)
        return Table(rows, columns, labels, name=name, root=start, classes=names, by_name=by_name, source=source)


def _rows(source: Path, text: bytes, form: str, columns: Columns) -> Rows:
    if form == "parquet":
        return ParquetRows(source, columns)
    read = JsonLines if form == "json lines" else DelimitedRows
    return read(text, source.name, columns.names)


def _form(source: Path) -> str:
    """Names the form: ``"text"``, ``"json lines"``, ``"json"`` or ``"parquet"``, by its suffix or its first bytes."""
    suffix = source.suffix.lower()
    with os.fdopen(open_regular(source), "rb") as file:
        head = file.read(HEAD_BYTES)
    refuse_other_file(source, head)
    if suffix == ".json":
        return "json"
    if suffix in _JSON_LINES:
        return "json lines"
    if suffix in _PARQUET:
        return "parquet"
    return "parquet" if head.startswith(_PARQUET_MAGIC) else "text"


def _refuse_other_stream(source: Path, text: bytes) -> None:
    if text.startswith(_PARQUET_MAGIC):
        raise ListError(f"{source} is a Parquet file that comes through a pipe: give the path of the file")
    refuse_other_file(source, text[:HEAD_BYTES])


def _require_no_columns(source: Path, text: bytes, form: str) -> None:
    """Refuses a list that cannot be read without columns."""
    if form == "parquet":
        heads, first = heads_of(source)
    elif form == "json lines":
        heads, first = JsonLines(text, source.name, ()).sample()
        if not heads:
            raise no_objects(source, text)
    else:
        return
    raise UsageError(f"say which columns of {source} to pack, for example: {command_line(source, heads, first)}")


def _read_folder(
    folder: Path, labels: LabelSpec, names: tuple[str, ...] | None, leave_out: Path | None, allow_empty: bool
) -> ImageList:
    if labels.kind == "none":
        images = list_images(folder, leave_out=leave_out)
    elif str(labels) == "int":
        names, images = list_classes(folder, names, leave_out=leave_out, allow_empty=allow_empty)
    else:
        raise UsageError(f"{folder} is a folder, whose class folders are the labels: --labels {labels} needs a list")
    lines = [os.fsencode(path if label is None else f"{path} {label}") for path, label in images]
    text = b"".join(line + b"\n" for line in lines)
    return ImageList(text, labels, name=folder.resolve().name, root=folder, classes=names, spans=_spans(lines))


def _spans(lines: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yields number, start and end of each line of a text. The lines may hold line breaks themselves."""
    start = 0
    for number, line in enumerate(lines):
        yield number, start, start + len(line)
        start += len(line) + 1


def _require_list(source: Path) -> None:
    """Refuses what is neither a file nor a pipe."""
    try:
        mode = source.stat().st_mode
    except FileNotFoundError as error:
        if source.is_symlink():
            raise ListError(f"the list {source} is a link to {os.readlink(source)}, which is not there") from error
        raise ListError(
            f"there is no list or image folder {source}. Give a file with one `path label` per line, or a folder with "
            f"one folder of images per class{similar_file(source)}"
        ) from error
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise ListError(f"the list {source} is a device or a socket. Give a file, a pipe or an image folder")

"""Reads a list or an image folder, whatever its form, and files of class names."""

from __future__ import annotations

import os
import shlex
import stat
from itertools import accumulate
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError, UsageError
from packtrain._core.files import file_errors
from packtrain._core.manifest import MANIFEST, PLAN
from packtrain._core.opening import is_stream, open_regular, read_named
from packtrain._core.options import LabelSpec
from packtrain._core.paths import local_path
from packtrain._core.schema import IMAGE
from packtrain._core.suggestions import did_you_mean
from packtrain._storage.remote.urls import Url

from ..foreign.headers import BLOCK, BadArchive, check_sum, compression
from ..listing import Listing
from ..options import Columns
from .blocks import LARGE, LargeText, Text
from .delimited import DelimitedRows, read_heads
from .folder import IMAGE_SUFFIXES, list_classes, list_images
from .image_list import ImageList
from .json_lines import JsonLines, no_objects, require_lines, starts_with_object
from .parquet import ParquetRows, heads_of
from .rows import Rows
from .suggestions import Remedy, command_line, require_utf8
from .tables import Table

_PROGRAMS: Final = (".py", ".pyc", ".ipynb", ".sh")
_LARGEST: Final = 1 << 28


def read_class_names(classes: Path | tuple[str, ...]) -> tuple[str, ...]:
    """Reads a file with one class name per line, in label order, which may be a pipe. Names stay as they are.

    Raises:
        ListError: It cannot be read, or holds no names.
    """
    if isinstance(classes, tuple):
        return classes
    classes = local_path(classes)
    with file_errors(classes, ListError, verb="read the class names"):
        try:
            listed = read_named(classes, _LARGEST).decode("utf-8-sig").strip()
        except FileNotFoundError as error:
            raise ListError(f"there is no file of class names {classes}{similar_file(classes)}") from error
        except UnicodeDecodeError as error:
            raise ListError(
                f"cannot read the class names {classes}: they are not encoded in UTF-8 ({error})"
            ) from error
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


EXPORTED_LIST: Final = "list.jsonl"
"""The list that an export to a folder writes there."""
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
    classes: Path | tuple[str, ...] | None = None,
    by_name: bool = False,
    leave_out: Path | None = None,
    allow_empty: bool = False,
    or_lines: bool = False,
) -> Listing:
    """Reads a list, or lists an image folder (``class/name.jpg``) as torchvision's ImageFolder does.

    Args:
        source: The list, which may be a pipe or /dev/stdin unless it is a Parquet file, or the image folder.
        labels: Type of the labels on each line; int or none for a folder.
        columns: Which columns of the list hold what; None for a list of paths and labels.
        root: Folder that relative paths start from, here or in an object store; None for the folder of the list, or
            the working folder if the list comes through a pipe.
        classes: Class names in label order, or a file with one per line; None if there are none, or if an image folder,
            `by_name` or a column of names gives them.
        by_name: True if the label on each line is the name of a class.
        leave_out: A folder inside the image folder in which nothing is listed.
        allow_empty: True if class folders may be without images.
        or_lines: True to read a text that does not name `columns` as a list of paths and labels.

    Raises:
        ListError: `source` or `classes` cannot be read, or there is nothing to pack.
        UsageError: `source` is a folder, and `labels`, `columns` or `root` does not fit; or the list has no such
            column, or needs `columns`.
        MissingDependency: `source` is a Parquet file, and pyarrow is not installed.
    """
    with file_errors(source, ListError, verb="read the list"):
        names = None if classes is None else read_class_names(classes)
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
        if columns is not None and or_lines and form == "text" and (through or not _names(source, columns)):
            columns = None
        large = not through and form == "text" and columns is None and source.stat().st_size > LARGE
        # A pipe that has no writer yet is waited for, as by any program that reads one.
        text: Text = LargeText(source) if large else b"" if form == "parquet" else source.read_bytes()
        head = text[:_HEAD] if isinstance(text, LargeText) else text
        if through and head.startswith(_PARQUET_MAGIC):
            raise ListError(f"{source} is a Parquet file that comes through a pipe: give the path of the file")
        if through:
            refuse_other_file(source, head[:HEAD_BYTES])
        if form == "json" or (form == "text" and not large and head[:_HEAD].lstrip().startswith(b"[{")):
            require_lines(source, head)
            form = "json lines"
        if form == "text" and starts_with_object(head):
            form = "json lines"
        if columns is None:
            _require_no_columns(source, head, form)
            return ImageList(text, labels, name=name, root=start, classes=names, by_name=by_name, source=source)
        rows = _rows(source, head, form, columns)
        return Table(rows, columns, labels, name=name, root=start, classes=names, by_name=by_name, source=source)


def _rows(source: Path, text: bytes, form: str, columns: Columns) -> Rows:
    if form == "parquet":
        return ParquetRows(source, columns)
    read = JsonLines if form == "json lines" else DelimitedRows
    return read(text, source.name, columns.names)


def _names(source: Path, columns: Columns) -> bool:
    """True if a text names these columns, or has objects for rows."""
    with os.fdopen(open_regular(source), "rb") as file:
        head = file.read(_HEAD)
    try:
        return starts_with_object(head) or set(columns.names) <= set(read_heads(head, source.name, columns.names).names)
    except ListError:
        return False


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
        listed = list_images(folder, leave_out=leave_out)
    elif str(labels) == "int":
        names, listed = list_classes(folder, names, leave_out=leave_out, allow_empty=allow_empty)
    else:
        raise UsageError(f"{folder} is a folder, whose class folders are the labels: --labels {labels} needs a list")
    lines = [os.fsencode(line) for line in listed]
    text = b"".join(line + b"\n" for line in lines)
    # The lines may hold line breaks themselves.
    starts = accumulate((len(line) + 1 for line in lines), initial=0)
    spans = (
        (number, start, start + len(line)) for number, (start, line) in enumerate(zip(starts, lines, strict=False))
    )
    return ImageList(text, labels, name=folder.resolve().name, root=folder, classes=names, spans=spans)


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


HEAD_BYTES: Final = 4096
"""Number of bytes of a file that `refuse_other_file` has to see."""
_LIST: Final = "give a file with one `path label` per line, or a folder with one folder of images per class"
_BINARY: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\x93NUMPY", b"\x80\x04", b"\x80\x05")
"""What images, arrays and pickles begin with, which may have few zero bytes."""
_UNPACK: Final = "index --unpack DIR"
_UNPACKERS: Final = {"gzip": "gunzip", "bzip2": "bunzip2", "xz": "unxz", "zstd": "unzstd"}
_TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_MOST_NULS: Final = 8
"""More of them in the head of a file are no slips in a text."""


def refuse_other_file(source: Path, head: bytes) -> None:
    """Refuses a file that is no list.

    Args:
        source: The file.
        head: Its first `HEAD_BYTES`.

    Raises:
        ListError: It is something else; the message says what to type.
    """
    require_utf8(head, source)
    packed = compression(head)
    if packed in _UNPACKERS and not source.name.lower().endswith(_TARS):
        raise ListError(Remedy(f"{source} is compressed with {packed}", _UNPACKERS[packed]).text(source))
    if found := _what(source, head):
        raise ListError(f"{source} is {found[0]}, not a list: {found[1]}")


def refuse_other_folder(folder: Path) -> None:
    """Refuses a folder that holds shards, and not images, or an export with masks, which are images of no sample.

    Raises:
        ListError: It does; the message says what to type.
    """
    try:
        with os.scandir(os.fspath(folder)) as found:
            entries = [(entry.name.lower(), entry.is_dir()) for entry in found]
    except OSError:
        # Whoever looks for images there says why it cannot be read.
        return
    tars = [name for name, is_folder in entries if name.endswith(_TARS) and not is_folder]
    if tars and not any(is_folder or name.endswith(IMAGE_SUFFIXES) for name, is_folder in entries):
        plain = all(name.endswith(".tar") for name in tars)
        instead = _typed("index" if plain else _UNPACK, folder)
        raise ListError(f"{folder} is a folder of tar archives, not of images: {instead}")
    if (EXPORTED_LIST, False) in entries:
        _refuse_images_beside(folder / EXPORTED_LIST)


def _refuse_images_beside(listing: Path) -> None:
    """Refuses the folder of an export in which samples have further images, such as masks."""
    with os.fdopen(open_regular(listing), "rb") as file:
        heads, first = JsonLines(file.read(_HEAD), listing.name, ()).sample()
    values = zip(heads, first, strict=True)
    if beside := [head for head, value in values if head != IMAGE and value.lower().endswith(IMAGE_SUFFIXES)]:
        raise ListError(
            f"{listing.parent} is an export whose samples have files of {', '.join(beside)} beside their images, which "
            f"would be packed as images of their own: pack its list, as in {command_line(listing, heads, first)}"
        )


def _what(source: Path, head: bytes) -> tuple[str, str] | None:
    """Names what a file is that is no list, and what to do with it; None for a list."""
    packed, found = compression(head), None
    if _is_tar(head):
        found = "a tar archive", _typed("index", source)
    elif packed is not None:
        is_tar = source.name.lower().endswith(_TARS)
        instead = _typed(_UNPACK, source) if is_tar else "decompress it first"
        return f"{'a tar archive ' * is_tar}compressed with {packed}", instead
    elif not head.startswith(_PARQUET_MAGIC) and (head.startswith(_BINARY) or head.count(0) > _MOST_NULS):
        found = "a binary file", _LIST
    if (source.parent / PLAN).exists() and (found is not None or source.name in (MANIFEST, PLAN)):
        return "a part of a packed dataset", _typed("pack", source.parent)
    return found


def _is_tar(head: bytes) -> bool:
    try:
        check_sum(head[:BLOCK], 0)
    except (BadArchive, IndexError):
        return False
    return len(head) >= BLOCK


def _typed(command: str, path: Path) -> str:
    becomes = "packs it once more" if (path / PLAN).exists() else "makes a dataset of it"
    # What comes through a pipe has no name that could be typed.
    name = shlex.quote(os.fspath(path)) if path.is_dir() or path.is_file() else "FILE"
    return f"`packtrain {command} {name} OUT` {becomes}"

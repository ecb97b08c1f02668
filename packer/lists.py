"""Reads a list or an image folder, whatever its form."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError, UsageError
from packtrain._core.files import file_errors
from packtrain._core.options import LabelSpec
from packtrain._core.paths import local_path

from .class_names import read_class_names, similar_file
from .folder import list_classes, list_images
from .image_list import ImageList

_STREAMS: Final = ("/dev", "/dev/fd", "/proc/self/fd")


def read_list(
    source: Path,
    labels: LabelSpec,
    *,
    root: Path | None = None,
    classes: Path | None = None,
    by_name: bool = False,
    leave_out: Path | None = None,
    allow_empty: bool = False,
) -> ImageList:
    """Reads a list, or lists an image folder (``class/name.jpg``) as torchvision's ImageFolder does.

    Args:
        source: The list, which may be a pipe or /dev/stdin, or the image folder.
        labels: Type of the labels on each line; int or none for a folder.
        root: Folder that relative paths start from; None for the folder of the list, or the working folder if the list
            comes through a pipe.
        classes: File with one class name per line, in label order; None if there are no names, or if an image folder or
            `by_name` gives them.
        by_name: True if the label on each line is the name of a class.
        leave_out: A folder inside the image folder in which nothing is listed.
        allow_empty: True if class folders may be without images.

    Raises:
        ListError: `source` or `classes` cannot be read, or there is nothing to pack.
        UsageError: `source` is a folder, and `labels` or `root` does not fit.
    """
    with file_errors(source, ListError, verb="read the list"):
        names = None if classes is None else read_class_names(local_path(classes))
        if source.is_dir():
            if root is not None:
                raise UsageError(f"{source} is a folder, and its images are found there: leave --root out")
            return _read_folder(source, labels, names, leave_out, allow_empty)
        text, is_stream = _read_text(source)
        return ImageList(
            text,
            labels,
            name="data" if is_stream else source.stem,
            root=local_path(root) if root is not None else Path.cwd() if is_stream else source.parent,
            classes=names,
            by_name=by_name,
        )


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


def _read_text(source: Path) -> tuple[bytes, bool]:
    """Returns the content of a list, and whether it came through a pipe or a descriptor, whose name says nothing."""
    try:
        mode = source.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise ListError(f"the list {source} is a device or a socket. Give a file, a pipe or an image folder")
        # A pipe that has no writer yet is waited for, as by any program that reads one.
        return source.read_bytes(), stat.S_ISFIFO(mode) or str(source.parent) in _STREAMS
    except FileNotFoundError as error:
        raise ListError(
            f"there is no list or image folder {source}{similar_file(source)}. Give a file with one `path label` per "
            "line, or a folder with one folder of images per class"
        ) from error

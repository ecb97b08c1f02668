"""Lists an image folder (``class/name.jpg``) as torchvision's ImageFolder does, but loses nothing in silence.

torchvision follows links and passes over what it cannot read. Here, a folder that cannot be read and a loop of links
are errors, because nobody could know which images are missing or how often they would be packed.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.suggestions import did_you_mean
from packtrain._storage.location import identity

TORCHVISION_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The same as torchvision.datasets.folder.IMG_EXTENSIONS."""
OTHER_SUFFIXES: Final = (
    *(".jfif", ".jpe", ".gif", ".avif", ".avifs", ".heic", ".heif", ".jxl", ".jp2", ".j2k", ".jpx"),
    *(".tga", ".pbm", ".pnm", ".dib", ".psd", ".svg"),
)
"""Images to everybody but torchvision. Those that Pillow does not read become rejects."""
IMAGE_SUFFIXES: Final = TORCHVISION_SUFFIXES + OTHER_SUFFIXES

_NAMED: Final = 5
_PARTS: Final = frozenset(
    {"train", "training", "trainval", "val", "valid", "validation", "test", "testing", "dev", "eval", "evaluation"}
)
"""Names of folders that hold a part of a dataset."""
_SIDES: Final = frozenset({"image", "images", "img", "imgs", "label", "labels", "mask", "masks", "annotations"})
"""Names of folders that hold one side of each sample."""


def list_classes(
    folder: Path, known: Sequence[str] | None = None, *, leave_out: Path | None = None, allow_empty: bool = False
) -> tuple[tuple[str, ...], list[str]]:
    """Lists the images in the class folders of `folder`, class by class.

    Args:
        folder: The image folder.
        known: Class names in label order; None to number the class folders in the order of their names.
        leave_out: A folder in which nothing is listed, such as one that is being packed into; it may be missing.
        allow_empty: True if class folders may be without images.

    Returns:
        The class names by label, and a line with path and label of each image, in the order of the folders' names.

    Raises:
        ListError: There are no images; a class folder has none, or is not among `known`; a folder cannot be read; or
            links lead round in a circle.
    """
    walk = _Walk(folder, leave_out)
    found = sorted(name for name, is_folder in walk.top() if is_folder)
    if not found:
        loose = any(is_image_name(name) for name, is_folder in walk.top() if not is_folder)
        raise ListError(
            f"{folder} has images but no class folders. Move them into class folders (class/name.jpg), or pack them "
            "without labels: --labels none"
            if loose
            else f"{folder} has no class folders. Name a folder like class/name.jpg, or a list of `path label` lines"
        )
    names = tuple(found if known is None else known)
    labels = _numbered(folder, names, found)
    images = {name: walk.images(name) for name in found}
    empty = [name for name, paths in images.items() if not paths]
    if len(empty) == len(found):
        raise ListError(f"{folder} has no images in class folders (class/name.jpg)")
    if empty and not allow_empty:
        more = f" and {len(empty) - _NAMED} more" if len(empty) > _NAMED else ""
        raise ListError(
            f"{folder}: class folders without images: {', '.join(empty[:_NAMED])}{more}. Remove them, or number them "
            "as classes all the same with --allow-empty"
        )
    return names, [f"{path} {labels[name]}" for name, paths in images.items() for path in paths]


def list_images(folder: Path, *, leave_out: Path | None = None) -> list[str]:
    """Lists the paths of all images in `folder`. `leave_out` and the errors are as in `list_classes`."""
    if paths := _Walk(folder, leave_out).images(""):
        return paths
    raise ListError(f"{folder} has no images")


def doubt_classes(folder: Path, names: Sequence[str]) -> str | None:
    """Says that class folders look like something else; None if they do not.

    One class among others may well be called ``test``, but not two.

    Args:
        folder: The image folder.
        names: The names of its class folders.
    """
    words = {name: re.sub(r"[\W\d_]+", "", name.casefold()) for name in names}
    parts = [name for name, word in words.items() if word in _PARTS]
    if len(parts) < 2 and not set(words.values()) <= _PARTS | _SIDES:
        return None
    return (
        f"each folder in {folder} is taken for a class, but by name ({', '.join((parts or names)[:_NAMED])}) they are "
        "parts of a dataset, or sides of its samples. Pack each part by itself; a folder of images alone with --labels "
        "none; and images with their masks or labels by a list with a column for each"
    )


def _numbered(folder: Path, names: Sequence[str], found: Sequence[str]) -> dict[str, int]:
    """Returns the label of each name; every class folder in `found` must have one, and only one."""
    labels = {name: label for label, name in enumerate(names)}
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for name in found:
        if name not in labels:
            raise ListError(
                f"class folder {folder / name} is not among the {len(names)} class names. Add it to the file of "
                f"--classes, or move the folder away{did_you_mean(name, names)}"
            )
        if name in repeated:
            raise ListError(f"class folder {folder / name}: the file of --classes has this name more than once")
    return labels


class _Walk:
    """Finds images in a folder, except in `leave_out`."""

    def __init__(self, folder: Path, leave_out: Path | None) -> None:
        self._folder = os.fspath(folder)
        self._here = _identity(self._folder)
        self._leave_out = _identity(leave_out) if leave_out is not None and leave_out.exists() else None

    def top(self) -> list[tuple[str, bool]]:
        """Returns the name of everything directly in the folder, and whether that is a folder."""
        return [
            (name, is_folder)
            for name, path, is_folder in _scan(self._folder)
            if not (is_folder and _identity(path) == self._leave_out)
        ]

    def images(self, name: str) -> list[str]:
        """Returns the images below the folder called `name`, as torchvision orders them, relative to the top."""
        start = os.path.join(self._folder, name) if name else self._folder
        found: list[tuple[str, list[str]]] = []
        # Each folder that is still to be read, with all folders that it is in.
        pending: list[tuple[str, tuple[object, ...]]] = [(start, (self._here,) if name else ())]
        while pending:
            path, above = pending.pop()
            here = _identity(path)
            if here == self._leave_out:
                continue
            if here in above:
                raise ListError(f"{path} leads back to a folder that it is in, so its images have no end. Remove it")
            files = []
            for child, child_path, is_folder in _scan(path):
                if is_folder:
                    pending.append((child_path, (*above, here)))
                elif is_image_name(child):
                    files.append(child)
            found.append((path, sorted(files)))
        cut = len(os.path.join(self._folder, ""))
        return [os.path.join(path, file)[cut:] for path, files in sorted(found) for file in files]


def _scan(path: str) -> list[tuple[str, str, bool]]:
    """Returns name and path of everything in a folder, and whether that is a folder or a link to one."""
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.path, _is_folder(entry)) for entry in entries]
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if not entry.is_symlink():
        return entry.is_dir()
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except OSError as error:
        if is_image_name(entry.name):
            # Becomes a reject when it is read.
            return False
        raise ListError(
            f"{entry.path} is a link that leads nowhere ({error.strerror}): it may stand for a folder of images. "
            "Mend it or remove it"
        ) from error


def _identity(path: str | Path) -> object:
    """The identity of a folder, whatever path leads to it."""
    try:
        return identity(Path(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def is_image_name(name: str) -> bool:
    """True for the name of an image file."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def _unreadable(path: str | Path, error: OSError) -> ListError:
    return ListError(
        f"cannot read the folder {os.fspath(path)}: {error.strerror}. Nobody knows which images are in it: make it "
        "readable, or move it away"
    )

"""Files of class names: one name per line, in label order."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from packtrain._core.errors import ListError
from packtrain._core.opening import read_named
from packtrain._core.suggestions import did_you_mean

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

"""Paths of this machine, as opposed to addresses of remote data."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import UsageError


def is_url(path: str) -> bool:
    """Returns True if `path` begins like a URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def local_path(path: str | os.PathLike[str]) -> Path:
    """Returns `path` as a Path, unless it is a URL such as ``s3://bucket/train``.

    Raises:
        UsageError: It is empty, holds a NUL byte, or is a URL. That includes one that went through a `Path`, which
            takes a slash away (``s3:/bucket/train``).
    """
    text = os.fspath(path)
    if not text:
        raise UsageError("a path is empty: `.` is the working folder")
    if "\0" in text:
        raise UsageError(f"{text!r} is not a path: it holds a NUL byte")
    if not is_url(text):
        return Path(path)
    if text.lower().startswith("file:"):
        raise UsageError(f"{text} is a URL: give the path alone, without file:")
    url = re.sub(":/+", "://", text, count=1)
    raise UsageError(
        f"{url} is a URL, and packtrain reads and writes only files of this machine: copy the data to a local or "
        "mounted disk, and give the path there"
    )

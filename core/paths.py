"""Paths of this machine, as opposed to addresses of remote data."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final

from .errors import UsageError

STORES: Final = ("s3", "gs", "az", "http", "https")
"""Schemes of the addresses that packtrain can read."""


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
    # Without what may be a credential.
    url = re.sub("://[^/]*@", "://", re.sub(":/+", "://", text, count=1)).partition("?")[0]
    if text.partition(":")[0].lower() not in STORES:
        known = ", ".join(f"{each}://" for each in STORES)
        raise UsageError(f"{url} is a URL of a kind that packtrain does not read: it reads files, and {known}")
    raise UsageError(
        f"{url} is a URL, but this has to be a path of this machine. `packtrain stage {shlex.quote(url)} --to DIR` "
        "makes a local copy of a packed dataset; copy anything else with the store's own programs, as `aws s3 cp`"
    )

"""Paths of this machine, as opposed to addresses of remote data."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from .errors import UsageError
from .stores import KINDS, known_schemes


def is_url(path: str) -> bool:
    """Returns True if `path` begins like a URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def is_address(text: str) -> bool:
    """Returns True if a text is meant as the address of an object, not as a path."""
    text = text.lstrip()
    return is_url(text) and text.partition(":")[0].lower() in KINDS


def is_hub_address(text: str) -> bool:
    """Returns True if a text is meant as the address of a dataset on the Hugging Face Hub."""
    return text.lstrip().lower().startswith("hf:/")


def without_credentials(url: str) -> str:
    """Returns a URL without what may be a credential: a name before ``@``, a query, a fragment.

    In a key of a store that packtrain writes to, ``?`` and ``#`` are letters like any other. What is no URL stays.
    """
    if not is_url(url):
        return url
    scheme, slashes, rest = re.split(r"(?<=:)(/+)", url, maxsplit=1)
    host, slash, path = rest.partition("/")
    # A password may hold a slash, and then what looks like the port is no number.
    if "@" in path and not re.fullmatch(r"([^:]*|\[.*\])(:\d*)?", host.rpartition("@")[2]):
        host, slash, path = rest.rpartition("@")[2].partition("/")
    host = re.split(r"[?#]", host.rpartition("@")[2], maxsplit=1)[0]
    kind = KINDS.get(scheme[:-1].lower())
    if kind is None or not kind.writable:
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    return f"{scheme}{slashes}{host}{slash}{path}"


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
    url = re.sub(":/+", "://", without_credentials(text), count=1)
    if text.lower().startswith("file:"):
        raise UsageError(f"{url} is a URL: give the path alone, without file:")
    if not is_address(text):
        raise UsageError(
            f"{url} is a URL of a kind that packtrain does not read: it reads files, and {known_schemes()}"
        )
    raise UsageError(
        f"{url} is a URL, but this has to be a path of this machine. `packtrain stage {shlex.quote(url)} --to DIR` "
        "makes a local copy of a packed dataset; copy anything else with the store's own programs, as `aws s3 cp`"
    )

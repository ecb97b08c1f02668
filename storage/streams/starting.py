"""Starts the fetcher of a cache, detached from whoever needs it."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from packtrain._core.launching import NotBegun, launch

from ..remote.urls import Url
from .entry import LOG, MOST_LOG

BUCKET: Final = "packtrain._storage.remote.bucket:patient_bucket"
"""What makes a fetcher's object store, unless a test has another."""
START_SECONDS: Final = 60.0
_MAIN: Final = "packtrain._storage.streams.fetcher:main"
_LOG_SHOWN: Final = 500
_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_")


def digest_of_access(url: Url) -> str:
    """Tells processes apart that read from another address, or with other credentials: eight hex digits.

    It does not say what the credentials are.
    """
    named = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return hashlib.sha256(repr((str(url), named)).encode("utf-8", "surrogateescape")).hexdigest()[:8]


def start_fetcher(entry: Path, objects: str) -> dict[str, Any]:
    """Starts a fetcher, detached from this process. Returns what it says: ``ok``, ``busy``, or an error.

    It has the environment of this process, and with it the credentials for the object store, which go nowhere else.

    Raises:
        NotBegun: It says nothing.
    """
    job = json.dumps({"entry": os.fspath(entry), "objects": objects}).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(entry / LOG, flags, 0o600)
    try:
        if os.fstat(log).st_size > MOST_LOG:
            os.ftruncate(log, 0)
        return launch(_MAIN, job, detached=True, output=log, seconds=START_SECONDS)[1]
    except NotBegun as error:
        raise NotBegun(f"the fetcher of {entry} did not begin: {error}. {last_words(entry)}") from None
    finally:
        os.close(log)


def last_words(entry: Path) -> str:
    """The end of the fetcher's log."""
    with suppress(OSError):
        text = (entry / LOG).read_text(errors="replace").strip()
        if len(text) > _LOG_SHOWN:
            # Whole lines, unless a single one is longer.
            text = text[-_LOG_SHOWN:]
            text = text.partition("\n")[2] or text
        if text:
            return f"The end of {entry / LOG}: {text}"
    return f"{entry / LOG} may say why"

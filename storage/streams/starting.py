"""Starts the fetcher of a cache, detached from whoever needs it."""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from packtrain._core.interrupts import postponed_ctrl_c

from ..remote.urls import Url
from .entry import LOG, MOST_LOG

BUCKET: Final = "packtrain._storage.remote.bucket:patient_bucket"
"""What makes a fetcher's object store, unless a test has another."""
START_SECONDS: Final = 60.0
# Not multiprocessing, which would import the user's main program in the new process. The first process ends at once,
# so that the fetcher is nobody's child.
_PROGRAM: Final = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); os.chdir('/'); import json; "
    "sys.path[:] = json.loads(sys.argv[2]); from packtrain._storage.streams.fetcher import main; main(int(sys.argv[1]))"
)
_LOG_SHOWN: Final = 500
_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_")


def digest_of_access(url: Url) -> str:
    """Tells processes apart that read from another address, or with other credentials: eight hex digits.

    It does not say what the credentials are.
    """
    named = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return hashlib.sha256(repr((str(url), named)).encode("utf-8", "surrogateescape")).hexdigest()[:8]


class NotBegun(Exception):
    """A fetcher was killed, or broke down, before it could say anything."""


def start_fetcher(entry: Path, objects: str) -> dict[str, Any]:
    """Starts a fetcher, detached from this process. Returns what it says: ``ok``, ``busy``, or an error.

    It has the environment of this process, and with it the credentials for the object store, which go nowhere else.

    Raises:
        NotBegun: It says nothing.
    """
    ours, theirs = os.pipe()
    path = json.dumps([os.path.abspath(folder) for folder in sys.path])
    job = json.dumps({"entry": os.fspath(entry), "objects": objects})
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(entry / LOG, flags, 0o600)
    try:
        if os.fstat(log).st_size > MOST_LOG:
            os.ftruncate(log, 0)
        with postponed_ctrl_c():
            subprocess.run(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs), path],
                input=job.encode(),
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                check=False,
            )
        os.close(theirs)
        theirs = -1
        # Not select.select, which refuses descriptors above 1023.
        answers = select.poll()
        answers.register(ours, select.POLLIN)
        ready = answers.poll(START_SECONDS * 1000)
        data = os.read(ours, 1 << 16) if ready else b""
    finally:
        os.close(ours)
        os.close(log)
        if theirs >= 0:
            os.close(theirs)
    if not data:
        how = "ended before it began" if ready else f"did not begin within {START_SECONDS:.0f} s"
        raise NotBegun(f"the fetcher of {entry} {how}. {last_words(entry)}")
    found: dict[str, Any] = json.loads(data)
    return found


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

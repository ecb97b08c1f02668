"""An object store that is a folder, with faults that tests ask for: what the fetcher of a cache reads in tests.

It is made in the fetcher's process, so what it is to do comes from the folder that `STORE` in the environment names:
objects lie in it by bucket and key, ``faults.json`` says what goes wrong, and ``reads`` lists every ranged read.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, TextIO

from helpers.staging.remote import FolderObjects
from typing_extensions import override

from packtrain._core.errors import Denied, RemoteError
from packtrain._storage.remote.urls import Url
from packtrain._storage.streams import server

STORE = "PACKTRAIN_TEST_STORE"
SPEC = "helpers.local_objects:LocalObjects"


class LocalObjects(FolderObjects):
    """Objects in the folder that `STORE` names."""

    def __init__(self) -> None:
        super().__init__(Path(os.environ[STORE]))
        self.lists = True
        if (self.folder / "impatient").exists():
            # Of the fetcher that this object store is for.
            server.IDLE_SECONDS = 1.0  # type: ignore[misc]
        if (deaths := self.folder / "deaths").exists() and (left := deaths.stat().st_size):
            # A fetcher that is killed before it can say anything, as often as there are bytes.
            os.truncate(deaths, left - 1)
            os.kill(os.getpid(), signal.SIGKILL)

    @override
    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        self._note(f"{url.name} {offset} {len(view)}")
        data = bytearray(self.found("read_into", url).read_bytes()[offset : offset + len(view)])
        if os.environ.get("AWS_SESSION_TOKEN", "") != self._token():
            raise Denied(f"{url}: the credentials have expired")
        match self._fault(url.name):
            case "wrong":
                data[min(100, len(data) - 1)] ^= 1  # of the first record
            case "wrong after all":
                data[min(101, len(data) - 1)] ^= 1
            case "short":
                raise RemoteError(f"{url}: {len(data) // 2} bytes arrived of {len(data)}")
            case "shifted":
                data = data[1:] + data[:1]
            case "zeros":
                data = bytearray(len(data))
            case "error":
                raise RemoteError(f"{url} cannot be read: 503 SlowDown")
            case "bug":
                raise ZeroDivisionError("a mistake")
            case "slow":
                time.sleep(0.3)
            case "stall":
                while not (self.folder / "go").exists():
                    time.sleep(0.01)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if len(data) != len(view):
            raise RemoteError(f"{url}: {len(data)} bytes arrived of {len(view)}")
        view[:] = data

    def _token(self) -> str:
        """The only token that is good; none if the store is open to everybody."""
        path = self.folder / "token"
        return path.read_text() if path.exists() else os.environ.get("AWS_SESSION_TOKEN", "")

    def _note(self, line: str) -> None:
        with (self.folder / "reads").open("a") as file:
            file.write(line + "\n")

    def _fault(self, name: str) -> str | None:
        """The next fault for an object of this name; it is used up."""
        path = self.folder / "faults.json"
        if not path.exists():
            return None
        with path.open("r+") as file:
            faults = _locked(file, fcntl.LOCK_EX)
            for fault in faults:
                if fault["times"] and fault["name"] in ("", name):
                    fault["times"] -= 1
                    file.seek(0)
                    file.truncate()
                    json.dump(faults, file)
                    return str(fault["kind"])
        return None


class Store:
    """The tests' side of the folder.

    Args:
        folder: The folder; `STORE` must name it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fault(self, kind: str, times: int = 1, name: str = "") -> None:
        """The next `times` ranged reads, of any object or of one, go wrong."""
        with (self.folder / "faults.json").open("a+") as file:
            faults = _locked(file, fcntl.LOCK_EX)
            file.truncate(0)
            json.dump([*faults, {"kind": kind, "times": times, "name": name}], file)

    def waiting(self) -> bool:
        """True if something is still to go wrong."""
        path = self.folder / "faults.json"
        if not path.exists():
            return False
        with path.open() as file:
            return any(fault["times"] for fault in _locked(file, fcntl.LOCK_SH))

    def sound(self) -> None:
        """Nothing goes wrong any more."""
        (self.folder / "faults.json").unlink(missing_ok=True)

    def reads(self) -> list[tuple[str, int, int]]:
        """All ranged reads until now: name, offset and size."""
        path = self.folder / "reads"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, int(offset), int(size)) for name, offset, size in map(str.split, lines)]


def _locked(file: TextIO, how: int) -> list[dict[str, Any]]:
    """The faults in a file, which nobody else changes until it is closed."""
    fcntl.flock(file, how)
    file.seek(0)
    faults: list[dict[str, Any]] = json.loads(file.read() or "[]")
    return faults

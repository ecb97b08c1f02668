"""A process's connections to the fetcher of a cache, which is started if there is none.

*Who starts a dead fetcher.* Whoever notices: a process that asks, whose connection ends, or a rank that says where it
is. It takes ``fetcher.start``, so that only one process does. Then all say again what they want, since the fetcher
knows nothing but what its clients tell.

*Forks.* Connections belong to the process that made them. A forked process closes its copies, so that the fetcher
notices when the parent dies, and makes its own when it needs one. Threads that wait at the same time have a connection
each.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from packtrain._core.errors import Denied, NotThere, PacktrainError, RemoteError, StagingError
from packtrain._core.errors_as_json import error_from_json
from packtrain._core.files import file_errors
from packtrain._core.forks import call_in_forked
from packtrain._core.launching import NotBegun, launch
from packtrain._core.locks import Lock, lock_holders
from packtrain._core.opening import closing_descriptor

from ..remote.urls import Url
from ..staging.documents import write_origin
from ..staging.folder import Folder
from .layout import LOCK, LOG, MOST_LOG, START, address_in, peer
from .protocol import Ask, Done, Hello, LineBuffer, Ping, Request, digest_of_access, request_line

BUCKET: Final = "packtrain._storage.remote.bucket:patient_bucket"
"""The factory of a fetcher's object store, unless a test has another."""
_MAIN: Final = "packtrain._storage.streams.fetcher:main"
_START_SECONDS: Final = 60.0
_LOG_SHOWN: Final = 500
_LOOK_SECONDS: Final = 0.2
"""Seconds after which a waiting client is asked again to let go of chunks that have gone."""
_PING_SECONDS: Final = 5.0
_SILENT_SECONDS: Final = 30.0
"""A fetcher that does not even answer a ping for so long hangs."""
_MOST_DEATHS: Final = 5
"""The most fetchers that may die over one question."""
_PAUSE_SECONDS: Final = 0.05
_TIMEVAL: Final = struct.Struct("@ll")


class Connections:
    """This process's connections to a fetcher, which is started if there is none.

    Args:
        entry: Folder of the cache.
        url: Address of the dataset, from which a fetcher that is started here fetches.
        budget: Bytes that the cache may take.
        check: Whether this process compares checksums.
        objects: What makes the object store of the fetcher, ``"MODULE:NAME"``.
    """

    def __init__(self, entry: Path, url: Url, budget: int, check: bool, objects: str) -> None:
        self._entry = entry
        self._url = url
        self._budget = budget
        self._check = check
        self._objects = objects
        self._idle = list[Connection]()
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        call_in_forked(self._forked)

    @contextmanager
    def ticket(self, request: Ask, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Asks for a chunk, and makes sure that it does not go as long as the context lasts.

        Args:
            request: The question.
            meanwhile: Called again and again until the answer comes.
        """
        connection = self._ask(request, meanwhile)[0]
        try:
            yield
        finally:
            self.say(Done(), connection)

    def asked(self, request: Request) -> dict[str, Any]:
        """The answer to a question."""
        connection, answer = self._ask(request)
        self._idle.append(connection)
        return answer

    def say(self, request: Request, connection: Connection | None = None) -> None:
        """Send a request to which there is no answer, over a connection that is idle afterwards."""
        connection = connection or self._connection()
        try:
            connection.send(request)
        except OSError:
            connection.close()
        else:
            self._idle.append(connection)

    def kept(self, request: Request) -> Connection:
        """A connection for what lasts as long as that, after the answer to the first message."""
        return self._ask(request)[0]

    def close(self) -> None:
        """Close all connections that nobody uses."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _forked(self) -> None:
        """Closes this process's copies of its parent's connections."""
        for connection in list(self._all):
            connection.close()
        self._idle = []
        self._all = weakref.WeakSet()

    def _ask(self, request: Request, meanwhile: Callable[[], None] = lambda: None) -> tuple[Connection, dict[str, Any]]:
        refused = False
        for death in range(_MOST_DEATHS):
            connection = self._connection()
            try:
                return connection, connection.ask(request, meanwhile)
            except (Denied, NotThere):
                # The fetcher has credentials and address of the process that started it. It makes way for one with
                # those of this process if a new connection brings others.
                connection.close()
                self.close()
                if refused:
                    raise
                refused = True
            except (OSError, EOFError) as error:
                connection.close()
                # All others are as dead as this one.
                self.close()
                if death == _MOST_DEATHS - 1:
                    last = last_words(self._entry)
                    raise RemoteError(
                        f"the fetcher of {self._entry} has died {_MOST_DEATHS} times in a row. {last}"
                    ) from error
            except BaseException as error:
                if isinstance(error, PacktrainError) and not connection.closed:
                    self._idle.append(connection)
                else:
                    connection.close()
                raise
        raise AssertionError

    def _connection(self) -> Connection:
        with suppress(IndexError):
            return self._idle.pop()
        until, deaths = time.monotonic() + _START_SECONDS, 0
        while time.monotonic() < until:
            try:
                connection = self._connected() or self._started()
            except NotBegun as error:
                deaths += 1
                if deaths == _MOST_DEATHS or time.monotonic() >= until:
                    raise RemoteError(str(error)) from None
                continue
            if connection is not None:
                return connection
        raise RemoteError(f"there is no fetcher for {self._entry}, and none stays. {last_words(self._entry)}")

    def _connected(self) -> Connection | None:
        """A connection to the fetcher; None if there is none."""
        connection = Connection(self._entry)
        # Now, since this process may be forked at any time.
        self._all.add(connection)
        try:
            connection.connect()
            # The environment may have changed since the last connection.
            connection.ask(Hello(self._budget, self._check, digest_of_access(self._url)))
        except (FileNotFoundError, ConnectionError, EOFError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def _started(self) -> Connection | None:
        """A connection to a fetcher that this process has started, or that another has just started."""
        if not self._entry.is_dir():
            raise StagingError(f"somebody has removed {self._entry}: open the dataset again")
        with file_errors(self._entry, StagingError, verb="start a fetcher in"), Lock(self._entry / START):
            if (connection := self._connected()) is not None:
                return connection
            # Copies of a dataset share a cache: the last process that opened one may have had another address.
            write_origin(Folder.open(self._entry), self._url)
            answer = start_fetcher(self._entry, self._objects)
            if "error" in answer:
                raise error_from_json(answer)
            if "busy" in answer:
                # One that is about to end, or that somebody has just killed.
                time.sleep(_PAUSE_SECONDS)
            return self._connected()


def start_fetcher(entry: Path, objects: str) -> dict[str, Any]:
    """Starts a fetcher, detached from this process. Returns what it says: ``ok``, ``busy``, or an error.

    It has the environment of this process, and with it the credentials for the object store, which go nowhere else.

    Raises:
        NotBegun: It says nothing.
    """
    job = json.dumps({"entry": os.fspath(entry), "objects": objects}).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with closing_descriptor(os.open(entry / LOG, flags, 0o600)) as log:
        if os.fstat(log).st_size > MOST_LOG:
            os.ftruncate(log, 0)
        try:
            return launch(_MAIN, job, detached=True, output=log, seconds=_START_SECONDS)[1]
        except NotBegun as error:
            raise NotBegun(f"the fetcher of {entry} did not begin: {error}. {last_words(entry)}") from None


def last_words(entry: Path) -> str:
    """The end of the fetcher's log."""
    with suppress(OSError):
        if text := (entry / LOG).read_text(errors="replace").strip()[-_LOG_SHOWN:]:
            return f"The end of {entry / LOG}: {text}"
    return f"{entry / LOG} may say why"


class Connection:
    """A connection to a fetcher."""

    def __init__(self, entry: Path) -> None:
        self._entry = entry
        self._socket = socket.socket(socket.AF_UNIX)
        self._end = weakref.finalize(self, self._socket.close)
        self._received = LineBuffer()

    @property
    def closed(self) -> bool:
        """True once it is closed."""
        return not self._end.alive

    def connect(self) -> None:
        """Connects.

        Raises:
            RemoteError: The fetcher takes no connection, or belongs to somebody else.
            OSError: There is none.
        """
        # Not settimeout: a socket with a time limit does not wait at all if too many others wait to be accepted.
        limit = _TIMEVAL.pack(int(_SILENT_SECONDS), int(_SILENT_SECONDS % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        folder = Folder.open(self._entry)
        try:
            self._socket.connect(address_in(folder))
        except BlockingIOError:
            raise self._silence(lock_holders((self._entry / LOCK).stat()), _SILENT_SECONDS) from None
        if peer(self._socket)[1] != os.geteuid():
            raise RemoteError(f"the fetcher of {self._entry} belongs to somebody else: find out who started it")

    def send(self, request: Request) -> None:
        """Sends a request."""
        self._socket.settimeout(_SILENT_SECONDS)
        self._socket.sendall(request_line(request))

    def ask(self, request: Request, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Sends a question and waits for its answer.

        Raises:
            PacktrainError: The answer is an error, or the fetcher hangs.
            EOFError: The fetcher has ended.
            OSError: The fetcher has ended.
        """
        self.send(request)
        heard = pinged = time.monotonic()
        while True:
            meanwhile()
            answer = self._next()
            now = time.monotonic()
            if answer is None:
                if now - heard > _SILENT_SECONDS:
                    raise self._silence(peer(self._socket)[:1], now - heard)
                if now - pinged > _PING_SECONDS:
                    pinged = now
                    self.send(Ping())
                continue
            heard = now
            if "pong" in answer or "gone" in answer:
                continue
            if "error" in answer:
                raise error_from_json(answer)
            return answer

    def close(self) -> None:
        """Closes it."""
        self._end()

    def _silence(self, pids: tuple[int, ...], seconds: float) -> RemoteError:
        """Closes the connection, over which an answer may still come. Returns the error."""
        self.close()
        who = f" (process {', '.join(map(str, pids))})" if pids else ""
        return RemoteError(
            f"the fetcher of {self._entry}{who} has not said anything for {seconds:.0f} s. If it hangs, end it; the "
            "next process that needs it starts another"
        )

    def _next(self) -> dict[str, Any] | None:
        """The next message; None if none comes within `_LOOK_SECONDS`."""
        while (line := self._received.next()) is None:
            self._socket.settimeout(_LOOK_SECONDS)
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not data:
                raise EOFError
            self._received.add(data)
        found: dict[str, Any] = json.loads(line)
        return found

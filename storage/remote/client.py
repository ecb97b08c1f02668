"""Object stores for a process that may fork: a service process does the work."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final

from packtrain._core.errors import RemoteError
from packtrain._core.errors_as_json import error_from_json
from packtrain._core.forks import call_in_forked
from packtrain._core.launching import Launched
from packtrain._core.opening import closing_descriptor
from packtrain._core.overriding import override

from .objects import Head, ListedObject, Objects, not_installed
from .service import BLOCK
from .urls import Url

_MAIN: Final = "packtrain._storage.remote.service:main"


class ObjectStore(Objects):
    """`Objects` through a process of its own, which is started when it is first needed, and again if it has died.

    It ends with this object, and with the process that made it. `close` ends it at once: what other threads are waiting
    for raises RemoteError, and so does whatever is asked for later. In a forked process, this object starts a service
    of that process's own. Each thread has its own connection, so requests of several threads run side by side.

    Args:
        patient: True if the store is known to have answered, to another process, and is worth waiting for; see
            `packtrain._storage.remote.bucket.Bucket`.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._lock = threading.Lock()
        self._service: _Service | None = None
        self._local = threading.local()
        self._closed = False
        call_in_forked(self._forked)

    @override
    def head(self, url: Url) -> Head:
        return Head(*self._asked("head", url))

    @override
    def read(self, url: Url, most: int) -> bytes:
        return bytes(self._asked("read", url, most))

    @override
    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        for start in range(0, len(view), BLOCK):
            part = view[start : start + BLOCK]
            self._asked("read_into", url, offset + start, len(part))
            part[:] = self._local.channel.memory[: len(part)]

    @override
    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        return int(self._asked("copy_into", url, offset, size, descriptor=descriptor))

    @override
    def checksum(self, url: Url) -> int:
        return int(self._asked("checksum", url))

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        for found in self._asked("list", url):
            yield ListedObject(*found)

    @override
    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        return bool(self._asked("write", url, new, data=data))

    @override
    def upload(self, url: Url, path: Path) -> None:
        # Errors of the file itself come from Python.
        path.open("rb").close()
        self._asked("upload", url, os.path.abspath(path))

    @override
    def remove(self, url: Url) -> None:
        self._asked("remove", url)

    @override
    def close(self) -> None:
        with self._lock:
            self._closed = True
            service, self._service = self._service, None
        if service is not None:
            service.close()

    def _asked(
        self, member: str, url: Url, *arguments: object, data: bytes | None = None, descriptor: int | None = None
    ) -> Any:
        """Have the service call a member of its `Bucket`. Returns the result."""
        request = {"do": member, "url": [url.scheme, url.bucket, url.key], "arguments": arguments}
        for again in (False, True):
            channel = self._channel()
            try:
                answer = channel.ask({**request, "again": again}, data, descriptor)
                break
            except (EOFError, OSError):
                # The service was killed. Every request can be made again.
                how = self._lost(channel)
            except BaseException:
                # Ctrl-C, for example: what is still to come answers this request, not the next one.
                self._local.channel = None
                raise
        else:
            raise RemoteError(f"{url}: the process that reads and writes object stores ended twice; the last one {how}")
        if "error" in answer:
            raise error_from_json(answer)
        self._patient = True
        if "errno" in answer:
            raise OSError(answer["errno"], answer["message"])
        return answer["value"]

    def _channel(self) -> _Channel:
        channel: _Channel | None = getattr(self._local, "channel", None)
        with self._lock:
            if self._closed:
                raise RemoteError("the connection to object stores has been closed")
            if self._service is None:
                self._service = _Service(self._patient)
            if channel is None or channel.service is not self._service:
                channel = self._local.channel = self._service.connect()
        return channel

    def _lost(self, channel: _Channel) -> str:
        """Forgets a service that has ended. Returns how it ended."""
        with self._lock:
            if self._service is channel.service:
                self._service = None
        return channel.service.bury()

    def _forked(self) -> None:
        # The parent's service is the parent's: this process closes its copies of the descriptors, and starts another.
        self._lock = threading.Lock()
        self._local = threading.local()
        service, self._service = self._service, None
        if service is not None:
            service.forget()


class _Service:
    """A service process."""

    def __init__(self, patient: bool) -> None:
        if find_spec("obstore") is None:
            raise not_installed()
        self._control, theirs = socket.socketpair()
        self._end = weakref.finalize(self, self._control.close)
        job = json.dumps({"patient": patient}).encode()
        with theirs:
            self._process = Launched(_MAIN, theirs.fileno(), job, stdout=subprocess.DEVNULL)
        self._channels: weakref.WeakSet[_Channel] = weakref.WeakSet()

    def connect(self) -> _Channel:
        channel = _Channel(self, self._control)
        self._channels.add(channel)
        return channel

    def close(self) -> None:
        """Ends the process."""
        self._process.close()
        self._end()

    def bury(self) -> str:
        """Ends the process, which does not answer any more, and returns how it ended."""
        self._process.ended(1)
        self.close()
        # Another thread may have been first to close it, and may still wait for the process.
        return self._process.ended(None) or ""

    def forget(self) -> None:
        """Closes the descriptors in a forked process."""
        self._end()
        for channel in self._channels:
            channel.connection.close()


class _Channel:
    """A connection to a service, and the memory that it shares with it."""

    def __init__(self, service: _Service, control: socket.socket) -> None:
        self.service = service
        ours, theirs = socket.socketpair()
        with closing_descriptor(os.memfd_create("packtrain-objects", os.MFD_CLOEXEC)) as memory:
            os.ftruncate(memory, BLOCK)
            self.memory = memoryview(mmap.mmap(memory, BLOCK))
            with theirs, suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(control, [b"\0"], [theirs.fileno(), memory])
        self.connection = Connection(ours.detach())

    def ask(self, request: Mapping[str, Any], data: bytes | None, descriptor: int | None) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            EOFError: The service has ended.
            OSError: The service has ended.
        """
        self.connection.send_bytes(json.dumps(request).encode())
        if data is not None:
            self.connection.send_bytes(data)
        if descriptor is not None:
            send_handle(self.connection, descriptor, None)
        answer: dict[str, Any] = json.loads(self.connection.recv_bytes())
        if answer.pop("bytes", False):
            answer["value"] = self.connection.recv_bytes()
        return answer

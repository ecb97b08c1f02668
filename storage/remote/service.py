"""The process that reads and writes objects for one that may fork: obstore's threads do not survive a fork.

It is started by `ObjectStore`. Each connection is served by a thread of its own, one request after the other. A request
is a JSON object, which data may follow as a second message; an answer is a JSON object, which data may follow, too. The
bytes of a ranged read do not pass through the connection, but through memory that the client shares with it; or they go
to a file whose descriptor the client sends.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any, Final

from packtrain._core.errors_as_json import error_to_json

from .objects import Objects
from .urls import Url

BLOCK: Final = 16 << 20
"""Bytes of memory that each connection shares with its client: a ranged read gets at most so many at a time."""
LISTED: Final = 1000
"""Objects in one message of a listing."""


def main(control: int, job: bytes) -> None:
    """Serves until the client closes its end of `control`, a socket over which it sends connections.

    Args:
        control: Descriptor of the socket. Each message on it comes with two more: a connection and its shared memory.
        job: Arguments of `Bucket`.
    """
    # Only here, since the client imports this module, too.
    from .bucket import Bucket

    objects = Bucket(**json.loads(job))
    with socket.socket(fileno=control) as accepted:
        while True:
            _, descriptors, _, _ = socket.recv_fds(accepted, 1, 2)
            if not descriptors:
                # Not a normal end: threads may be in the middle of a request that nobody waits for any more.
                os._exit(0)
            connection, memory = descriptors
            arguments = Connection(connection), mmap.mmap(memory, BLOCK), objects
            os.close(memory)
            threading.Thread(target=_serve_connection, args=arguments, daemon=True).start()


def _serve_connection(connection: Connection, memory: mmap.mmap, objects: Objects) -> None:
    with connection, memory, memoryview(memory) as view:
        while True:
            try:
                request = json.loads(connection.recv_bytes())
                _answer(connection, view, objects, request)
            except (EOFError, ConnectionError):
                return


def _answer(connection: Connection, view: memoryview, objects: Objects, request: Mapping[str, Any]) -> None:
    data = b""
    # Before anything can fail, so that what comes next is a request.
    descriptor = recv_handle(connection) if request["do"] == "copy_into" else None
    try:
        url = Url(*request["url"])
        value: Any = None
        match request["do"]:
            case "size" | "checksum" | "head" | "remove" as verb:
                value = getattr(objects, verb)(url)
            case "read":
                data = objects.read(url, request["most"])
            case "read_into":
                objects.read_into(url, request["offset"], view[: request["size"]])
            case "copy_into":
                assert descriptor is not None
                value = _copied(objects, url, request, descriptor)
            case "write":
                content = connection.recv_bytes()
                value = objects.write(url, content, new=request["new"])
                if not value and request["again"]:
                    # The process that was asked first may have written it before it ended.
                    value = objects.size(url) == len(content) and objects.read(url, len(content)) == content
            case "upload":
                objects.upload(url, Path(request["path"]))
            case "list":
                found: list[tuple[str, int]] = []
                for each in objects.list(url):
                    found.append(each)
                    if len(found) == LISTED:
                        _send(connection, {"found": found})
                        found = []
                value = found
    except Exception as error:
        _send(connection, error_to_json(error))
        return
    finally:
        if descriptor is not None:
            os.close(descriptor)
    _send(connection, {"value": value})
    if request["do"] == "read":
        connection.send_bytes(data)


def _copied(objects: Objects, url: Url, request: Mapping[str, Any], descriptor: int) -> dict[str, Any]:
    """Copies a range to a file. What is wrong with the file is for the client to say, who knows its name."""
    try:
        return {"crc32c": objects.copy_into(url, request["offset"], request["size"], descriptor)}
    except OSError as error:
        return {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}


def _send(connection: Connection, answer: Mapping[str, Any]) -> None:
    connection.send_bytes(json.dumps(answer).encode())

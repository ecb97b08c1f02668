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


def main(control: int, job: bytes) -> None:
    """Serve until the client closes its end of `control`, a socket over which it sends connections.

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


def _answer(connection: Connection, memory: memoryview, objects: Objects, request: Mapping[str, Any]) -> None:
    # Before anything can fail, so that what comes next is a request.
    data = connection.recv_bytes() if request["do"] == "write" else b""
    descriptor = recv_handle(connection) if request["do"] == "copy_into" else None
    answer: dict[str, Any]
    try:
        answer = {"value": _result(objects, request, memory, data, descriptor)}
    except OSError as error:
        # What is wrong with a file is for the client to say, who knows its name.
        answer = {"errno": error.errno or errno.EIO, "message": error.strerror or str(error)}
    except Exception as error:
        answer = error_to_json(error)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    value = answer.get("value")
    if isinstance(value, bytes):
        connection.send_bytes(json.dumps({"bytes": True}).encode())
        connection.send_bytes(value)
    else:
        connection.send_bytes(json.dumps(answer).encode())


def _result(
    objects: Objects, request: Mapping[str, Any], memory: memoryview, data: bytes, descriptor: int | None
) -> object:
    """Call the member of `objects` that a request names."""
    url, arguments = Url(*request["url"]), request["arguments"]
    match request["do"]:
        case "list":
            return list(objects.list(url))
        case "read_into":
            arguments = arguments[0], memory[: arguments[1]]
        case "copy_into":
            arguments = *arguments, descriptor
        case "upload":
            arguments = [Path(*arguments)]
        case "write":
            # The process that was asked first may have written it before it ended.
            return objects.write(url, data, new=arguments[0]) or (
                request["again"] and objects.size(url) == len(data) and objects.read(url, len(data)) == data
            )
    return getattr(objects, request["do"])(url, *arguments)

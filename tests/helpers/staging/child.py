"""Processes that stage, read and evict on request from `children.py`; they do not import torch, so they start fast.

Started as ``python -P child.py SOCKET``, this forks a process for each line on its stdin; these fork themselves when
requested. Each process connects to SOCKET, sends its id, and then answers requests, one line of JSON each, until the
connection ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from packtrain import StageOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain._storage.staging import stager
from packtrain.errors import NoRoom, PacktrainError
from packtrain.staging import Staged

kept: dict[str, Staged | RecordStore] = {}
"""Copies and stores that this process has open, by the names given in the requests."""


def stage(dataset: str, to: str, name: str | None = None, **options: Any) -> dict[str, Any]:
    staged = stager.stage(dataset, StageOptions(to=Path(to), **options))
    if name is not None:
        kept[name] = staged
    return {"path": str(staged.path), "copied": staged.copied, "local": staged.local_shards, "shards": staged.shards}


def open_store(path: str, name: str) -> int:
    store = RecordStore(path, io="pread")
    kept[name] = store
    return len(store)


def records(name: str) -> str:
    store = kept[name]
    assert isinstance(store, RecordStore)
    store.close()  # so every shard is opened again
    sums = [hashlib.sha256(store.record(row)).digest() for row in range(len(store))]
    return hashlib.sha256(b"".join(sums)).hexdigest()


def drop(name: str) -> None:
    del kept[name]


def content(path: str) -> dict[str, str]:
    """A digest of each file below a folder, by relative path."""
    files = sorted(file for file in Path(path).rglob("*") if file.is_file())
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def compete(datasets: dict[str, dict[str, str]], to: str, budget: int, rounds: int, seed: int) -> dict[str, int]:
    """Stages one dataset after another, and checks a few times that the leased copy does not change.

    Args:
        datasets: Digests of each dataset's files, by path of the dataset.
        to: Folder to stage to.
        budget: Maximum number of bytes for all copies together.
        rounds: Number of datasets to stage.
        seed: Determines the order of the datasets.
    """
    done = {"copied": 0, "waited": 0}
    for number in range(rounds):
        dataset, expected = list(datasets.items())[(seed + number * (1 + seed % 3)) % len(datasets)]
        while True:
            try:
                staged = stager.stage(dataset, StageOptions(to=Path(to), budget=budget))
                break
            except NoRoom:
                done["waited"] += 1
                time.sleep(0.002)
        done["copied"] += staged.copied > 0
        for _ in range(3):
            found = content(str(staged.path))
            found.pop("staged.json")
            assert found == expected, f"{staged.path} changed under its reader"
            time.sleep(0.001)
        staged.lease.close()
    return done


def fork(address: str) -> None:
    """Forks a process that shares everything this one has open."""
    if os.fork() == 0:
        serve(address)


REQUESTS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (stage, open_store, records, drop, compete, fork)
}


def serve(address: str) -> None:
    """Answers requests until the connection ends, then ends the process."""
    global connection
    status = 1
    with suppress(BrokenPipeError, ConnectionResetError):
        if connection is not None:
            os.close(connection.detach())  # the parent's connection, which a stream keeps open
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        with connection.makefile("rw") as stream:
            print(os.getpid(), file=stream, flush=True)
            for line in stream:
                request = json.loads(line)
                print(json.dumps(answer(request.pop("do"), request)), file=stream, flush=True)
        status = 0
    os._exit(status)


def answer(do: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": REQUESTS[do](**arguments)}
    except PacktrainError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except BaseException as error:
        return {"error": repr(error), "message": ""}


connection: socket.socket | None = None

if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    for _ in sys.stdin:
        if os.fork() == 0:
            # Only the parent reads stdin.
            os.close(0)
            serve(sys.argv[1])

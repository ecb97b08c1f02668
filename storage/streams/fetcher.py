"""The process that fetches the chunks of one cache, and lets them go.

There is one for each cache on a machine: it holds ``fetcher.lock``. It is started detached by whoever needs it and
finds none (`connections`), serves all processes of its user over ``fetcher.sock`` (`server`), and ends some seconds
after the last of them has left. All that it knows about them it has from them (`protocol`), so it can be killed at any
time: whoever notices starts another, and all say again what they want. `manager` looks after the chunks.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from packtrain._core.errors import StagingError
from packtrain._core.errors_as_json import error_to_json
from packtrain._core.launching import Answer
from packtrain._core.locks import Lock

from ..remote.objects import Objects
from ..staging.folder import Folder
from ..staging.locks import lease_on_entry
from .layout import LOCK, SOCKET, address_in
from .manager import CacheManager, log
from .server import Server


def serve(entry: Path, objects: str, ready: Callable[[], object]) -> None:
    """Fetches for the cache in the folder `entry`, until nobody needs it any more.

    Args:
        entry: Folder of the cache.
        objects: What makes the object store, ``"MODULE:NAME"``.
        ready: Called when clients can connect.

    Raises:
        BlockingIOError: There is a fetcher.
        PacktrainError: The cache is damaged or gone, or the object store cannot be used.
    """
    with Lock(entry / LOCK, wait=False) as lock, lease_on_entry(entry):
        module, _, name = objects.partition(":")
        store: Objects = getattr(import_module(module), name)()
        manager = CacheManager(entry, store)
        # The entry's own folder, whatever has its path by now: only what lies in that is this fetcher's.
        folder = Folder.open(entry)
        folder.remove(SOCKET)

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address_in(folder))
            os.chmod(address_in(folder), 0o600)
            own = folder.status(SOCKET)

            def check() -> None:
                manager.check()
                if not is_same(folder.status(LOCK), os.fstat(lock.fileno())):
                    raise StagingError(f"somebody has removed {entry / LOCK}, so there may be another fetcher")
                if not is_same(folder.status(SOCKET), own):
                    raise StagingError(f"somebody has removed {entry / SOCKET}, so nobody finds this fetcher")

            listener.listen(128)
            ready()
            try:
                Server(manager).run(listener, check)
            except BaseException as error:
                # Not by way of the lock's end: threads may be fetching, and the next fetcher must not meet them.
                try:
                    log(str(error) if isinstance(error, StagingError) else traceback.format_exc())
                finally:
                    os._exit(1)
            # It is this one's: that has just been checked.
            folder.remove(SOCKET)
            manager.close()


def is_same(status: os.stat_result | None, other: os.stat_result | None) -> bool:
    """True if both are the status of the same file."""
    return status is not None and other is not None and os.path.samestat(status, other)


def main(channel: int, job: bytes) -> None:
    """Serve the cache that the job names. Report over `channel` that clients can connect, or why not."""
    os.chdir("/")
    # Each process of a job has a connection or two.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    answer, named = Answer(channel), json.loads(job)
    try:
        serve(Path(named["entry"]), named["objects"], lambda: answer.give(ok=True))
    except BlockingIOError:
        answer.give(busy=True)
    except Exception as error:
        log(f"{type(error).__name__}: {error}")
        answer.give(**error_to_json(error))
        sys.exit(1)

"""Both ways to an object store, and stores with a proxy in front."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from helpers.objects.fixtures import Proxied
from helpers.objects.proxy import Proxy
from helpers.objects.servers import Server
from helpers.support import require_module

from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects

Through: TypeAlias = Callable[[Server], Proxy]


@pytest.fixture(params=["bucket", "service"])
def objects(request: pytest.FixtureRequest) -> Iterator[Objects]:
    """Stores that read and write objects: in this process, and by a process of its own."""
    require_module("obstore")
    if request.param == "service":
        found: Objects = ObjectStore()
    else:
        from packtrain._storage.remote.bucket import Bucket

        found = Bucket()
    yield found
    found.close()


@pytest.fixture
def service() -> Iterator[ObjectStore]:
    """A store that asks a process of its own."""
    require_module("obstore")
    found = ObjectStore()
    yield found
    found.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """A store that reads and writes objects in this process, and waits for nothing as long as it does otherwise."""
    require_module("obstore")
    from packtrain._storage.remote import bucket

    waits = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=5)}
    monkeypatch.setattr(bucket, "_RETRIES", {**bucket._RETRIES, "backoff": waits})
    monkeypatch.setattr(bucket, "_CLIENT", {**bucket._CLIENT, "read_timeout": "300ms"})
    monkeypatch.setattr(bucket, "_FIRST_WAIT", 0.001)
    found = bucket.Bucket()
    yield found
    found.close()


@pytest.fixture
def through(shared_proxy: Proxied) -> Iterator[Through]:
    """Puts a proxy in front of a server, and the way through it into the environment."""
    with ExitStack() as stack:

        def put(server: Server) -> Proxy:
            between = shared_proxy(server)
            stack.enter_context(server.through(between.port).in_environment())
            return between

        yield put


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is sent in two parts."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (20 << 12))
    return path

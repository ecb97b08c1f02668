"""Fixtures of object stores: each server starts when a test first asks for it, and ends with the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import pytest
from helpers.objects.proxy import Proxy, proxy
from helpers.objects.servers import SERVERS, Nginx, Server

Started: TypeAlias = Callable[[str], Server]
Proxied: TypeAlias = Callable[[Server], Proxy]


@pytest.fixture(scope="session")
def started_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Gives the running server of a name of `SERVERS`."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def started(name: str) -> Server:
            if name not in running:
                running[name] = stack.enter_context(SERVERS[name](tmp_path_factory.mktemp(name)))
            return running[name]

        yield started


@pytest.fixture(scope="session")
def shared_proxy() -> Iterator[Proxied]:
    """Gives a proxy in front of a server. It changes nothing and has counted nothing, but others used it before."""
    running: dict[int, Proxy] = {}
    with ExitStack() as stack:

        def proxied(server: Server) -> Proxy:
            if server.port not in running:
                running[server.port] = stack.enter_context(proxy(server.port))
            found = running[server.port]
            found.script()
            found.limit(None)
            found.forget()
            return found

        yield proxied


# The others take seconds to start, in each process of the tests.
_QUICK: Final = ("moto", "nginx")


def _each(names: Iterable[str]) -> list[Any]:
    return [name if name in _QUICK else pytest.param(name, marks=pytest.mark.complete) for name in names]


WRITABLE: Final = _each(("moto", "azurite", "xml_gcs"))
"""One store of each protocol that obstore can write to, for laws in which the stores themselves have a part.

`tests/storage/remote` shows that all stores do what `Objects` promises; what stands on that is tested with S3 alone.
"""


@pytest.fixture(params=_each(SERVERS))
def object_server(request: pytest.FixtureRequest, started_server: Started) -> Server:
    """Every kind of store in turn."""
    return started_server(request.param)


@pytest.fixture(params=_each(("moto", "seaweedfs", "azurite", "xml_gcs")))
def writable_server(request: pytest.FixtureRequest, started_server: Started) -> Server:
    """Every kind of store that obstore can write to."""
    return started_server(request.param)


@pytest.fixture
def moto_server(started_server: Started) -> Server:
    """S3, as it behaves."""
    return started_server("moto")


@pytest.fixture
def nginx_server(started_server: Started) -> Nginx:
    """Files over HTTP."""
    server = started_server("nginx")
    assert isinstance(server, Nginx)
    return server


@pytest.fixture
def azure_server(started_server: Started) -> Server:
    """Azure Blob Storage."""
    return started_server("azurite")


@pytest.fixture
def gcs_server(started_server: Started) -> Server:
    """Google Cloud Storage, read-only."""
    return started_server("fake_gcs")

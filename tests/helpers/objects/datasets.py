"""Datasets in object stores, and faults on the way to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from helpers.objects.faults import Chances, Rule
from helpers.objects.proxy import Proxy, proxy
from helpers.objects.servers import Server

from packtrain._storage.remote.urls import Url


def objects_of(server: Server, url: str) -> dict[str, bytes]:
    """All objects below an address."""
    from packtrain._storage.remote.bucket import Bucket

    with server.in_environment():
        names = [found.name for found in Bucket().list(Url.parse(url))]
    found = {name: server.get(f"{server.key(url)}/{name}") for name in names}
    return {name: data for name, data in found.items() if data is not None}


@contextmanager
def behind(server: Server, *rules: Rule, chances: Chances | None = None) -> Iterator[Proxy]:
    """A proxy that injects faults, in the environment of this process."""
    with proxy(server.port) as between, server.through(between.port).in_environment():
        between.script(*rules, chances=chances)
        yield between

"""The messages of a fetcher to its clients."""

from __future__ import annotations

import selectors
import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from packtrain._core.typed import Mismatch
from packtrain._storage.remote.urls import Url
from packtrain._storage.streams.policy import Reading
from packtrain._storage.streams.protocol import Read, parse_request, request_line
from packtrain._storage.streams.server import Server, _Client


def test_a_client_that_reads_no_answers_is_left() -> None:
    manager: Any = SimpleNamespace(url=Url.parse("s3://bucket/set"))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client = _Client(ours)
    for _ in range(6):
        Server(manager)._say(client, {"answer": "x" * (1 << 20)})
    with theirs:
        received = 0
        while data := theirs.recv(1 << 20):
            received += len(data)
    assert 0 < received < 6 << 20, "the rest is never sent"
    ours.close()


class Readers:
    """Stands for a `CacheManager` that has room for one rank."""

    url = Url.parse("s3://bucket/set")

    def __init__(self) -> None:
        self.known: list[Any] = []

    def register(self, reader: Any, reading: Reading, others: Any, order: str | None) -> None:
        assert not self.known, "the rank that has left is still counted"
        self.known.append(reader)

    def read(self, reader: Any, reading: Reading, order: str | None) -> None:
        assert reader in self.known

    def forget(self, reader: Any) -> None:
        if reader in self.known:
            self.known.remove(reader)


def test_a_rank_that_comes_again_is_not_counted_twice() -> None:
    manager: Any = Readers()
    server = Server(manager)
    clients, theirs = [], []
    for _ in range(2):
        ours, other = socket.socketpair()
        ours.setblocking(False)
        clients.append(client := _Client(ours))
        theirs.append(other)
        server._clients.add(client)
        server._selector.register(ours, selectors.EVENT_READ, client)
    first, second = clients
    message = request_line(Read("job", Reading(0, 1, 8, 4, 1, (1, 2))))
    theirs[0].sendall(message)
    server._attend(first, selectors.EVENT_READ)
    # It says where it is and leaves. Its process comes again, and is heard first.
    theirs[0].sendall(message)
    theirs[0].close()
    theirs[1].sendall(message)
    server._attend(second, selectors.EVENT_READ)
    assert manager.known == [second]
    theirs[1].close()
    server._attend(second, selectors.EVENT_READ)
    assert not manager.known


def test_an_order_is_named_by_its_digest() -> None:
    request = Read("job", Reading(0, 2, 8, 4, 1, (1, 2), 16, 24), "0123456789abcdef" * 2)
    assert parse_request(request_line(request)) == request
    with pytest.raises(Mismatch, match="order: expected 32 hexadecimal digits"):
        parse_request(request_line(replace(request, order="../../chunks/00000001")))

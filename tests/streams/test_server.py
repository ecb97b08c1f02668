"""What a fetcher says to its clients."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from packtrain._remote.urls import Url
from packtrain._streams.server import Server, _Client


def test_a_client_that_reads_no_answers_is_left() -> None:
    keeper: Any = SimpleNamespace(url=Url.parse("s3://bucket/set"))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    client = _Client(ours)
    for _ in range(6):
        Server(keeper)._say(client, {"answer": "x" * (1 << 20)})
    with theirs:
        received = 0
        while data := theirs.recv(1 << 20):
            received += len(data)
    assert 0 < received < 6 << 20, "the rest is never sent"
    ours.close()

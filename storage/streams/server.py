"""Talks to the clients of a fetcher: takes their requests (`protocol`), and tells them what becomes of their chunks."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from packtrain._core.errors import Denied, NotThere, PacktrainError, StagingError, UsageError
from packtrain._core.errors_as_json import error_to_json
from packtrain._core.typed import Mismatch

from .layout import peer
from .manager import CacheManager, Outcome
from .protocol import (
    Ahead,
    Ask,
    Done,
    Fill,
    Hello,
    LineBuffer,
    Ping,
    Read,
    Request,
    State,
    answer_line,
    digest_of_access,
    parse_request,
)

IDLE_SECONDS: Final = 10.0
_MOST_LINE: Final = 1 << 20
_MOST_BEHIND: Final = 4 << 20
"""A client that does not read its answers is left when so many bytes wait for it."""
_POLL_SECONDS: Final = 0.02


class _Client:
    """A connection.

    Attributes:
        since: When it was made.
        budget: Bytes that it allows the cache to take; None until it has said so.
        check: Whether it compares each record with its checksum.
        asked: The chunk that it waits for.
        ticket: The chunk that must not go.
        filling: Whether it wants everything.
        job: The job that it is a rank of; None if it is not one.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.budget: int | None = None
        self.check = False
        self.asked: int | None = None
        self.ticket: int | None = None
        self.filling = False
        self.job: str | None = None
        self.received = LineBuffer()
        self.unsent = bytearray()


class Server:
    """Serves the clients of one cache.

    Args:
        manager: Looks after its chunks.
    """

    def __init__(self, manager: CacheManager) -> None:
        self._manager: Final = manager
        self._clients: Final = set[_Client]()
        self._selector: Final = selectors.DefaultSelector()
        self._access: Final = digest_of_access(manager.url)
        self._refused = False
        """True if the store did not give this process what it asked for last."""
        self._replaced = False

    def run(self, listener: socket.socket, check: Callable[[], None]) -> None:
        """Serves until no client has been there for a while.

        Args:
            listener: Where clients connect.
            check: Called again and again; ends this with an error if the cache is not this fetcher's any more.

        Raises:
            StagingError: Another process is to fetch.
        """
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._manager.woken, selectors.EVENT_READ)
        left = time.monotonic()
        while True:
            for key, events in self._selector.select(_POLL_SECONDS if self._manager.restless else 1.0):
                if key.fileobj is listener:
                    self._accept(listener)
                elif key.data is not None:
                    self._attend(key.data, events)
            check()
            if self._replaced:
                raise StagingError(
                    "it makes way: the store refuses it, and a client has other credentials or an address"
                )
            self._work()
            if self._clients:
                left = time.monotonic()
            elif time.monotonic() - left > IDLE_SECONDS and not self._manager.fetching:
                self._selector.close()
                return

    def _work(self) -> None:
        for outcome in self._manager.results():
            self._refused = isinstance(outcome.problem, Denied | NotThere)
            self._tell(outcome)
        self._manager.reclaim()
        if all(client.budget is None for client in self._clients):
            # The first client has not said yet what the cache may take.
            return
        outcomes, gone = self._manager.decide()
        for client in self._clients:
            if gone and client.asked is not None:
                self._say(client, {"gone": True})
        for outcome in outcomes:
            self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        for client in [client for client in self._clients if client.asked == outcome.chunk]:
            client.asked = None
            problem = outcome.problem or (None if client.check else outcome.wrong)
            if problem is None:
                self._say(client, {"chunk": outcome.chunk})
            else:
                self._drop_ticket(client)
                self._say(client, error_to_json(problem))

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = listener.accept()
            if peer(connection)[1] != os.geteuid():
                connection.close()
                return
            connection.setblocking(False)
            client = _Client(connection)
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _attend(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            if events & selectors.EVENT_READ:
                # The end of a connection comes after the last message.
                for _ in range(2):
                    self._receive(client)
        except BlockingIOError:
            return
        except OSError:
            self._leave(client)

    def _receive(self, client: _Client) -> None:
        data = client.connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        client.received.add(data)
        while (line := client.received.next()) is not None:
            self._handle(client, line)
        if len(client.received) > _MOST_LINE:
            raise ConnectionResetError

    def _notice_who_left(self) -> None:
        """Forgets ranks that have left, whose process may have come again over another connection."""
        for client in [client for client in self._clients if client.job is not None]:
            self._attend(client, selectors.EVENT_READ)

    def _leave(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()
        self._manager.forget(client)
        if client.filling:
            self._manager.fill(False)
        self._drop_ticket(client)
        if (asked := client.asked) is not None and not any(other.asked == asked for other in self._clients):
            self._manager.policy.unask(asked)
        self._allow()

    def _say(self, client: _Client, answer: Mapping[str, Any]) -> None:
        client.unsent += answer_line(answer)
        try:
            self._flush(client)
        except OSError:
            # It is seen to have left when it is next looked at, also if it only does not read.
            with suppress(OSError):
                client.connection.shutdown(socket.SHUT_RDWR)

    def _flush(self, client: _Client) -> None:
        with suppress(BlockingIOError):
            while client.unsent:
                del client.unsent[: client.connection.send(client.unsent)]
        if len(client.unsent) > _MOST_BEHIND:
            raise ConnectionResetError
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        if client in self._clients:
            self._selector.modify(client.connection, events, client)

    # Requests

    def _handle(self, client: _Client, line: bytes) -> None:
        try:
            answer = self._answer(client, parse_request(line))
        except Mismatch as error:
            answer = error_to_json(UsageError(f"the fetcher does not understand a request ({error})"))
        except PacktrainError as error:
            answer = error_to_json(error)
        if answer is not None:
            self._say(client, answer)

    def _answer(self, client: _Client, request: Request) -> Mapping[str, Any] | None:
        """Does what a client wants. Returns the answer; None if there is none, or none yet."""
        match request:
            case Hello(budget, check, access):
                client.budget, client.check = budget, check
                # Credentials expire, and datasets move. Whoever has new ones starts a fetcher that has them, too.
                self._replaced |= self._refused and access != self._access
                self._allow()
                return {"ok": True}
            case Ask(chunk, suspect):
                return self._asked(client, self._checked(chunk), suspect=suspect)
            case Done():
                self._drop_ticket(client)
            case Ahead(chunks):
                self._manager.ahead(map(self._checked, chunks))
            case Read():
                return self._read(client, request)
            case Fill():
                if not client.filling:
                    client.filling = True
                    self._manager.fill(True)
                return {"ok": True}
            case Ping():
                return {"pong": True}
            case State():
                self._notice_who_left()
                readers = sum(each.job is not None for each in self._clients)
                return {
                    "pid": os.getpid(),
                    **self._manager.figures(),
                    "readers": readers,
                    "clients": len(self._clients),
                }
        return None

    def _checked(self, chunk: int) -> int:
        if chunk >= len(self._manager):
            raise UsageError(f"there is no chunk {chunk}: the dataset has {len(self._manager)}")
        return chunk

    def _asked(self, client: _Client, chunk: int, *, suspect: bool) -> Mapping[str, Any] | None:
        self._drop_ticket(client)
        if not suspect:
            problem = self._manager.known_problem(chunk, check=client.check, since=client.since)
            if problem is not None:
                raise problem
        client.ticket = chunk
        self._manager.policy.hold(chunk)
        if self._manager.ask(chunk, suspect=suspect, check=client.check, since=client.since):
            return {"chunk": chunk}
        client.asked = chunk
        return None

    def _drop_ticket(self, client: _Client) -> None:
        if client.ticket is not None:
            self._manager.policy.release(client.ticket)
            client.ticket = None

    def _read(self, client: _Client, request: Read) -> Mapping[str, Any] | None:
        if client.job is not None:
            self._manager.read(client, request.reading, request.order)
            return None
        self._notice_who_left()
        job = request.job[:100]
        others = {other.job for other in self._clients if other.job not in (None, job)}
        self._manager.register(client, request.reading, sorted(map(str, others)), request.order)
        client.job = job
        return {"ok": True}

    def _allow(self) -> None:
        """Says what the cache may take: the largest budget of a client, or the last one while there is none."""
        budgets = [client.budget for client in self._clients if client.budget is not None]
        if budgets:
            self._manager.allow(max(budgets))

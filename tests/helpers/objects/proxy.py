"""A proxy in front of an HTTP server: it counts what is fetched, limits the speed, and lets things go wrong.

    with proxy(server.port) as between:
        between.script(Rule(SLOW_DOWN, holds="shards/0.tar"), Rule(Reset(after=1000), method="PUT"))
        ...  # through server.through(between.port)
        assert between.traffic().of("0.tar").requests == 2

It is a process of its own with a thread for each connection. What no fault changes is spliced from socket to socket by
the kernel.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from helpers.objects.faults import (
    Chances,
    Corrupt,
    Fault,
    Kill,
    Request,
    Reset,
    Rule,
    Script,
    Shift,
    Stall,
    Status,
    Truncate,
    Unconditional,
    Whole,
    place,
)

HOST: Final = "127.0.0.1"
_PIECE: Final = 1 << 20
_REMEMBERED: Final = 100_000
_PATIENCE: Final = 60.0
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from helpers.objects.proxy import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"
)


@dataclass(frozen=True)
class Exchange:
    """A request that has been answered.

    Attributes:
        request: The request.
        status: The status that the client got; 0 for none.
        bytes: Bytes of the body that were sent to the client.
        fault: What was done to it.
    """

    request: Request
    status: int
    bytes: int
    fault: Fault | None


@dataclass(frozen=True)
class Traffic:
    """Counts of what has gone through a proxy.

    Attributes:
        requests: How many requests were answered, or broken off.
        bytes: Bytes of bodies that clients got.
        most_at_once: How many requests were under way at the same time.
        exchanges: The last of them, in order of their ends.
    """

    requests: int = 0
    bytes: int = 0
    most_at_once: int = 0
    exchanges: tuple[Exchange, ...] = field(default=(), repr=False)

    def of(self, name: str, method: str = "") -> Traffic:
        """The part that is about objects whose path ends with `name`, and has this method, if one is given."""
        part = [
            each for each in self.exchanges if each.request.path.endswith(name) and method in ("", each.request.method)
        ]
        return Traffic(len(part), sum(each.bytes for each in part), self.most_at_once, tuple(part))

    @property
    def faults(self) -> int:
        """The number of requests to which something was done."""
        return sum(each.fault is not None for each in self.exchanges)


class Proxy:
    """A running proxy.

    Attributes:
        port: Its port on 127.0.0.1.
        pid: Its process.
    """

    def __init__(self, connection: Connection, port: int, pid: int) -> None:
        self._connection = connection
        self.port = port
        self.pid = pid

    def script(self, *rules: Rule, chances: Chances | None = None) -> None:
        """Says what goes wrong from now on; without arguments, nothing does."""
        self._ask("script", Script(rules, chances))

    def limit(self, bytes_per_second: float | None) -> None:
        """Limits the speed of all connections together, towards the clients; None: no limit."""
        self._ask("limit", bytes_per_second)

    def traffic(self, *, settled: bool = True) -> Traffic:
        """Counts of what has gone through since the start, or since `forget`.

        Args:
            settled: Wait a moment for requests that are under way, which do not count before they have ended.
        """
        found: Traffic = self._ask("traffic", settled)
        return found

    def forget(self) -> None:
        """Sets all counters to zero, a moment later if requests are under way: those of a client that was killed."""
        self._ask("forget")

    def _ask(self, what: str, *arguments: object) -> Any:
        self._connection.send((what, arguments))
        return self._connection.recv()


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """Runs a proxy in front of the server on a port of 127.0.0.1."""
    ours, theirs = socket.socketpair()
    with ExitStack() as stack:
        connection = stack.enter_context(Connection(ours.detach()))
        with theirs:
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(port), json.dumps(sys.path)]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield Proxy(connection, connection.recv(), process.pid)


def serve(control: int, upstream: int) -> None:
    """Serves until the other end of `control` is closed, as it is when the process that started this one ends."""
    relay = _Relay(upstream)
    with socket.create_server((HOST, 0), backlog=512) as listener, Connection(control) as connection:
        threading.Thread(target=relay.accept, args=[listener], daemon=True).start()
        connection.send(listener.getsockname()[1])
        while True:
            try:
                what, arguments = connection.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                os._exit(0)
            connection.send(getattr(relay, what)(*arguments))


class _Relay:
    """All connections, and what they have in common."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._script = Script()
        self._rate: float | None = None
        self._free_at = 0.0
        self._under_way = 0
        self.forget()

    def script(self, script: Script) -> None:
        with self._lock:
            self._script = script

    def limit(self, bytes_per_second: float | None) -> None:
        with self._lock:
            self._rate, self._free_at = bytes_per_second, 0.0

    def traffic(self, settled: bool) -> Traffic:
        with self._lock:
            if settled:
                # A client may have its last byte before the request counts as ended.
                self._settle()
            return Traffic(self._requests, self._bytes, self._most, tuple(self._exchanges))

    def forget(self) -> None:
        with self._lock:
            self._settle()
            self._requests = self._bytes = self._most = 0
            self._exchanges: deque[Exchange] = deque(maxlen=_REMEMBERED)

    def _settle(self) -> None:
        self._ended.wait_for(lambda: not self._under_way, timeout=1)

    def accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def begin(self, request: Request) -> Fault | None:
        with self._lock:
            self._under_way += 1
            self._most = max(self._most, self._under_way)
            return self._script.decide(request)

    def end(self, exchange: Exchange) -> None:
        with self._lock:
            self._under_way -= 1
            self._requests += 1
            self._bytes += exchange.bytes
            self._exchanges.append(exchange)
            self._ended.notify_all()

    def piece(self) -> int:
        """The bytes to send in one go: with a limit, those of a hundredth of a second."""
        rate = self._rate
        return _PIECE if rate is None else max(1, min(_PIECE, int(rate / 100)))

    def pace(self, count: int) -> None:
        """Waits until the limit lets so many bytes pass."""
        with self._lock:
            if self._rate is None:
                return
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + count / self._rate
            seconds = self._free_at - now
        time.sleep(seconds)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, _ClosedError), _Pipe() as pipe:
            source = _Source(client, pipe)
            while _Exchanging(self, client, source, pipe).run():
                pass


class _ClosedError(Exception):
    """A connection ended where more was to come."""


class _Pipe:
    """Through which the kernel moves bytes from one socket to another."""

    def __enter__(self) -> _Pipe:
        self.out, self.into = os.pipe()
        with suppress(OSError):
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIECE)
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self.out)
        os.close(self.into)

    def move(self, source: socket.socket, sink: socket.socket, most: int) -> int:
        """Moves some bytes, at most so many. Returns how many: 0 at the end of the source."""
        count = left = os.splice(source.fileno(), self.into, most)
        while left:
            left -= os.splice(self.out, sink.fileno(), left)
        return count


class _Source:
    """Reads heads and bodies from a socket."""

    def __init__(self, connection: socket.socket, pipe: _Pipe) -> None:
        self._connection = connection
        self._pipe = pipe
        self._buffer = b""

    def until(self, end: bytes) -> bytes:
        """All up to `end`, with it; empty if the connection ends before anything comes."""
        while end not in self._buffer:
            data = self._connection.recv(1 << 16)
            if not data:
                if self._buffer:
                    raise _ClosedError
                return b""
            self._buffer += data
        found, _, self._buffer = self._buffer.partition(end)
        return found + end

    def read(self, count: int | None) -> bytes:
        """So many bytes; None: all until the end."""
        parts = []
        while count is None or count > 0:
            part = self._buffer or self._connection.recv(_PIECE)
            if not part:
                if count is None:
                    break
                raise _ClosedError
            self._buffer = b""
            if count is not None:
                part, self._buffer = part[:count], part[count:]
                count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def body(self, framing: _Framing) -> bytes:
        """A body, without its framing."""
        if not framing.chunked:
            return self.read(framing.length)
        return b"".join(self._chunks(lambda data: None))

    def relay(self, framing: _Framing, sink: socket.socket, relay: _Relay | None = None) -> Iterator[int]:
        """Sends a body on. Yields the number of bytes of each piece when it has been sent."""
        if framing.chunked:
            yield from (len(chunk) for chunk in self._chunks(sink.sendall))
            return
        left = framing.length
        while left is None or left > 0:
            most = relay.piece() if relay else _PIECE
            most = most if left is None else min(most, left)
            if self._buffer:
                part, self._buffer = self._buffer[:most], self._buffer[most:]
                sink.sendall(part)
                count = len(part)
            else:
                count = self._pipe.move(self._connection, sink, most)
            if not count:
                if left is None:
                    return
                raise _ClosedError
            if relay:
                relay.pace(count)
            left = None if left is None else left - count
            yield count

    def _chunks(self, pass_on: Callable[[bytes], object]) -> Iterator[bytes]:
        while True:
            line = self.until(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            data = self.read(size)
            end = self.until(b"\r\n")
            while size == 0 and end != b"\r\n":  # trailers
                line, end = line + end, self.until(b"\r\n")
            pass_on(line + data + end)
            if size == 0:
                return
            yield data


@dataclass(frozen=True)
class _Framing:
    """The end of a body: after `length` bytes, after its last chunk, or with the connection."""

    length: int | None = 0
    chunked: bool = False


class _Head:
    """The head of a request or an answer."""

    def __init__(self, data: bytes) -> None:
        first, *lines = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.first = first
        self._lines = [tuple(line.split(":", 1)) for line in lines]

    def get(self, name: str) -> str:
        return next((value.strip() for key, value in self._lines if key.lower() == name), "")

    def set(self, name: str, value: str | None) -> None:
        """Sets a header, or removes it."""
        self._lines = [(key, old) for key, old in self._lines if key.lower() != name]
        if value is not None:
            self._lines.append((name.title(), f" {value}"))

    def framing(self, otherwise: int | None) -> _Framing:
        if "chunked" in self.get("transfer-encoding").lower():
            return _Framing(None, True)
        length = self.get("content-length")
        return _Framing(int(length) if length else otherwise)

    def __bytes__(self) -> bytes:
        return "\r\n".join([self.first, *(":".join(line) for line in self._lines), "", ""]).encode("latin-1")


class _Exchanging:
    """One request and its answer."""

    def __init__(self, relay: _Relay, client: socket.socket, source: _Source, pipe: _Pipe) -> None:
        self._relay = relay
        self._client = client
        self._source = source
        self._pipe = pipe
        self._status = self._sent = 0

    def run(self) -> bool:
        """Returns True if the connection can take another request."""
        data = self._source.until(b"\r\n\r\n")
        if not data:
            return False
        head = _Head(data)
        method, target, _ = head.first.split(" ", 2)
        request = Request(method, unquote(urlsplit(target).path), head.get("range"))
        fault = self._relay.begin(request)
        try:
            return self._exchange(head, method, fault)
        finally:
            self._relay.end(Exchange(request, self._status, self._sent, fault))

    def _exchange(self, head: _Head, method: str, fault: Fault | None) -> bool:
        if head.get("expect").lower() == "100-continue":
            self._client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head.set("expect", None)
        framing = head.framing(0)
        if isinstance(fault, Reset) and fault.after is None:
            return self._reset()
        if isinstance(fault, Status) and not fault.done:
            self._source.body(framing)
            return self._refuse(fault, method)
        if isinstance(fault, Stall) and fault.after is None:
            self._wait(fault.seconds)
        if isinstance(fault, Kill) and not fault.done:
            return self._kill(fault.pid)
        if isinstance(fault, Whole):
            head.set("range", None)
        if isinstance(fault, Unconditional):
            head.set("if-none-match", None)
        stays = head.get("connection").lower() != "close"
        head.set("connection", "close")
        try:
            upstream = socket.create_connection((HOST, self._relay.upstream))
        except OSError:  # nobody listens there any more
            return self._reset()
        with upstream:
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream.sendall(bytes(head))
            deque(self._source.relay(framing, upstream), maxlen=0)
            return self._answer(_Source(upstream, self._pipe), method, fault) and stays

    def _answer(self, source: _Source, method: str, fault: Fault | None) -> bool:
        status = 100
        while 100 <= status < 200:
            data = source.until(b"\r\n\r\n")
            if not data:
                raise _ClosedError
            head = _Head(data)
            status = int(head.first.split(" ")[1])
        head.first = re.sub(r"^HTTP/1\.0", "HTTP/1.1", head.first)
        framing = _Framing() if method == "HEAD" or status in (204, 304) else head.framing(None)
        stays = framing != _Framing(None)
        head.set("connection", "keep-alive" if stays else "close")
        self._status = status
        if (
            fault is None
            or isinstance(fault, Whole | Unconditional)
            or (isinstance(fault, Stall) and fault.after is None)
        ):
            self._client.sendall(bytes(head))
            for count in source.relay(framing, self._client, self._relay):
                self._sent += count
            return stays
        body = source.body(framing)
        if isinstance(fault, Status):
            return self._refuse(fault, method)
        if isinstance(fault, Kill):
            return self._kill(fault.pid)
        head.set("transfer-encoding", None)
        if method != "HEAD":
            head.set("content-length", str(len(body)))
        return self._spoil(head, body, fault)

    def _spoil(self, head: _Head, body: bytes, fault: Fault) -> bool:
        match fault:
            case Corrupt(at) if body:
                changed = bytearray(body)
                changed[min(place(at, len(body)), len(body) - 1)] ^= 0x55
                body = bytes(changed)
            case Shift(by, admit):
                body = body[by:] + body[:by]
                if admit:
                    head.set("content-range", _moved(head.get("content-range"), by))
            case Truncate(after, admit):
                whole, body = body, body[: place(after, len(body))]
                if admit:
                    head.set("content-length", str(len(body)))
                self._send(bytes(head), body)
                return admit or whole == body
            case Reset(after):
                part = body[: place(after or 0, len(body))]
                # With nothing of the body, nothing of the head either.
                self._send(bytes(head) if after else b"", part)
                return self._reset()
            case Stall(seconds, after):
                first = place(after or 0, len(body))
                self._send(bytes(head) if after else b"", body[:first])
                self._wait(seconds)
                self._send(b"" if after else bytes(head), body[first:])
                return True
        self._send(bytes(head), body)
        return True

    def _send(self, head: bytes, body: bytes) -> None:
        if head:
            self._client.sendall(head)
        piece = self._relay.piece()
        for start in range(0, len(body), piece):
            part = body[start : start + piece]
            self._client.sendall(part)
            self._sent += len(part)
            self._relay.pace(len(part))

    def _refuse(self, fault: Status, method: str) -> bool:
        code = fault.code
        name = fault.name or {503: "SlowDown", 429: "SlowDown"}.get(code, "InternalError")
        body = f"<Error><Code>{name}</Code><Message>{fault.text}</Message></Error>".encode()
        head = f"HTTP/1.1 {code} Injected\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        self._status = code
        self._send(head.encode(), b"" if method == "HEAD" else body)
        return True

    def _kill(self, pid: int) -> bool:
        """Kills a process, which may be gone, and answers nothing until the connection ends with it."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._wait(_PATIENCE)
        return self._reset()

    def _reset(self) -> bool:
        end = time.monotonic() + 1
        while _unsent(self._client) and time.monotonic() < end:
            time.sleep(0.001)
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def _wait(self, seconds: float) -> None:
        """Waits; not any longer when the client goes away."""
        readable, _, _ = select.select([self._client], [], [], min(seconds, 1e6))
        if readable and not self._client.recv(1, socket.MSG_PEEK):
            raise _ClosedError


def _moved(content_range: str, by: int) -> str:
    return re.sub(r"(\d+)-(\d+)", lambda it: f"{int(it[1]) + by}-{int(it[2]) + by}", content_range)


def _unsent(connection: socket.socket) -> int:
    found: int = struct.unpack("i", fcntl.ioctl(connection, _SIOCOUTQ, b"\0\0\0\0"))[0]
    return found


_SIOCOUTQ: Final = 0x5411

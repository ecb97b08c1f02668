"""The proxy in front of an object store: it changes nothing unless told to, and then just that; and it counts."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers.objects.faults import (
    SLOW_DOWN,
    Chances,
    Corrupt,
    Fault,
    Request,
    Reset,
    Rule,
    Script,
    Shift,
    Stall,
    Status,
    Truncate,
    Whole,
)
from helpers.objects.programs import HOST, ask
from helpers.objects.proxy import Proxy, Traffic, proxy
from helpers.objects.servers import BUCKET, Server
from helpers.processes import ended
from helpers.waiting import wait_until
from hypothesis import given
from hypothesis import strategies as st

# What the tests of packtrain stand on, and what they would show by failing.
pytestmark = pytest.mark.complete

DATA = bytes(range(256)) * 4000
PATH = f"/{BUCKET}/object.bin"
RANGE = {"Range": "bytes=1000-500999"}
PART = DATA[1000:501000]


@pytest.fixture
def between(nginx_server: Server) -> Iterator[Proxy]:
    """A proxy in front of a server that has DATA at PATH."""
    nginx_server.put("object.bin", DATA)
    with proxy(nginx_server.port) as running:
        yield running


def get(port: int, headers: dict[str, str] | None = None, path: str = PATH) -> tuple[int, bytes]:
    """The answer to a GET."""
    return ask(port, "GET", path, headers=headers)


def test_without_faults_nothing_changes(nginx_server: Server, between: Proxy) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        for headers in ({}, RANGE, {"Range": "bytes=2000000-"}):
            for path in (PATH, "/nothing", f"{PATH}?versionId=1"):
                direct = ask(nginx_server.port, method, path, headers=headers)
                assert ask(between.port, method, path, headers=headers) == direct, (method, headers, path)


def test_requests_and_bytes_are_counted(between: Proxy) -> None:
    get(between.port)
    get(between.port, RANGE)
    get(between.port, path=f"/{BUCKET}/none")
    ask(between.port, "HEAD", PATH)
    traffic = between.traffic()
    assert (traffic.requests, traffic.faults) == (4, 0)
    part = traffic.of("object.bin")
    assert (part.requests, part.bytes) == (3, len(DATA) + len(PART))
    assert [each.status for each in traffic.exchanges] == [200, 206, 404, 200]
    assert traffic.exchanges[1].request == Request("GET", PATH, "bytes=1000-500999")
    assert traffic.of("object.bin", "HEAD").bytes == 0
    between.forget()
    assert between.traffic() == Traffic()


@pytest.mark.parametrize(
    ("fault", "status", "body"),
    [
        (Status(500), 500, None),
        (Reset(), None, None),
        (Reset(0.5), None, None),
        (Truncate(1000), None, None),
        (Truncate(1000, admit=True), 206, PART[:1000]),
        (Corrupt(0), 206, bytes([PART[0] ^ 0x55]) + PART[1:]),
        (Shift(7), 206, PART[7:] + PART[:7]),
        (Whole(), 200, DATA),
        (Stall(0.1, 0.5), 206, PART),
    ],
    ids=str,
)
def test_a_fault_comes_once(between: Proxy, fault: Fault, status: int | None, body: bytes | None) -> None:
    between.script(Rule(fault))
    if status is None:
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            get(between.port, RANGE)
    else:
        found = get(between.port, RANGE)
        assert found[0] == status and body in (None, found[1])
    assert get(between.port, RANGE) == (206, PART)
    assert between.traffic().faults == 1


def test_rules_choose_requests(between: Proxy) -> None:
    between.script(Rule(Status(500), holds="object", skip=1, times=2), Rule(Status(503), method="HEAD", times=None))
    assert [get(between.port)[0] for _ in range(4)] == [200, 500, 500, 200]
    assert get(between.port, path="/nothing")[0] == 404
    assert [ask(between.port, "HEAD", PATH)[0] for _ in range(3)] == [503] * 3
    between.script()
    assert ask(between.port, "HEAD", PATH)[0] == 200


FAULTS: list[Fault] = [Status(500), SLOW_DOWN, Reset(), Reset(0.3), Corrupt(), Truncate(), Shift()]


@given(seed=st.integers(0, 2**32), chance=st.floats(0, 1 / len(FAULTS)), most=st.integers(0, 4))
def test_chances_depend_on_nothing_but_the_seed_and_the_requests(seed: int, chance: float, most: int) -> None:
    requests = [Request("GET", f"/object {number}") for number in range(20)]
    chances = Chances(seed, tuple((fault, chance) for fault in FAULTS), most=most)
    one, other = Script(chances=chances), Script(chances=chances)
    forward = [[one.decide(request) for request in requests] for _ in range(most + 1)]
    backward = [[other.decide(request) for request in reversed(requests)][::-1] for _ in range(most + 1)]
    assert forward == backward
    assert forward[most] == [None] * len(requests)
    assert one.decide(Request("PUT", "/object 0")) is None


@contextmanager
def odd_server() -> Iterator[int]:
    """A server whose answers are in chunks, or end with the connection; it repeats the body of a request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path == "/chunks":
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for start in range(0, len(body), 1000):
                    part = body[start : start + 1000]
                    self.wfile.write(f"{len(part):x};name=value\r\n".encode() + part + b"\r\n")
                self.wfile.write(b"0\r\nTrailer: value\r\n\r\n")
            else:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("path", ["/chunks", "/end"])
def test_every_way_to_frame_a_body(path: str) -> None:
    with odd_server() as port, proxy(port) as between:
        for size in (0, 1, 999, 100_000):
            body = os.urandom(size)
            headers = {"Expect": "100-continue"} if size == 999 else {}
            assert ask(between.port, "POST", path, body, headers) == (200, body)
        between.script(Rule(Corrupt(0), method="POST"))
        assert ask(between.port, "POST", path, b"abc") == (200, bytes([ord("a") ^ 0x55]) + b"bc")
        assert between.traffic().bytes == 0 + 1 + 999 + 100_000 + 3


def test_it_ends_with_the_process_that_started_it(nginx_server: Server) -> None:
    program = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from helpers.objects.proxy import proxy\n"
        f"with proxy({nginx_server.port}) as between:\n"
        "    print(between.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        os.kill(pid, 0)
        child.send_signal(signal.SIGKILL)
    wait_until(lambda: ended(pid), "it has ended", 20)

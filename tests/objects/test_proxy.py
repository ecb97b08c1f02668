"""The proxy in front of an object store: it changes nothing unless told to, and then just that; and it counts."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.objects.faults import (
    SLOW_DOWN,
    Corrupt,
    Request,
    Reset,
    Rule,
    Shift,
    Stall,
    Status,
    Truncate,
    Whole,
    place,
)
from helpers.objects.programs import HOST, ask
from helpers.objects.proxy import Proxy, Traffic, proxy
from helpers.objects.servers import BUCKET, Server

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


def test_one_connection_takes_many_requests(between: Proxy) -> None:
    between.script(Rule(SLOW_DOWN, skip=1), Rule(Corrupt(), skip=2), Rule(Truncate(admit=True), skip=3))
    connection = http.client.HTTPConnection(HOST, between.port)
    statuses = []
    connection.connect()
    kept = connection.sock
    for _ in range(6):
        connection.request("GET", PATH)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        assert connection.sock is kept
    connection.close()
    assert statuses == [200, 503, 200, 200, 200, 200]


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


def test_requests_at_once_are_counted(between: Proxy) -> None:
    between.script(Rule(Stall(0.5), times=None))
    with ThreadPoolExecutor(7) as threads:
        list(threads.map(lambda _: get(between.port), range(7)))
    assert between.traffic().most_at_once == 7


@pytest.mark.parametrize("code", [500, 503])
def test_a_status(between: Proxy, code: int) -> None:
    between.script(Rule(Status(code)))
    assert get(between.port)[0] == code
    assert get(between.port) == (200, DATA)


@pytest.mark.parametrize(("after", "arrived"), [(None, 0), (0, 0), (0.5, 250_000), (1000, 1000)])
def test_a_reset(between: Proxy, after: float | None, arrived: int) -> None:
    between.script(Rule(Reset(after)))
    with pytest.raises(ConnectionResetError):
        get(between.port, RANGE)
    assert between.traffic().bytes == arrived
    assert get(between.port, RANGE) == (206, PART)


def test_a_reset_before_the_server_is_asked_and_after(moto_server: Server) -> None:
    with proxy(moto_server.port) as between:
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request"}
        for after, found in ((None, None), (0, b"data")):
            key = moto_server.key(moto_server.fresh())
            between.script(Rule(Reset(after), method="PUT"))
            with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected, BrokenPipeError)):
                ask(between.port, "PUT", f"/{BUCKET}/{key}", b"data", headers)
            assert moto_server.get(key) == found


def test_a_body_that_ends_early(between: Proxy) -> None:
    between.script(Rule(Truncate(1000)), Rule(Truncate(1000, admit=True), skip=1))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(between.port, RANGE)
    assert (caught.value.partial, caught.value.expected) == (PART[:1000], len(PART) - 1000)
    assert get(between.port, RANGE) == (206, PART[:1000])


@pytest.mark.parametrize("at", [0, 0.5, 4999, 499_999, 1e9])
def test_a_wrong_byte(between: Proxy, at: float) -> None:
    between.script(Rule(Corrupt(at)))
    status, body = get(between.port, RANGE)
    wrong = [number for number, (one, other) in enumerate(zip(body, PART, strict=True)) if one != other]
    assert (status, wrong) == (206, [min(place(at, len(PART)), len(PART) - 1)])


def test_another_range(between: Proxy) -> None:
    between.script(Rule(Shift(7)), Rule(Shift(7, admit=True), skip=1))
    for named in ("bytes 1000-500999/", "bytes 1007-501006/"):
        connection = http.client.HTTPConnection(HOST, between.port)
        connection.request("GET", PATH, headers=RANGE)
        answer = connection.getresponse()
        assert answer.read() == PART[7:] + PART[:7]
        assert answer.headers["Content-Range"] == f"{named}{len(DATA)}"
        connection.close()


def test_a_range_that_is_ignored(between: Proxy) -> None:
    between.script(Rule(Whole()))
    assert get(between.port, RANGE) == (200, DATA)


@pytest.mark.parametrize("after", [None, 0, 0.5])
def test_a_stall(between: Proxy, after: float | None) -> None:
    between.script(Rule(Stall(0.3, after)))
    began = time.monotonic()
    assert get(between.port, RANGE) == (206, PART)
    assert time.monotonic() - began >= 0.3


def test_a_client_that_gives_up_ends_the_stall(between: Proxy) -> None:
    between.script(Rule(Stall(600)))
    with pytest.raises(TimeoutError):
        ask(between.port, "GET", PATH, timeout=0.1)
    assert get(between.port) == (200, DATA)
    assert [each.status for each in between.traffic().exchanges] in ([0, 200], [200, 0])


def test_the_limit_holds_for_all_connections_together(between: Proxy) -> None:
    between.limit(4 * len(DATA))
    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: get(between.port), range(4))) == {(200, DATA)}
    assert time.monotonic() - began >= 0.9
    between.limit(None)
    assert get(between.port) == (200, DATA)


def test_rules_choose_requests(between: Proxy) -> None:
    between.script(Rule(Status(500), holds="object", skip=1, times=2), Rule(Status(503), method="HEAD", times=None))
    assert [get(between.port)[0] for _ in range(4)] == [200, 500, 500, 200]
    assert get(between.port, path="/nothing")[0] == 404
    assert [ask(between.port, "HEAD", PATH)[0] for _ in range(3)] == [503] * 3
    between.script()
    assert ask(between.port, "HEAD", PATH)[0] == 200

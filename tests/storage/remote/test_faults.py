"""Faults of a store, the way to it and the process between: retries are bounded, and wrong lengths are errors."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from crc32c import crc32c
from helpers.objects.faults import (
    SLOW_DOWN,
    Corrupt,
    Fault,
    Reset,
    Rule,
    Shift,
    Stall,
    Status,
    Truncate,
    Whole,
)
from helpers.objects.proxy import Proxy
from helpers.objects.servers import SECRET, Server
from helpers.processes import children, ended
from helpers.support import require_module
from helpers.waiting import wait_until

from packtrain._core.errors import MissingDependency, RemoteError
from packtrain._core.installing import extra_command
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.urls import Url

Fetch: TypeAlias = Callable[[Objects, Url], bytes]

DOCS = Path(__file__).parents[3] / "docs"
DATA = random.Random(1).randbytes(300_000)
LASTING = [
    Status(500),
    SLOW_DOWN,
    Status(429),
    Reset(),
    Reset(0),
    Reset(0.5),
    Truncate(0.5),
    Truncate(0.5, admit=True),
    Shift(5, admit=True),
]
"""Faults that show in the answer to a ranged read."""


@pytest.fixture
def url(moto_server: Server) -> Url:
    """An object."""
    found = Url.parse(moto_server.fresh()) / "object"
    moto_server.put(found.key, DATA)
    return found


@pytest.fixture
def between(moto_server: Server, through: Callable[[Server], Proxy]) -> Proxy:
    """A proxy in front of the store."""
    return through(moto_server)


def read(objects: Objects, url: Url, start: int = 1000, stop: int = 251_000) -> bytes:
    """Bytes of an object."""
    found = bytearray(stop - start)
    objects.read_into(url, start, memoryview(found))
    return bytes(found)


@pytest.fixture(params=["read_into", "copy_into"])
def fetch(request: pytest.FixtureRequest, tmp_path: Path) -> Fetch:
    """Gets bytes of an object: into memory, or into the middle of a file, whose other bytes stay what they are."""
    if request.param == "read_into":
        return read
    path, start, stop = tmp_path / "copy", 1000, 251_000

    def copy(objects: Objects, url: Url) -> bytes:
        path.write_bytes(b"." * len(DATA))
        try:
            with path.open("r+b") as file:
                checksum = objects.copy_into(url, start, stop - start, file.fileno())
        finally:
            found = path.read_bytes()
            assert found[:start] + found[stop:] == b"." * (len(DATA) - stop + start)
        assert checksum == crc32c(found[start:stop])
        return found[start:stop]

    return copy


@pytest.mark.parametrize("fault", [*LASTING[:-1], Reset(100), Stall(0.1), Stall(0.1, 0.5)], ids=str)
def test_what_passes_is_not_noticed(objects: Objects, url: Url, between: Proxy, fetch: Fetch, fault: Fault) -> None:
    between.script(Rule(fault))
    assert fetch(objects, url) == DATA[1000:251_000]
    assert between.traffic().of(url.key).faults == 1
    assert between.traffic().of(url.key).requests == (1 if isinstance(fault, Stall) else 2)


@pytest.mark.parametrize("fault", [*LASTING, Whole()], ids=str)
def test_what_lasts_is_an_error_after_a_bounded_number_of_requests(
    hasty: Objects, url: Url, between: Proxy, fetch: Fetch, fault: Fault
) -> None:
    between.script(Rule(fault, times=None))
    with pytest.raises(RemoteError) as caught:
        fetch(hasty, url)
    assert type(caught.value) is RemoteError
    assert str(url) in str(caught.value)
    assert 1 <= between.traffic().of(url.key).requests <= 27


def test_a_server_without_ranges_is_told_at_once(hasty: Objects, url: Url, between: Proxy, fetch: Fetch) -> None:
    between.script(Rule(Whole(), times=None))
    with pytest.raises(RemoteError, match="the server sends whole files, not ranges of them"):
        fetch(hasty, url)
    assert between.traffic().of(url.key).requests == 1


@pytest.mark.complete
def test_a_server_that_says_nothing_is_given_up(hasty: Objects, url: Url, between: Proxy, fetch: Fetch) -> None:
    for fault in (Stall(600), Stall(600, 0.5)):
        between.script(Rule(fault, times=2))
        assert fetch(hasty, url) == DATA[1000:251_000]


def test_nothing_is_written_behind_a_range(hasty: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if more arrives than was asked for: a neighbouring range may have been checked already."""
    import obstore

    answer = SimpleNamespace(stream=lambda _: iter([b"x" * 6, b"x" * 6]))
    monkeypatch.setattr(obstore, "get", lambda *_, **__: answer)
    path = tmp_path / "file"
    path.write_bytes(b"." * 20)
    with path.open("r+b") as file, pytest.raises(RemoteError, match="more than the 10 bytes that were asked for"):
        hasty.copy_into(Url("https", "example.org", "object"), 5, 10, file.fileno())
    found = path.read_bytes()
    assert found[:5] + found[15:] == b"." * 10


def test_the_documents_say_how_long_a_store_that_hangs_is_waited_for() -> None:
    require_module("obstore")
    from packtrain._storage.remote import bucket

    silent = bucket._CLIENT["read_timeout"].removesuffix("s")  # type: ignore[union-attr]
    lasting = bucket._RETRIES["retry_timeout"].seconds
    for name in ("streaming.md", "object-stores.md"):
        text = (DOCS / name).read_text()
        assert f"without an answer is abandoned after {silent} seconds" in text
        assert f" {lasting} seconds" in text


@pytest.mark.complete
@pytest.mark.parametrize("ask", ["size", "read", "checksum", "list", "write", "new", "upload", "remove"])
@pytest.mark.parametrize("fault", [Status(500), Reset(0.5)], ids=str)
def test_every_request_is_made_again(
    objects: Objects, url: Url, between: Proxy, ask: str, fault: Fault, file: Path, moto_server: Server
) -> None:
    between.script(*(Rule(fault, method=method) for method in ("HEAD", "GET", "PUT", "POST", "DELETE")))
    match ask:
        case "size":
            assert objects.size(url) == len(DATA)
        case "read":
            assert objects.read(url, len(DATA)) == DATA
        case "checksum":
            assert objects.checksum(url) == crc32c(DATA)
        case "list":
            assert [found.name for found in objects.list(url.parent)] == ["object"]
        case "write":
            assert objects.write(url, b"data")
            assert moto_server.get(url.key) == b"data"
        case "new":
            assert objects.write(url.parent / "new", b"data", new=True)
            assert not objects.write(url.parent / "new", b"other", new=True)
            assert moto_server.get(f"{url.parent.key}/new") == b"data"
        case "upload":
            objects.upload(url, file)
            assert moto_server.get(url.key) == file.read_bytes()
        case "remove":
            objects.remove(url)
            assert moto_server.get(url.key) is None


@pytest.mark.parametrize("fault", [Corrupt(), Shift(5)], ids=str)
def test_wrong_bytes_are_for_the_caller_to_find(
    objects: Objects, url: Url, between: Proxy, fetch: Fetch, fault: Fault
) -> None:
    between.script(Rule(fault, times=None))
    assert fetch(objects, url) != DATA[1000:251_000]
    assert objects.checksum(url) != crc32c(DATA)


def test_a_half_upload_is_not_there(hasty: Objects, url: Url, between: Proxy, file: Path, moto_server: Server) -> None:
    between.script(Rule(Status(500), method="PUT", skip=1, times=None))
    with pytest.raises(RemoteError, match=r"answers 500"):
        hasty.upload(url.parent / "upload", file)
    assert moto_server.get(f"{url.parent.key}/upload") is None


def test_an_upload_that_arrived_shorter_is_an_error(
    hasty: Objects, url: Url, between: Proxy, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hasty, "size", lambda url: 5)
    with pytest.raises(RemoteError, match=rf"upload has 5 bytes after {file.stat().st_size} were sent") as caught:
        hasty.upload(url.parent / "upload", file)
    assert type(caught.value) is RemoteError


# --- the service process ---


@contextmanager
def started(ask: Callable[[], object]) -> Iterator[int]:
    """The process that was started to answer."""
    before = children()
    ask()
    (found,) = children() - before
    yield found


def when(happened: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Starts a thread that acts as soon as something has happened."""

    def wait() -> None:
        end = time.monotonic() + 30
        while not happened() and time.monotonic() < end:
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.fixture
def direct(moto_server: Server) -> Iterator[None]:
    """The environment of the store, without a proxy."""
    with moto_server.in_environment():
        yield


def test_a_service_that_is_killed_in_the_middle_of_a_request(service: ObjectStore, url: Url, between: Proxy) -> None:
    with started(lambda: service.size(url)) as pid:
        between.script(Rule(Stall(600, 0.5)))
        killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
        killer.start()
        assert read(service, url) == DATA[1000:251_000]
        killer.join()


@pytest.mark.complete
def test_a_service_that_is_killed_again_and_again_is_an_error(
    service: ObjectStore, url: Url, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    between.script(Rule(Stall(600), times=None))
    before = children()
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(0.3):
            for pid in children() - before:
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(RemoteError, match=r"ended twice; the last one was killed by SIGKILL"):
            read(service, url)
    finally:
        ended.set()
        killer.join()
    between.script()
    assert read(service, url) == DATA[1000:251_000]


def test_a_new_object_whose_writer_was_killed_is_not_taken_for_another(
    service: ObjectStore, url: Url, between: Proxy, moto_server: Server
) -> None:
    new = url.parent / "new"
    with started(lambda: service.size(url)) as pid:
        # The store has written it, and its answer does not come.
        between.script(Rule(Stall(600, 0), method="PUT"))
        killer = when(lambda: moto_server.get(new.key), lambda: os.kill(pid, signal.SIGKILL))
        assert service.write(new, b"data", new=True)
        killer.join()
    assert not service.write(new, b"other", new=True)


class Interruption(Exception):
    """Raised by the handler of a signal."""


def test_an_answer_that_was_not_waited_for_is_not_taken_for_the_next_one(
    service: ObjectStore, url: Url, between: Proxy
) -> None:
    assert service.size(url) == len(DATA)
    between.script(Rule(Stall(1), times=1))

    def interrupt(number: int, frame: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interruption):
            read(service, url, 0, 1000)
    finally:
        signal.signal(signal.SIGALRM, before)
    for start in range(5000, 6000, 100):
        assert read(service, url, start, start + 1000) == DATA[start : start + 1000]


@pytest.mark.complete
def test_a_forked_process_reads_through_a_service_of_its_own(service: ObjectStore, url: Url, direct: None) -> None:
    with started(lambda: service.size(url)) as pid, ThreadPoolExecutor(2) as threads:
        ended = threading.Event()

        def go_on() -> None:
            while not ended.is_set():
                assert read(service, url) == DATA[1000:251_000]

        others = [threads.submit(go_on) for _ in range(2)]
        for _ in range(3):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with ThreadPoolExecutor(2) as own:
                        parts = own.map(lambda start: read(service, url, start, start + 1000), range(0, 9000, 1000))
                    status = int(b"".join(parts) != DATA[:9000])
                    status += pid in children()
                finally:
                    os._exit(status)
            assert read(service, url) == DATA[1000:251_000]
            assert os.waitpid(child, 0)[1] == 0
        ended.set()
        for other in others:
            other.result()
        assert pid in children()


@pytest.mark.complete
def test_nothing_is_left_behind(moto_server: Server, url: Url, direct: None) -> None:
    require_module("obstore")
    descriptors, before = len(os.listdir("/proc/self/fd")), children()

    def use(*, close: bool) -> None:
        service = ObjectStore()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda _: read(service, url), range(6)))
        assert len(children() - before) == 1
        if close:
            service.close()

    for number in range(4):
        use(close=bool(number % 2))
        assert children() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_service_ends_with_the_process_that_started_it(url: Url, direct: None) -> None:
    require_module("obstore")
    program = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from packtrain._storage.remote.client import ObjectStore\n"
        "from packtrain._storage.remote.urls import Url\n"
        "service = ObjectStore()\n"
        f"service.size(Url.parse({str(url)!r}))\n"
        "print(Path('/proc/self/task', str(__import__('os').getpid()), 'children').read_text(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        (pid,) = map(int, child.stdout.readline().split())
        child.send_signal(signal.SIGKILL)
    wait_until(lambda: ended(pid), "it has ended", 20)


def test_without_obstore_it_says_what_to_install(url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, *args: Any) -> None:
        return None

    monkeypatch.setattr("packtrain._storage.remote.client.find_spec", absent)
    before = children()
    with pytest.raises(MissingDependency, match=re.escape(f"`{extra_command('remote')}`")):
        ObjectStore().size(url)
    assert children() == before


@pytest.mark.parametrize("endpoint", ["refused", "unknown"])
def test_a_store_that_never_answered_is_given_up_at_once(
    moto_server: Server, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    require_module("obstore")
    from packtrain._storage.remote import bucket

    pauses: list[float] = []
    monkeypatch.setattr("packtrain._storage.remote.bucket.time.sleep", pauses.append)
    with socket.socket() as nobody, moto_server.in_environment():
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        host = f"127.0.0.1:{nobody.getsockname()[1]}" if endpoint == "refused" else "store.invalid"
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@{host}")
        with pytest.raises(RemoteError, match=rf"the server {host} cannot be reached: it.*AWS_ENDPOINT_URL") as caught:
            bucket.Bucket().size(Url.parse("s3://bucket/object"))
    assert type(caught.value) is RemoteError and SECRET not in str(caught.value)
    assert 1 < sum(pauses) < 5


@pytest.mark.complete
def test_a_store_that_has_answered_is_waited_for(
    url: Url, moto_server: Server, between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is in this process, and in one that is told so."""
    require_module("obstore")
    import obstore

    from packtrain._storage.remote import bucket

    retries: list[object] = []
    make = obstore.store.from_url

    def counted(*args: Any, **options: Any) -> Any:
        retries.append(options["retry_config"]["max_retries"])
        return make(*args, **options)

    monkeypatch.setattr(obstore.store, "from_url", counted)
    objects = bucket.Bucket()
    assert [objects.size(url), objects.size(url), objects.size(url)] == [len(DATA)] * 3
    assert retries == [0, 8]
    assert bucket.patient_bucket().size(url) == len(DATA)
    assert retries == [0, 8, 8]
    # An answer that says no more than that somebody is there.
    between.script(Rule(SLOW_DOWN, method="HEAD", times=3))
    assert bucket.Bucket().size(url) == len(DATA)

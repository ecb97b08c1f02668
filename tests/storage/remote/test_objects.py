"""All that packtrain asks of an object store, asked of every kind of store, in this process and by way of another."""

from __future__ import annotations

import errno
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crc32c import crc32c
from helpers.objects.servers import BUCKET, Nginx, Server

from packtrain._core.errors import NotThere, RemoteError
from packtrain._storage.remote.bucket import Bucket
from packtrain._storage.remote.client import ObjectStore
from packtrain._storage.remote.objects import Objects
from packtrain._storage.remote.service import BLOCK
from packtrain._storage.remote.urls import Url

DATA = random.Random(1).randbytes(300_000)
NAMES = ("plain.bin", "deep/er/blank and + and %20 and ä.bin", "deep/er.bin", "deeper.bin", "~tilde'(1)!.bin")


@pytest.fixture
def folder(object_server: Server) -> Iterator[Url]:
    """An empty folder on every kind of store in turn."""
    with object_server.in_environment():
        yield Url.parse(object_server.fresh())


@pytest.fixture
def writable(writable_server: Server) -> Iterator[Url]:
    """The same, of those stores that can be written to."""
    with writable_server.in_environment():
        yield Url.parse(writable_server.fresh())


def read(objects: Objects, url: Url, start: int, stop: int) -> bytes:
    """Bytes of an object."""
    found = bytearray(stop - start)
    objects.read_into(url, start, memoryview(found))
    return bytes(found)


def test_what_lies_there_is_read(objects: Objects, folder: Url, object_server: Server) -> None:
    for name in NAMES:
        url = folder / name
        object_server.put(object_server.key(str(url)), DATA)
        assert objects.size(url) == len(DATA)
        assert objects.read(url, len(DATA)) == DATA
        assert objects.checksum(url) == crc32c(DATA)
        for start, stop in ((0, 1), (0, len(DATA)), (len(DATA) - 1, len(DATA)), (1000, 250_001), (5, 5)):
            assert read(objects, url, start, stop) == DATA[start:stop]
    object_server.put(object_server.key(str(folder / "empty")), b"")
    empty = folder / "empty"
    assert (objects.size(empty), objects.read(empty, 10), objects.checksum(empty)) == (0, b"", 0)


def test_the_stamp_of_an_object_changes_with_it(objects: Objects, folder: Url, object_server: Server) -> None:
    stamps = []
    for data in (DATA, DATA[:-1], DATA[::-1]):
        object_server.put(object_server.key(str(folder / "object")), data)
        assert objects.head(folder / "object") == objects.head(folder / "object")
        size, stamp, *_ = objects.head(folder / "object")
        assert size == len(data)
        stamps.append(stamp)
    assert len(set(stamps)) == 3 or set(stamps) == {""}


def test_a_web_server_has_stamps_of_files_that_have_not_changed_lately(objects: Objects, nginx_server: Nginx) -> None:
    """nginx makes entity tags of the time, in whole seconds, and of the size."""
    url = Url.parse(nginx_server.fresh()) / "object"
    nginx_server.put(nginx_server.key(str(url)), DATA)
    path = nginx_server.folder / nginx_server.key(str(url))
    assert objects.head(url).stamp == ""
    stamps = set()
    for age in (1000, 2000):
        os.utime(path, (time.time() - age,) * 2)
        stamps.add(objects.head(url).stamp)
    assert len(stamps) == 2 and "" not in stamps


def test_ranges_are_copied_into_a_file(objects: Objects, folder: Url, object_server: Server, tmp_path: Path) -> None:
    url, path = folder / "object", tmp_path / "file"
    object_server.put(object_server.key(str(url)), DATA)
    ranges = [(start, min(70_001, len(DATA) - start)) for start in range(0, len(DATA), 70_001)]
    with path.open("wb") as file:
        for start, size in reversed(ranges):
            assert objects.copy_into(url, start, size, file.fileno()) == crc32c(DATA[start : start + size])
        assert objects.copy_into(url, 0, 0, file.fileno()) == 0
        with pytest.raises(RemoteError):
            objects.copy_into(url, len(DATA) - 1, 2, file.fileno())
    assert path.read_bytes() == DATA


def test_a_file_that_cannot_be_written_is_not_the_fault_of_the_store(objects: Objects, nginx_server: Server) -> None:
    nginx_server.put("object", DATA)
    url = Url.parse(nginx_server.url) / "object"
    with open("/dev/full", "wb") as full, pytest.raises(OSError, match="No space left") as caught:
        objects.copy_into(url, 0, 10, full.fileno())
    assert caught.value.errno == errno.ENOSPC
    assert objects.size(url) == len(DATA), "the connection goes on"


def test_ranges_larger_than_the_memory_that_is_shared(objects: Objects, nginx_server: Server) -> None:
    data = random.Random(2).randbytes(2 * BLOCK + 12345)
    nginx_server.put("large.bin", data)
    assert read(objects, Url.parse(nginx_server.url) / "large.bin", 17, len(data)) == data[17:]


@pytest.mark.parametrize(
    "ask",
    [
        lambda objects, url: objects.size(url),
        lambda objects, url: objects.read(url, 100),
        lambda objects, url: read(objects, url, 0, 10),
        lambda objects, url: objects.checksum(url),
        lambda objects, url: objects.head(url),
        lambda objects, url: objects.copy_into(url, 0, 10, 0),
    ],
    ids=["size", "read", "read_into", "checksum", "head", "copy_into"],
)
def test_what_is_not_there(objects: Objects, folder: Url, ask: Callable[[Objects, Url], object]) -> None:
    with pytest.raises(NotThere, match="is not there: check the address") as caught:
        ask(objects, folder / "nothing")
    assert str(folder / "nothing") in str(caught.value)


def test_a_bucket_that_is_not_there(objects: Objects, folder: Url, file: Path, object_server: Server) -> None:
    url = Url(folder.scheme, folder.bucket if folder.scheme == "http" else f"no{folder.bucket}", "none/object")
    with pytest.raises(NotThere):
        objects.read(url, 100)
    if object_server.writable:
        with pytest.raises(NotThere):
            list(objects.list(url.parent))


def test_an_object_that_is_larger_than_expected_is_not_read(
    objects: Objects, folder: Url, object_server: Server
) -> None:
    object_server.put(object_server.key(str(folder / "object")), DATA)
    with pytest.raises(RemoteError, match=f"has {len(DATA)} bytes, at most 1000 were expected"):
        objects.read(folder / "object", 1000)


@pytest.mark.parametrize(
    ("start", "stop"), [(len(DATA) - 10, len(DATA) + 1), (len(DATA), len(DATA) + 1), (10**12, 10**12 + 5)]
)
def test_a_range_beyond_the_end(objects: Objects, folder: Url, object_server: Server, start: int, stop: int) -> None:
    object_server.put(object_server.key(str(folder / "object")), DATA)
    with pytest.raises(RemoteError):
        read(objects, folder / "object", start, stop)


def test_a_folder_is_listed_with_all_below_it(objects: Objects, writable: Url, writable_server: Server) -> None:
    assert list(objects.list(writable)) == []
    for name in NAMES:
        writable_server.put(writable_server.key(str(writable / name)), DATA[: len(name)])
    writable_server.put(f"{writable_server.key(str(writable))}-2/other", b"in a folder whose name begins alike")
    found = sorted(objects.list(writable))
    assert [each[:2] for each in found] == sorted((name, len(name)) for name in NAMES)
    assert all(each.modified_ns == objects.head(writable / each.name).modified_ns > 0 for each in found)
    below = {name.removeprefix("deep/") for name in NAMES if name.startswith("deep/")}
    assert {found.name for found in objects.list(writable / "deep")} == below
    assert list(objects.list(writable / "plain.bin")) == []


def test_the_mark_of_an_empty_folder_is_no_object(objects: Objects, moto_server: Server) -> None:
    folder = Url.parse(moto_server.fresh())
    moto_server.put(f"{folder.key}/", b"")
    moto_server.put(f"{folder.key}/object", b"data")
    with moto_server.in_environment():
        assert [found[:2] for found in objects.list(folder)] == [("object", 4)]


@pytest.mark.complete
def test_a_listing_of_several_pages(service: ObjectStore, moto_server: Server) -> None:
    folder = Url.parse(moto_server.fresh())
    names = [f"{number:05}" for number in range(1100)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: moto_server.put(f"{folder.key}/{name}", b""), names))
    with moto_server.in_environment():
        assert [found.name for found in service.list(folder)] == names


def test_a_listing_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"path": "folder/object", "size": 4, "last_modified": datetime.fromtimestamp(0, UTC)}
    monkeypatch.setattr("obstore.list", lambda *_, **__: itertools.repeat([found] * 1000))
    with pytest.raises(RemoteError, match="folder cannot be listed: the store names the same objects again and again"):
        list(Bucket().list(Url.parse("s3://bucket/folder")))


def test_what_is_written_is_there(objects: Objects, writable: Url, writable_server: Server) -> None:
    for name in NAMES:
        for data in (b"first", b"", DATA):
            assert objects.write(writable / name, data)
            assert writable_server.get(writable_server.key(str(writable / name))) == data


def test_a_new_object_replaces_none(objects: Objects, writable: Url, writable_server: Server) -> None:
    url = writable / "object"
    assert objects.write(url, b"first", new=True)
    assert not objects.write(url, b"second", new=True)
    assert not objects.write(url, b"first", new=True)
    assert writable_server.get(writable_server.key(str(url))) == b"first"
    assert objects.write(url, b"third")
    assert writable_server.get(writable_server.key(str(url))) == b"third"


def test_of_many_who_write_a_new_object_one_succeeds(objects: Objects, writable: Url, writable_server: Server) -> None:
    for number in range(2):
        url = writable / f"object {number}"
        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(lambda me, url=url: objects.write(url, bytes([me]), new=True), range(8)))
        assert won.count(True) == 1
        assert writable_server.get(writable_server.key(str(url))) == bytes([won.index(True)])


def test_a_file_is_uploaded(
    objects: Objects, writable: Url, writable_server: Server, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "small").write_bytes(DATA)
    (tmp_path / "empty").touch()
    for path in (file, tmp_path / "small", tmp_path / "empty"):
        objects.upload(writable / path.name, path)
        assert writable_server.get(writable_server.key(str(writable / path.name))) == path.read_bytes()


def test_a_file_that_cannot_be_read_is_not_uploaded(objects: Objects, writable: Url, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        objects.upload(writable / "object", tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        objects.upload(writable / "object", tmp_path)
    assert list(objects.list(writable)) == []


def test_what_is_removed_is_gone(objects: Objects, writable: Url, writable_server: Server) -> None:
    for name in NAMES:
        writable_server.put(writable_server.key(str(writable / name)), DATA)
        objects.remove(writable / name)
        assert writable_server.get(writable_server.key(str(writable / name))) is None
        objects.remove(writable / name)


def test_a_web_server_is_only_read_from(objects: Objects, nginx_server: Server, file: Path) -> None:
    folder = Url.parse(nginx_server.fresh())
    nginx_server.put(nginx_server.key(str(folder / "object")), DATA)
    for ask in (
        lambda: list(objects.list(folder)),
        lambda: objects.write(folder / "object", b""),
        lambda: objects.write(folder / "object", b"", new=True),
        lambda: objects.upload(folder / "object", file),
        lambda: objects.remove(folder / "object"),
    ):
        with pytest.raises(RemoteError, match="only reads single objects from web servers"):
            ask()
    assert nginx_server.get(nginx_server.key(str(folder / "object"))) == DATA


def test_a_store_that_does_not_know_a_request_is_not_asked_again(objects: Objects, gcs_server: Server) -> None:
    with gcs_server.in_environment(), pytest.raises(RemoteError, match="cannot be written: the server answers 400"):
        objects.write(Url.parse(gcs_server.url) / BUCKET, b"data")

"""Fixtures for tests of what works in a folder and at an address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.memory_objects import KilledError, MemoryObjects
from helpers.objects.fixtures import Started
from helpers.objects.servers import Server
from helpers.support import tree
from helpers.versions import laid_out

from packtrain import drop_version
from packtrain._packer import merge_output, object_workplace
from packtrain._storage.remote.urls import Url

WEEK = 7 * 24 * 3600


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryObjects]:
    """A store in memory, in which all is read and written that lies at an address, and an empty folder for spools."""
    (tmp_path / "spools").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spools"))
    objects = MemoryObjects()
    for module in (object_workplace, merge_output):
        monkeypatch.setattr(module, "ObjectStore", lambda: objects)
    yield objects
    assert not list((tmp_path / "spools").iterdir())


@pytest.fixture
def stopped(
    request: pytest.FixtureRequest, complete: bool, memory: MemoryObjects
) -> Callable[[Callable[[], object]], Iterator[int]]:
    """Runs something undisturbed, and then again and again, killed before one of its requests.

    Gives the number of the request each time, 0 of none. The store is as it was before each run.
    """

    def runs(run: Callable[[], object]) -> Iterator[int]:
        before, memory.changes = dict(memory.objects), 0
        run()
        requests = memory.changes
        yield 0
        everywhere = request.config.getoption("--every-point")
        some = {1, requests // 2, requests - 1, requests} if complete else {2, requests - 1}
        for number in (each for each in range(1, requests + 1) if everywhere or each in some):
            memory.objects, memory.written, memory.changes = dict(before), {}, 0
            memory.fault = lambda url, count, last=number: "kill" if count == last else ""  # type: ignore[misc]
            with pytest.raises(KilledError):
                run()
            memory.revive()
            yield number

    return runs


def meanwhile(memory: MemoryObjects, name: str, then: Callable[[], object]) -> None:
    """Has something done, once, before the next request that writes an object whose address ends so."""

    def fault(url: Url, number: int) -> str:
        if str(url).endswith(name):
            memory.fault = lambda url, number: ""
            then()
        return ""

    memory.fault = fault


@pytest.fixture
def store(
    request: pytest.FixtureRequest, started_server: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """An object store in the environment of this process, S3 unless a test asks for others, and a folder for spools."""
    (tmp_path / "spools").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spools"))
    monkeypatch.setattr("tempfile.tempdir", None)
    server = started_server(getattr(request, "param", "moto"))
    with server.in_environment():
        yield server


class Place:
    """A folder, in which a dataset stays where it is."""

    workers = 2

    def put(self, folder: Path) -> Path | str:
        """Puts a dataset of this machine there, and returns its place."""
        return folder

    def files(self, place: Path | str) -> dict[str, bytes]:
        """The files of the dataset that are there."""
        return tree(Path(place))

    def here(self, folder: Path) -> Path:
        """The folder again, with what is there by now."""
        return folder

    def settle(self, place: Path | str) -> None:
        """Lets go what was to be removed."""


class Address(Place):
    """An address in a store in memory."""

    workers = 1

    def __init__(self, memory: MemoryObjects) -> None:
        self._memory = memory
        self._url = Url.parse("s3://bucket/place")

    def put(self, folder: Path) -> str:
        return self._memory.put(self._url, tree(folder))

    def files(self, place: Path | str) -> dict[str, bytes]:
        return self._memory.under(self._url)

    def here(self, folder: Path) -> Path:
        return laid_out(self._memory.under(self._url), folder, sound=False)

    def settle(self, place: Path | str) -> None:
        self._memory.age(WEEK + 60)
        drop_version(place)


@pytest.fixture(params=["folder", "address"])
def place(request: pytest.FixtureRequest) -> Place:
    """A place where a dataset is to be changed."""
    return Place() if request.param == "folder" else Address(request.getfixturevalue("memory"))

"""A file that any process has open or mapped is not taken for one that nobody uses."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packtrain._core.generations import GENERATIONS, Generation, GenerationLease, promise
from packtrain._growing.file_users import is_open, who_maps, who_reads

MAP = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
os.close(descriptor)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, memory_path: Path, tmp_path: Path) -> Path:
    found = (memory_path if request.param == "memory" else tmp_path) / "file"
    found.write_bytes(b"x" * 8192)
    return found


def test_a_file_is_open_while_it_is_open_or_mapped(path: Path) -> None:
    assert not is_open(path)
    with path.open("rb") as file:
        assert is_open(path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert is_open(path)
    mapped.close()
    assert not is_open(path)


def test_another_process_that_maps_a_file_is_found(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAP, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert is_open(path)
        assert f"fuser -v {path}" in who_maps(path)
        process.kill()
    assert not is_open(path)


def test_a_file_that_is_not_there_is_not_open(tmp_path: Path) -> None:
    assert not is_open(tmp_path / "missing")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES, errno.EOPNOTSUPP])
def test_where_there_are_no_leases_nothing_counts_as_open(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with path.open("rb"):
        monkeypatch.setattr(fcntl, "fcntl", refuse)
        assert not is_open(path)


@pytest.mark.complete
def test_a_process_that_opens_the_file_during_a_look_does_not_end_the_one_that_looks(path: Path) -> None:
    """By default the kernel sends SIGIO to the holder of a lease that somebody wants to break, which would end it."""
    code = (
        "import sys; from pathlib import Path; from packtrain._growing.file_users import is_open\n"
        "print('ready', flush=True)\n"
        "for _ in range(20000): is_open(Path(sys.argv[1]))"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        while process.poll() is None:
            path.open("rb").close()
    assert process.returncode == 0, signal.Signals(-process.returncode)


def test_readers_and_promises_of_a_generation_are_named(memory_path: Path) -> None:
    (memory_path / GENERATIONS).mkdir()
    Generation(4, 0, 0, 0, (), (), ()).publish(memory_path)
    with GenerationLease(memory_path, 4):
        assert who_reads(memory_path, 4) == f"generation 4 is read by process {os.getpid()}"
    assert promise(memory_path, 4, 4e9)
    assert "generation 4 is promised for another" in who_reads(memory_path, 4)
    assert who_reads(memory_path, 5) == ""

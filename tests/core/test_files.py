"""Laws of files that are whole or not there, of locks, and of what the machine says of itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from packtrain._core import files, mounts
from packtrain._core.cores import available_cores
from packtrain._core.locks import Lock
from packtrain._core.processes import ProcessName
from packtrain.errors import NoSpace, OutputConflict, PackError, ShardFailed


class TestWriteFile:
    def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"half"
            assert (tmp_path / "a").read_bytes() == b"old", "the file was touched before it was complete"
            raise RuntimeError

        files.write_file(tmp_path / "a", [b"old"])
        with pytest.raises(RuntimeError):
            files.write_file(tmp_path / "a", chunks())
        assert (tmp_path / "a").read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [tmp_path / "a"]

    def test_the_exclusive_one_never_replaces(self, tmp_path: Path) -> None:
        files.write_file(tmp_path / "a", [b"first"], exclusive=True)
        with pytest.raises(FileExistsError):
            files.write_file(tmp_path / "a", [b"second"], exclusive=True)
        assert (tmp_path / "a").read_bytes() == b"first"
        assert list(tmp_path.iterdir()) == [tmp_path / "a"]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    write = os.write
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: write(descriptor, b"".join(buffers)[:step]))
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:step]))
    buffers: list[bytes | memoryview] = [b"abc", memoryview(b"defgh"), b"", b"ij"]
    descriptor = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
    try:
        assert files.write_all(descriptor, buffers) == 10
    finally:
        os.close(descriptor)
    assert (tmp_path / "a").read_bytes() == b"abcdefghij"


@pytest.mark.parametrize("durable", [True, False])
def test_who_does_not_ask_for_a_durable_file_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files.write_file(tmp_path / "file", [b"ab", b"c"], durable=durable, mode=0o600)
    assert len(synced) == (2 if durable else 0), "the file, and its folder"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"abc" and (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_temporary_files_are_told_from_others_and_removed_by_name(tmp_path: Path) -> None:
    names = ["train-000000.tar", "train-000001.tar", "plan.json"]
    temporaries = {name: [files.temporary_path(tmp_path / name) for _ in range(2)] for name in names}
    everything = [*(path for paths in temporaries.values() for path in paths), *(tmp_path / name for name in names)]
    assert len(set(everything)) == 9
    for path in everything:
        path.touch()
    assert [files.is_temporary(path) for path in everything] == [True] * 6 + [False] * 3
    files.remove_temporaries(tmp_path, names[0])
    assert set(tmp_path.iterdir()) == set(everything) - set(temporaries[names[0]])
    files.remove_temporaries(tmp_path)
    assert set(tmp_path.iterdir()) == {tmp_path / name for name in names}


@pytest.mark.parametrize("name", ["plain", "a[1]", "*", "a**b", 250 * "n"])
def test_the_temporaries_of_a_path_of_any_name_are_its_own(tmp_path: Path, name: str) -> None:
    mine = {files.temporary_path(tmp_path / name) for _ in range(2)}
    for path in (*mine, files.temporary_path(tmp_path / "a1"), tmp_path / name):
        path.touch()
    assert set(files.temporaries_of(tmp_path / name)) == mine


@pytest.mark.parametrize("letter", ["n", "é", "\udcff"])
def test_the_temporary_of_the_longest_name_can_be_written_and_is_found(tmp_path: Path, letter: str) -> None:
    """Shards differ at the end of their names."""
    long = letter * (244 // len(os.fsencode(letter)))
    names = [f"{long}-{number:06}.tar" for number in range(2)]
    owner = ProcessName("f" * 12, 10**10 - 1, 10**20 - 1)
    first, second = (files.temporary_path(tmp_path / name, owner) for name in names)
    for path in (first, second, tmp_path / names[0]):
        path.touch()
    assert files.is_temporary(first)
    files.remove_temporaries(tmp_path, names[0])
    assert set(tmp_path.iterdir()) == {second, tmp_path / names[0]}
    files.write_file(tmp_path / names[1], [b"whole"])


@pytest.mark.parametrize("size", [0, 1, files.MiB - 1, files.MiB, 2 * files.MiB + 5])
def test_the_checksum_of_a_file_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    assert files.checksum_file(tmp_path / "a") == crc32c(data)


class TestLocked:
    @pytest.mark.parametrize("shared", [False, True])
    def test_a_second_packer_is_told(self, tmp_path: Path, shared: bool) -> None:
        path = tmp_path / "plan.json"
        path.touch()
        with (
            Lock(path, shared=shared),
            pytest.raises(OutputConflict, match="another packer is working in"),
            files.locked(path),
        ):
            pass
        with files.locked(path), pytest.raises(BlockingIOError):
            Lock(path, shared=shared, wait=False)

    @pytest.mark.parametrize("shared", [False, True])
    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
    def test_a_file_system_without_locks_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, number: int
    ) -> None:
        asked = []

        def flock(*_: object) -> None:
            asked.append(number)
            raise OSError(number, "no locks here")

        monkeypatch.setattr("fcntl.flock", flock)
        (tmp_path / "plan.json").touch()
        with files.locked(tmp_path / "plan.json", shared=shared):
            assert asked

    def test_a_file_that_is_to_be_locked_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError), files.locked(tmp_path / "plan.json"):
            pass
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
def test_a_full_disk_is_named_with_the_next_step(tmp_path: Path, number: int) -> None:
    """A file that must not grow needs no room."""
    message = rf"no space left for {tmp_path} \(.*; [\d,]+ MiB free\).* run the same command again"
    with pytest.raises(NoSpace, match=message) as caught, files.file_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert ("make room" in str(caught.value)) == (number != errno.EFBIG)
    assert ("raise the limit of file sizes (`ulimit -f`)" in str(caught.value)) == (number == errno.EFBIG)


def test_other_errors_of_the_output_are_named_too(tmp_path: Path) -> None:
    for otherwise in (PackError, ShardFailed):
        message = rf"cannot write to {tmp_path}: .*Input/output error"
        with pytest.raises(otherwise, match=message) as caught, files.file_errors(tmp_path, otherwise):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert type(caught.value) is otherwise
    with pytest.raises(KeyError), files.file_errors(tmp_path):
        raise KeyError


def test_an_error_names_the_file_that_it_is_about(tmp_path: Path) -> None:
    for path, why in ((tmp_path, rf" \({tmp_path / 'x'}\)"), (tmp_path / "x", "")):
        message = rf"cannot read {path}: No such file or directory{why}\. Make sure"
        with pytest.raises(PackError, match=message), files.file_errors(path, verb="read"):
            (tmp_path / "x").read_bytes()


class TestMachine:
    def test_file_systems_are_named_as_the_kernel_names_them(self) -> None:
        assert mounts.file_system(Path("/proc")) == "proc"
        assert mounts.file_system(Path("/sys")) == "sysfs"
        assert mounts.file_system(Path("/nonexistent")) == "unknown"

    @pytest.mark.parametrize(
        ("kind", "network"),
        [("nfs4", True), ("lustre", True), ("fuse.sshfs", True), ("fuseblk", True), ("ext4", False), ("tmpfs", False)],
    )
    def test_network_file_systems_are_told(self, monkeypatch: pytest.MonkeyPatch, kind: str, network: bool) -> None:
        monkeypatch.setattr(mounts, "file_system", lambda path: kind)
        assert mounts.is_network(Path("/data")) is network

    @pytest.mark.parametrize(
        ("content", "cores"),
        [
            ({"cpu.max": "max 100000\n"}, 4),
            ({"cpu.max": "200000 100000\n"}, 2),
            ({"cpu.max": "250000 100000\n"}, 2),
            ({"cpu.max": "50000 100000\n"}, 1),
            ({"cpu.max": "900000 100000\n"}, 4),
            ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
            ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
            ({"cpu.max": "garbage\n"}, 4),
            ({}, 4),
        ],
        ids=str,
    )
    def test_a_containers_quota_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, str], cores: int
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
        for name, text in content.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        assert available_cores(tmp_path) == cores

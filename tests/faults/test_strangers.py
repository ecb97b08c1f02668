"""A folder made by a stranger cannot block, make a reader read without end, or lead a writer out of the folder."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.damage import forge
from helpers.support import image_set, packed, shard_bytes, soon, spoil, tree

from packtrain import PackOptions, open_dataset, pack, verify
from packtrain._core.options import StoreOptions
from packtrain._readers.dataset.store import RecordStore
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import CorruptFile, OutputConflict, PacktrainError, UnreadableFile, UsageError

SPECIAL = ("pipe", "device", "folder", "broken link", "loop")


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    return image_set(tmp_path / "images", 4)


@pytest.fixture
def dataset(listing: Path, tmp_path: Path) -> Path:
    return packed(listing, tmp_path / "out", "tar", shard_size=shard_bytes(listing, 2))


def read(dataset: Path) -> None:
    for io in ("mmap", "pread"):
        with open_dataset(dataset, io=io).store as store:
            for row in range(len(store)):
                store.record(row)


def packed_again(listing: Path, dataset: Path) -> None:
    pack(listing, dataset, PackOptions(store=StoreOptions("verbatim"), shard_size=shard_bytes(listing, 2)))


def answer(use: Callable[[Path], Any], dataset: Path) -> str:
    """Returns what a use says about the dataset: its error, or its report."""
    with soon():
        try:
            return str(use(dataset))
        except PacktrainError as error:
            return str(error)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "name", ["manifest.json", "plan.json", "rejects.jsonl", "train-000000.tar", "index/line.npy", "index/blocks.npy"]
)
def test_what_is_not_a_file_is_refused_at_once_wherever_it_lies(
    listing: Path, dataset: Path, name: str, kind: str
) -> None:
    again = partial(packed_again, listing)
    spoil(dataset / name, kind)
    found = [answer(use, dataset) for use in (read, summarise, verify)]
    assert Path(name).name in "".join(found)
    answer(again, dataset)  # which need not look at it, but does not wait for it either


FAILING = (errno.EACCES, errno.EIO, errno.EMFILE, errno.ESTALE)


@pytest.mark.parametrize("number", FAILING, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "line.npy", "rejects.jsonl", "train-000001.tar"])
def test_what_cannot_be_read_is_named_with_a_remedy(
    listing: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    real = os.open

    def failing(path: Any, *arguments: Any, **options: Any) -> int:
        if os.fspath(path).endswith(name):
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", failing)
    found = [answer(use, dataset) for use in (read, summarise, verify, partial(packed_again, listing))]
    assert any(name in each and os.strerror(number) in each for each in found)
    if name == "manifest.json":
        for use in (read, summarise):
            with pytest.raises(UnreadableFile):
                use(dataset)


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_note_or_a_journal_that_is_not_a_file_is_refused_at_once(
    listing: Path, dataset: Path, tmp_path: Path, kind: str
) -> None:
    again = partial(packed_again, listing)
    spoil(tmp_path / "journal", kind)
    with soon(), pytest.raises(UsageError, match="cannot use the journal") if kind != "broken link" else nullcontext():
        verify(dataset, journal=tmp_path / "journal")
    (dataset / "manifest.json").unlink()
    (dataset / "parts").mkdir()
    spoil(dataset / "parts" / "train-000000.tar.npz", kind)
    assert ("train-000000.tar.npz" in answer(again, dataset)) == (kind == "folder")


@pytest.mark.parametrize(
    "name", ["../outside/results.txt", "{outside}/results.txt", "plan.json", "x", "train-000001.tar", "train-000000.h5"]
)
def test_a_prepared_plan_makes_pack_write_nowhere_else(listing: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "results.txt").write_text("mine")
    out = packed(listing, tmp_path / "out", "tar")
    for path in out.iterdir():
        if path.name != "plan.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    forge(out / "plan.json", lambda body: body["shards"][0].update(name=name.format(outside=outside)))
    before = tree(tmp_path)
    with pytest.raises(CorruptFile, match=r"plan\.json is damaged: shards\[0\]"):
        packed(listing, out, "tar")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("finished", [False, True])
def test_notes_are_not_written_through_a_link(listing: Path, dataset: Path, tmp_path: Path, finished: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "train-000000.tar.npz").write_text("mine")
    (outside / ".plan.json.tmp-0").write_text("mine")
    (dataset / "parts").symlink_to(outside)
    (dataset / "train-000000.tar").unlink()
    if not finished:
        (dataset / "manifest.json").unlink()
    with pytest.raises(OutputConflict, match="parts is not a folder: remove it"):
        packed_again(listing, dataset)
    assert tree(outside) == {"train-000000.tar.npz": b"mine", ".plan.json.tmp-0": b"mine"}


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As if this process had as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    opened: list[int] = []
    try:
        while True:
            try:
                opened.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_too_many_open_files_are_not_the_fault_of_the_dataset(dataset: Path, io: str) -> None:
    store = RecordStore(dataset, io=io)
    with no_descriptor_left():
        with pytest.raises(
            UnreadableFile, match=r"row 0 \(line 0, .*Too many open files: allow .*`ulimit -n`"
        ) as caught:
            store.record(0)
        with pytest.raises(UnreadableFile, match="ulimit -n"):
            RecordStore(dataset, io=io)
    assert "restore" not in str(caught.value)
    assert caught.value.file in {"train-000000.tar", "train-000001.tar"}
    assert store.record(0)


@pytest.mark.parametrize("number", ["EIO", "ESTALE", "EACCES"])
def test_a_read_that_fails_names_the_row(dataset: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    store = RecordStore(dataset, io="pread")
    store.record(0)

    def failing(*_: Any) -> bytes:
        raise OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(UnreadableFile, match=r"row 0 \(line 0, 'image 0\.jpg', in train-00000\d\.tar\) cannot be read"):
        store.record(0)


@pytest.mark.complete
def test_lmdb_is_packed_and_verified_without_proc(listing: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own, where /proc is an empty folder."""
    out = tmp_path / "out"
    script = 'mount -t tmpfs none /proc && "$0" -m packtrain pack "$1" "$2" --format lmdb --workers 1'
    script += ' && "$0" -m packtrain verify "$2" --decode --workers 1'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, sys.executable, str(listing), str(out)]
    if shutil.which("unshare") is None or subprocess.run([*command[:5], "mount -t tmpfs none /proc"]).returncode:
        pytest.skip("no mount namespace can be made here")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no problems" in done.stdout
    assert not verify(out).problems

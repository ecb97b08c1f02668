"""Laws of removing versions: nothing goes that somebody uses, and the message says who."""

from __future__ import annotations

import atexit
import errno
import fcntl
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from helpers.support import held, image_set, packed, tree

from packtrain import (
    FieldColumn,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    open_dataset,
    purge,
    relabel,
    split,
    stage,
    verify,
)
from packtrain._core import version_files, versions
from packtrain._core.files import temporary_path
from packtrain._core.manifest import manifest_bytes
from packtrain._core.versions import newest_version
from packtrain._packer import removing
from packtrain._packer.pins import pin, unpin
from packtrain._packer.workplace import Workplace, writing
from packtrain._storage.staging import version_documents
from packtrain.errors import CorruptFile, OutputConflict, PackError, UsageError
from packtrain.reports import ChangeReport
from packtrain.staging import Staged

from .conftest import WEEK, Place

CAPTION = [FieldColumn("caption", "text", "caption", by_path=False, optional=True)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A dataset of three versions: packed, appended to, and without two rows of what was appended."""
    out = packed(image_set(tmp_path / "first", 4), tmp_path / "out", "tar")
    append(out, image_set(tmp_path / "second", 5))
    drop_rows(out, [4, 8])
    return out


@pytest.mark.complete
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_version_that_a_worker_has_open_stays(out: Path, method: str) -> None:
    dataset = open_dataset(out, version=2)
    samples = held(dataset)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(held, dataset).result() == samples
        # Keeps it, as a loader's worker does.
        pool.submit(atexit.register, id, dataset).result()
        worker = pool.submit(os.getpid).result()
        del dataset
        before = tree(out)
        with pytest.raises(OutputConflict, match="version 2 is open by process") as raised:
            drop_version(out, [1, 2])
        # The kernel names the process that took a lock, which its forks share.
        assert str(os.getpid() if method == "fork" else worker) in str(raised.value)
        assert tree(out) == before, "one of several was dropped"
    assert drop_version(out, [1, 2]).versions == (1, 2)


def test_a_version_that_is_open_stays_where_others_begin_versions_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They find the document that readers hold, and leave it there."""
    out, opened = packed(image_set(tmp_path / "images", 4), tmp_path / "out", "tar"), list[object]()
    read = manifest_bytes

    def late(path: Path) -> bytes:
        data = read(path)
        monkeypatch.undo()
        drop_rows(out, [0])
        opened.append(open_dataset(out, version=1))
        return data

    monkeypatch.setattr("packtrain._core.versions.manifest_bytes", late)
    versions.begin_versions(out)
    with pytest.raises(OutputConflict, match="version 1 is open by process"):
        drop_version(out, 1)
    opened.clear()
    assert drop_version(out, 1).versions == (1,)


@pytest.mark.parametrize("look", [open_dataset, newest_version, stage])
def test_the_newest_version_is_one_that_was_not_dropped_meanwhile(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[..., object]
) -> None:
    """Somebody makes a newer one between the looks at which there are and at whether that one was dropped."""
    real = version_files.version_numbers
    (tmp_path / "place").mkdir()

    def numbers(folder: Path) -> list[int]:
        found = real(folder)
        monkeypatch.undo()
        drop_rows(out, [0])
        drop_version(out, found[-1])
        return found

    for module in (versions, version_documents):
        monkeypatch.setattr(module, "version_numbers", numbers)
    found = look(out, tmp_path / "place") if look is stage else look(out)
    assert len(open_dataset(found.path) if isinstance(found, Staged) else open_dataset(out)) == 6


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda out, more: append(out, more), "bring"),
        (lambda out, more: drop_rows(out, [1]), "bring"),
        (lambda out, more: add_field(out, more.with_name("captions.csv"), CAPTION), "bring_indexes"),
        (lambda out, more: compact(out), "bring_manifests"),
    ],
    ids=["append", "drop-rows", "add-field", "compact"],
)
def test_what_a_change_reads_stays_meanwhile(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path, Path], object], step: str
) -> None:
    more, refused = image_set(tmp_path / "third", 3), list[OutputConflict]()
    (tmp_path / "third" / "captions.csv").write_text("path,caption\nimage 0.jpg,one\n")

    def meanwhile(place: Workplace, *_: object) -> None:
        monkeypatch.undo()
        with pytest.raises(OutputConflict, match=f"version 3 is open by process {os.getpid()}") as caught:
            purge(out, [2])
        refused.append(caught.value)

    monkeypatch.setattr(Workplace, step, meanwhile)
    change(out, more)
    assert refused
    assert not verify(out).problems
    purge(out, [2])


def test_who_has_just_closed_a_version_is_not_taken_for_another_machine(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [open_dataset(out, version=2)]

    def closed(status: os.stat_result) -> tuple[int, ...]:
        opened.clear()
        return ()

    monkeypatch.setattr(removing, "lock_holders", closed)
    assert drop_version(out, 2).versions == (2,)


def test_a_pin_that_is_damaged_keeps_all_versions(out: Path) -> None:
    mine = out / "pins" / "mine.json"
    mine.parent.mkdir()
    mine.write_bytes(b"{}")
    with pytest.raises(OutputConflict, match=r"mine\.json is damaged.*remove it if nobody does"):
        drop_version(out, 1)
    mine.unlink()
    assert drop_version(out, 1).versions == (1,)


def test_what_cannot_be_dropped_is_refused(out: Path, tmp_path: Path, place: Place) -> None:
    plain = packed(image_set(tmp_path / "other", 1), tmp_path / "new", "tar")
    with pytest.raises(UsageError, match=f"^{plain} has no versions: it was never changed"):
        drop_version(plain, 1)
    # What another version needs is not known.
    document = out / "versions/00000002.json"
    document.write_bytes(document.read_bytes().replace(b'"records": 9', b'"records": 8'))
    there = place.put(out)
    before = place.files(there)
    for numbers, error, message in (
        ([1, 3], UsageError, f"^{there}: version 3 is the newest one"),
        ([9], UsageError, f"^{there}: version 9 does not exist"),
        ([1], CorruptFile, f"^{there}/versions/00000002.json is damaged"),
    ):
        with pytest.raises(error, match=message):
            drop_version(there, numbers)
    assert place.files(there) == before
    assert drop_version(there, [1, 2]).versions == (1, 2)


def test_what_writers_left_is_removed_and_what_they_write_is_not(out: Path) -> None:
    at_work = out / "layers" / ("1" * 16)
    left = out / "segments" / ("0" * 16)
    left.mkdir()
    rows = out / "dropped" / f"{'2' * 16}.npy"
    files = [rows, *(temporary_path(out / name) for name in ("manifest.json", "versions/00000009.json", "pins/one"))]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"rows")
    samples = held(open_dataset(out))
    with writing(at_work):
        assert drop_version(out).removed == (f"segments/{left.name}",)
        assert at_work.exists()
    assert drop_version(out).removed == (f"layers/{at_work.name}",)
    names = {str(file.relative_to(out)) for file in files}
    assert {*verify(out).orphans} == names
    for file in files:
        os.utime(file, (0, time.time() - WEEK - 60))
    assert {*drop_version(out).removed} == names
    assert held(open_dataset(out)) == samples


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file system without locks."""

    def flock(descriptor: int, mode: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        yield


@pytest.mark.usefixtures("no_locks")
def test_without_locks_files_wait_for_a_week(out: Path) -> None:
    drop_rows(out, [4])
    dataset = open_dataset(out, version=3)
    samples = held(dataset)
    (out / "segments" / ("0" * 16)).mkdir()
    report = drop_version(out, [2, 3])
    assert report.removed == ()
    (waiting,) = report.waiting
    assert re.fullmatch(r"dropped/\w{16}\.npy", waiting)
    assert held(dataset) == samples
    with pytest.raises(UsageError, match="version 3 was dropped"):
        open_dataset(out, version=3)
    for mark in out.glob("versions/*.dropped"):
        os.utime(mark, (0, time.time() - WEEK - 60))
    assert drop_version(out).removed == report.waiting


def test_a_list_that_was_dropped_is_appended_again(out: Path, tmp_path: Path) -> None:
    """Its segment has the name that it had."""
    drop_rows(out, [4, 5, 6])
    drop_version(out, [1, 2, 3])
    assert not list(out.glob("segments/*"))
    append(out, tmp_path / "second" / "train.txt")
    assert len(open_dataset(out)) == 9
    assert not verify(out).problems


def test_what_is_not_called_like_a_part_stays(out: Path) -> None:
    others = [
        out / place / name for place in ("segments", "layers", "dropped", "sides") for name in ("lost+found", "0" * 15)
    ]
    for other in others:
        other.mkdir(parents=True)
        os.utime(other, (0, 0))
    assert not drop_version(out).removed
    assert not verify(out).orphans
    assert all(other.is_dir() for other in others)


@pytest.mark.parametrize("place", ["versions", "segments", "layers", "dropped", "sides", "pins"])
def test_nothing_is_written_or_removed_by_a_link_in_the_place_of_a_folder(
    out: Path, tmp_path: Path, place: str
) -> None:
    append(out, image_set(tmp_path / "third", 2))
    theirs, more = tmp_path / "theirs", image_set(tmp_path / "more", 3)
    (out / place).rename(theirs) if (out / place).is_dir() else theirs.mkdir()
    (theirs / ("0" * 16)).mkdir()
    (out / place).symlink_to(theirs)
    before = tree(theirs), tree(out)
    for change in (
        partial(drop_version, out, 2),
        partial(drop_version, out),
        partial(append, out, more),
        partial(drop_rows, out, [1]),
        partial(compact, out),
        partial(purge, out, [1]),
        partial(split, out, val=0.5),
        partial(pin, out, 1, by="me"),
        partial(unpin, out, 1, by="me"),
    ):
        with pytest.raises(OutputConflict, match=rf"{place} is a link, which leads out of the dataset"):
            change()
    assert (tree(theirs), tree(out)) == before


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda out, **options: append(out, out.parent / "more" / "train.txt", **options), "segments/*"),
        (lambda out, **options: relabel(out, classes=("a", "b", "c"), **options), "layers/*/index"),
    ],
    ids=["segment", "index"],
)
def test_a_part_is_not_written_by_a_link(
    out: Path, tmp_path: Path, change: Callable[..., ChangeReport], place: str
) -> None:
    image_set(tmp_path / "more", 3)
    (theirs := tmp_path / "theirs").mkdir()
    kind, _, rest = place.partition("/*")
    (first, *_) = (name for name in change(out, dry_run=True).written if name.startswith(f"{kind}/"))
    path = out / f"{first}{rest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(theirs)
    with pytest.raises(OutputConflict, match=rf"{path} is a link"):
        change(out)
    assert not list(theirs.iterdir())


def test_a_dataset_of_somebody_else_is_not_purged_and_the_right_that_is_missing_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(out)

    def theirs(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr("packtrain._packer.removing.Lock", theirs)
    with pytest.raises(PackError, match=rf"cannot write to {out}: Permission denied .*Give this user the right"):
        purge(out, [0])
    assert tree(out) == before

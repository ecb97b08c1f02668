"""Laws of pins: a version that somebody needs stays, whoever comes first, and what reads shards in place has a pin."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from helpers.memory_objects import MemoryObjects
from helpers.objects.servers import Nginx
from helpers.support import held, image_set, packed, tree
from helpers.waiting import wait_until

from packtrain import append, compact, drop_rows, drop_version, index_shards, open_dataset, purge
from packtrain._cli.main import group
from packtrain._core.version_files import is_dropped, version_numbers
from packtrain._core.versions import Pin
from packtrain._packer import removing
from packtrain._packer.pins import pin, pins_of, unpin
from packtrain._packer.workplace import Workplace
from packtrain._storage.remote.urls import Url
from packtrain.errors import OutputConflict, UsageError

from .conftest import Place, meanwhile

PROCESSES = multiprocessing.get_context("fork")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A dataset of three versions: packed, appended to, and without the first row."""
    out = packed(image_set(tmp_path / "first", 4), tmp_path / "out", "tar")
    append(out, image_set(tmp_path / "second", 5))
    drop_rows(out, [0])
    return out


def needed(dataset: Path) -> list[tuple[int, str]]:
    return [(each.number, each.by) for _, each in pins_of(dataset)]


def test_a_version_stays_until_nobody_needs_it(out: Path, place: Place) -> None:
    there = place.put(out)
    for by in ("one", "two", "one"):
        pin(there, 1, by=by)
    assert sorted(needed(place.here(out))) == [(1, "one"), (1, "two")]
    for by in ("one", "two"):
        with pytest.raises(OutputConflict, match=rf"version 1 is needed by .* `packtrain unpin {there} 1 --by"):
            drop_version(there, [1, 2])
        with pytest.raises(OutputConflict, match="version 1 is needed by"):
            purge(there, [2])
        assert len(open_dataset(place.here(out))) == 8
        unpin(there, 1, by=by)
    assert drop_version(there, [1, 2]).versions == (1, 2)


def test_only_what_is_there_is_pinned_and_unpinned(out: Path, tmp_path: Path, place: Place) -> None:
    there = place.put(out)
    drop_version(there, 2)
    before = place.files(there)
    for number, why in ((2, "was dropped"), (9, "does not exist")):
        with pytest.raises(UsageError, match=f"^{there}: version {number} {why}"):
            pin(there, number, by="me")
    with pytest.raises(UsageError, match="`by` is empty"):
        pin(there, 1, by=" ")
    with pytest.raises(UsageError, match=f"^{there}: no pin of version 1 has `by` 'me'; there is none"):
        unpin(there, 1, by="me")
    assert place.files(there) == before
    pin(there, 3, by="you")
    with pytest.raises(UsageError, match="no pin of version 1 has `by` 'me'; there is version 3 by you"):
        unpin(there, 1, by="me")
    plain = packed(image_set(tmp_path / "plain", 1), tmp_path / "as packed", "tar")
    with pytest.raises(UsageError, match="has only version 1"):
        pin(plain, 2, by="me")


def trying(done: Any, barrier: Barrier, rounds: list[Path], change: Callable[[Path], object]) -> None:
    for dataset in rounds:
        barrier.wait()
        try:
            change(dataset)
        except (OutputConflict, UsageError):
            done.put(False)
        else:
            done.put(True)


def pin_first(dataset: Path) -> None:
    pin(dataset, 1, by="me")


def drop_first(dataset: Path) -> None:
    drop_version(dataset, 1)


def test_of_a_pin_and_a_drop_at_the_same_time_one_wins(out: Path, tmp_path: Path) -> None:
    rounds = [Path(shutil.copytree(out, tmp_path / f"round {number}")) for number in range(12)]
    barrier = PROCESSES.Barrier(2)
    queues = [PROCESSES.Queue() for _ in range(2)]
    processes = [
        PROCESSES.Process(target=trying, args=(queue, barrier, rounds, change))
        for queue, change in zip(queues, (pin_first, drop_first), strict=True)
    ]
    for process in processes:
        process.start()
    for dataset in rounds:
        pinned, dropped = (queue.get() for queue in queues)
        assert pinned is not dropped
        assert needed(dataset) == ([(1, "me")] if pinned else [])
        assert is_dropped(dataset, 1) is dropped
    for process in processes:
        process.join()


def test_a_pin_that_comes_after_the_look_for_pins_loses(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = PROCESSES.Queue()
    late = PROCESSES.Process(target=trying, args=(failed, PROCESSES.Barrier(1), [out], pin_first))

    def looked(folder: Path) -> Iterator[tuple[Path, Pin]]:
        yield from pins_of(folder)
        late.start()
        wait_until(lambda: needed(folder) == [(1, "me")], "the other process to pin")

    with monkeypatch.context() as patch:
        patch.setattr(removing, "pins_of", looked)
        assert drop_version(out, 1).versions == (1,)
    assert failed.get() is False
    late.join()
    assert needed(out) == []


def test_what_reads_shards_in_place_keeps_their_versions(out: Path, tmp_path: Path) -> None:
    """Of each segment the newest version that has it, and of a dataset that was never changed its only one."""
    append(out, image_set(tmp_path / "third", 3))
    compact(out)
    shards = [*out.glob("*.tar"), *out.glob("segments/*/*.tar")]
    newest = version_numbers(out)[-1]
    report = index_shards(shards, tmp_path / "derived")
    assert set(report.pins) == {(out, newest - 1), (out, newest)}
    assert sorted(needed(out)) == [(number, str(tmp_path / "derived")) for number in (newest - 1, newest)]
    samples = held(open_dataset(tmp_path / "derived"))
    with pytest.raises(OutputConflict, match=f"version {newest - 1} is needed by {tmp_path / 'derived'}"):
        drop_version(out, range(1, newest))
    drop_version(out, range(1, newest - 1))
    assert held(open_dataset(tmp_path / "derived")) == samples

    plain = packed(image_set(tmp_path / "plain", 3), tmp_path / "as packed", "tar")
    assert index_shards(plain, tmp_path / "of plain").pins == ((plain, 1),)
    append(plain, image_set(tmp_path / "more", 2))
    compact(plain)
    with pytest.raises(OutputConflict, match=r"version 1 is needed by .*of plain"):
        drop_version(plain, [1, 2])


def test_shards_that_cannot_be_kept_are_not_read_in_place(out: Path, tmp_path: Path) -> None:
    (shard,) = out.glob("segments/*/*.tar")
    (out / "pins").write_text("in the way")
    with pytest.raises(OutputConflict, match=r"version 3 of .* could be dropped .* `packtrain pack .* OUT`"):
        index_shards(shard, tmp_path / "derived")
    assert not (tmp_path / "derived" / "manifest.json").exists()
    (out / "pins").unlink()
    folder = out / "segments" / ("0" * 16)
    folder.mkdir()
    shutil.copy(shard, folder / "left.tar")
    with pytest.raises(OutputConflict, match="no version has segments/0000000000000000 any more"):
        index_shards(folder / "left.tar", tmp_path / "derived")


def test_a_pin_is_as_the_format_says(out: Path) -> None:
    document = json.loads(Path(pin(out, 2, by="/data/mine")).read_bytes())
    assert {"version": 3, "number": 2, "by": "/data/mine"}.items() <= document.items()
    assert document.keys() == {"version", "number", "by", "created", "checksum"}


def test_a_version_that_is_dropped_meanwhile_is_not_pinned(out: Path, memory: MemoryObjects) -> None:
    """At an address, where nobody waits for anybody."""
    url = Url.parse("s3://bucket/out")
    there = memory.put(url, tree(out))

    meanwhile(memory, "", lambda: drop_version(there, 1))
    with pytest.raises(UsageError, match=f"^{there}: version 1 was dropped"):
        pin(there, 1, by="me")
    assert not [name for name in memory.under(url) if name.startswith("pins/")]


def test_the_log_says_why_it_finds_no_pins(out: Path, monkeypatch: pytest.MonkeyPatch, nginx_server: Nginx) -> None:
    """But for a web server, which lists nothing."""
    pin(out, 1, by="me")

    def log(place: Path | str) -> str:
        return CliRunner().invoke(group, ["log", str(place)], standalone_mode=False, catch_exceptions=False).output

    assert "(needed by me)" in log(out)
    url = nginx_server.fresh()
    for name, data in tree(out).items():
        nginx_server.put(f"{nginx_server.key(url)}/{name}", data)
    assert log(url) == log(out).replace(" (needed by me)", "")

    def refused(place: Workplace) -> None:
        raise UsageError("nobody knows")

    monkeypatch.setattr(Workplace, "bring_pins", refused)
    with pytest.raises(UsageError, match="nobody knows"):
        log(out)

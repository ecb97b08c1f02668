"""Laws of packing in parts: whatever runs when, and stops where, the result has the bytes of one local run."""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.packing import TWO_A_SHARD as OPTIONS
from helpers.packing import Stopped, scratch, stop_after
from helpers.support import image_set, tree
from hypothesis import given, settings
from hypothesis import strategies as st

from packtrain import PackOptions, merge, pack, pack_status, verify
from packtrain._cli.status_cmd import describe_status
from packtrain._core.files import is_temporary, locked, temporary_path, write_file
from packtrain._core.manifest import Manifest
from packtrain._core.options import StoreOptions
from packtrain._core.processes import ProcessName
from packtrain._packer import shard as shard_module
from packtrain._packer.markers import Marker
from packtrain._packer.notes import ShardNote, note_path, read_note
from packtrain._packer.output import Output
from packtrain._packer.plan import Plan
from packtrain.errors import OutputConflict, PackError, ShardFailed, TooManyRejects
from packtrain.reports import PackStatus

COUNT = 12
SHARDS = 6


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images, and lines that cannot be parsed, that repeat another or whose file is missing."""
    path = image_set(tmp_path_factory.mktemp("images"), COUNT - 2)
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(f"no label here\n\n{path.read_text()}{first}missing.jpg 1\n")
    return path


@pytest.fixture(scope="module")
def expected(listing: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset of one local run."""
    out = tmp_path_factory.mktemp("local") / "out"
    pack(listing, out, OPTIONS, max_rejects=2)
    assert len(Plan.load(out).shards) == SHARDS
    assert Manifest.load(out).rejects == 2
    assert Manifest.load(out).duplicates == 1
    return tree(out)


def pack_part(listing: Path, out: Path, part: str, **options: Any) -> Any:
    """Packs a part."""
    return pack(listing, out, OPTIONS, part=part, **{"max_rejects": 2, **options})


def check_status(out: Path) -> None:
    """Checks what always holds: every shard is in one state, and the array packs exactly those that are not done."""
    status = pack_status(out)
    plan = Plan.load(out)
    names = [item.shard for item in status.under_way] + [item.shard for item in status.failed] + [*status.missing]
    assert len(set(names)) == len(names) == status.shards - status.done
    assert status.part == f"auto/{SHARDS}"
    assert bool(status.array) == (bool(names) and not status.complete)
    noted = [
        number for number in range(SHARDS) if isinstance(read_note(out, plan, number, Output(out).holds), ShardNote)
    ]
    assert status.complete or status.done == len(noted)


step = st.one_of(
    st.tuples(st.just("part"), st.integers(1, 7), st.integers(1, 7), st.integers(0, 8)),
    st.tuples(st.just("merge")),
    st.tuples(st.just("lose"), st.integers(0, SHARDS - 1)),
    st.tuples(st.just("whole"), st.integers(0, 8)),
)


@pytest.mark.complete
@settings(max_examples=15)
@given(schedule=st.lists(step, max_size=8), last=st.integers(1, 8))
def test_any_schedule_of_parts_gives_the_bytes_of_one_run(
    listing: Path, expected: dict[str, bytes], schedule: list[tuple[Any, ...]], last: int
) -> None:
    """Parts of changing numbers, stopped anywhere; merges at any time; shards that get lost; runs without parts."""
    with scratch() as folder:
        out = folder / "out"
        for kind, *values in schedule:
            if kind == "part":
                number, parts, lines = values
                with suppress(Stopped, OutputConflict):
                    part = f"{min(number, parts)}/{parts}"
                    pack_part(listing, out, part, on_progress=stop_after(lines) if lines else None)
            elif kind == "merge":
                with suppress(PackError):
                    merge(out, max_rejects=2)
            elif kind == "whole":
                with suppress(Stopped):
                    pack(listing, out, OPTIONS, max_rejects=2, on_progress=stop_after(values[0]))
            elif kind == "lose" and (out / "plan.json").exists():
                (out / Plan.load(out).shards[values[0]].name).unlink(missing_ok=True)
            if (out / "plan.json").exists():
                check_status(out)
        if (out / "manifest.json").exists():
            # Lost shards of a finished dataset are packed again by a run without parts.
            pack(listing, out, OPTIONS, max_rejects=2)
        else:
            reports = [pack_part(listing, out, f"{number}/{last}") for number in range(1, last + 1)]
            assert reports[-1].missing == 0
            assert sum(report.packed + report.resumed for report in reports) == SHARDS
            assert sum(report.records for report in reports) == COUNT - 1
        merge(out, max_rejects=2)
        merge(out, max_rejects=2)
        assert tree(out) == expected
        assert pack_status(out).complete


class TestBesideEachOther:
    def test_a_run_without_parts_excludes_them_and_they_exclude_it(self, listing: Path, tmp_path: Path) -> None:
        pack_part(listing, tmp_path, "1/2")
        with locked(tmp_path / "plan.json", shared=True):
            pack_part(listing, tmp_path, "1/2")
            with pytest.raises(OutputConflict, match="another packer is working"):
                pack(listing, tmp_path, OPTIONS, max_rejects=2)
        with locked(tmp_path / "plan.json"):
            for run in (lambda: pack_part(listing, tmp_path, "2/2"), lambda: merge(tmp_path)):
                with pytest.raises(OutputConflict, match="another packer is working"):
                    run()

    def test_temporaries_of_others_stay_until_the_merge(
        self, listing: Path, expected: dict[str, bytes], tmp_path: Path
    ) -> None:
        pack_part(listing, tmp_path, "1/2")
        mine = ProcessName.mine()
        shard = tmp_path / Plan.load(tmp_path).shards[1].name
        others = [temporary_path(shard, owner) for owner in (None, mine, replace(mine, machine="0" * 12))]
        dead = temporary_path(shard, replace(mine, start=mine.start + 1))
        for path in (*others, dead):
            path.touch()
        pack_part(listing, tmp_path, "2/2")
        assert {path for path in tmp_path.iterdir() if is_temporary(path)} == set(others)
        merge(tmp_path, max_rejects=2)
        assert tree(tmp_path) == expected

    @pytest.mark.parametrize("merged", [False, True])
    def test_a_shard_that_another_process_finishes_meanwhile_is_done(
        self, listing: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool
    ) -> None:
        """At any of its shards: it is already packed when this one begins, or packed and merged when it is written."""
        write, others = shard_module._write, 0

        def meanwhile(*arguments: Any) -> Any:
            nonlocal others
            written = write(*arguments)
            if others == 0:
                others += 1
                for part in ("1/2", "2/2"):
                    pack_part(listing, tmp_path, part)
                if merged:
                    merge(tmp_path, max_rejects=2)
            return written

        monkeypatch.setattr(shard_module, "_write", meanwhile)
        report = pack_part(listing, tmp_path, "2/3")
        assert report.missing == 0
        merge(tmp_path, max_rejects=2)
        assert tree(tmp_path) == expected

    @pytest.mark.parametrize("changed", [False, True])
    def test_a_shard_that_is_replaced_after_the_merge_has_its_bytes_or_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
    ) -> None:
        """One machine sees an image late; its shard takes the place of another's, which has just been merged."""
        listing, out = image_set(tmp_path / "images", COUNT), tmp_path / "out"
        options, image = replace(OPTIONS, seed=None), tmp_path / "images" / "image 0.jpg"
        good, remove_note = image.read_bytes(), shard_module._remove_note
        if changed:
            image.write_bytes(b"<html>")

        def meanwhile(task: Any) -> None:
            monkeypatch.setattr(shard_module, "_remove_note", remove_note)
            image.write_bytes(good)
            pack(listing, out, options, part="1/1")
            merge(out)
            remove_note(task)

        monkeypatch.setattr(shard_module, "_remove_note", meanwhile)
        if changed:
            with pytest.raises(OutputConflict, match=r"was merged while train-000000\.tar was packed once more"):
                pack(listing, out, options, part="1/1", max_rejects=1)
            (out / "train-000000.tar").unlink()
            pack(listing, out, options)
            assert verify(out).problems == ()
        else:
            assert pack(listing, out, options, part="1/1").complete_before
        pack(listing, tmp_path / "local", options)
        assert tree(out) == tree(tmp_path / "local")


class TestMerge:
    def test_missing_shards_are_named(self, listing: Path, tmp_path: Path) -> None:
        pack_part(listing, tmp_path, "1/2")
        missing = "; ".join(f"{shard.name} is not packed yet" for shard in Plan.load(tmp_path).shards[1::2])
        before = tree(tmp_path)
        with pytest.raises(PackError, match=f"3 of {SHARDS} shards are missing from .*: {missing}"):
            merge(tmp_path)
        assert tree(tmp_path) == before

    @pytest.mark.parametrize("function", [merge, pack_status])
    @pytest.mark.parametrize(
        ("there", "why"),
        [
            (None, "{} has no plan.json, so nothing was packed or indexed there: is the path right? `packtrain pack"),
            ("a.jpg", "{} has no plan.json, so nothing was packed or indexed there: is the path right? `packtrain"),
            ("cache.json", "{} is a growing cache, which is not merged: see `packtrain status {}`"),
        ],
    )
    def test_a_folder_without_a_plan_is_refused_by_what_it_is(
        self, function: Callable[[Path], object], there: str | None, why: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        if there is not None:
            out.mkdir()
            (out / there).touch()
        with pytest.raises(OutputConflict, match=f"^{re.escape(why.replace('{}', str(out)))}"):
            function(out)

    @pytest.mark.parametrize("name", ["train-000099.tar.npz", "other-000000.tar.npz", "notes.txt"])
    def test_a_note_of_no_planned_shard_is_named(self, listing: Path, tmp_path: Path, name: str) -> None:
        pack_part(listing, tmp_path, "1/1")
        (tmp_path / "parts" / name).write_bytes(b"")
        with pytest.raises(OutputConflict, match=f"parts/{name} belongs to no shard in plan.json"):
            merge(tmp_path, max_rejects=2)
        (tmp_path / "parts" / name).unlink()
        merge(tmp_path, max_rejects=2)

    def test_a_note_of_another_plan_or_shard_is_named(self, listing: Path, tmp_path: Path) -> None:
        pack_part(listing, tmp_path / "out", "1/1")
        pack(listing, tmp_path / "other", replace(OPTIONS, seed=1), part="1/1", max_rejects=2)
        first, second, third = (shard.name for shard in Plan.load(tmp_path / "out").shards[:3])
        note_path(tmp_path / "other", first).rename(note_path(tmp_path / "out", first))
        note_path(tmp_path / "out", third).rename(note_path(tmp_path / "out", second))
        message = (
            f"{first} has the note of another plan; {second} has the note of another shard .{third}.; {third} is not"
        )
        with pytest.raises(PackError, match=message):
            merge(tmp_path / "out", max_rejects=2)

    def test_the_refused_lines_of_all_parts_are_added_up(self, tmp_path: Path) -> None:
        """A part allows as many as it is told; the merge sees all of them."""
        listing = image_set(tmp_path / "images", COUNT)
        bad = [1, 5, 8]
        for number in bad:
            (tmp_path / "images" / f"image {number}.jpg").write_bytes(b"<html>")
        options = replace(OPTIONS, seed=None)
        for number in range(1, SHARDS + 1):
            pack(listing, tmp_path / "out", options, part=f"{number}/{SHARDS}", max_rejects=1)
        assert pack_status(tmp_path / "out").rejects == 3
        with pytest.raises(TooManyRejects, match=r"3 of 12 lines refused, 2 allowed"):
            merge(tmp_path / "out", max_rejects=2)
        assert merge(tmp_path / "out", max_rejects="25%").rejects == 3
        pack(listing, tmp_path / "local", options, max_rejects=3)
        assert tree(tmp_path / "out") == tree(tmp_path / "local")
        assert merge(tmp_path / "out", max_rejects=0).complete_before, "it was accepted once"


def test_a_finished_dataset_is_left_alone_and_never_reopened(
    listing: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    pack(listing, tmp_path, OPTIONS, max_rejects=2)
    report = pack_part(listing, tmp_path, "2/3")
    assert (report.complete_before, report.packed, report.part) == (True, 0, "2/3")
    assert tree(tmp_path) == expected
    lost = tmp_path / Plan.load(tmp_path).shards[3].name
    lost.unlink()
    for again in (lambda: pack_part(listing, tmp_path, "1/3"), lambda: merge(tmp_path)):
        with pytest.raises(OutputConflict, match=f"is finished, but has lost {lost.name} since.* without --part"):
            again()
    status = pack_status(tmp_path)
    assert (status.complete, status.done, status.missing, status.array) == (True, SHARDS - 1, (lost.name,), "")
    assert "run the same pack command without --part" in "\n".join(describe_status(status))
    pack(listing, tmp_path, OPTIONS, max_rejects=2)
    assert tree(tmp_path) == expected


class TestStatus:
    def test_it_names_who_packs_what_and_what_to_run(self, listing: Path, tmp_path: Path) -> None:
        """A process of this machine that has ended packs nothing; of another machine, nobody can tell."""
        pack_part(listing, tmp_path, "1/3")
        names = [shard.name for shard in Plan.load(tmp_path).shards]
        mine, marker = ProcessName.mine(), Marker.mine("part 2/3")
        path = tmp_path / "parts" / f"{names[1]}.packing"
        for process in (mine, replace(mine, machine="0" * 12)):
            path.write_bytes(replace(marker, process=str(process)).dump())
            status = pack_status(tmp_path)
            (one,) = status.under_way
            assert (one.shard, one.process, one.run, one.job) == (names[1], mine.process, "part 2/3", None)
            assert (status.done, status.missing) == (2, (names[2], names[4], names[5]))
            assert (status.part, status.array, status.array_under_way) == (f"auto/{SHARDS}", "3,5-6", "2")
            assert status.seconds_left is not None
        dead = replace(marker, process=str(replace(mine, start=mine.start + 1))).dump()
        for content in (dead, b"", b"\xff", b"[]", b'{"host": 1}', bytes(1 << 17)):
            path.write_bytes(content)
            status = pack_status(tmp_path)
            assert (status.under_way, status.array, status.array_under_way) == ((), "2-3,5-6", "")
            assert status.missing == (names[1], names[2], names[4], names[5])
            assert status.seconds_left is None, "nobody is packing"

    def test_a_run_removes_the_markers_of_processes_that_have_ended(self, listing: Path, tmp_path: Path) -> None:
        """However the run ends. Another machine would take them to be at work; of its own, nobody here can tell."""
        pack_part(listing, tmp_path, "1/3")
        mine, parts = ProcessName.mine(), tmp_path / "parts"
        dead, far = replace(mine, start=mine.start + 1), replace(mine, machine="0" * 12)
        markers = [parts / f"{shard.name}.packing" for shard in Plan.load(tmp_path).shards[3:6]]
        for path, process in zip(markers, (dead, mine, far), strict=True):
            path.write_bytes(replace(Marker.mine("part 2/2"), process=str(process)).dump())
        with pytest.raises(Stopped):
            pack_part(listing, tmp_path, "2/3", on_progress=stop_after(1))
        assert set(parts.glob("*.packing")) == set(markers[1:])

    @pytest.mark.parametrize("part", ["1/1", None])
    def test_a_run_that_can_leave_no_marker_packs_all_the_same(
        self,
        listing: Path,
        expected: dict[str, bytes],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        part: str | None,
    ) -> None:
        def fill(path: Path, chunks: Any, *, exclusive: bool = False, durable: bool = True) -> None:
            if not durable:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            write_file(path, chunks, exclusive=exclusive)

        monkeypatch.setattr("packtrain._packer.output.write_file", fill)
        pack(listing, tmp_path, OPTIONS, part=part, max_rejects=2)
        if part is not None:
            assert {path.suffix for path in (tmp_path / "parts").iterdir()} == {".npz"}
            merge(tmp_path, max_rejects=2)
        assert tree(tmp_path) == expected

    def test_a_run_without_parts_says_what_it_packs(
        self, listing: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "5")
        seen: list[PackStatus] = []
        write = shard_module._write

        def look(*arguments: Any) -> Any:
            seen.append(pack_status(tmp_path))
            return write(*arguments)

        monkeypatch.setattr(shard_module, "_write", look)
        pack(listing, tmp_path, OPTIONS, max_rejects=2)
        names = [shard.name for shard in Plan.load(tmp_path).shards]
        assert [(one.shard, one.run, one.job) for status in seen for one in status.under_way] == [
            (name, "run without parts", "77_5") for name in names
        ]
        assert [status.missing for status in seen] == [tuple(names[number + 1 :]) for number in range(SHARDS)]
        assert all(status.seconds_left for status in seen[1:])
        assert tree(tmp_path) == expected

    def test_a_failed_shard_is_named_until_it_is_packed(
        self, listing: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = shard_module._write

        def fail(task: Any, *rest: Any) -> Any:
            if task.number == 2:
                raise ShardFailed("cannot read a.jpg: Input/output error")
            return write(task, *rest)

        monkeypatch.setattr(shard_module, "_write", fail)
        with pytest.raises(ShardFailed, match="failed twice"):
            pack_part(listing, tmp_path, "3/3")
        pack_part(listing, tmp_path, "1/3")
        status = pack_status(tmp_path)
        (one,) = status.failed
        assert one.shard == Plan.load(tmp_path).shards[2].name
        assert "cannot read a.jpg: Input/output error" in one.why
        assert (one.run, status.done, len(status.missing)) == ("part 3/3", 2, 3)
        assert status.array == "2-3,5-6"
        monkeypatch.setattr(shard_module, "_write", write)
        pack_part(listing, tmp_path, "3/6")
        assert pack_status(tmp_path).failed == ()
        (tmp_path / one.shard).unlink()
        assert one.shard in pack_status(tmp_path).missing, "it failed before it was packed and lost"
        for part in ("1/2", "2/2"):
            pack_part(listing, tmp_path, part)
        status = pack_status(tmp_path)
        assert (status.done, status.array, status.complete, status.seconds_left) == (SHARDS, "", False, 0)
        merge(tmp_path, max_rejects=2)
        assert tree(tmp_path) == expected
        assert pack_status(tmp_path) == replace(status, complete=True)

    @pytest.mark.parametrize("message", ["{} failed twice: killed", "{} lost its node 10 times"])
    def test_a_shard_that_an_engine_gives_up_has_failed(self, listing: Path, tmp_path: Path, message: str) -> None:
        """Whatever the message says, and also if its worker could not say so itself."""

        def engine(_: object, tasks: Iterable[Any], **__: object) -> Any:
            name = [str(task) for task in tasks][3]
            far = replace(Marker.mine("cluster"), process=f"{0:012}-1-2")
            (tmp_path / "parts" / f"{name}.packing").write_bytes(far.dump())
            raise pickle.loads(pickle.dumps(ShardFailed(message.format(name), shard=name)))

        with pytest.raises(ShardFailed):
            pack(listing, tmp_path, OPTIONS, max_rejects=2, engine=cast(Any, engine))
        status = pack_status(tmp_path)
        (one,) = status.failed
        assert status.under_way == ()
        assert (one.shard, one.run, len(status.missing)) == (Plan.load(tmp_path).shards[3].name, "cluster", SHARDS - 1)
        assert str(one).startswith(f"{one.shard}: cluster on ")

    def test_many_shards_share_as_many_tasks_as_slurm_allows(self, tmp_path: Path) -> None:
        images = tmp_path / "train.txt"
        images.write_text("".join(f"{number}.jpg 0\n" for number in range(2500)))
        options = PackOptions(store=StoreOptions("raw", resize="1x1"), shard_size=3)
        with pytest.raises(TooManyRejects):
            pack(images, tmp_path / "out", options, part="1/2500", max_rejects=0)
        status = pack_status(tmp_path / "out")
        assert (status.shards, status.part, status.array) == (2500, "auto/1000", "1-1000")

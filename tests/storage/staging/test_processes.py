"""Many processes at once: one copy of each dataset, never over budget, and no entry is evicted while it is read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.staging.children import Child, Refused
from helpers.staging.laws import assert_same, assert_tidy, big_dataset, digests, root_of, taken, until_pieces_are_noted
from helpers.staging.unused import SLACK, room_for
from helpers.support import tree
from helpers.waiting import wait_until

from packtrain import StageOptions, stage
from packtrain.errors import NoSpace
from packtrain.staging import StageProgress, entries, evict


def test_eight_stage_the_same_at_once(dataset: Path, place: Path, start: Callable[[], Child]) -> None:
    children = [start() for _ in range(8)]
    for number in range(3):
        for child in children:
            child.send("stage", dataset=dataset, to=place, name="staged")
        replies = [child.answer() for child in children]
        (path,) = {reply["path"] for reply in replies}
        copied = [reply["copied"] for reply in replies if reply["copied"]]
        assert len(copied) == 1, number
        assert_same(Path(path), dataset)
        assert_tidy(place, Path(path))
        assert set(entries(place)[0].pids) == {child.pid for child in children}
        for child in children:
            child.do("drop", name="staged")
        assert len(evict(place)) == 1


@pytest.mark.complete
def test_those_that_wait_go_on_where_a_killed_one_was(tmp_path: Path, place: Path, start: Callable[[], Child]) -> None:
    source = big_dataset(tmp_path / "big", [40 << 20] * 4)
    first, *others = [start() for _ in range(4)]
    first.send("stage", dataset=source, to=place)
    until_pieces_are_noted(place)
    for child in others:
        child.send("stage", dataset=source, to=place, name="staged")
    first.kill()
    replies = [child.answer() for child in others]
    total = sum(map(len, tree(source).values())) - (source / "manifest.json").stat().st_size
    copied = [reply["copied"] for reply in replies if reply["copied"]]
    assert len(copied) <= 1, "by one of them, unless the killed one had published it already"
    assert all(count < total for count in copied)
    (path,) = {reply["path"] for reply in replies}
    assert_same(Path(path), source)
    assert_tidy(place, Path(path))


@pytest.mark.complete
def test_who_waits_is_told_for_whom(tmp_path: Path, place: Path, start: Callable[[], Child]) -> None:
    source = big_dataset(tmp_path / "big", [40 << 20] * 4)
    copier = start()
    copier.send("stage", dataset=source, to=place)
    wait_until(lambda: any(root_of(place).glob(".tmp/*/journal")), "it has begun to copy")
    seen: list[StageProgress] = []
    stage(source, StageOptions(to=place), on_progress=seen.append)
    copier.answer()
    assert not seen or f"process {copier.pid} is copying it" in {progress.note for progress in seen}
    assert {progress.phase for progress in seen} <= {"wait"}


@pytest.mark.complete
@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.stress)])
def test_four_compete_for_room_for_two(
    datasets: tuple[Path, ...], place: Path, start: Callable[[], Child], rounds: int
) -> None:
    sizes = [room_for(dataset, place) - SLACK for dataset in datasets]
    budget = 2 * max(sizes) + SLACK
    assert budget < 3 * min(sizes), "or it would hold three"
    children = [start() for _ in range(4)]
    expected = {str(dataset): digests(dataset) for dataset in datasets}
    for seed, child in enumerate(children):
        child.send("compete", datasets=expected, to=place, budget=budget, rounds=rounds, seed=seed)
    most, samples = 0, 0
    answered: list[dict[str, int]] = []
    waiting = threading.Thread(target=lambda: answered.extend(child.answer() for child in children))
    waiting.start()
    while waiting.is_alive():
        most = max(most, taken(place))
        samples += 1
        waiting.join(0.001)
    assert len(answered) == len(children), "one of them failed; see above"
    assert most <= budget, f"{most} bytes of {budget}"
    assert samples > 20
    assert most > max(sizes), "they were there at the same time"
    assert sum(one["copied"] for one in answered) > len(datasets), "room was short"
    left = [entry.path for entry in entries(place)]
    assert len(left) <= 2
    assert_tidy(place, *left)


@pytest.mark.complete
def test_copies_under_way_count(tmp_path: Path, place: Path, start: Callable[[], Child]) -> None:
    """The budget is for one: of two processes that start at once, one gets `NoRoom` before it copies anything."""
    sources = [big_dataset(tmp_path / str(bytes), [bytes << 20] * 4) for bytes in (40, 41)]
    children = [start(), start()]
    children[0].send("stage", dataset=sources[0], to=place, budget=200 << 20, name="staged")
    wait_until(lambda: any(root_of(place).glob(".tmp/*/reservation.json")), "it has reserved its room")
    children[1].send("stage", dataset=sources[1], to=place, budget=200 << 20)
    with pytest.raises(Refused, match=r"NoRoom.*budget") as refused:
        children[1].answer()
    assert refused.value.kind == "NoRoom"
    assert "These copies cannot make room" in refused.value.message
    assert_tidy(place, Path(children[0].answer()["path"]))


@pytest.mark.complete
def test_copies_under_way_count_once(dataset: Path, tmp_path: Path, place: Path, start: Callable[[], Child]) -> None:
    """Space that a copy has already allocated is not counted again as promised."""
    budget = 170 << 20
    child = start()
    child.send("stage", dataset=big_dataset(tmp_path / "big", [40 << 20] * 4), to=place, budget=budget, name="staged")
    until_pieces_are_noted(place)
    assert stage(dataset, StageOptions(to=place, budget=budget)).copied
    assert child.answer()["copied"]


class TestFullMedium:
    """Another program fills the disk during the copy; finished pieces are kept and not copied again."""

    def test_somebody_was_faster(
        self, tmp_path: Path, mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Between the reservation, which other programs ignore, and the allocation, which they cannot undo."""
        source = big_dataset(tmp_path / "big", [4 << 20] * 4)
        place = mounted("size=24m")

        def fill(warning: str) -> None:
            (place / "other").write_bytes(bytes(18 << 20))

        monkeypatch.setattr("packtrain._storage.staging.copying.warnings", lambda *_: ["now"])
        with pytest.raises(NoSpace, match=r"no space left for .*make room and run the same command again"):
            stage(source, StageOptions(to=place, reserve=0), on_warning=fill)
        assert [entry.state for entry in entries(place)] == ["interrupted"]
        (place / "other").unlink()
        staged = stage(source, StageOptions(to=place, reserve=0))
        assert_same(staged.path, source)
        assert_tidy(place, staged.path)

    @pytest.mark.complete
    def test_what_was_allocated_cannot_be_taken_away(
        self, tmp_path: Path, mounted: Callable[[str], Path], start: Callable[[], Child]
    ) -> None:
        """Filling the remaining space while shards are copied does not stop the copy."""
        source = big_dataset(tmp_path / "big", [40 << 20] * 4)
        place = mounted("size=200m")
        child = start()
        child.send("stage", dataset=source, to=place, reserve=0, name="staged")
        until_pieces_are_noted(place)
        with pytest.raises(OSError, match="No space left"):
            fill(place / "other")
        reply = child.outcome()
        if isinstance(reply, Refused):
            # The few blocks of the manifest and the note were not allocated beforehand.
            assert reply.kind == "NoSpace"
            (place / "other").unlink()
            reply = child.do("stage", dataset=source, to=place, reserve=0, name="staged")
            assert reply["copied"] == 0, "all of it was copied before"
        path = Path(reply["path"])
        assert_same(path, source)
        assert_tidy(place, path)


def fill(path: Path) -> None:
    """Writes until the disk is full."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))

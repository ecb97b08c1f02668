"""The functions that stand for a stage are those that do it: time of another one would pass for everything else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.support import picture

from benchmarks import floors, profile_decode, profile_pack, stopwatch
from benchmarks.crops import pack_images
from benchmarks.stopwatch import REST, StageError, Stopwatch, watching
from benchmarks.workloads import WORKLOADS, prepare
from packtrain._codec import geometry, resizing
from packtrain._core.options import StoreOptions
from packtrain._readers.formats import FORMATS

LINES = 12


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of images that are large enough for everybody's crops."""
    folder = tmp_path_factory.mktemp("stages")
    for number in range(4):
        picture(number, 400, 300).save(folder / f"{number}.jpg")
    (folder / "train.txt").write_text("".join(f"{line % 4}.jpg {line % 4}\n" for line in range(LINES)))
    return folder / "train.txt"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Gets the names of all functions that were called for a stage."""
    names: set[str] = set()

    @contextmanager
    def spying(*arguments: Any, **options: Any) -> Iterator[Stopwatch]:
        with watching(*arguments, **options) as watch:
            yield watch
        names.update(watch.called)

    for module in (profile_decode, profile_pack):
        monkeypatch.setattr(module, "watching", spying)
    return names


def functions(stages: dict[str, list[str]]) -> set[str]:
    return {name for names in stages.values() for name in names}


@pytest.mark.skipif(resizing.style() is None, reason="Pillow resizes what packtrain itself would")
def test_every_function_that_stands_for_a_stage_of_reading_takes_part(
    listed: Path, tmp_path: Path, called: set[str]
) -> None:
    for store in {store for store, _ in profile_decode.CONTESTANTS.values()}:
        pack_images(listed, tmp_path / store, StoreOptions(store=store, resize="short=256" if store == "raw" else None))
    for store, decoder in profile_decode.CONTESTANTS.values():
        times = profile_decode._profile(tmp_path / store, decoder)
        assert {stage for stage, time in times.items() if time == 0} == ({"cut"} if store == "raw" else set())
    assert called == functions(profile_decode.STAGES)


@pytest.mark.parametrize("name", floors.COMPARED)
def test_every_stage_of_reading_takes_part_in_what_is_compared(listed: Path, tmp_path: Path, name: str) -> None:
    prepare(WORKLOADS[name], listed, tmp_path / "data", LINES)
    times = floors._ours(tmp_path / "data")
    assert list(times) == [*profile_decode.STAGES, REST]
    assert {stage for stage, time in times.items() if time == 0} == ({"cut"} if name == "raw256-rrc" else set())


def test_every_function_that_stands_for_a_stage_of_packing_takes_part(listed: Path, called: set[str]) -> None:
    for name in FORMATS:
        profile_pack._pack_once(name, listed.parent, listed.parent, LINES)
    named = functions(profile_pack.STAGES)
    assert called == {one.format(format=name) for one in named for name in FORMATS}


class Clock:
    """Goes on by one second at each look."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 1
        return self.now


def test_a_stage_has_its_own_time_and_all_of_them_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    with watching({"whole": ["_codec.geometry:apply"], "part": ["_codec.geometry:size_after"]}, ("whole",)) as watch:
        began = clock.now
        geometry.size_after((), 3, 4)
        ended = clock.now
    assert watch.seconds == {"whole": 0, "part": 1, REST: ended + 1 - began - 1}


@pytest.mark.parametrize(
    ("absent", "said"), [((), "'resize' takes no part"), (("crop", "resize"), "'crop' takes part")]
)
def test_a_stage_that_takes_part_against_expectation_is_an_error(absent: tuple[str, ...], said: str) -> None:
    stages = {"crop": ["_codec.geometry:size_after"], "resize": ["_codec.geometry:apply"]}
    with pytest.raises(StageError, match=said), watching(stages, absent):
        geometry.size_after((), 3, 4)


def test_a_function_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError), watching({"crop": ["_codec.geometry:last_crop"]}):
        pass

"""The arithmetic of the benchmarks: what is timed, what is compared with what, and what a chart says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import photographs, plot
from benchmarks.comparison import Comparison
from benchmarks.contestants import CONTESTANTS, FFCV, PACKTRAIN
from benchmarks.loaders import AT_THE_ENDS, epoch, rate
from benchmarks.measure import NotInstalled, alternate, medians, pillow_build, ratio, target, versions
from benchmarks.peers.common import BATCH, SIDE, Batch
from benchmarks.rounds import QUICK_SECONDS, REPETITIONS, Field, ratios_of, take_turns
from benchmarks.workloads import LINES, QUICK_LINES, WORKLOADS


class Clock:
    """Stands still, except that each batch takes as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("benchmarks.loaders.time.perf_counter", lambda: self.now)

    def batches(self, *seconds: float) -> Iterator[Batch]:
        images, labels = np.empty((BATCH, SIDE, SIDE, 3), np.uint8), np.empty(BATCH)
        for taken in seconds:
            self.now += taken
            yield images, labels


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_contestants_take_turns_and_the_warm_up_is_not_kept() -> None:
    calls: list[str] = []

    def case(name: str) -> int:
        calls.append(name)
        return len(calls)

    figures = alternate({name: lambda name=name: case(name) for name in "abc"}, 2)  # type: ignore[misc]
    assert "".join(calls) == "abcabcabc"
    assert figures == {"a": [4, 7], "b": [5, 8], "c": [6, 9]}


@pytest.mark.parametrize("quick", [False, True])
def test_sides_take_turns_over_what_was_prepared_and_a_missing_one_is_left_out(quick: bool) -> None:
    calls: list[str] = []

    def prepare(folder: Path, lines: int) -> dict[str, Any]:
        folder.mkdir()
        (folder / "lines").write_text(str(lines))
        return {"lines": lines}

    def measured(side: str, folder: Path, seconds: float) -> float:
        assert (folder / "lines").read_text() == str(QUICK_LINES if quick else LINES)
        calls.append(side)
        if side == "c":
            raise NotInstalled(side)
        return seconds

    samples, result = take_turns("abc", prepare, measured, quick=quick, seconds=2.5)
    rounds, seconds = (1, QUICK_SECONDS) if quick else (REPETITIONS, 2.5)
    assert samples == {"a": [seconds] * rounds, "b": [seconds] * rounds}
    assert "".join(calls) == "abc" + "ab" * (rounds - 1)
    assert result["input"] == {"lines": QUICK_LINES if quick else LINES}
    assert (result["settings"]["seconds"], result["settings"]["repetitions"]) == (seconds, rounds)


def test_only_the_pillow_that_is_imported_is_recorded() -> None:
    found = versions()
    assert [name for name in ("pillow", "pillow-simd") if name in found] == [pillow_build()["variant"]]


def test_a_contestant_that_is_not_installed_is_left_out() -> None:
    def missing() -> float:
        raise NotInstalled("it")

    assert alternate({"there": lambda: 1.0, "missing": missing}, 3) == {"there": [1.0] * 3}


def test_a_ratio_is_that_of_the_rounds_and_not_of_the_medians() -> None:
    ours, theirs = [10.0, 40.0, 60.0], [10.0, 10.0, 30.0]
    assert ratio(ours, theirs) == 2.0  # of 1, 4, 2; the medians' would be 4
    assert ratios_of({PACKTRAIN: ours, "it": theirs}) == {PACKTRAIN: 1.0, "it": 2.0}
    assert ratios_of({PACKTRAIN: ours, "it": theirs}, "it") == {PACKTRAIN: 0.5, "it": 1.0}  # of 1, 1/4, 1/2
    assert medians({"it": theirs}) == {"it": 10.0}


@pytest.mark.parametrize(("figure", "met"), [(1.99, False), (2.0, True), (2.5, True)])
def test_a_target_is_met_from_its_bound_on(figure: float, met: bool) -> None:
    assert target("it", figure, least=2.0)["met"] is met
    assert target("it", -figure, most=-2.0)["met"] is met


def test_the_warm_up_has_no_part_in_the_rate(clock: Clock) -> None:
    found = rate(clock.batches(100, 100, 100, *[0.5] * 20), 3, 4.0)
    assert found == {"images_per_second": 2 * BATCH, "seconds": 4.0}


def test_a_rate_is_taken_over_an_even_number_of_batches(clock: Clock) -> None:
    found = rate(clock.batches(100, *[1.0] * 20), 1, 2.5)
    assert found == {"images_per_second": BATCH, "seconds": 4.0}


def test_a_stream_that_ends_is_no_measurement(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="shorter than the measurement"):
        rate(clock.batches(*[1.0] * 5), 1, 100.0)


def test_a_single_pass_is_timed_in_its_middle(clock: Clock) -> None:
    middle = 20
    seconds = [100.0] * AT_THE_ENDS + [0.25] * middle + [100.0] * AT_THE_ENDS
    found = epoch(clock.batches(*seconds), (middle + 2 * AT_THE_ENDS) * BATCH + BATCH - 1)
    assert found == {"images_per_second": 4 * BATCH, "seconds": middle / 4}


def test_a_short_pass_has_shorter_ends(clock: Clock) -> None:
    found = epoch(clock.batches(100, 1, 1, 100), 4 * BATCH)
    assert found == {"images_per_second": BATCH, "seconds": 2.0}
    with pytest.raises(RuntimeError, match="give a longer list"):
        epoch(clock.batches(), BATCH - 1)


def test_a_batch_of_another_shape_or_type_is_refused(clock: Clock) -> None:
    floats = iter([(np.empty((BATCH, SIDE, SIDE, 3), np.float32), np.empty(BATCH))])
    with pytest.raises(RuntimeError, match="float32"):
        rate(floats, 1, 1.0)
    small = iter([(np.empty((BATCH, 3, SIDE, SIDE + 1), np.uint8), np.empty(BATCH))])
    with pytest.raises(RuntimeError, match="225"):
        rate(small, 1, 1.0)
    with pytest.raises(RuntimeError, match="uint8"):
        rate(clock.batches(1.0), 1, 1.0, dtype="float32")


def test_a_contestant_that_fails_is_out_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(name: str, what: str, *rest: object) -> dict[str, float]:
        if name == FFCV and what == "rate":
            raise RuntimeError("python failed:\nSegmentation fault")
        if name == "SPDL":
            raise NotInstalled("spdl")
        return {"images_per_second": 7.0}

    monkeypatch.setattr("benchmarks.rounds.run", run)
    field = Field([PACKTRAIN, FFCV, "SPDL"], gpu=False)
    assert set(field.missing) == {"SPDL"}
    assert field.rates(WORKLOADS["jpeg"], tmp_path, repetitions=2) == {PACKTRAIN: [7.0, 7.0]}
    assert field.missing[FFCV] == "failed: Segmentation fault"
    assert set(field.contestants) == {PACKTRAIN}


def test_packtrain_must_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, what: str, *rest: object) -> dict[str, float]:
        raise RuntimeError("it is broken")

    monkeypatch.setattr("benchmarks.rounds.run", run)
    with pytest.raises(RuntimeError, match="it is broken"):
        Field([PACKTRAIN], gpu=False)


def test_pinned_memory_is_only_tried_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.rounds.run", lambda name, what: {})
    names = WORKLOADS["jpeg"].contestants
    pinned = {name for name in names if "pin_memory" in name}
    assert len(pinned) == 3
    assert set(Field(names, gpu=True).contestants) - set(Field(names, gpu=False).contestants) == pinned


def test_packtrain_is_always_chosen() -> None:
    comparison = Comparison("jpeg", [FFCV])
    assert [name for name in CONTESTANTS if comparison._is_chosen(name)] == [PACKTRAIN, FFCV]


def test_the_bars_say_how_many_times_as_fast_packtrain_is() -> None:
    rates = {"a": 500.0, PACKTRAIN: 1000.0, f"{PACKTRAIN}, check=False": 1100.0, "b": 4000.0}
    ratios = {name: rates[PACKTRAIN] / value for name, value in rates.items()}
    assert plot.bars({"median_images_per_second": rates, "ratios": ratios}) == [
        ("b", 4000.0, "4,000  (packtrain: 0.2 x)"),
        ("packtrain, check=False", 1100.0, "1,100"),
        ("packtrain", 1000.0, "1,000"),
        ("a", 500.0, "500  (packtrain: 2.0 x)"),
    ]


def test_the_chart_shows_the_newest_figures_of_each_workload(tmp_path: Path) -> None:
    dates = {"peers-raw": 1, "peers-raw-pillow": 2, "peers-raw-pillow-simd": 3, "peers-raw-crop-pillow": 4}
    for name, day in dates.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"date": f"2026-01-0{day}"}))
    assert [path.stem for path in plot.latest("peers-raw", tmp_path)] == ["peers-raw-pillow-simd"]
    assert [path.stem for path in plot.latest("peers-raw-crop", tmp_path)] == ["peers-raw-crop-pillow"]
    assert plot.latest("peers-jpeg", tmp_path) == []
    assert "no figures" in plot.draw(["peers-jpeg"], tmp_path)


def test_scaled_pixels_are_compared_crop_by_crop() -> None:
    exact = [np.zeros((3, 2, 2), np.int16) for _ in range(4)]
    scaled = [crop.copy() for crop in exact]
    scaled[0] -= 2
    found = photographs.deviations(exact, scaled)
    assert found["mean_absolute"] == 0.5
    assert found["largest"] == 2
    assert found["share_of_crops_with_the_same_pixels"] == 0.75
    # Mean squares of 4 in one crop and of 1 in all of them.
    assert found["PSNR_dB"] - found["PSNR_of_the_worst_crop_dB"] == pytest.approx(10 * np.log10(4))
    assert photographs.deviations(exact, exact)["PSNR_dB"] == np.inf

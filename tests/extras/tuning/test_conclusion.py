"""Laws of the conclusion: which setting a set of trials recommends, and what it says about it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.support import image_set, packed
from helpers.tuning import PREFETCHES, TARGET

from packtrain import Loader, PackedDataset, TuneOptions
from packtrain._extras.tuning import Setting, Trial, conclude
from packtrain._extras.tuning.trials import results_of, spread_of


def trial_of(setting: Setting, rate: float, consumer_ms: float = 0.0, **more: Any) -> Trial:
    return Trial(setting, consumer_ms, 10, 640, 640 / rate, 640 / rate, 1.0, 1 << 20, 640, **more)


class TestConclusion:
    DEFAULT = Setting("extension", 4, 2)

    def test_the_line_makes_the_loader(self, tmp_path: Path) -> None:
        folder = packed(image_set(tmp_path / "images"), tmp_path / "it's", "tar")
        target = replace(TARGET, path=str(folder), decoders=("extension", "pillow"))
        result = conclude(target, TuneOptions("rrc20", 3), [trial_of(Setting("pillow", 1, 4), 100)])
        assert result is not None
        names: dict[str, Any] = {}
        exec(f"{result.imports}\nloader = {result.line}", names)
        loader = names["loader"]
        assert type(loader) is Loader
        assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (3, 1, 4)
        assert isinstance(loader.dataset, PackedDataset) and loader.dataset.decoder.name == "pillow"
        assert loader.dataset.store.path == folder
        with loader:
            assert next(iter(loader))[0].shape == (3, 3, 20, 20)

    def test_the_line_leaves_out_what_is_the_default(self) -> None:
        result = conclude(TARGET, TuneOptions("none"), [trial_of(Setting("extension", 0, 2), 100)])
        assert result is not None
        assert result.line == "Loader(open_dataset('/data/train'), batch_size=64, shuffle=True, num_workers=0)"

    def test_the_line_of_a_gpu_names_it_to_the_loader(self) -> None:
        target = replace(TARGET, decoders=("extension", "cuda"))
        result = conclude(target, TuneOptions("none"), [trial_of(Setting("cuda", 0, 2), 100)])
        assert result is not None
        assert result.line == (
            "Loader(open_dataset('/data/train'), batch_size=64, shuffle=True, num_workers=0, "
            'decode="cuda", device="cuda")'
        )

    def test_there_is_none_without_a_measurement(self) -> None:
        assert conclude(TARGET, TuneOptions(), []) is None
        assert conclude(TARGET, TuneOptions(consumer_ms=10), [trial_of(self.DEFAULT, 100)]) is None

    def test_the_defaults_are_kept_if_they_are_as_good(self) -> None:
        trials = [trial_of(self.DEFAULT, rate) for rate in (100, 104, 100)]
        trials += [trial_of(self.DEFAULT._replace(prefetch=8), rate) for rate in (107, 103, 107)]
        result = conclude(TARGET, TuneOptions(), trials)
        assert result is not None
        assert result.spread == pytest.approx(0.04, abs=0.003) and result.tolerance == pytest.approx(0.08, abs=0.006)
        assert result.best is result.default
        assert "leave them (two measurements of a setting differ by" in result.findings[0]

    def test_a_setting_that_is_neither_cheaper_nor_clearly_faster_is_not_recommended(self) -> None:
        """A factor of 4 is as fast as 8 and the default is not, but 4 is not clearly faster than the default either."""
        trials = [trial_of(self.DEFAULT, rate) for rate in (98, 102, 98, 102, 100)]
        trials += [trial_of(self.DEFAULT._replace(prefetch=4), 101)]
        trials += [trial_of(self.DEFAULT._replace(prefetch=8), 109)]
        result = conclude(TARGET, TuneOptions(), trials)
        assert result is not None and result.tolerance == pytest.approx(0.08)
        assert result.best is result.default

    @pytest.mark.parametrize(("gain", "worth"), [(1.16, False), (1.25, True)])
    def test_no_gain_is_claimed_that_may_be_chance(self, gain: float, worth: bool) -> None:
        """Measurements differ by a tenth, so a gain of a sixth may be chance, although it exceeds any tolerance."""
        rates = (95, 105, 95, 105, 100)
        trials = [trial_of(self.DEFAULT, rate) for rate in rates]
        trials += [trial_of(self.DEFAULT._replace(prefetch=8), gain * rate) for rate in rates]
        result = conclude(TARGET, TuneOptions(), trials)
        assert result is not None
        assert result.spread == pytest.approx(0.1) and result.tolerance == 0.1
        assert (result.best is not result.default) == worth
        assert ("worth setting" in result.findings[0], "leave them" in result.findings[0]) == (worth, not worth)
        assert "this host is noisy" in result.findings[1]

    def test_no_such_gain_is_claimed_for_a_cheaper_setting_either(self) -> None:
        rates = (95, 105, 95, 105, 100)
        trials = [trial_of(self.DEFAULT, rate) for rate in rates]
        trials += [trial_of(Setting("extension", 2, 2), 1.16 * rate) for rate in rates]
        result = conclude(TARGET, TuneOptions(), trials)
        assert result is not None and result.best.setting.workers == 2
        assert result.findings[0].endswith("leave them unless cores are scarce: 2 workers instead of 4")

    @pytest.mark.parametrize(
        ("noise", "gain", "least", "most"),
        [(0.01, 1.0, 0, 0.01), (0.03, 1.0, 0, 0.06), (0.1, 1.0, 0, 0.06), (0.3, 1.0, 0, 0.06), (0.03, 1.15, 0.95, 1)],
    )
    @pytest.mark.complete
    def test_how_often_a_gain_is_claimed(self, noise: float, gain: float, least: float, most: float) -> None:
        """Rarely where there is none, and nearly always where there is one."""
        claims = 0
        for seed in range(1000):
            drawn = random.Random(seed)
            trials = [
                trial_of(
                    self.DEFAULT._replace(prefetch=prefetch),
                    100 * (1 if prefetch == 2 else gain) * (1 + noise * drawn.uniform(-1, 1)),
                )
                for _ in range(7)
                for prefetch in PREFETCHES
            ]
            result = conclude(TARGET, TuneOptions(), trials)
            claims += result is not None and result.best is not result.default
        assert least <= claims / 1000 <= most

    def test_a_consumer_does_not_wait_because_the_host_is_noisy(self) -> None:
        trials = [trial_of(self.DEFAULT, rate, 60.0) for rate in (1000, 940, 1000)]
        trials += [trial_of(Setting("extension", 2, 2), 950, 60.0)]
        result = conclude(TARGET, TuneOptions(consumer_ms=60.0), trials)
        assert result is not None and result.spread == pytest.approx(0.06)
        assert result.best.setting == self.DEFAULT

    def test_a_cheaper_setting_that_is_as_good_is_named(self) -> None:
        trials = [trial_of(self.DEFAULT, rate) for rate in (100, 100)] + [trial_of(Setting("extension", 2, 2), 99)]
        result = conclude(TARGET, TuneOptions(), trials)
        assert result is not None
        assert result.best.setting.workers == 2
        assert "the defaults are as good (-1.0%; two" in result.findings[0]
        assert result.findings[0].endswith("leave them unless cores are scarce: 2 workers instead of 4")

    def test_the_spread_is_that_between_two_trials_of_a_setting(self) -> None:
        """Not the difference between settings; and a single outlier does not count."""
        trials = [trial_of(Setting("pillow", workers, 2), 1000 * workers) for workers in (1, 2, 3)]
        assert spread_of(results_of(trials, 0.0)) is None
        trials += [trial_of(self.DEFAULT, rate) for rate in (100, 102, 100, 102, 10)]
        assert spread_of(results_of(trials, 0.0)) == pytest.approx(0.02)

    @pytest.mark.parametrize(
        ("disk_bytes", "faults", "cold"),
        [(0, 0, False), (640 * 3000, 0, False), (640 * 30_000, 0, True), (0, 64, True), (0, 6, False)],
    )
    def test_data_from_the_disk_is_mentioned(self, disk_bytes: int, faults: int, cold: bool) -> None:
        trial = trial_of(self.DEFAULT, 100, disk_bytes=disk_bytes, disk_faults=faults)
        result = conclude(TARGET, TuneOptions(), [trial])
        assert result is not None
        assert ("came from the disk" in result.findings[-1]) == cold

    def test_memory_is_that_of_all_batches_that_a_loader_keeps(self) -> None:
        trials = [trial_of(Setting("extension", workers, prefetch), 100) for workers, prefetch in ((0, 2), (3, 4))]
        assert [each.memory >> 20 for each in results_of(trials, 0.0)] == [1, 14]

"""The memory of `TrainVal` stays the same from epoch to epoch, and the benchmark of it would notice if it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import in_ranks
from helpers.support import encoded, packed, picture

from benchmarks.measure import child
from benchmarks.train_val_memory import MOST, PHASES, growth, resident, starts, through
from packtrain import Loader, StoreOptions

EPOCHS = 8
OPTIONS = {"crop": 96, "val_size": 112, "batch_size": 8, "num_workers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for number in range(24):
        (source / f"{number}.jpg").write_bytes(encoded(picture(number, 256, 256)))
    (source / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(24)))
    out = tmp_path_factory.mktemp("packed") / "set"
    return packed(source / "train.txt", out, "tar", store=StoreOptions("crop-ready"))


@pytest.mark.stress
@pytest.mark.parametrize("backend", ["packtrain", "torch", "dali-cpu"])
def test_memory_stays_the_same(folder: Path, backend: str) -> None:
    if backend == "dali-cpu":
        pytest.importorskip("nvidia.dali", reason="pip install '.[dali]'")
    # In a process of its own, so that what the back end adds is not small beside the rest.
    found = child("train_val_memory", backend, folder, EPOCHS)["bytes"]
    assert {phase: len(figures) for phase, figures in found.items()} == dict.fromkeys(PHASES, EPOCHS)
    assert growth(found["idle"]) <= MOST
    # A batch more or less is a large part of so few.
    assert growth(found["train"]) <= 3 * MOST and growth(found["val"]) <= 3 * MOST


def _leaking(rank: int, world: int, folder: Path) -> dict[str, list[int]]:
    kept: list[Any] = []
    close = Loader.close

    def leak(self: Loader) -> None:
        kept.append(np.ones(1_000_000))
        close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "close", leak)
        return through("packtrain", folder, EPOCHS, **OPTIONS)


@pytest.mark.complete
def test_a_leak_is_noticed(folder: Path) -> None:
    (found,) = in_ranks(1, _leaking, folder)
    assert growth(found["idle"]) > 2 * MOST


def test_memory_of_a_process_is_counted() -> None:
    before = resident()
    kept = torch.ones(10_000_000)
    assert 40e6 <= resident() - before < 60e6
    assert kept.sum() == 1e7


def test_the_first_batch_is_waited_for_in_both_ways(folder: Path) -> None:
    found = starts("packtrain", folder, 2, **OPTIONS)
    assert {kind: len(seconds) for kind, seconds in found.items()} == {"anew": 2, "kept": 2}

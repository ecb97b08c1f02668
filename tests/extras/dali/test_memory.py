"""Laws of the memory of DaliLoader's batches: it stays right while anybody has it, and goes when nobody has."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.dali import require_dali
from helpers.lazily import consumed, lazy
from helpers.support import encoded, packed, picture
from helpers.waiting import wait_until

from packtrain import open_dataset
from packtrain.dali import DaliLoader
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

IMAGES, BATCH, SIDE = 60, 8, 96
WARM, LAST = 20, 10
# More than what is lost by chance between two epochs, in a process of hundreds of MiB.
pytestmark = pytest.mark.complete
GROWTH = 0.03

EPOCHS = f"""
import json, sys
from packtrain import open_dataset
from packtrain.dali import DaliLoader
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

path, epochs, breaks = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "breaks"
dataset = open_dataset(path, transform=[RandomResizedCrop({SIDE}), RandomHorizontalFlip()])
found = []
with DaliLoader(dataset, {BATCH}, shuffle=True, seed=1, num_threads=2) as loader:
    for epoch in range(epochs):
        for step, (images, labels) in enumerate(loader):
            if breaks and step == epoch % 5:
                break
        del images, labels
        if breaks and epoch % 7 == 6:
            loader.close()
        found.append(resident())
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _dali() -> None:
    require_dali()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for row in range(IMAGES):
        (folder / f"{row}.jpg").write_bytes(encoded(picture(row, 160 + row, 120)))
    (folder / "train.txt").write_text("".join(f"{row}.jpg {row}\n" for row in range(IMAGES)))
    return packed(folder / "train.txt", tmp_path_factory.mktemp("packed") / "out", "tar")


def dataset(out: Path) -> Any:
    return open_dataset(out, transform=[RandomResizedCrop(SIDE), RandomHorizontalFlip()])


def test_batches_that_are_kept_keep_their_pixels(out: Path) -> None:
    with DaliLoader(dataset(out), BATCH, shuffle=True, seed=1, num_threads=2) as loader:
        kept = [(images, images.clone()) for _ in range(4) for images, _ in loader]
        # Whoever writes to one batch changes no other.
        for number, (images, copy) in enumerate(kept):
            images.fill_(number)
            copy.fill_(number)
        more = [images.clone() for images, _ in loader]
    del loader
    gc.collect()
    assert len(more) == len(kept) // 4
    assert all(torch.equal(images, copy) for images, copy in kept)


def test_an_engine_that_is_dropped_is_gone(out: Path) -> None:
    threads = len(os.listdir("/proc/self/task"))
    loader = DaliLoader(dataset(out), BATCH, shuffle=True, seed=1, num_threads=2)
    images, _ = next(iter(loader))
    copy = images.clone()
    alive = weakref.ref(loader._pipeline)
    gc.disable()
    try:
        del loader
        assert alive() is None
    finally:
        gc.enable()
    assert torch.equal(images, copy)
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= threads + 1, "its threads have ended")


def test_a_late_device_gets_the_right_pixels(out: Path) -> None:
    def newest(count: int) -> int:
        return count - 1

    options: dict[str, Any] = {"shuffle": True, "seed": 1, "mean": 0.5, "std": 0.25}
    with DaliLoader(dataset(out), BATCH, num_threads=2, **options) as reference:
        expected = [batch for _ in range(2) for batch in reference]
    for choose in (lambda count: 0, newest):
        with lazy(choose) as device, DaliLoader(dataset(out), BATCH, num_threads=2, device="cuda", **options) as loader:
            found = consumed(device, loader, 2, choose)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert all(map(torch.equal, one, other))


def resident(out: Path, epochs: int, kind: str) -> list[int]:
    command = [sys.executable, "-c", EPOCHS, str(out), str(epochs), kind]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["whole", "breaks"])
@pytest.mark.stress
def test_memory_does_not_grow(kind: str, out: Path) -> None:
    found = resident(out, WARM + 2 * LAST + 30, kind)
    first, last = sum(found[WARM : WARM + LAST]) / LAST, sum(found[-LAST:]) / LAST
    assert last < first * (1 + GROWTH)


def test_memory_of_dropped_batches_is_used_again(out: Path) -> None:
    found = resident(out, 8, "whole")
    # Four epochs hold 6.6 MB of pixels.
    assert found[-1] - found[3] < 4 * IMAGES * SIDE * SIDE * 3 // 2

"""Threads and two queues: every image comes once per epoch, with its label, and no thread is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.support import soon
from PIL import Image
from two_queues.loader import Sample, TwoQueues, read_list

# Each starts a program that imports torch: too slow for every run.
pytestmark = pytest.mark.complete

SCRIPT = Path(__file__).parents[2] / "examples/two_queues/loader.py"
COUNT, BATCH = 21, 4


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    """PNG images, each filled with its own number as the only pixel value."""
    for number in range(COUNT):
        Image.fromarray(np.full((5, 7, 3), number, np.uint8)).save(tmp_path / f"a {number}.png")
    (tmp_path / "train.txt").write_text("".join(f"a {number}.png {100 + number}\n" for number in range(COUNT)))
    return read_list(tmp_path / "train.txt")


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image))


def numbers(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[int]:
    """The numbers in the pixels, after comparing them with the labels."""
    seen: list[int] = []
    for images, labels in batches:
        assert images.shape[1:] == (5, 7, 3) and labels.dtype == torch.int64
        values = images[:, 0, 0, 0].to(torch.int64)
        assert (images == values.view(-1, 1, 1, 1)).all()
        assert (labels == 100 + values).all()
        seen += values.tolist()
    return seen


@pytest.mark.parametrize("decoders", [1, 2, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_image_comes_once_in_each_epoch(samples: list[Sample], decoders: int, drop_last: bool) -> None:
    loader = TwoQueues(samples, BATCH, tensor, decoders=decoders, drop_last=drop_last)
    for _ in range(3):
        with soon(30):
            batches = list(loader)
        assert len(batches) == len(loader)
        sizes = Counter(len(labels) for _, labels in batches)
        assert sizes == ({BATCH: 5} if drop_last else {BATCH: 5, 1: 1})
        assert max(Counter(numbers(batches)).values()) == 1


def test_threads_do_not_split_a_batch(samples: list[Sample]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with soon(30):
            batches = list(TwoQueues(samples * 20, BATCH, tensor, decoders=5, drop_last=True))
    finally:
        sys.setswitchinterval(interval)
    assert {len(labels) for _, labels in batches} == {BATCH}
    assert Counter(numbers(batches)) == dict.fromkeys(range(COUNT), 20)


def test_the_order_is_that_of_the_list_or_another_one_in_each_epoch(samples: list[Sample]) -> None:
    plain = TwoQueues(samples, BATCH, tensor, decoders=1, shuffle=False)
    assert numbers(list(plain)) == list(range(COUNT))
    shuffled = TwoQueues(samples, BATCH, tensor, decoders=1)
    assert numbers(list(shuffled)) != numbers(list(shuffled))


def test_a_loop_that_stops_early_leaves_no_thread(samples: list[Sample]) -> None:
    before = set(threading.enumerate())
    batches = iter(TwoQueues(samples, 1, tensor, batches_ahead=1))
    next(batches)
    assert len(set(threading.enumerate()) - before) == 3
    with soon(10):
        batches.close()  # type: ignore[attr-defined]  # of a generator
    assert set(threading.enumerate()) <= before


def test_a_file_that_cannot_be_read_ends_the_loop(samples: list[Sample]) -> None:
    before = set(threading.enumerate())
    with soon(10), pytest.raises(FileNotFoundError, match=r"not there\.png"):
        list(TwoQueues([*samples, ("not there.png", 0)], BATCH, tensor, shuffle=False))
    assert set(threading.enumerate()) <= before


def test_the_script_reads_the_list_once(samples: list[Sample], tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "train.txt"), "--batch-size=4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{COUNT} images, ")


def test_the_script_asks_for_a_list(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "no.txt"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "name a file of `path label` lines" in done.stderr

"""The benchmarks that train: what they measure, and what they find out about the memory of a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.support import picture
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import backends, largest_batch, pinning, training
from benchmarks.dali import on_cores
from benchmarks.decoding import LIBRARIES, box_in, with_pillow
from benchmarks.largest_batch import FINENESS, STEP, Bracket, search
from benchmarks.measure import NotInstalled, Unmeasurable
from benchmarks.peers.common import BATCH, SIDE
from benchmarks.training import ALONE, BACKENDS, ON_GPU, Trainer, is_full
from benchmarks.workloads import WORKLOADS, prepare

CPU = torch.device("cpu")
pytestmark = pytest.mark.complete


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that the back ends read."""
    images = tmp_path_factory.mktemp("images")
    for number in range(4):
        picture(number, 300, 260).save(images / f"{number}.jpg")
    (images / "train.txt").write_text("".join(f"{number}.jpg {number}\n" for number in range(4)))
    folder = tmp_path_factory.mktemp("jpegs") / "data"
    prepare(WORKLOADS["jpeg"], images / "train.txt", folder, 640)
    return folder


@given(st.dictionaries(st.integers(0, 5), st.integers(1, 100_000), min_size=1), st.integers(1, 5000))
def test_the_largest_size_that_fits_is_found_as_finely_as_said(limits: dict[int, int], start: int) -> None:
    brackets = {case: Bracket(start) for case in limits}
    tried = search(brackets, lambda case, size: size <= limits[case], seconds=60)
    for case, bracket in brackets.items():
        assert bracket.fails is not None
        assert bracket.fits <= limits[case] < bracket.fails
        assert bracket.width <= FINENESS or bracket.fails - bracket.fits < 2 * STEP
        assert len({size for size, _ in tried[case]}) == len(tried[case]) < 30


def test_a_case_that_cannot_be_tried_is_left_out_and_the_others_go_on() -> None:
    def fits(case: str, size: int) -> bool:
        if case == "absent":
            raise NotInstalled(case)
        return size < 700

    brackets = {"absent": Bracket(512), "present": Bracket(512)}
    assert list(search(brackets, fits, seconds=60)) == ["present"]
    assert brackets["present"].fits >= 672


def test_no_size_is_tried_when_the_time_is_over() -> None:
    assert search({"case": Bracket(512)}, lambda _case, _size: pytest.fail("tried"), seconds=0) == {"case": []}


def test_a_full_memory_is_told_from_other_errors() -> None:
    assert is_full(torch.OutOfMemoryError("CUDA"))
    assert is_full(RuntimeError("Error in operator: CUDA allocation failed\nCan't allocate 5 bytes on device 0."))
    assert not is_full(RuntimeError("CUDA error: an illegal memory access was encountered"))
    wrapped = ValueError("a batch cannot be made")
    wrapped.__cause__ = RuntimeError("cudaErrorMemoryAllocation: out of memory")
    assert is_full(wrapped)


def test_a_step_changes_the_network() -> None:
    trainer = Trainer("small", 10, CPU)
    before = [weight.clone() for weight in trainer._network.parameters()]
    trainer.step(torch.randn(4, 3, SIDE, SIDE), torch.arange(4))
    assert not any(map(torch.equal, before, trainer._network.parameters()))


@pytest.mark.parametrize("name", [name for name in BACKENDS if name not in ON_GPU])
def test_all_back_ends_hand_out_normalised_images(jpegs: Path, name: str, torchvision: Any) -> None:
    if name.startswith("dali"):
        pytest.importorskip("nvidia.dali")
    with closing(training.batches(name, jpegs, 16, CPU)) as stream:  # type: ignore[type-var]
        images, labels = next(stream)
    assert images.shape == (16, 3, SIDE, SIDE) and images.dtype == torch.float32
    assert -3 < images.min() < 0 < images.max() < 3
    assert labels.shape == (16,) and labels.dtype == torch.int64


def test_every_network_of_a_device_is_measured(jpegs: Path) -> None:
    found = backends.training_child("rate", "packtrain", jpegs, "cpu", 0.1)
    assert list(found) == list(training.NETWORKS["cpu"])
    assert min(found.values()) > 0


def test_the_networks_of_the_recipe_are_those_of_torchvision(torchvision: Any) -> None:
    # Nothing is computed on this device.
    with torch.device("meta"):
        for name in training.NETWORKS["cuda"]:
            network = training.network(name, 10)
            assert (network is None) == (name == ALONE)
            assert network is None or network(torch.zeros(2, 3, SIDE, SIDE)).shape == (2, 10)


@pytest.mark.parametrize("module", [largest_batch, pinning])
def test_without_a_gpu_what_needs_one_says_so(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    with pytest.raises(Unmeasurable, match="no GPU here"):
        module.measure(quick=True)


@pytest.mark.parametrize("name", pinning.MODES)
def test_copies_are_counted(name: str) -> None:
    network = "small" if name != ALONE else ALONE
    taken = 0

    def batches() -> Iterator[Any]:
        nonlocal taken
        while True:
            taken += 1
            yield torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)

    assert pinning._rate(batches(), Trainer(network, 10, CPU), CPU, 0.01) > 0
    assert taken >= 2 * pinning.STEPS and taken % pinning.STEPS == 0


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_crop_lies_within_its_image(width: int, height: int) -> None:
    left, top, right, bottom = box_in(width, height)
    assert 0 <= left < right <= width and 0 <= top < bottom <= height


def test_a_library_makes_the_bytes_that_a_network_takes(jpegs: Path) -> None:
    assert LIBRARIES == ("Pillow", "Pillow-SIMD", "accimage")
    pixels: Any = with_pillow(str(jpegs / "files" / "000000.jpg"))
    assert pixels.shape == (SIDE, SIDE, 3) and pixels.dtype == "uint8"


def test_all_sides_run_on_as_many_cores() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(1) as cores:
        assert os.sched_getaffinity(0) == set(cores) and len(cores) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("stream", ["jpeg", "evaluation"])
@pytest.mark.parametrize("tars", [False, True])
def test_dali_reads_the_files_and_the_tar_shards(jpegs: Path, stream: str, tars: bool) -> None:
    pytest.importorskip("nvidia.dali")
    from benchmarks.peers import dali

    for images, labels in islice(getattr(dali, stream)(jpegs, tars=tars), 2):
        assert images.shape == (BATCH, SIDE, SIDE, 3) and images.dtype == torch.uint8
        assert len(labels) == BATCH

"""The named tuples of samples and batches, through everything that takes a batch apart and puts it together again."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from typing import Any

import pytest
import torch
from helpers.support import import_torchvision, require_module
from torch.utils._pytree import tree_map
from torch.utils.data import default_collate

from packtrain._readers.dataset.rows import sample_type

NAMES = ("image", "mask", "caption")


def a_batch() -> Any:
    return sample_type(NAMES)(torch.arange(6).reshape(2, 3), torch.ones(2), ["a", "b"])


def assert_same(moved: Any, batch: Any) -> None:
    assert type(moved) is type(batch)
    assert torch.equal(moved.image, batch.image)
    assert torch.equal(moved.mask, batch.mask)
    assert list(moved.caption) == batch.caption


def test_the_same_names_are_the_same_class() -> None:
    assert sample_type(NAMES) is sample_type((*NAMES,))
    assert sample_type(NAMES) is not sample_type(NAMES[::-1])
    assert sample_type(NAMES)._fields == NAMES
    # A name may be that of a method of tuples, or have two underscores.
    assert sample_type(("count", "a__b"))(1, 2).a__b == 2
    assert sample_type(("a", "b__c")) is not sample_type(("a__b", "c"))


def test_threads_get_the_same_class() -> None:
    found: list[Any] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        found.extend(sample_type((f"many_{number}",)) for number in range(200))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 200


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_class_and_sample_pickle(protocol: int) -> None:
    sample = sample_type(NAMES)(1, 2, "three")
    again = pickle.loads(pickle.dumps(sample, protocol))
    assert again == sample
    assert type(again) is type(sample)
    assert pickle.loads(pickle.dumps(type(sample), protocol)) is type(sample)
    assert type(copy.deepcopy(sample)) is type(sample)


def test_a_spawned_process_finds_the_class() -> None:
    sample = sample_type(NAMES)(1, 2, "three")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(repr, (sample,)) == repr(sample)
        assert type(pool.apply(copy.copy, (sample,))) is type(sample)


@pytest.mark.parametrize("name", ["Sample()", "Sample(_a)", "Sample(a,b)", "Sample(A)", "sample", "Sample(a, b) "])
def test_nothing_else_is_found_in_the_module(name: str) -> None:
    from packtrain._readers.dataset import rows

    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(rows, name)


def test_torch_collates_samples() -> None:
    samples = [sample_type(NAMES)(torch.full((3,), i), torch.tensor(i), f"{i}") for i in range(2)]
    batch = default_collate(samples)
    assert type(batch) is sample_type(NAMES)
    assert batch.image.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert list(batch.caption) == ["0", "1"]


def test_torch_pins_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils import pin_memory

    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    # Only machines with an accelerator can pin memory.
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batch = a_batch()
    assert_same(pin_memory.pin_memory(batch), batch)  # type: ignore[no-untyped-call]
    assert len(pinned) == 2


def test_a_pytree_of_torch() -> None:
    batch = sample_type(("image", "mask"))(torch.ones(2), torch.zeros(2))
    assert tree_map(lambda tensor: tensor + 1, batch).image.tolist() == [2, 2]


@pytest.mark.complete
def test_lightning_moves_batches() -> None:
    require_module("lightning")
    # Lightning imports torchmetrics, and that imports torchvision if it is there.
    import_torchvision()
    from lightning.pytorch.utilities import move_data_to_device as move

    assert_same(move(a_batch(), torch.device("cpu")), a_batch())


def test_accelerate_moves_batches() -> None:
    require_module("accelerate")
    from accelerate.utils import send_to_device as move

    assert_same(move(a_batch(), torch.device("cpu")), a_batch())

"""The named tuples of samples and batches, through everything that takes a batch apart and puts it together again."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest

from packtrain._readers.dataset import rows
from packtrain._readers.dataset.rows import sample_type

NAMES = ("image", "mask", "caption")


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


def test_another_process_finds_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_type(NAMES)(1, 2, "three")
    data = pickle.dumps((sample, type(sample)))
    # Where nobody has asked for it yet.
    monkeypatch.setattr(rows, "_types", {})
    again, its_class = pickle.loads(data)
    assert (repr(again), type(again)) == (repr(sample), its_class)
    assert sample_type(NAMES) is its_class is not type(sample)


@pytest.mark.parametrize("name", ["Sample()", "Sample(_a)", "Sample(a,b)", "Sample(A)", "sample", "Sample(a, b) "])
def test_nothing_else_is_found_in_the_module(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(rows, name)

"""Damaged input gives an error or the image that Pillow sees, and leaks no memory."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from packtrain._codec.native import extension

if extension is None:
    pytest.skip("packtrain's C extension is not built", allow_module_level=True)

from fuzz import campaign


@pytest.mark.complete
def test_some_cases() -> None:
    number, images = campaign.run(0, 6, step=53)
    assert number > 1000 and number / 3 < images < number * 2 / 3


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2))
def test_all_cases(seed: int) -> None:
    number, images = campaign.run(seed, 30, step=2)
    assert number > 60_000 and images > 3000


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc: its fifth field counts bytes in mapped blocks, the eighth bytes in other blocks."""

    _fields_ = tuple((f"field {number}", ctypes.c_size_t) for number in range(10))


@pytest.mark.complete
def test_nothing_leaks() -> None:
    """Reading a hundred more damaged files does not increase the memory in use."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("needs glibc 2.33, which counts what is allocated")
    library.mallinfo2.restype = _Heap
    found = campaign.victims()
    random = np.random.default_rng(0)
    data = [found["progressive 4:2:0"], found["transcoded 4:2:0"], found["restarting 4:4:4"], found["record mixed"]]
    damaged = [case for each in data for case in list(campaign.cases(each, data[-1:], random, 0))[::13]]

    def used() -> int:
        for case in damaged + data:
            campaign.examine(case, np.random.default_rng(0), pixels=False)
        gc.collect()
        heap = library.mallinfo2()
        return int(getattr(heap, "field 4") + getattr(heap, "field 7"))

    used()
    before = used()
    assert abs(used() - before) < len(damaged) * 16

"""Laws of the extension as a module: it has what its Protocol declares, and nothing else."""

from __future__ import annotations

import inspect
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typing_extensions import get_protocol_members

from packtrain._codec.native import Extension, extension, selftest

if extension is None:
    pytest.skip("packtrain's C extension is not built", allow_module_level=True)


def test_it_has_the_functions_of_its_protocol_and_no_others() -> None:
    public = {name for name in dir(extension) if not name.startswith("__")}
    assert public == get_protocol_members(Extension)
    functions = {name for name in public if inspect.isbuiltin(getattr(extension, name))}
    assert functions == public - {"LIBJPEG", "LOADED"}


def test_it_names_its_libjpeg() -> None:
    assert extension is not None
    assert type(extension.LIBJPEG) is str
    assert extension.LIBJPEG.startswith(("libjpeg-turbo ", "mozjpeg "))


def test_it_names_the_libjpeg_that_is_loaded() -> None:
    """According to the kernel's list of what is mapped."""
    assert extension is not None
    version, file = extension.LOADED.split(" (")[0], extension.LOADED.rsplit(", ", 1)[1]
    assert version in ("libjpeg 62", "libjpeg 70", "libjpeg 80")
    assert os.path.realpath(file) in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
def test_it_uses_what_the_processor_has() -> None:
    """According to the kernel. A compiler's own answer may be a stub that says no."""
    assert extension is not None
    flags = set(re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)[1].split())  # type: ignore[index]
    bmi2 = {"bmi1", "bmi2", "popcnt", "sse4_1"}
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg"}
    image, small = np.zeros((4, 4, 3), np.uint8), np.zeros((2, 2, 3), np.uint8)
    uses: dict[str, tuple[set[str], Callable[[], object]]] = {
        "avx2": (
            {"avx2"},
            lambda: extension.resize_pixels(image, (4, 4, 0, 0), (2, 2, 0, 0), 2, 1, False, False, small),
        ),
        "bmi2": (bmi2, lambda: extension.coefficients(selftest._SAMPLE, "bmi2")),
        "avx512": (bmi2 | avx512, lambda: extension.coefficients(selftest._SAMPLE, "avx512")),
    }
    used = set()
    for name, (_, use) in uses.items():
        with suppress(ValueError):
            use()
            used.add(name)
    assert used == {name for name, (wanted, _) in uses.items() if wanted <= flags}


@pytest.mark.parametrize("function", ["transcode", "cut", "decode"])
def test_its_own_test_notices_what_goes_wrong(function: str) -> None:
    """Every answer of every function that is changed, left out or an error of any kind."""
    assert extension is not None and selftest.fault(extension) is None
    real, calls = getattr(extension, function), []

    def faulty(kind: str, number: int) -> object:
        def call(*arguments: object) -> object:
            calls.append(arguments)
            answer = real(*arguments)
            if len(calls) != number:
                return answer
            if kind == "error":
                raise {1: ValueError, 2: MemoryError, 3: RuntimeError}.get(number, ValueError)("no")
            if function == "cut":
                return None
            data, *rest = answer if isinstance(answer, tuple) else (answer,)
            place = rest[0] if rest else len(data) - 9
            changed = data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :]
            return (changed, *rest) if rest else changed

        return SimpleNamespace(**{**vars(extension), function: call})

    selftest.fault(faulty("none", -1))  # type: ignore[arg-type]
    count = len(calls)
    assert count >= 1
    for kind in ("changed", "error"):
        for number in range(1, count + (function != "transcode")):
            calls.clear()
            assert selftest.fault(faulty(kind, number)) is not None, (kind, number)  # type: ignore[arg-type]

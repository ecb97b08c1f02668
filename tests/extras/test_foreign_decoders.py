"""Laws of what is found beside packtrain's own decoders. The GPU is a fake; DALI is tried where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from packtrain._codec.pillow import open_image
from packtrain._core.errors import LoaderError, MissingDependency
from packtrain._extras import foreign_decoders
from packtrain._extras.foreign_decoders import ForeignDecoder, find_dali, find_gpu, has_gpu
from packtrain._readers.loader import cuda_decoder


def pixels(picture: bytes) -> torch.Tensor:
    return torch.from_numpy(np.array(open_image(memoryview(picture)).convert("RGB")))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[bytes], Any]], None]:
    """Makes this machine one with a GPU, on which a function decodes."""

    def install(decode: Callable[[bytes], Any]) -> None:
        decoder = SimpleNamespace(decode=lambda data: [decode(each) for each in data])
        monkeypatch.setattr(foreign_decoders, "has_gpu", lambda: True)
        monkeypatch.setattr(cuda_decoder, "require_codec", lambda: "1.2")
        monkeypatch.setattr(cuda_decoder, "NvImageCodec", lambda device: decoder)

    return install


def test_without_a_driver_torch_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_decoders, "_DRIVERS", ("/surely/not/there",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("torch was asked"))
    assert not has_gpu() and find_gpu() is None


def test_with_a_driver_torch_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign_decoders, "_DRIVERS", (str(tmp_path),))
    for answer in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=answer: answer)
        assert has_gpu() is answer


def test_the_pixels_are_compared(fake: Callable[..., None]) -> None:
    fake(pixels)
    assert find_gpu() == ForeignDecoder("nvImageCodec 1.2", 0, None)

    def brighter(picture: bytes) -> torch.Tensor:
        found = pixels(picture)
        found[5, 7, 1] += 3 if found[5, 7, 1] < 200 else -3
        return found

    fake(brighter)
    assert find_gpu() == ForeignDecoder("nvImageCodec 1.2", 3, None)
    fake(lambda picture: pixels(picture)[1:])
    found = find_gpu()
    assert found is not None and found.deviation is None and "shape" in str(found.problem)


def test_what_fails_is_said(fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(picture: bytes) -> None:
        raise LoaderError("out of memory")

    fake(fail)
    assert find_gpu() == ForeignDecoder("nvImageCodec 1.2", None, "out of memory")
    fake(lambda picture: None)
    assert find_gpu() == ForeignDecoder("nvImageCodec 1.2", None, "it refused an ordinary JPEG")

    def missing() -> None:
        raise MissingDependency("pip install it")

    monkeypatch.setattr(cuda_decoder, "require_codec", missing)
    assert find_gpu() == ForeignDecoder(None, None, "pip install it")


def test_dali_is_tried_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_dali()
    if found is None:
        assert find_spec("nvidia") is None or find_spec("nvidia.dali") is None
    else:
        assert found.problem is None and found.deviation is not None and found.deviation <= 8
    monkeypatch.setitem(sys.modules, "nvidia.dali", SimpleNamespace(__version__="2.4.0"))
    monkeypatch.setattr(foreign_decoders, "_by_dali", lambda picture: pixels(picture).numpy())
    assert find_dali() == ForeignDecoder("DALI 2.4.0", 0, None)

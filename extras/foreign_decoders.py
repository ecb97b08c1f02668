"""Decoders that are not packtrain's, tried on one picture: nvImageCodec on a GPU, and NVIDIA DALI on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.geometry import Box
from packtrain._codec.image_plan import ImagePlan
from packtrain._codec.pillow import open_image
from packtrain._core.errors import MissingDependency, PacktrainError
from packtrain._readers.transforms.undecoded import Undecoded

from .decoder_speed import SIZE, photograph

# Files of a GPU's driver, under Linux and under Windows' Linux.
_DRIVERS: Final = ("/proc/driver/nvidia/version", "/dev/dxg")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ForeignDecoder:
    """A decoder that is not packtrain's, tried on one picture.

    Attributes:
        name: Name and version of the decoder; None if none is installed.
        deviation: The largest difference from Pillow's pixels, in levels of 255; None if the trial failed.
        problem: Why there is no decoder, or what went wrong; None if all is well.
    """

    name: str | None
    deviation: int | None
    problem: str | None


def has_gpu() -> bool:
    """Return True if torch can use an NVIDIA GPU. Without a driver, torch is not even imported."""
    if find_spec("torch") is None or not any(Path(path).exists() for path in _DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


def find_gpu() -> ForeignDecoder | None:
    """Try the decoder of ``Loader(decode="cuda")``; None if there is no GPU."""
    if not has_gpu():
        return None
    from packtrain._readers.loader import cuda_decoder

    try:
        version = cuda_decoder.require_codec()
    except MissingDependency as error:
        return ForeignDecoder(None, None, str(error))
    return _tried(f"nvImageCodec {version}", _on_gpu)


def find_dali() -> ForeignDecoder | None:
    """Try DALI on the CPU; None if it is not installed."""
    try:
        dali: Any = importlib.import_module("nvidia.dali")
    except ModuleNotFoundError:
        return None
    except (ImportError, OSError) as error:
        return ForeignDecoder("DALI", None, str(error))
    return _tried(f"DALI {dali.__version__}", _by_dali)


def _on_gpu(picture: bytes) -> Pixels:
    import torch

    from packtrain._readers.loader import cuda_decoder

    (found,) = cuda_decoder.NvImageCodec(torch.device("cuda")).decode([picture])
    if found is None:
        raise RuntimeError("it refused an ordinary JPEG")
    pixels: Pixels = found.cpu().numpy()
    return pixels


def _by_dali(picture: bytes) -> Pixels:
    from .dali.graph import DaliOptions, DaliPipeline, inputs_of

    pipeline = DaliPipeline(SIZE, 1, DaliOptions(threads=1, depth=1))
    whole = Undecoded(picture, ImagePlan(Box(0, 0, *SIZE), None, None, mirrored=False, rest=()))
    pipeline.begin([inputs_of([whole], resizes=False)])
    return np.array(pipeline.next().at(0))


def _tried(name: str, decode: Callable[[bytes], Pixels]) -> ForeignDecoder:
    picture = photograph()
    try:
        found = decode(picture)
    except (PacktrainError, ImportError, OSError, RuntimeError) as error:
        return ForeignDecoder(name, None, str(error))
    wanted = np.asarray(open_image(memoryview(picture)).convert("RGB"), np.int16)
    if found.shape != wanted.shape:
        return ForeignDecoder(name, None, f"it decodes to the shape {found.shape}, and not to {wanted.shape}")
    return ForeignDecoder(name, int(np.abs(found.astype(np.int16) - wanted).max()), None)

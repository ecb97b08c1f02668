"""What decodes beside packtrain's own decoders: a GPU and NVIDIA DALI. What is not there is not imported."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from packtrain._codec.pillow import open_image
from packtrain._core.errors import MissingDependency, PacktrainError

from .decoder_speed import photograph

# What the drivers of a GPU put there, under Linux and under Windows' Linux.
_DRIVERS: Final = ("/proc/driver/nvidia/version", "/dev/dxg")
_DALI: Final = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-dali-cuda110")


@dataclass(frozen=True)
class TrialFacts:
    """A decoder that is not packtrain's, tried on one picture.

    Attributes:
        name: What decodes, with its version; None if nothing is installed that does.
        deviation: The largest difference from Pillow's pixels, in levels of 255; None if the trial failed.
        problem: Why there is nothing, or what went wrong; None if all is well.
    """

    name: str | None
    deviation: int | None
    problem: str | None


def has_gpu() -> bool:
    """True if torch can use an NVIDIA GPU. Without a driver, torch is not even imported."""
    if find_spec("torch") is None or not any(Path(path).exists() for path in _DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


def find_gpu() -> TrialFacts | None:
    """What decodes on the GPU, tried on one picture; None if there is no GPU."""
    if not has_gpu():
        return None
    import torch

    from packtrain._readers.loader import cuda_decoder

    try:
        name = f"nvImageCodec {cuda_decoder.require_codec()}"
    except MissingDependency as error:
        return TrialFacts(None, None, str(error))
    picture = photograph()
    try:
        (found,) = cuda_decoder.NvImageCodec(torch.device("cuda")).decode([picture])
    except (PacktrainError, ImportError, OSError, RuntimeError) as error:
        return TrialFacts(name, None, str(error))
    if found is None:
        return TrialFacts(name, None, "it refused an ordinary JPEG")
    return _compared(name, found.cpu().numpy(), picture)


def find_dali() -> TrialFacts | None:
    """DALI, tried on one picture and the CPU; None if it is not installed."""
    version = next(filter(None, map(_version, _DALI)), None)
    if version is None:
        return None
    picture = photograph()
    try:
        found = _dali_pixels(picture)
    except (ImportError, OSError, RuntimeError) as error:
        return TrialFacts(f"DALI {version}", None, str(error))
    return _compared(f"DALI {version}", found, picture)


def _dali_pixels(picture: bytes) -> npt.NDArray[np.uint8]:
    fn: Any = importlib.import_module("nvidia.dali.fn")
    pipeline: Any = importlib.import_module("nvidia.dali.pipeline")
    made = pipeline.Pipeline(batch_size=1, num_threads=1, device_id=None)
    with made:
        data = fn.external_source(lambda: [np.frombuffer(picture, np.uint8)], num_outputs=None)
        made.set_outputs(fn.decoders.image(data))
    made.build()
    (found,) = made.run()
    return np.array(found.at(0))


def _compared(name: str, found: npt.NDArray[np.uint8], picture: bytes) -> TrialFacts:
    wanted = np.asarray(open_image(memoryview(picture)).convert("RGB"), np.int16)
    if found.shape != wanted.shape:
        return TrialFacts(name, None, f"it decodes to the shape {found.shape}, and not to {wanted.shape}")
    return TrialFacts(name, int(np.abs(found.astype(np.int16) - wanted).max()), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

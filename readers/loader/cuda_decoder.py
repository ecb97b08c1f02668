"""Decoding on a GPU by nvImageCodec. Experimental: no GPU has run it yet."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
import torch.utils.dlpack

from packtrain._core.arguments import choice
from packtrain._core.cores import cores_per_rank
from packtrain._core.errors import LoaderError, MissingDependency, UsageError
from packtrain._core.overriding import override

from .decoding import BatchDecoder, ImageDecoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

# nvImageCodec's number of the CPU, which older versions do not name.
_CPU_ONLY: Final = -99999
_PACKAGES: Final = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu11")
# Regions fail or crash in 0.9 (NVIDIA/nvImageCodec#55), but packtrain only asks for whole images. Up to 0.2 it did not
# wait for the caller's stream (NVIDIA/DALI#5391). Before 0.7, its Python interface was another one.
_OLDEST: Final = (0, 7)


class NvImageCodec(ImageDecoder):
    """NVIDIA's nvImageCodec: JPEGs by the GPU's decoder or its cores, other formats by the CPU where it can.

    Args:
        device: The GPU; without an index, the current one. Or the CPU, for a decoder that needs no GPU.
    """

    def __init__(self, device: torch.device) -> None:
        library: Any = importlib.import_module("nvidia.nvimgcodec")
        self._library, self._device = library, device
        # Interpolates colours as libjpeg does. Decoders that have no such option ignore it.
        options: dict[str, Any] = {"max_num_cpu_threads": cores_per_rank(), "options": ":fancy_upsampling=1"}
        if device.type == "cpu":
            backends = [library.Backend(library.BackendKind.CPU_ONLY)]
            number = getattr(library, "NVIMGCODEC_DEVICE_CPU_ONLY", _CPU_ONLY)
            self._decoder = library.Decoder(device_id=number, backends=backends, **options)
        else:
            number = torch.cuda.current_device() if str(device) == "cuda" else device.index
            self._decoder = library.Decoder(device_id=number, **options)
        # packtrain turns no image by its EXIF orientation, as torchvision does.
        self._params = library.DecodeParams(apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB)

    @override
    def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
        streams = [self._stream(each) for each in data]
        numbers = [number for number, stream in enumerate(streams) if stream is not None]
        # The memory of the images is given back in the order of this stream, which is the one that uses them.
        on = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        try:
            images = self._decoder.decode([streams[n] for n in numbers], params=self._params, cuda_stream=on)
        except RuntimeError as error:
            raise LoaderError(f"nvImageCodec failed ({error}): try a smaller batch, or decode='cpu'") from error
        found: list[torch.Tensor | None] = [None] * len(data)
        for number, image in zip(numbers, images, strict=True):
            found[number] = self._tensor(image)
        return found

    def _stream(self, data: Buffer) -> Any:
        try:
            return self._library.CodeStream(np.frombuffer(memoryview(data), np.uint8))
        except (RuntimeError, ValueError):
            return None

    def _tensor(self, image: Any) -> torch.Tensor | None:
        if image is None:
            return None
        if image.buffer_kind == self._library.ImageBufferKind.STRIDED_HOST:
            tensor = torch.from_numpy(np.array(image)).to(self._device)
        else:
            tensor = torch.utils.dlpack.from_dlpack(image)
        fits = tensor.dtype == torch.uint8 and tensor.ndim == 3 and tensor.shape[2] == 3
        return tensor if fits else None


def decode_of(decode: Literal["cpu", "cuda"], device: torch.device | None) -> BatchDecoder | None:
    """Return what decodes batches on the device; None if the workers decode.

    Raises:
        UsageError: `decode` is unknown, or the batches do not go to a GPU.
        MissingDependency: nvImageCodec is missing or too old.
    """
    if choice("decode", decode, ("cpu", "cuda")) == "cpu":
        return None
    if device is None or device.type != "cuda":
        raise UsageError("decode='cuda' needs device='cuda', where the batches then are")
    require_codec()
    return BatchDecoder(NvImageCodec, partial(_drain, device), device)


def require_codec() -> str:
    """Return the version of nvImageCodec.

    Raises:
        MissingDependency: nvImageCodec is missing, or its version is not known to be sound.
    """
    version = next(filter(None, map(_version, _PACKAGES)), None)
    if version is not None and tuple(map(int, re.findall(r"\d+", version)[:2])) >= _OLDEST:
        return version
    major = (torch.version.cuda or "12").partition(".")[0]
    found = "is not installed" if version is None else f"{version} is too old"
    raise MissingDependency(
        f"decode='cuda' needs nvImageCodec, which {found}: `pip install -U 'nvidia-nvimgcodec-cu{major}[nvjpeg]'`, or "
        "leave decode='cpu'"
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _drain(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()

"""Decoding on a GPU: nvImageCodec, or else nvJPEG by way of torchvision. Experimental: no GPU has run it yet."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import torch
import torch.utils.dlpack
from typing_extensions import override

from packtrain._core.arguments import choice
from packtrain._core.cores import cores_per_rank
from packtrain._core.errors import LoaderError, MissingDependency, UsageError

from .decoding import BatchDecoder, ImageDecoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

# nvImageCodec's number of the CPU, which older versions do not name.
_CPU_ONLY: Final = -99999
_SOI: Final = b"\xff\xd8"


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


class Torchvision(ImageDecoder):
    """nvJPEG by way of torchvision: only JPEGs. It has no option to interpolate colours.

    Args:
        device: The GPU.

    Raises:
        MissingDependency: torchvision was built without nvJPEG.
    """

    def __init__(self, device: torch.device) -> None:
        library: Any = importlib.import_module("torchvision.io")
        if device.type == "cuda" and not hasattr(torch.ops.image, "decode_jpegs_cuda"):
            raise MissingDependency(f"this torchvision was built without nvJPEG: `pip install -U '{wanted_package()}'`")
        self._decode: Callable[[Any], Any] = partial(library.decode_jpeg, mode=library.ImageReadMode.RGB, device=device)

    @override
    def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
        found: list[torch.Tensor | None] = [None] * len(data)
        # Copies, because torch has no tensors that cannot be written.
        inputs = {n: torch.from_numpy(np.array(memoryview(d))) for n, d in enumerate(data) if _is_jpeg(d)}
        if not inputs:
            return found
        try:
            images = self._decode(list(inputs.values()))
        except RuntimeError:
            # One of them is to blame, and no others are returned.
            for number, each in inputs.items():
                with suppress(RuntimeError):
                    found[number] = self._decode(each).permute(1, 2, 0)
            return found
        for number, image in zip(inputs, images, strict=True):
            found[number] = image.permute(1, 2, 0)
        return found


def _is_jpeg(data: Buffer) -> bool:
    return bytes(memoryview(data)[:2]) == _SOI


class _Lazily(ImageDecoder):
    """A decoder that is made when it is first used: workers that are forked before that know nothing of it."""

    def __init__(self, make: Callable[[torch.device], ImageDecoder], device: torch.device) -> None:
        self._make = make
        self._device = device
        self._made: ImageDecoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": None}

    @override
    def decode(self, data: Sequence[Buffer]) -> Sequence[torch.Tensor | None]:
        if self._made is None:
            try:
                self._made = self._make(self._device)
            except (ImportError, OSError, RuntimeError) as error:
                raise LoaderError(
                    f"the GPU's decoder cannot be used ({error}): `packtrain doctor` tries it on one picture; "
                    "decode='cpu' needs none"
                ) from error
        return self._made.decode(data)


class Library(NamedTuple):
    """A library that decodes on a GPU.

    Attributes:
        module: The module that it is imported as.
        packages: Names of the distributions that have it.
        oldest: The oldest version that is known to be sound.
        unsound: What is wrong with other versions, by their first two numbers.
        make: Makes the decoder.
    """

    module: str
    packages: tuple[str, ...]
    oldest: tuple[int, int]
    unsound: dict[tuple[int, int], str]
    make: Callable[[torch.device], ImageDecoder]

    def version(self) -> str | None:
        """The version that is installed; None if there is none."""
        try:
            if importlib.util.find_spec(self.module) is None:
                return None
        except ModuleNotFoundError:
            return None
        for package in self.packages:
            with suppress(metadata.PackageNotFoundError):
                return metadata.version(package)
        return None

    def problem(self, version: str) -> str | None:
        """Why a version is not to be used; None if it may be."""
        numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
        first = (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
        if first in self.unsound:
            return self.unsound[first]
        return "it is too old" if first < self.oldest else None


LIBRARIES: Final = (
    # Regions fail or crash in 0.9 (NVIDIA/nvImageCodec#55), but packtrain only asks for whole images. Up to 0.2 it did
    # not wait for the caller's stream (NVIDIA/DALI#5391). Before 0.7, its Python interface was another one.
    Library(
        "nvidia.nvimgcodec",
        ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu11"),
        (0, 7),
        {},
        NvImageCodec,
    ),
    # Lists of images came with 0.20. It never waits for the caller's stream (pytorch/vision#9606), but packtrain does.
    Library("torchvision", ("torchvision",), (0, 20), {}, Torchvision),
)


def decode_of(decode: Literal["cpu", "cuda"], device: torch.device | None) -> BatchDecoder | None:
    """What decodes batches on the device; None: the workers decode.

    Raises:
        UsageError: `decode` is neither, or the batches do not go to a GPU.
        MissingDependency: Nothing is installed that decodes on a GPU, or no version that is known to be sound.
    """
    if choice("decode", decode, ("cpu", "cuda")) == "cpu":
        return None
    if device is None or device.type != "cuda":
        raise UsageError("decode='cuda' needs device='cuda', where the batches then are")
    return BatchDecoder(_Lazily(library().make, device), partial(_drain, device), device)


def library() -> Library:
    """The library that decodes on a GPU.

    Raises:
        MissingDependency: Nothing is installed that does, or no version that is known to be sound.
    """
    problems = []
    for each in LIBRARIES:
        version = each.version()
        if version is None:
            continue
        problem = each.problem(version)
        if problem is None:
            return each
        problems.append(f"{each.module} {version} is not used: {problem}")
    found = "; ".join(problems) or "nothing that decodes on a GPU is installed"
    raise MissingDependency(f"{found}: `pip install -U '{wanted_package()}'`, or leave decode='cpu'")


def wanted_package() -> str:
    """The distribution of nvImageCodec for the CUDA that torch was built with, with nvJPEG, which it needs."""
    major = (torch.version.cuda or "12").partition(".")[0]
    return f"nvidia-nvimgcodec-cu{major}[nvjpeg]"


def _drain(device: torch.device) -> None:
    torch.cuda.current_stream(device).synchronize()

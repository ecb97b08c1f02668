"""The contestants: each one's module, environment and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.peers.common import COEFFICIENTS, VERBATIM


@dataclass(frozen=True)
class Contestant:
    """A loader, used in one way.

    Attributes:
        module: Name of its module in benchmarks.peers.
        environment: Its key in environments.PEERS; None for packtrain's own environment.
        options: Keyword arguments for the module's streams.
        packages: Packages whose versions are recorded, in addition to torch and numpy.
        gpu: True if it is only run on a machine with a GPU.
        dtype: The type of its images.
    """

    module: str
    environment: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    gpu: bool = False
    dtype: str = "uint8"


PACKTRAIN: Final = "packtrain"
UNCHECKED: Final = "packtrain, check=False"
CHECKED_FIRST: Final = 'packtrain, check="first"'
OF_COEFFICIENTS: Final = "packtrain, coefficients"
TORCH: Final = "torch DataLoader"
TORCH_PILLOW: Final = "torch DataLoader, Pillow"
TWO_QUEUES: Final = "threads and two queues"
WEBDATASET: Final = "webdataset"
STREAMING: Final = "mosaicml-streaming"
LITDATA: Final = "litdata"
DALI: Final = "DALI, fused"
DALI_WHOLE: Final = "DALI, not fused"
DALI_TARS: Final = "DALI, webdataset reader"
DALI_LOADER: Final = "packtrain, DaliLoader"
ACCIMAGE_LOADER: Final = "packtrain, accimage"
DALI_VERBATIM: Final = "packtrain, DaliLoader, verbatim"
FFCV: Final = "FFCV"
SPDL: Final = "SPDL"
SLIPSTREAM: Final = "slipstream, JPEG"
SLIPSTREAM_PLANES: Final = "slipstream, YUV420 planes"
TURBOLOADER: Final = "TurboLoader"
COPIES: Final = "copies alone"

_PINNED: Final = {"pin_memory": True}
_OURS: Final = ("packtrain", "crc32c")
_SLIPSTREAM: Final = ("visionlab-slipstream", "numba", "PyTurboJPEG")
_DALI: Final = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")

CONTESTANTS: Final = {
    PACKTRAIN: Contestant("packtrain", packages=_OURS),
    UNCHECKED: Contestant("packtrain", options={"check": False}, packages=_OURS),
    CHECKED_FIRST: Contestant("packtrain", options={"check": "first"}, packages=_OURS),
    OF_COEFFICIENTS: Contestant("packtrain", options={"packed": COEFFICIENTS}, packages=_OURS),
    f"{PACKTRAIN}, pin_memory": Contestant("packtrain", options=_PINNED, packages=_OURS, gpu=True),
    ACCIMAGE_LOADER: Contestant(
        "packtrain", "accimage", options={"decoder": "accimage"}, packages=(*_OURS, "accimage")
    ),
    TORCH: Contestant("torch_loader", packages=("torchvision",)),
    f"{TORCH}, pin_memory": Contestant("torch_loader", options=_PINNED, packages=("torchvision",), gpu=True),
    TORCH_PILLOW: Contestant("torch_loader", "pillow", packages=("torchvision",)),
    f"{TORCH_PILLOW}, pin_memory": Contestant(
        "torch_loader", "pillow", options=_PINNED, packages=("torchvision",), gpu=True
    ),
    TWO_QUEUES: Contestant("two_queues", packages=("torchvision",)),
    WEBDATASET: Contestant("webdataset", "webdataset", packages=("webdataset",)),
    STREAMING: Contestant("streaming", "streaming", packages=("mosaicml-streaming",)),
    LITDATA: Contestant("litdata", "litdata", packages=("litdata",)),
    DALI: Contestant("dali", "dali", options={"fused": True}, packages=_DALI),
    DALI_WHOLE: Contestant("dali", "dali", options={"fused": False}, packages=_DALI),
    DALI_TARS: Contestant("dali", "dali", options={"tars": True}, packages=_DALI),
    DALI_LOADER: Contestant("dali_loader", "dali", packages=(*_OURS, *_DALI)),
    DALI_VERBATIM: Contestant("dali_loader", "dali", options={"packed": VERBATIM}, packages=(*_OURS, *_DALI)),
    FFCV: Contestant("ffcv", "ffcv", packages=("ffcv", "numba", "opencv-python-headless")),
    SPDL: Contestant("spdl", "spdl", packages=("spdl", "spdl_io")),
    SLIPSTREAM: Contestant("slipstream", "slipstream", packages=_SLIPSTREAM),
    SLIPSTREAM_PLANES: Contestant("slipstream", "slipstream", options={"planes": True}, packages=_SLIPSTREAM),
    TURBOLOADER: Contestant("turboloader", "turboloader", packages=("turboloader",), dtype="float32"),
    COPIES: Contestant("copying"),
}

"""packtrain packs an image training set once, stages it next to the GPU, and feeds it to a PyTorch training loop.

    from packtrain import Loader, open_dataset
    from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

What users import is on this page and in `packtrain.transforms`, `packtrain.staging` and `packtrain.errors`. Whatever
begins with an underscore may change in any version. A name is imported when it is first used, so that
``import packtrain`` loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packtrain._packer import PackOptions, PackProgress, PackReport, Problem, VerifyProgress, VerifyReport
    from packtrain._packer import pack as pack
    from packtrain._packer import verify as verify
    from packtrain._readers.dataset.image_dataset import ImageDataset, PackedDataset, concat, open_dataset
    from packtrain._readers.loader import BlockShuffled, Loader, Order, Sequential, Shuffled, Weighted
    from packtrain._readers.monitoring.monitor import watch
    from packtrain._readers.tuning import TuneOptions, TuneResult, tune
    from packtrain._staging import Staged, StageOptions, StageProgress, stage

    from . import errors, staging, transforms

    __version__: str

_HOMES = {
    "._readers.dataset.image_dataset": ("ImageDataset", "PackedDataset", "concat", "open_dataset"),
    "._readers.loader": ("BlockShuffled", "Loader", "Order", "Sequential", "Shuffled", "Weighted"),
    "._readers.monitoring.monitor": ("watch",),
    "._readers.tuning": ("TuneOptions", "TuneResult", "tune"),
    "._packer": (
        "PackOptions",
        "PackProgress",
        "PackReport",
        "Problem",
        "VerifyProgress",
        "VerifyReport",
        "pack",
        "verify",
    ),
    "._staging": ("StageOptions", "StageProgress", "Staged", "stage"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("errors", "staging", "transforms")

__all__ = [
    "BlockShuffled",
    "ImageDataset",
    "Loader",
    "Order",
    "PackOptions",
    "PackProgress",
    "PackReport",
    "PackedDataset",
    "Problem",
    "Sequential",
    "Shuffled",
    "StageOptions",
    "StageProgress",
    "Staged",
    "TuneOptions",
    "TuneResult",
    "VerifyProgress",
    "VerifyReport",
    "Weighted",
    "__version__",
    "concat",
    "errors",
    "open_dataset",
    "pack",
    "stage",
    "staging",
    "transforms",
    "tune",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        from importlib import metadata

        return metadata.version(__name__)
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return __all__

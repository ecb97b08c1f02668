"""Reading packed datasets: `open_dataset` and what it returns.

torch is imported when a name that needs it is first used, so that `packtrain.readers.store` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import ImageDataset, PackedDataset, open_dataset
    from .loader import Loader
    from .store import RecordStore
    from .views import Concat, Subset, concat
    from .watched import watch

__all__ = [
    "Concat",
    "ImageDataset",
    "Loader",
    "PackedDataset",
    "RecordStore",
    "Subset",
    "concat",
    "open_dataset",
    "watch",
]

_HOME = {
    "Concat": "packtrain.readers.views",
    "Loader": "packtrain.readers.loader",
    "RecordStore": "packtrain.readers.store",
    "Subset": "packtrain.readers.views",
    "concat": "packtrain.readers.views",
    "watch": "packtrain.readers.watched",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME.get(name, "packtrain.readers.dataset")), name)


def __dir__() -> list[str]:
    return __all__
